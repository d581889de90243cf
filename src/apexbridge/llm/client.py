"""Speaks to upstreams: raw JSON in and out, retries before the first byte, and never a wait without an end."""

import asyncio
import io
import json
import random
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from apexbridge.llm.answering import HttpAnswer, parsed
from apexbridge.llm.config import Upstream
from apexbridge.llm.errors import UpstreamError

Json = dict[str, Any]
ATTEMPTS = 3
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})
MAX_WAIT_SECONDS = 20.0
"""An upstream that wants to be left alone for longer is told so to the client."""
FIRST_WAIT_SECONDS = 0.5
CONNECT_SECONDS = 10
SILENCE_SECONDS = 120
"""How long an upstream may say nothing at all."""
ANSWER_SECONDS = 600.0
"""How long an answer may take where nobody says less."""
LIST_SECONDS = 10.0
LARGE_BYTES = 512 * 1024
"""A request from there on is sent piece by piece, so that others get their turn."""


class UpstreamClient:
    """One connection pool for all upstreams."""

    def __init__(self, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._silence = silence_seconds
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Let all connections go."""
        session, self._session = self._session, None
        if self._ending:
            await asyncio.wait(self._ending)
        if session is not None:
            await session.close()

    async def ask(self, upstream: Upstream, body: Json, seconds: float = ANSWER_SECONDS) -> HttpAnswer:
        """Ask for a completion; the answer has to be given back to `done`, whatever comes of it.

        Raises:
            UpstreamError: what the upstream answered instead.
        """
        data = _written(body)
        late = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(late):
                response = await self._answered(upstream, data)
        except TimeoutError as error:
            raise UpstreamError.of_ours(504, "The model took too long.", "upstream_timeout") from error
        return HttpAnswer(response, late - asyncio.get_running_loop().time())

    def done(self, answer: HttpAnswer) -> None:
        """No more of this answer is wanted; where only its end is missing, its connection is kept."""
        if not answer.is_unread:
            answer.close()
            return
        ending = asyncio.ensure_future(answer.drain())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def models(self, upstream: Upstream) -> list[Json]:
        """The models that an upstream lists.

        Raises:
            UpstreamError: it does not.
        """
        try:
            async with asyncio.timeout(LIST_SECONDS):
                response = await self._send(upstream, None)
                answer = HttpAnswer(response, LIST_SECONDS)
                try:
                    data = await answer.rest()
                finally:
                    answer.close()
        except TimeoutError as error:
            raise UpstreamError.of_ours(
                504, "The model's server did not answer in time.", "upstream_timeout"
            ) from error
        if response.status >= 300:
            raise UpstreamError(response.status, data, response.headers)
        told = parsed(data)
        found = told.get("data") if isinstance(told, dict) else None
        return [model for model in found if isinstance(model, dict)] if isinstance(found, list) else []

    # ------------------------------------------------------------------------------------------------- requests
    async def _answered(self, upstream: Upstream, data: bytes) -> aiohttp.ClientResponse:
        """A good answer, after as many attempts as it takes and may take."""
        for attempt in range(1, ATTEMPTS + 1):
            is_last = attempt == ATTEMPTS
            try:
                response = await self._send(upstream, data)
            except UpstreamError:
                if is_last:
                    raise
                await asyncio.sleep(_pause(attempt, {}))
                continue
            if response.status < 300:
                return response
            answer = HttpAnswer(response, self._silence)
            try:
                failure = await _failure(response, answer)
            finally:
                answer.close()
            pause = _pause(attempt, response.headers)
            if is_last or response.status not in RETRIED_STATUSES or pause > MAX_WAIT_SECONDS:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt answers or fails")

    async def _send(self, upstream: Upstream, data: bytes | None) -> aiohttp.ClientResponse:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",  # a small answer can unfold into a very large one
        }
        if upstream.api_key:
            headers["authorization"] = f"Bearer {upstream.api_key}"
        try:
            if data is None:
                return await self._open().get(upstream.models_url, headers=headers, allow_redirects=False)
            payload = data if len(data) < LARGE_BYTES else io.BytesIO(data)
            return await self._open().post(upstream.chat_url, data=payload, headers=headers, allow_redirects=False)
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


async def _failure(response: aiohttp.ClientResponse, answer: HttpAnswer) -> UpstreamError:
    if response.status < 400:  # what users say goes where the operator said, not where a server would have it
        return UpstreamError.of_ours(
            502,
            f"The model's server answered with the redirection {response.status}, which is not followed. Set the "
            "address that it really has (APEX_LLM_BASE_URL).",
            "upstream_redirected",
        )
    return UpstreamError(response.status, await answer.refusal(), response.headers)


def _written(body: Json) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a number beyond 64 bits, or half a character, which only an escape can carry
        return json.dumps(body).encode()


def _pause(attempt: int, headers: Mapping[str, str]) -> float:
    """Seconds to wait before the next attempt: as the upstream asks, else longer each time, never all at once."""
    asked = headers.get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        return FIRST_WAIT_SECONDS * float(2 ** (attempt - 1)) * random.uniform(0.8, 1.2)  # noqa: S311
