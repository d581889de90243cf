"""The response of a model server, as a stream of events or as a whole, within a time limit."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
MAX_DEPTH = 1_000
"""Nesting of JSON; about what the parser supports."""
MAX_VALUES = 400_000
"""Values of a whole completion: log probabilities of 2,000 tokens with 20 alternatives each."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_STREAM_BYTES = 16 * MAX_ANSWER_BYTES
"""In a stream each token comes in an event of its own."""
CHUNK_BYTES = 8 * 1024
"""Processed at once. Decompressed data arrives in chunks of many megabytes, and other tasks must run in between."""
MAX_REFUSAL_BYTES = 256 * 1024
"""Of an error response."""
LAST_BYTES_SECONDS = 2.0
"""Time to end the response after its last event. Only then can the connection be reused."""
MAX_LINE_BYTES = 8 * 1024 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ModelResponse:
    """One response. The caller closes it."""

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self._response = response
        self._is_stream = "text/event-stream" in response.headers.get("content-type", "").lower()
        self._lines = EventLines()
        self._size = 0
        self._ahead = memoryview(b"")
        """Received bytes that are not processed yet."""
        self._failure: UpstreamError | None = None
        """A failure after valid events of the same bytes."""
        self._has_begun = False
        self._has_finished = False
        self._is_over = False
        self._is_late = False
        # One timer for the whole response: a timer for each chunk would cost more than the chunk.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._be_late)

    @property
    def is_stream(self) -> bool:
        return self._is_stream

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        """The next bytes of a stream as they come; empty at the end. Raises UpstreamError."""
        try:
            data = await self._next_bytes()
        except (aiohttp.ClientError, OSError) as error:
            raise self._read_error(error) from error
        self._size += len(data)
        if self._size > MAX_STREAM_BYTES:
            raise UpstreamError.invalid("The model's server sent too much.")
        return data

    async def next(self) -> list[Json] | None:
        """The next events, or the one completion. None at the end. Raises UpstreamError."""
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            return None
        if not self._is_stream:
            self._is_over = True
            return [_completion(await self.body())]
        try:
            return await self._next_events()
        except (aiohttp.ClientError, OSError) as error:
            raise self._read_error(error) from error

    async def body(self, cut_at: int | None = None) -> bytes:
        """The body, up to `cut_at` bytes."""
        chunks: list[bytes] = []
        size = 0
        try:
            while chunk := await self._response.content.readany():
                chunks.append(chunk)
                size += len(chunk)
                if cut_at is not None and size >= cut_at:
                    break
                if size > MAX_ANSWER_BYTES:
                    raise UpstreamError.invalid("The model's server sent too much.")
        except (aiohttp.ClientError, OSError) as error:
            raise self._read_error(error) from error
        return b"".join(chunks)[:cut_at]

    def _read_error(self, error: Exception) -> UpstreamError:
        if isinstance(error, TimeoutError):
            return UpstreamError.of_ours(504, "The model's server fell silent.", "upstream_timeout")
        if self._is_late:
            return UpstreamError.of_ours(504, "The model took too long.", "upstream_timeout")
        return UpstreamError.of_ours(502, "The model's server broke off its answer.", "upstream_cut")

    @property
    def is_unread(self) -> bool:
        """Whether the last event has arrived but not the end of the response."""
        return self._is_over and self._is_stream and not self._response.content.at_eof()

    async def drain(self) -> None:
        """Wait for the end of the response, so that the connection can be reused."""
        try:
            async with asyncio.timeout(LAST_BYTES_SECONDS):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # the next request opens a new connection
        finally:
            self.close()

    def close(self) -> None:
        self._timer.cancel()
        self._response.close()

    async def _next_events(self) -> list[Json] | None:
        while True:
            data = await self._next_bytes()
            self._size += len(data)
            if self._size > MAX_STREAM_BYTES:
                raise UpstreamError.invalid("The model's server sent too much.")
            chunks = self._parse(self._lines.feed(data) if data else self._lines.end())
            if not data:
                self._is_over = True
                if not self._has_finished and self._failure is None:
                    # Many servers never send [DONE]. Without a finish_reason either, the response was cut off.
                    self._failure = self._read_error(EOFError())
            if chunks:
                return chunks
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                return None

    async def _next_bytes(self) -> bytes:
        """At most CHUNK_BYTES; empty at the end."""
        if self._ahead:
            await asyncio.sleep(0)
        else:
            received = await self._response.content.readany()
            if len(received) <= CHUNK_BYTES:
                return received
            self._ahead = memoryview(received)
        data = bytes(self._ahead[:CHUNK_BYTES])
        self._ahead = self._ahead[CHUNK_BYTES:]
        return data

    def _parse(self, events: list[bytes]) -> list[Json]:
        chunks: list[Json] = []
        for data in events:
            if data == b"[DONE]":
                self._is_over = True
                if not self._has_begun:
                    self._failure = UpstreamError.invalid("The model's server said nothing.")
                break
            try:
                chunk = _chunk(data)
            except UpstreamError as error:
                self._failure = error
                break
            self._has_begun = True
            self._has_finished = self._has_finished or _finishes(chunk)
            chunks.append(chunk)
        return chunks

    def _be_late(self) -> None:
        self._is_late = True
        self._response.close()


