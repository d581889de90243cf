"""Facts about a request: its id and its caller."""

import secrets
from collections.abc import Collection

from starlette.types import Scope

MAX_REQUEST_ID = 128
REQUEST_ID = "request_id"
"""Key of the request's state: the id that the access log has for it."""


def fresh_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def request_id(scope: Scope) -> str:
    """The id in the access log, else the client's `X-Request-Id` if it is valid, else a new one."""
    if known := scope.get("state", {}).get(REQUEST_ID):
        return str(known)
    return client_request_id(scope) or fresh_id("req_")


def client_request_id(scope: Scope) -> str:
    """The client's `X-Request-Id`; empty if it is missing or not safe to write to a log."""
    id = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return id if len(id) <= MAX_REQUEST_ID and id.isascii() and id.isprintable() and " " not in id else ""


def route_of(scope: Scope, unrouted: Collection[str]) -> str | None:
    """The template of the path; None if the request was refused before it reached a route, or there is none.

    `unrouted` are the paths that are served without the router.
    """
    if scope["path"] in unrouted:
        return str(scope["path"]).rstrip("/")
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None


def is_owner(scope: Scope) -> bool:
    """Whether the request is of the data directory's owner, who can read every file that the server can."""
    return bool(scope.get("state", {}).get("is_owner", False))


def caller_of(scope: Scope) -> str:
    """The id of the request's API key; empty if it was admitted without one."""
    return str(scope.get("state", {}).get("caller", ""))
