"""Errors below `/v1`: OpenAI's shape, or Anthropic's for a request with one of Anthropic's headers."""

import httpx
import pytest

from apexbridge.surfaces.http.transport.api_dialects import anthropic_betas, anthropic_error, is_anthropic

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("header", ["anthropic-version", "Anthropic-Beta"])
async def test_an_anthropic_request_gets_anthropics_error_shape(client: httpx.AsyncClient, header: str) -> None:
    response = await client.get("/v1/none", headers={header: "anything"})
    assert response.status_code == 404
    assert response.json() == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "No route GET /v1/none. See /docs."},
        "request_id": response.headers["request-id"],
    }
    assert response.headers["request-id"] == response.headers["x-request-id"]


async def test_other_requests_keep_their_shapes(client: httpx.AsyncClient) -> None:
    openai = await client.get("/v1/none")
    assert openai.json()["error"]["code"] == "not_found"
    assert "request-id" not in openai.headers
    ours = await client.get("/api/none", headers={"anthropic-version": "2023-06-01"})
    assert ours.json()["code"] == "NOT_FOUND"
    assert "request-id" not in ours.headers


async def test_a_refused_host_is_answered_in_anthropics_shape(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models", headers={"anthropic-version": "x", "host": "evil.example"})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "conflict_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (507, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_type_of_an_anthropic_error_follows_from_its_status(status: int, kind: str) -> None:
    assert anthropic_error("m", status=status, request_id="r")["error"]["type"] == kind


def test_betas_are_read_from_all_headers() -> None:
    headers = [(b"anthropic-beta", b"a, b"), (b"anthropic-beta", b"c")]
    assert anthropic_betas({"headers": headers}) == {"a", "b", "c"}
    assert not is_anthropic({"path": "/v1/skills", "headers": []})
