"""JSON responses and downloads.

Long texts are encoded while they are sent, at the speed at which the client reads. They are never in memory as one JSON
document.
"""

import asyncio
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from json.encoder import encode_basestring
from typing import IO, Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from apexbridge._tasks import in_thread
from apexbridge.errors import RequestError, ToolExecutionError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.runs.run_views import STREAMS, LongOutput, RecordedText, TextSource
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.surfaces.http.transport.error_responses import error_response
from apexbridge.surfaces.http.transport.response_pacing import held_by
from apexbridge.wire import WireModel

LARGE_CHARACTERS = 64 * 1024
CHUNK_CHARACTERS = 32 * 1024
"""Encoded at a time. JSON needs up to six bytes per character."""
SEND_BYTES = 256 * 1024
DOWNLOAD_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
}
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,15})-(?P<last>[0-9]{0,15})\Z", re.IGNORECASE)
EVENT_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
_RUN_ID = re.compile(r"[0-9a-f]{32}\Z")


def long_output(runs: RunTracker, result: ExecutionResult) -> LongOutput:
    return runs.long_output(result.id, {name: getattr(result, name) for name in STREAMS})


def long_output_of(runs: RunTracker, data: Any) -> LongOutput:
    """The long streams of a result that a tool returned; empty if it is not the result of a run."""
    if not isinstance(data, dict) or "exitCode" not in data or not _RUN_ID.match(str(data.get("id"))):
        return {}
    return runs.long_output(data["id"], {name: str(data.get(name, "")) for name in STREAMS})


