"""Bodies that are cheap to send and expensive to parse, for every route that accepts JSON."""

import json
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.surfaces.http.app import create_app
from tests.making import skill_zip

pytestmark = pytest.mark.anyio
MAX_RESPONSE_BYTES = 16 * 1024
MANY = 50_000
"""Below the limit of values: the request reaches validation."""
BODY_BYTES = 2 * 1024 * 1024
"""Enough for too many values, and quick to send."""


@pytest.fixture
def operations(bridge: Bridge) -> list[tuple[str, str]]:
    """Method and path of every route that accepts JSON."""
    document = create_app(bridge).openapi()
    return [
        (method.upper(), path.replace("{name}", "git-commit").replace("{id}", "calculate").replace("{change}", "x"))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]


async def send(client: httpx.AsyncClient, method: str, path: str, body: str) -> httpx.Response:
    return await client.request(method, path, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({f"field{number}": 0 for number in range(MANY)}),
        json.dumps({"x" * 100_000: 0}),
        json.dumps({"input": 0, "query": {}, "tags": [0] * MANY, "args": [0] * MANY, "files": [0] * MANY}),
        json.dumps({"scopes": [0] * MANY, "name": [], "customPaths": [0] * MANY, "messages": [0] * MANY}),
        json.dumps([0] * MANY),
    ],
    ids=["fields", "a long name", "lists", "more lists", "a list"],
)
async def test_an_error_response_is_short_for_any_number_of_errors(
    client: httpx.AsyncClient, operations: list[tuple[str, str]], body: str
) -> None:
    assert len(operations) > 10
    for method, path in operations:
        response = await send(client, method, path, body)
        assert 400 <= response.status_code < 500, (method, path, response.text[:200])
        assert len(response.content) < MAX_RESPONSE_BYTES, (method, path)


@pytest.mark.parametrize(
    "unit", ["[],", "0,", '"",', '{"a":0},', "[[]],"], ids=["lists", "numbers", "texts", "objects", "nested"]
)
async def test_a_body_with_too_many_values_is_refused_before_it_is_parsed(client: httpx.AsyncClient, unit: str) -> None:
    await client.post("/api/skills/install", files={"file": ("skill.zip", skill_zip())})
    body = '{"input": {"a": [' + unit * ((BODY_BYTES - 100) // len(unit)) + "0]}}"
    for path in ("/api/skills/git-commit/execute", "/api/tools/calculate/execute"):
        response = await send(client, "POST", path, body)
        assert (response.status_code, response.json()["code"]) == (422, "INVALID_INPUT")
        assert "values" in response.json()["message"]


async def test_a_chat_with_too_many_values_is_refused_with_an_openai_error(client: httpx.AsyncClient) -> None:
    messages = ",".join(['{"role":"user","content":"a"}'] * 100_000)
    response = await send(client, "POST", "/v1/chat/completions", f'{{"messages": [{messages}]}}')
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_large_texts_and_many_values_within_the_limit_are_accepted(client: httpx.AsyncClient) -> None:
    await client.post("/api/skills/install", files={"file": ("skill.zip", skill_zip())})
    payloads: list[dict[str, Any]] = [{"a": "x" * 7_000_000}, {"a": list(range(90_000))}, {"a": "[," * 1_000_000}]
    for payload in payloads:
        response = await client.post("/api/skills/git-commit/execute", json={"input": payload})
        assert response.status_code == 200, response.text[:200]
