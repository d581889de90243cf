"""Files as downloads. They are untrusted, so a browser must save them and not display them."""

from collections.abc import AsyncIterator
from typing import IO, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

SEND_BYTES = 256 * 1024
DOWNLOAD_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
}


def download(file: IO[bytes], filename: str, media_type: str) -> StreamingResponse:
    """Send an open file as an attachment, then close it."""

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await anyio.to_thread.run_sync(file.read, SEND_BYTES):
            yield piece

    disposition = f"attachment; filename*=UTF-8''{quote(filename, safe='')}"
    headers = {**DOWNLOAD_HEADERS, "Content-Disposition": disposition}
    return _Download(file, pieces(), media_type=media_type, headers=headers)


class _Download(StreamingResponse):
    """Closes its file even if nothing is sent."""

    def __init__(self, file: IO[bytes], pieces: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(pieces, **options)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
