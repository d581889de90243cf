"""Limits on requests: their rate, their number at one time, the size of their bodies, and the shape of JSON."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._json import JsonShapeError, check_shape
from apexbridge._usage import ResourceUsage
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.surfaces.http.middleware.scopes import is_upload
from apexbridge.surfaces.http.transport.error_responses import answer_error

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_KEY_REQUESTS = 1024
"""Concurrent requests of one key, including streams."""
MAX_KEY_BYTES = 128 * 1024 * 1024
"""Total size of the bodies of those requests, as far as they are in memory."""
MAX_BYTES = 512 * 1024 * 1024
"""The same for all keys. Beyond that each key may have the body of one request in memory."""
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

    def __init__(
        self,
        requests_a_minute: int,
        *,
        limit_of: Callable[[str], int | None] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_of` returns the requests a minute of one key, if they differ; 0 for any number."""
        self._clock = clock
        self._default = requests_a_minute
        self._limit_of = limit_of
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens left for each key, and the time of that count."""

    def take(self, key: str) -> int:
        """Take a token. Returns 0 if the request may proceed, else the seconds until the next token."""
        limit = self._limit(key)
        if not limit:
            return 0
        now, refill = self._clock(), limit / 60
        left = self._left(key, limit, now)
        if left < 1:
            self._buckets[key] = (left, now)
            return math.ceil((1 - left) / refill)
        self._buckets[key] = (left - 1, now)
        return 0

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        limit = self._limit(caller) if caller else 0
        used = limit - math.floor(self._left(caller, limit, self._clock())) if limit else 0
        return (ResourceUsage(resource="requests-this-minute", used=used, limit=limit or None),)

    def _limit(self, key: str) -> int:
        own = self._limit_of(key)
        return self._default if own is None else own

    def _left(self, key: str, limit: int, now: float) -> float:
        left, since = self._buckets.get(key, (limit, now))
        return min(float(limit), left + (now - since) * limit / 60)


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
        self._body_bytes = 0
        """Of all keys."""

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
                if usage.body_bytes > received and self._body_bytes + size > MAX_BYTES:
                    raise RefusedError(_busy())
                usage.body_bytes += size
                self._body_bytes += size
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
            self._body_bytes -= received
            if not usage.requests:
                del self._usage[caller]

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        own, everyone = self._usage.get(caller, _Usage()), self._usage.values()
        return (
            ResourceUsage(
                resource="requests",
                used=own.requests,
                limit=MAX_KEY_REQUESTS,
                total=sum(usage.requests for usage in everyone),
            ),
            ResourceUsage(
                resource="request-bytes",
                used=own.body_bytes,
                limit=MAX_KEY_BYTES,
                total=self._body_bytes,
                total_limit=MAX_BYTES,
                unit="bytes",
            ),
            ResourceUsage(
                resource="uploads-in-progress",
                used=own.uploads,
                limit=MAX_KEY_UPLOADS,
                total=sum(usage.uploads for usage in everyone),
            ),
            ResourceUsage(
                resource="exports-in-progress",
                used=own.exports,
                limit=MAX_KEY_EXPORTS,
                total=sum(usage.exports for usage in everyone),
            ),
        )


def _busy() -> RequestError:
    return RequestError(
        f"The requests of all API keys in progress have {MAX_BYTES // 1024 // 1024} MB, and this key has others in "
        "progress. Wait for their answers first.",
        code="RATE_LIMITED",
        retryAfter=RETRY_SECONDS,
    )


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
