"""Speaks to upstreams: raw JSON in and out, retries before the first byte, and never a wait without an end."""

import asyncio
import io
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import orjson

from apexbridge.llm.config import Upstream
from apexbridge.llm.errors import UpstreamError
from apexbridge.llm.sse import EventLines, StreamTooLongError

Json = dict[str, Any]
ATTEMPTS = 3
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})
MAX_WAIT_SECONDS = 20.0
"""An upstream that wants to be left alone for longer is told so to the client."""
FIRST_WAIT_SECONDS = 0.5
CONNECT_SECONDS = 10
SILENCE_SECONDS = 120
"""How long an upstream may say nothing at all."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
LARGE_BYTES = 512 * 1024
"""A request from there on is sent piece by piece, so that others get their turn."""


class UpstreamClient:
    """One connection pool for all upstreams."""

    def __init__(self, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._silence = silence_seconds

    async def close(self) -> None:
        """Let all connections go."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def complete(self, upstream: Upstream, body: Json) -> Json:
        """Ask for a completion in one piece.

        Raises:
            UpstreamError: what the upstream answered instead.
        """
        async with self._answered(upstream, body) as response:
            return _completion(await _read(response))

    @asynccontextmanager
    async def stream(self, upstream: Upstream, body: Json) -> AsyncIterator[AsyncGenerator[Json, None]]:
        """Ask for a completion in pieces; whoever leaves the block early ends the request.

        Raises:
            UpstreamError: what the upstream answered instead, or that it broke off.
        """
        async with self._answered(upstream, body) as response, aclosing(self._chunks(response)) as chunks:
            yield chunks

    async def models(self, upstream: Upstream) -> list[Json]:
        """The models that an upstream lists.

        Raises:
            UpstreamError: it does not.
        """
        async with self._answered(upstream, None) as response:
            told = _parsed(await _read(response))
        found = told.get("data") if isinstance(told, dict) else None
        return [model for model in found or [] if isinstance(model, dict)]

    # ------------------------------------------------------------------------------------------------- requests
    @asynccontextmanager
    async def _answered(self, upstream: Upstream, body: Json | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer, after as many attempts as it takes and may take."""
        data = None if body is None else _written(body)
        for attempt in range(1, ATTEMPTS + 1):
            is_last = attempt == ATTEMPTS
            try:
                response = await self._send(upstream, data)
            except UpstreamError:
                if is_last:
                    raise
                await asyncio.sleep(_pause(attempt, {}))
                continue
            if response.status < 400:
                try:
                    yield response
                finally:
                    response.close()
                return
            async with response:
                failure = UpstreamError(response.status, await _read(response), response.headers)
            pause = _pause(attempt, response.headers)
            if is_last or response.status not in RETRIED_STATUSES or pause > MAX_WAIT_SECONDS:
                raise failure
            await asyncio.sleep(pause)

    async def _send(self, upstream: Upstream, data: bytes | None) -> aiohttp.ClientResponse:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if upstream.api_key:
            headers["authorization"] = f"Bearer {upstream.api_key}"
        try:
            if data is None:
                return await self._open().get(upstream.models_url, headers=headers)
            payload = data if len(data) < LARGE_BYTES else io.BytesIO(data)
            return await self._open().post(upstream.chat_url, data=payload, headers=headers)
        except TimeoutError as error:
            raise UpstreamError.of_ours(
                504, "The model's server did not answer in time.", "upstream_timeout"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamError.of_ours(
                502, f"The model's server cannot be reached ({type(error).__name__}).", "upstream_unreachable"
            ) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No cookies and no proxy of the environment: what is sent goes where the operator said, and nowhere else.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self._silence),
                auto_decompress=True,
            )
        return self._session

    # -------------------------------------------------------------------------------------------------- answers
    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Json, None]:
        if "text/event-stream" not in response.headers.get("content-type", ""):
            yield _completion(await _read(response))  # it did not stream: one piece is a stream too
            return
        lines, is_done, has_begun, has_finished = EventLines(), False, False, False
        try:
            async for piece in response.content.iter_any():
                for data in lines.feed(piece):
                    if data == b"[DONE]":
                        is_done = True
                    elif not is_done:
                        chunk = _chunk(data)
                        has_begun, has_finished = True, has_finished or _finishes(chunk)
                        yield chunk
                if is_done and not has_begun:
                    raise UpstreamError.of_ours(502, "The model's server said nothing.", "upstream_invalid")
                if is_done:
                    return
            for data in lines.end():
                if data != b"[DONE]":
                    chunk = _chunk(data)
                    has_finished = has_finished or _finishes(chunk)
                    yield chunk
            if not has_finished:  # many never say [DONE]; one that says neither was cut off
                raise UpstreamError.of_ours(502, "The model's server broke off its answer.", "upstream_cut")
        except TimeoutError as error:
            raise UpstreamError.of_ours(504, "The model's server fell silent.", "upstream_timeout") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError.of_ours(502, "The model's server broke off its answer.", "upstream_cut") from error
        except StreamTooLongError as error:
            raise UpstreamError.of_ours(502, "The model's server sent an endless event.", "upstream_invalid") from error


def _written(body: Json) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a character, which only an escape can carry
        return json.dumps(body).encode()


def _chunk(data: bytes) -> Json:
    """One event of a stream.

    Raises:
        UpstreamError: it is no JSON object, or is an error itself.
    """
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        chunk = _parsed(data)
    if not isinstance(chunk, dict):
        raise UpstreamError.of_ours(502, "The model's server sent an event that is no object.", "upstream_invalid")
    if chunk.get("error") is not None and not chunk.get("choices"):
        raise UpstreamError(502, data)
    return chunk


def _finishes(chunk: Json) -> bool:
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") is not None for choice in choices
    )


def _completion(data: bytes) -> Json:
    told = _parsed(data)
    choices = told.get("choices") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(choices, list) or not choices:
        if isinstance(told, dict) and told.get("error") is not None:
            raise UpstreamError(502, data)
        raise UpstreamError.of_ours(502, "The model's server answered with no completion.", "upstream_invalid")
    return told


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamError.of_ours(502, "The model's server answered with broken JSON.", "upstream_invalid") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        data = await response.content.read(MAX_ANSWER_BYTES + 1)
        while len(data) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES + 1 - len(data))):
            data += more
    except TimeoutError as error:
        raise UpstreamError.of_ours(504, "The model's server fell silent.", "upstream_timeout") from error
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamError.of_ours(502, "The model's server broke off its answer.", "upstream_cut") from error
    if len(data) > MAX_ANSWER_BYTES:
        raise UpstreamError.of_ours(502, "The model's server sent too much.", "upstream_invalid")
    return data


def _pause(attempt: int, headers: Mapping[str, str]) -> float:
    """Seconds to wait before the next attempt: as the upstream asks, else longer each time, never all at once."""
    asked = headers.get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        return FIRST_WAIT_SECONDS * float(2 ** (attempt - 1)) * random.uniform(0.8, 1.2)  # noqa: S311