def json_response(answer: WireModel, *, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _response(answer.model_dump_json(), status_code, headers)


def result_response(result: ExecutionResult, texts: LongOutput, *, headers: dict[str, str] | None = None) -> Response:
    if not texts:
        return json_response(result, headers=headers)
    placeholders = Placeholders()
    document = outlined(result, texts, placeholders).model_dump_json()
    return _LargeResponse(placeholders.fill(document), _held(texts), headers)


def detail_response(detail: WireModel, result: ExecutionResult | None, texts: LongOutput) -> Response:
    """A response with an object that contains a run's result. `texts` replaces its long streams."""
    if not texts or result is None:
        return json_response(detail)
    placeholders = Placeholders()
    document = detail.model_copy(update={"result": outlined(result, texts, placeholders)}).model_dump_json()
    return _LargeResponse(placeholders.fill(document), _held(texts), None)


def outlined(result: ExecutionResult, texts: LongOutput, placeholders: "Placeholders") -> ExecutionResult:
    """The result with placeholders in place of its long streams."""
    return result.model_copy(update={name: placeholders.put(text) for name, text in texts.items()})


def without_output(result: ExecutionResult) -> ExecutionResult:
    return result.model_copy(update=dict.fromkeys(STREAMS, ""))


async def data_response(data: Any, texts: LongOutput, *, headers: dict[str, str] | None = None) -> Response:
    """A response with a tool's result object. `texts` replaces the long streams of a run."""
    long: dict[str, TextSource] = {
        name: value
        for name, value in (data.items() if isinstance(data, dict) else ())
        if isinstance(value, str) and len(value) > LARGE_CHARACTERS
    }
    long |= texts
    if "stdout" in texts and "output" in data:
        long["output"] = texts["stdout"]
    if not long:
        return _response(_json(data), 200, headers)
    placeholders = Placeholders()
    outline = {**data, **{name: placeholders.put(text) for name, text in long.items()}}
    document = await asyncio.to_thread(_json, outline)
    return _LargeResponse(placeholders.fill(document), _held(long), headers)


class _LargeResponse(StreamingResponse):
    """Counts the bytes it holds in memory against its caller's limit of unread responses."""

    def __init__(self, chunks: AsyncIterator[bytes], held: int, headers: Mapping[str, str] | None) -> None:
        super().__init__(chunks, media_type="application/json", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with held_by(scope, self._held):
            await super().__call__(scope, receive, send)


def _held(texts: Mapping[str, TextSource]) -> int:
    return sum(len(text) for text in texts.values() if isinstance(text, str))


def _json(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError as error:
        raise ToolExecutionError("The tool returned a number that JSON does not have") from error


def _response(body: str, status_code: int, headers: dict[str, str] | None) -> Response:
    return Response(
        body.encode("utf-8", "replace"), status_code=status_code, media_type="application/json", headers=headers
    )


class Placeholders:
    """Replaces long texts in a document. They are encoded when they are sent."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)  # not guessable, so that no text can contain a placeholder
        self._texts: list[TextSource] = []

    def put(self, text: TextSource) -> str:
        """Add a long text and return the placeholder to write into the document."""
        self._texts.append(text)
        return f"{self._token}-{len(self._texts) - 1}-"

    async def fill(self, document: str) -> AsyncIterator[bytes]:
        """Yield a JSON document with each placeholder replaced by its text."""
        head, *others = re.split(f"{self._token}-([0-9]+)-", document)
        yield head.encode("utf-8", "replace")
        for number, tail in zip(others[::2], others[1::2], strict=True):
            async for chunk in _encoded(self._texts[int(number)]):
                yield chunk
            yield tail.encode("utf-8", "replace")


async def _encoded(text: TextSource) -> AsyncIterator[bytes]:
    if isinstance(text, RecordedText):
        source = text.chunks()
        try:
            while (chunk := await in_thread(_next_encoded, source)) is not None:
                yield chunk
        finally:
            source.close()  # type: ignore[attr-defined]  # a generator
        return
    for start in range(0, len(text), CHUNK_CHARACTERS):
        yield _escaped(text[start : start + CHUNK_CHARACTERS])
        await asyncio.sleep(0)


def _next_encoded(source: Iterator[str]) -> bytes | None:
    text = next(source, None)
    return None if text is None else _escaped(text)


def _escaped(text: str) -> bytes:
    """The text as it appears between the quotes of a JSON string."""
    return encode_basestring(text)[1:-1].encode("utf-8", "replace")


def download(file: IO[bytes], filename: str, media_type: str) -> StreamingResponse:
    """Send an open file as an attachment, then close it. It is untrusted: a browser must save it, not display it."""

    async def chunks() -> AsyncIterator[bytes]:
        while chunk := await in_thread(file.read, SEND_BYTES):
            yield chunk

    return _Download(file, chunks(), media_type=media_type, headers=_download_headers(filename))


def download_part(request: Request, file: IO[bytes], filename: str) -> Response:
    """As `download`, or the part of the file that the request's `Range` names.

    A header that is invalid or names several ranges is ignored, and so is every range of an empty file.
    """
    size = os.fstat(file.fileno()).st_size
    found = _range_of(request, size) if size else None
    if found is None:
        whole = download(file, filename, "application/octet-stream")
        whole.headers["accept-ranges"] = "bytes"
        return whole
    start, stop = found
    if start >= stop:
        file.close()
        error = RequestError(f"The file has {size} bytes; the range is outside of it.", code="RANGE_NOT_SATISFIABLE")
        return error_response(error, request.scope, {"Content-Range": f"bytes */{size}"})

    async def chunks() -> AsyncIterator[bytes]:
        await in_thread(file.seek, start)
        left = stop - start
        while left and (chunk := await in_thread(file.read, min(SEND_BYTES, left))):
            left -= len(chunk)
            yield chunk

    headers = {
        **_download_headers(filename),
        "Content-Range": f"bytes {start}-{stop - 1}/{size}",
        "Content-Length": str(stop - start),
        "Accept-Ranges": "bytes",
    }
    return _Download(file, chunks(), status_code=206, media_type="application/octet-stream", headers=headers)


def _range_of(request: Request, size: int) -> tuple[int, int] | None:
    """First and last position plus one of the request's range; equal if it is outside. None if all is to be sent."""
    found = _RANGE.match(request.headers.get("range", ""))
    if found is None:
        return None
    first, last = found["first"], found["last"]
    if not first:
        return (max(0, size - int(last)), size) if last else None
    if last and int(last) < int(first):
        return None
    return min(int(first), size), min(int(last) + 1, size) if last else size


def _download_headers(filename: str) -> dict[str, str]:
    disposition = f"attachment; filename*=UTF-8''{quote(filename, safe='')}"
    return {**DOWNLOAD_HEADERS, "Content-Disposition": disposition}


class _Download(StreamingResponse):
    def __init__(self, file: IO[bytes], chunks: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(chunks, **options)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
