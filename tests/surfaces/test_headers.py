"""Duplicate request headers, and security headers of responses."""

import httpx
import pytest

from tests.making import skill_zip

pytestmark = pytest.mark.anyio
ZIP = {"content-type": "application/zip"}


@pytest.mark.parametrize(
    "path",
    ["/docs", "/openapi.json", "/docs/static/swagger-ui-bundle.js", "/healthz", "/api/skills", "/api/none", "/v1/none"],
)
async def test_every_response_has_security_headers(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


async def test_a_download_has_its_own_content_security_policy(client: httpx.AsyncClient) -> None:
    await client.post("/api/skills", content=skill_zip(), headers=ZIP)
    response = await client.get("/api/skills/git-commit/files/SKILL.md")
    assert response.headers.get_list("content-security-policy") == [
        "sandbox; default-src 'none'; frame-ancestors 'none'"
    ]
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("origin", ("http://evil.example", "http://localhost")),
        ("origin", ("http://localhost", "http://localhost")),
        ("sec-fetch-site", ("cross-site", "same-origin")),
        ("host", ("localhost", "localhost")),
        ("content-type", ("application/json", "application/json")),
    ],
)
async def test_a_duplicate_security_header_is_refused(
    client: httpx.AsyncClient, name: str, values: tuple[str, str]
) -> None:
    headers = [(name, value) for value in values]
    if name != "content-type":
        headers.append(("content-type", "application/json"))
    response = await client.post(
        "/api/tools/calculate/execute", content=b'{"input":{"expression":"1"}}', headers=headers
    )
    assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN")
    assert f"{name} twice" in response.json()["message"]
