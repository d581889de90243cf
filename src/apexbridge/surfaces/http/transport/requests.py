"""Facts about a request: its id and its caller."""

import secrets

from starlette.types import Scope

MAX_REQUEST_ID = 128


def fresh_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def request_id(scope: Scope) -> str:
    """The client's `X-Request-Id` if it is valid, else a new one."""
    return client_request_id(scope) or fresh_id("req_")


def client_request_id(scope: Scope) -> str:
    """The client's `X-Request-Id`; empty if it is missing or not safe to write to a log."""
    id = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return id if len(id) <= MAX_REQUEST_ID and id.isascii() and id.isprintable() else ""


def caller_of(scope: Scope) -> str:
    """The id of the request's API key; empty if it was admitted without one."""
    return str(scope.get("state", {}).get("caller", ""))
