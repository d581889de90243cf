"""Ids of requests and responses."""

import secrets

from starlette.types import Scope

MAX_REQUEST_ID = 128


def fresh(prefix: str) -> str:
    """A new random id."""
    return f"{prefix}{secrets.token_hex(16)}"


def request_id(scope: Scope) -> str:
    """The client's `X-Request-Id` if it is valid, else a new one."""
    return given_request_id(scope) or fresh("req_")


def given_request_id(scope: Scope) -> str:
    """The client's `X-Request-Id`; empty if it is missing or not safe to write to a log."""
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return given if len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else ""
