"""HTTP client for upstreams: raw JSON in and out, retries before the first byte, a time limit for every wait."""

import asyncio
import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.llm.config import Upstream
from apexbridge.llm.response import MAX_REFUSAL_BYTES, ModelResponse, parsed
from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
CHAT = "chat/completions"
ANTHROPIC_VERSION = "2023-06-01"
"""Anthropic's API requires a version; this one is always accepted."""
ATTEMPTS = 3
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})
SILENT_STATUS = 504
MAX_WAIT_SECONDS = 20.0
"""A longer Retry-After is passed on to the client instead."""
FIRST_WAIT_SECONDS = 0.5
CONNECT_SECONDS = 10
SILENCE_SECONDS = 120
"""Longest pause within a stream. A whole completion may take as long as the request."""
ANSWER_SECONDS = 600.0
LIST_SECONDS = 10.0
LARGE_BYTES = 512 * 1024
"""Larger requests are sent in chunks, so that other tasks can run in between."""
_WHOLE = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)


class UpstreamClient:
    """One connection pool for all upstreams."""

    def __init__(self, *, silence_seconds: float = SILENCE_SECONDS, tracer: Tracer = NO_TRACER) -> None:
        self._tracer = tracer
        self._session: aiohttp.ClientSession | None = None
        self._silence = silence_seconds
        self._streams = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        session, self._session = self._session, None
        if self._ending:
            await asyncio.wait(self._ending)
        if session is not None:
            await session.close()

    async def ask(self, upstream: Upstream, body: Json, seconds: float = ANSWER_SECONDS) -> ModelResponse:
        """Request a completion. The caller must pass the response to `done` in the end. Raises UpstreamError."""
        call = _Call(path=CHAT, data=encoded(body), is_stream=bool(body.get("stream")))
        return await self._respond(upstream, call, seconds)

    async def forward(
        self, upstream: Upstream, path: str, data: bytes, *, headers: Mapping[str, str], is_stream: bool, seconds: float
    ) -> ModelResponse:
        """Send a request of another API as it is. The caller must close the response. Raises UpstreamError."""
        call = _Call(path=path, data=data, headers=headers, is_stream=is_stream)
        return await self._respond(upstream, call, seconds)

    async def _respond(self, upstream: Upstream, call: "_Call", seconds: float) -> ModelResponse:
        late = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(late):
                response = await self._request(upstream, call, self._streams if call.is_stream else _WHOLE)
        except TimeoutError as error:
            raise UpstreamError.of_ours(504, "The model took too long.", "upstream_timeout") from error
        return ModelResponse(response, late - asyncio.get_running_loop().time())

    def done(self, answer: ModelResponse) -> None:
        """Release a response. If only its end is missing, it is drained so that the connection can be reused."""
        if not answer.is_unread:
            answer.close()
            return
        ending = asyncio.ensure_future(answer.drain())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def models(
        self, upstream: Upstream, *, seen: Callable[[Mapping[str, str]], None] | None = None
    ) -> list[Json]:
        """The models that an upstream lists. `seen` gets the headers of the response. Raises UpstreamError."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                version = {"anthropic-version": ANTHROPIC_VERSION} if "messages" in upstream.apis else {}
                response = await self._send(upstream, _Call(path="models", headers=version), self._streams)
                if seen is not None:
                    seen(response.headers)
                answer = ModelResponse(response, LIST_SECONDS)
                try:
                    data = await answer.body()
                finally:
                    answer.close()
        except TimeoutError as error:
            raise _silent(upstream) from error
        if response.status >= 300:
            raise UpstreamError(response.status, data, response.headers, address=upstream.address)
        listing = parsed(data)
        found = listing.get("data") if isinstance(listing, dict) else None
        return [model for model in found if isinstance(model, dict)] if isinstance(found, list) else []

    async def _request(
        self, upstream: Upstream, call: "_Call", limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """A successful response, after retries if needed."""
        for attempt in range(1, ATTEMPTS + 1):
            is_last = attempt == ATTEMPTS
            try:
                response = await self._send(upstream, call, limits)
            except UpstreamError as error:
                if is_last or error.status == SILENT_STATUS:  # it may still be computing; a retry would start over
                    raise
                await asyncio.sleep(_pause(attempt, {}))
                continue
            if response.status < 300:
                return response
            if response.status < 400:
                response.close()
                message = (
                    f"The model server at {upstream.address} redirects requests. "
                    "Set its base URL to the address that answers them."
                )
                raise UpstreamError.of_ours(502, message, "upstream_redirect")
            answer = ModelResponse(response, self._silence)
            try:
                body = await answer.body(MAX_REFUSAL_BYTES)
                failure = UpstreamError(response.status, body, response.headers, address=upstream.address)
            finally:
                answer.close()
            pause = _pause(attempt, response.headers)
            if is_last or response.status not in RETRIED_STATUSES or pause > MAX_WAIT_SECONDS:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt answers or fails")

    async def _send(self, upstream: Upstream, call: "_Call", limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        data = call.data
        headers = {
            **call.headers,
            **self._tracer.headers(),
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",  # avoids decompression bombs
        }
        if upstream.api_key:
            headers["authorization"] = f"Bearer {upstream.api_key}"
            if "anthropic-version" in call.headers:
                headers["x-api-key"] = upstream.api_key  # many servers of Anthropic's API look only here
        try:
            # Do not follow redirects: they would send the conversation to a host the operator did not choose.
            return await self._open().request(
                "POST" if data else "GET",
                upstream.url(call.path),
                data=data if not data or len(data) < LARGE_BYTES else io.BytesIO(data),
                headers=headers,
                allow_redirects=False,
                timeout=limits,
            )
        except TimeoutError as error:
            raise _silent(upstream) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = (
                f"The model server at {upstream.address} cannot be reached ({type(error).__name__}). "
                "Check the address, and that the server runs."
            )
            raise UpstreamError.of_ours(502, message, "upstream_unreachable") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No cookies and no proxy settings of the environment: requests go to the configured host only.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )
        return self._session


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    path: str
    """Below the base URL."""
    data: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_stream: bool = False


def _silent(upstream: Upstream) -> UpstreamError:
    message = f"The model server at {upstream.address} did not answer in time."
    return UpstreamError.of_ours(SILENT_STATUS, message, "upstream_timeout")


def encoded(body: Json) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a number beyond 64 bits, or a lone surrogate, which only an escape can represent
        return json.dumps(body).encode()


def _pause(attempt: int, headers: Mapping[str, str]) -> float:
    """Seconds before the next attempt: Retry-After, or exponential backoff with jitter."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return FIRST_WAIT_SECONDS * float(2 ** (attempt - 1)) * random.uniform(0.8, 1.2)  # noqa: S311
