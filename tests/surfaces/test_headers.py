"""Headers of requests that are there twice, and of answers that a browser gets."""

import httpx
import pytest

from tests.making import skill_zip

pytestmark = pytest.mark.anyio
ZIP = {"content-type": "application/zip"}


@pytest.mark.parametrize(
    "path",
    ["/docs", "/openapi.json", "/docs/static/swagger-ui-bundle.js", "/healthz", "/api/skills", "/api/none", "/v1/none"],
)
async def test_no_answer_can_be_framed_or_taken_for_something_else(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_download_keeps_its_own_policy(client: httpx.AsyncClient) -> None:
    await client.post("/api/skills", content=skill_zip(), headers=ZIP)
    answer = await client.get("/api/skills/git-commit/files/SKILL.md")
    assert answer.headers.get_list("content-security-policy") == ["sandbox; default-src 'none'; frame-ancestors 'none'"]
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


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
async def test_a_header_that_decides_is_not_taken_twice(
    client: httpx.AsyncClient, name: str, values: tuple[str, str]
) -> None:
    headers = [(name, value) for value in values]
    if name != "content-type":
        headers.append(("content-type", "application/json"))
    answer = await client.post("/api/tools/calculate/execute", content=b'{"input":{"expression":"1"}}', headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
    assert f"{name} twice" in answer.json()["message"]
