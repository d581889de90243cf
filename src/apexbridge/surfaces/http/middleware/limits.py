"""Limits on requests: their rate, their number at one time, the size of their bodies, and the shape of JSON."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.surfaces.http.middleware.scopes import is_upload
from apexbridge.surfaces.http.transport.error_responses import answer_error

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_KEY_REQUESTS = 1024
"""Concurrent requests of one key, including streams."""
MAX_KEY_BYTES = 128 * 1024 * 1024
"""Total size of the bodies of those requests, as far as they are in memory."""
MAX_KEY_UPLOADS = 4
"""Archives and uploads of one key that are being received or inspected."""
MAX_KEY_EXPORTS = 4
"""Concurrent exports of one key: each is a file on disk until it is sent."""
RETRY_SECONDS = 1


class RefusedError(BaseException):
    """Refuses a request while its body is received. A BaseException, so that no handler of the app catches it.

    `ConcurrencyLimit`, the outer middleware, raises it in `receive`; `BodyLimit`, the inner one, catches it.
    """

    def __init__(self, error: ApexBridgeError) -> None:
        super().__init__(error.message)
        self.error = error


class RateLimit:
    """A token bucket per key, in memory. A minute without requests fills it."""

    def __init__(self, requests_a_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._size = float(requests_a_minute)
        self._refill = requests_a_minute / 60
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens left for each key, and the time of that count."""

    def take(self, key: str) -> int:
        """Take a token. Returns 0 if the request may proceed, else the seconds until the next token."""
        if not self._size:
            return 0
        now = self._clock()
        left, since = self._buckets.get(key, (self._size, now))
        left = min(self._size, left + (now - since) * self._refill)
        if left < 1:
            self._buckets[key] = (left, now)
            return math.ceil((1 - left) / self._refill)
        self._buckets[key] = (left - 1, now)
        return 0


@dataclass(slots=True)
class _Usage:
    requests: int = 0
    uploads: int = 0
    exports: int = 0
    body_bytes: int = 0


class ConcurrencyLimit:
    """Limits the concurrent requests of each key, so that one key cannot exhaust memory and connections."""

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}

    @contextmanager
    def request(
        self, caller: str, receive: Receive, *, is_upload: bool = False, is_export: bool = False
    ) -> Iterator[Receive]:
        """Count a request until the block ends, and yield a `receive` that counts its body.

        Uploads go to disk, so their bodies are not counted. Callers without a key have no limits.
        """
        if not caller:
            yield receive
            return
        usage = self._usage.setdefault(caller, _Usage())
        if usage.requests >= MAX_KEY_REQUESTS:
            raise _too_many(caller, f"{MAX_KEY_REQUESTS} requests")
        if is_upload and usage.uploads >= MAX_KEY_UPLOADS:
            raise _too_many(caller, f"{MAX_KEY_UPLOADS} uploads")
        if is_export and usage.exports >= MAX_KEY_EXPORTS:
            raise _too_many(caller, f"{MAX_KEY_EXPORTS} exports")
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if size := len(message.get("body", b"")):
                if usage.body_bytes + size > MAX_KEY_BYTES:
                    raise RefusedError(_too_many(caller, f"{MAX_KEY_BYTES // 1024 // 1024} MB of requests"))
                usage.body_bytes += size
                received += size
            return message

        usage.requests += 1
        usage.uploads += is_upload
        usage.exports += is_export
        try:
            yield receive if is_upload else counted
        finally:
            usage.requests -= 1
            usage.uploads -= is_upload
            usage.exports -= is_export
            usage.body_bytes -= received
            if not usage.requests:
                del self._usage[caller]


def _too_many(caller: str, what: str) -> RequestError:
    return RequestError(
        f"The API key {caller} has {what} in progress, the most for one key. Wait for answers first.",
        code="RATE_LIMITED",
        retryAfter=RETRY_SECONDS,
    )


class BodyLimit:
    """Refuses a body above the limit with 413 before it is in memory, and a bad JSON shape before it is parsed.

    The size is counted on arrival, regardless of the headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_upload(scope["method"], scope["path"]):  # these have their own limits
            await self._app(scope, receive, send)
            return
        received = 0
        chunks: list[bytes] = []

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            chunk = message.get("body", b"")
            received += len(chunk)
            if received > MAX_BODY_BYTES:
                problem = f"The body is larger than {MAX_BODY_BYTES // 1024 // 1024} MB"
                raise RefusedError(RequestError(problem, code="PAYLOAD_TOO_LARGE"))
            if chunk:
                chunks.append(chunk)
            if chunks and message["type"] == "http.request" and not message.get("more_body", False):
                _check_json(b"".join(chunks))
                chunks.clear()
            return message

        try:
            await self._app(scope, counted, send)
        except RefusedError as refused:
            await answer_error(refused.error, scope, receive, send)


def _check_json(body: bytes) -> None:
    if b"\0" in body:  # UTF-16 or UTF-32, in which check_shape does not recognize brackets and quotes
        raise RefusedError(InvalidInputError("The body must be JSON in UTF-8; it contains zero bytes"))
    try:
        check_shape(body)
    except JsonShapeError as error:
        advice = "Send large data as a file (POST /api/uploads)."
        raise RefusedError(InvalidInputError(f"The JSON of the body is refused: {error}. {advice}")) from error
