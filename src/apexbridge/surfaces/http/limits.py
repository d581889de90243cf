"""A cap on request bodies, counted as they arrive, whatever the headers promise."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge.errors import RequestError
from apexbridge.surfaces.http.errors import error_response

MAX_BODY_BYTES = 8 * 1024 * 1024
_OWN_LIMIT = {"/api/skills", "/api/skills/install", "/api/skills/validate", "/api/uploads"}
"""Uploads count for themselves and go to disk."""


class BodyLimit:
    """Refuses a body above the cap with 413, before it is held in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting."""
        if scope["type"] != "http" or scope["path"] in _OWN_LIMIT:
            await self._app(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise _TooLargeError
            return message

        try:
            await self._app(scope, counted, send)
        except _TooLargeError:
            error = RequestError(
                f"The body is larger than {MAX_BODY_BYTES // 1024 // 1024} MB", code="PAYLOAD_TOO_LARGE"
            )
            await error_response(error)(scope, receive, send)


class _TooLargeError(BaseException):
    """Travels past every handler of the app, up to the limit that raised it."""
