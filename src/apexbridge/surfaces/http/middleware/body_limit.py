"""Limits on request bodies: their size, counted on arrival regardless of the headers, and the shape of JSON."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.surfaces.http.middleware.scopes import UPLOAD_PATHS
from apexbridge.surfaces.http.transport.error_responses import answer_error

MAX_BODY_BYTES = 8 * 1024 * 1024
_ADVICE = "Send large data as a file (POST /api/uploads)."


class BodyLimit:
    """Refuses a body above the limit with 413 before it is in memory, and a bad JSON shape before it is parsed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UPLOAD_PATHS:  # these have their own limits
            await self._app(scope, receive, send)
            return
        received = 0
        pieces: list[bytes] = []

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            piece = message.get("body", b"")
            received += len(piece)
            if received > MAX_BODY_BYTES:
                raise _RefusedError(
                    RequestError(
                        f"The body is larger than {MAX_BODY_BYTES // 1024 // 1024} MB", code="PAYLOAD_TOO_LARGE"
                    )
                )
            if piece:
                pieces.append(piece)
            if pieces and message["type"] == "http.request" and not message.get("more_body", False):
                whole = b"".join(pieces)
                pieces.clear()
                _check(whole)
            return message

        try:
            await self._app(scope, counted, send)
        except _RefusedError as refused:
            await answer_error(refused.error, scope, receive, send)


def _check(body: bytes) -> None:
    if b"\0" in body:  # UTF-16 or UTF-32, in which check_shape does not recognize brackets and quotes
        raise _RefusedError(InvalidInputError("The body must be JSON in UTF-8; it holds zero bytes"))
    try:
        check_shape(body)
    except JsonShapeError as error:
        raise _RefusedError(InvalidInputError(f"The JSON of the body is refused: {error}. {_ADVICE}")) from error


class _RefusedError(BaseException):
    """A BaseException, so that no handler of the app catches it before BodyLimit does."""

    def __init__(self, error: ApexBridgeError) -> None:
        super().__init__(error.message)
        self.error = error
