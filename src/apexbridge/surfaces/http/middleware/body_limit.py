"""A cap on request bodies, counted as they arrive, whatever the headers promise, and on the shape of their JSON."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.surfaces.http.middleware.scopes import UPLOAD_PATHS
from apexbridge.surfaces.http.transport.error_responses import answer_error

MAX_BODY_BYTES = 8 * 1024 * 1024
_ADVICE = "Send large data as a file (POST /api/uploads)."


class BodyLimit:
    """Refuses a body above the cap with 413 before it is held in memory, and a bad shape before it is parsed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting."""
        if scope["type"] != "http" or scope["path"] in UPLOAD_PATHS:  # these have a limit of their own
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
    if b"\0" in body:  # UTF-16 and its kin, in which brackets and quotes look different
        raise _RefusedError(InvalidInputError("The body must be JSON in UTF-8; it holds zero bytes"))
    try:
        check_shape(body)
    except JsonShapeError as error:
        raise _RefusedError(InvalidInputError(f"The JSON of the body is refused: {error}. {_ADVICE}")) from error


class _RefusedError(BaseException):
    """Travels past every handler of the app, up to the limit that raised it."""

    def __init__(self, error: ApexBridgeError) -> None:
        super().__init__(error.message)
        self.error = error
