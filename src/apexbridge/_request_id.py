"""The request on behalf of which code runs; every line of its log has the id."""

from contextvars import ContextVar

REQUEST_ID: ContextVar[str | None] = ContextVar("apexbridge_request_id", default=None)
"""Set by the HTTP server. Tasks and threads inherit it; `start_shared` starts tasks without it."""
