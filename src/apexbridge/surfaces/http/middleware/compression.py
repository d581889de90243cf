"""Compression of JSON, and 304 for JSON that the client has already."""

import gzip
import hashlib
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._tasks import in_thread
from apexbridge.errors import ServerError
from apexbridge.surfaces.http.transport.content_coding import accepts_gzip, is_known
from apexbridge.surfaces.http.transport.error_responses import answer_error
from apexbridge.surfaces.http.transport.response_pacing import CHUNK_BYTES, held_by

MIN_BYTES = 1024
"""Smaller answers fit into one packet anyway."""
MAX_BYTES = 16 * 1024 * 1024
"""Larger ones would occupy a thread for long."""
INLINE_BYTES = 8 * 1024
"""Compressed in the event loop, in less time than a thread needs to start. Larger ones go to a thread."""
LEVEL = 4
"""Half the time of level 6, for answers that are 3 % larger."""
TAGGED = "/api/"
"""Answers of our own API get an entity tag. APIs of others do not have one."""


class CompressedAnswers:
    """Compresses JSON answers to GET, and replaces them by 304 if the client has them.

    Only answers that are sent as one message: streams and downloads pass unchanged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        is_refused = False

        async def watched(message: Message) -> None:
            nonlocal start, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start" and _is_json(message):
                start = message  # sent with the body, which decides about its headers
                return
            if start is not None:
                head, start = start, None
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    size = len(message.get("body", b""))
                    head, message = await _encoded(head, message, scope)
                    saved = size - len(message["body"])
                    try:
                        # The application holds the original until the compressed body is sent.
                        with held_by(scope, saved if size > CHUNK_BYTES else 0):
                            await send(head)
                            await send(message)
                    except ServerError as error:
                        is_refused = True
                        await answer_error(error, scope, receive, send)
                    return
                await send(head)
            await send(message)

        await self._app(scope, receive, watched)


def _is_json(start: Message) -> bool:
    headers = dict(start.get("headers", ()))
    return (
        start["status"] == 200
        and headers.get(b"content-type", b"").partition(b";")[0].strip() == b"application/json"
        and b"content-length" in headers
        and b"content-encoding" not in headers
        and b"content-disposition" not in headers
    )


async def _encoded(start: Message, message: Message, scope: Scope) -> tuple[Message, Message]:
    body: bytes = message.get("body", b"")
    headers = dict(start["headers"])
    request = dict(scope["headers"])
    is_large = MIN_BYTES < len(body) <= MAX_BYTES
    compress = is_large and accepts_gzip(_text(request, b"accept-encoding"))
    known = _text(request, b"if-none-match")
    is_tagged = scope["path"].startswith(TAGGED) and b"etag" not in headers and len(body) <= MAX_BYTES
    if len(body) <= INLINE_BYTES:
        tag, packed = _work(body, is_tagged=is_tagged, known=known, compress=compress)
    else:
        tag, packed = await in_thread(_work, body, is_tagged=is_tagged, known=known, compress=compress)
    if tag is not None:
        headers[b"etag"] = tag.encode()
        headers.setdefault(b"cache-control", b"private, no-cache")
    if is_large:
        headers[b"vary"] = b", ".join([*([headers[b"vary"]] if b"vary" in headers else []), b"Accept-Encoding"])
    if tag is not None and is_known(tag, known):
        del headers[b"content-length"], headers[b"content-type"]
        return {**start, "status": 304, "headers": list(headers.items())}, {**message, "body": b""}
    if packed is not None:
        headers[b"content-encoding"] = b"gzip"
        headers[b"content-length"] = str(len(packed)).encode()
        if tag is None and b"etag" in headers and not headers[b"etag"].startswith(b"W/"):
            headers[b"etag"] = b"W/" + headers[b"etag"]  # other bytes than those that the strong tag names
        message = {**message, "body": packed}
    return {**start, "headers": list(headers.items())}, message


def _work(body: bytes, *, is_tagged: bool, known: str | None, compress: bool) -> tuple[str | None, bytes | None]:
    """The tag, and the compressed body unless the client has it."""
    tag = f'W/"{hashlib.blake2b(body, digest_size=16).hexdigest()}"' if is_tagged else None
    if not compress or (tag is not None and is_known(tag, known)):
        return tag, None
    return tag, gzip.compress(body, LEVEL, mtime=0)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    return headers[name].decode("latin-1") if name in headers else None