def _chunk(data: bytes) -> Json:
    """Parse one event of a stream. Raises UpstreamError."""
    try:
        if len(data) > MAX_DEPTH:  # shorter ones cannot be nested too deep
            check_shape(data, max_depth=MAX_DEPTH)
        chunk = orjson.loads(data)
    except ValueError:
        chunk = parsed(data)
    if not isinstance(chunk, dict):
        raise UpstreamError.invalid("The model's server sent an event that is not an object.")
    error = chunk.get("error")
    if isinstance(error, dict) or (error is not None and not chunk.get("choices")):
        raise UpstreamError(502, data)
    return chunk


def _finishes(chunk: Json) -> bool:
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") is not None for choice in choices
    )


def _completion(data: bytes) -> Json:
    completion = parsed(data)
    choices = completion.get("choices") if isinstance(completion, dict) else None
    if not isinstance(completion, dict) or not isinstance(choices, list) or not choices:
        if isinstance(completion, dict) and completion.get("error") is not None:
            raise UpstreamError(502, data)
        raise UpstreamError.invalid("The model's server answered with no completion.")
    return completion


def _finite(digits: str) -> float | None:
    """A float, or None for infinity and NaN, which are not valid JSON for clients."""
    number = float(digits)
    return number if math.isfinite(number) else None


def parsed(data: bytes) -> Any:
    """Parse JSON of an upstream. Raises UpstreamError."""
    try:
        check_shape(data, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:  # Python servers may send NaN or lone surrogates
            check_shape(data, max_depth=MAX_DEPTH)
            return json.loads(data, parse_constant=lambda _: None, parse_float=_finite)
    except JsonShapeError as error:
        message = f"The model's server sent JSON that is refused: {error}."
        raise UpstreamError.invalid(message) from error
    except (ValueError, RecursionError) as error:
        raise UpstreamError.invalid("The model's server answered with broken JSON.") from error


class EventLines:
    """Splits a byte stream into the data of its events.

    Every `data:` line is an event: all known servers write it that way, some without the blank line that should
    follow. Comments and other fields are ignored; any line ending is accepted.
    """

    def __init__(self) -> None:
        self._beginning: list[bytes] = []
        """The beginning of an incomplete line."""
        self._size = 0
        self._has_begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete."""
        if b"data:" not in data and not self._beginning:  # only comments
            self._has_begun = self._has_begun or b"\n" in data
            data = data[max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 :]
        *lines, last = data.replace(b"\r", b"\n").split(b"\n")
        if lines:
            lines[0] = b"".join([*self._beginning, lines[0]])
            self._beginning, self._size = [], 0
            if not self._has_begun:
                self._has_begun = True
                lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        if last:
            self._beginning.append(last)
            self._size += len(last)
        if self._size > MAX_LINE_BYTES:
            raise UpstreamError.invalid("The model's server sent an endless event.")
        return [event for line in lines if (event := _data(line))]

    def end(self) -> list[bytes]:
        """The event of a last line without a line ending."""
        event = _data(b"".join(self._beginning))
        self._beginning, self._size = [], 0
        return [event] if event else []


def _data(line: bytes) -> bytes:
    return line[5:].strip() if line.startswith(b"data:") else b""
