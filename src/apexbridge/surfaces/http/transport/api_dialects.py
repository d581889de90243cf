"""The two dialects below `/v1`: Anthropic's clients are recognized by their headers, all others speak OpenAI's."""

from typing import Any

from starlette.types import Scope

API_PREFIX = "/v1/"
MESSAGES_PATH = "/v1/messages"
"""Only Anthropic's, with or without the headers."""
_ANTHROPIC_HEADERS = frozenset({b"anthropic-version", b"anthropic-beta"})
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is in Anthropic's dialect: below `/v1`, with one of its headers and any version in it,
    or for the Messages API.
    """
    path = scope.get("path", "")
    if not path.startswith(API_PREFIX):
        return False
    return path.startswith(MESSAGES_PATH) or any(name in _ANTHROPIC_HEADERS for name, _ in scope.get("headers", ()))


def anthropic_betas(scope: Scope) -> frozenset[str]:
    """The names in the header `anthropic-beta`, which may be repeated."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"anthropic-beta"]
    return frozenset(beta.strip() for value in values for beta in value.split(","))


def anthropic_error(message: str, *, status: int, request_id: str) -> dict[str, Any]:
    """The body of an error in Anthropic's shape; its type follows from the status."""
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
