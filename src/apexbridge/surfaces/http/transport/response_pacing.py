"""Back-pressure: large bodies are sent in chunks, and the unread bytes in memory are limited for each caller."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._usage import ResourceUsage
from apexbridge.errors import ServerError
from apexbridge.surfaces.http.transport.error_responses import answer_error
from apexbridge.surfaces.http.transport.requests import caller_of

CHUNK_BYTES = 64 * 1024
"""A body is sent in chunks of this size. Each waits until the client has read earlier ones."""
MAX_HELD_BYTES = 32 * 1024 * 1024
"""Limit for the unread responses of one caller. A single response may be larger."""
MAX_HELD_TOTAL = 256 * 1024 * 1024
RETRY_SECONDS = 5
_EXTENSION = "apexbridge.unread"


class UnreadAnswers:
    """Counts the bytes of unread responses in memory, per caller."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._total = 0

    def bytes_of(self, caller: str) -> int:
        return self._held[caller]

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        return (
            ResourceUsage(
                resource="unread-bytes",
                used=self._held[caller],
                limit=MAX_HELD_BYTES if caller else MAX_HELD_TOTAL,
                total=self._total,
                total_limit=MAX_HELD_TOTAL,
                unit="bytes",
            ),
        )

    @contextmanager
    def claim(self, caller: str, size: int) -> Iterator[None]:
        """Count a response until the block ends. QUEUE_FULL if the caller or all callers have too many unread bytes."""
        held = self._held[caller]
        own_limit = MAX_HELD_BYTES if caller else MAX_HELD_TOTAL  # callers without a key are counted as one
        if held and (held + size > own_limit or self._total + size > MAX_HELD_TOTAL):
            raise ServerError(
                f"The request was handled, but its answer is not sent: {held // 1024} KB of earlier answers are "
                "unread. Read those first. Results of runs are stored: see GET /api/executions.",
                code="QUEUE_FULL",
                retryAfter=RETRY_SECONDS,
            )
        self._held[caller] += size
        self._total += size
        try:
            yield
        finally:
            self._total -= size
            self._held[caller] -= size
            if not self._held[caller]:
                del self._held[caller]


@contextmanager
def held_by(scope: Scope, size: int) -> Iterator[None]:
    """Count a response to this request until the block ends."""
    unread: UnreadAnswers | None = scope.get("extensions", {}).get(_EXTENSION)
    with unread.claim(caller_of(scope), size) if unread is not None and size else nullcontext():
        yield


class PacedAnswers:
    """Splits large bodies into chunks, so that a client that does not read uses little memory."""

    def __init__(self, app: ASGIApp, *, unread: UnreadAnswers) -> None:
        self._app = app
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("extensions", {})[_EXTENSION] = self._unread
        start: Message | None = None
        is_refused = False

        async def paced(message: Message) -> None:
            nonlocal start, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start" and _content_length(message) > CHUNK_BYTES:
                start = message  # sent only once the body is known to be within the limits
                return
            if start is None:
                await _send_in_chunks(send, message)
                return
            try:
                with held_by(scope, len(message.get("body", b""))):
                    await send(start)
                    start = None
                    await _send_in_chunks(send, message)
            except ServerError as error:
                is_refused = True
                await answer_error(error, scope, receive, send)

        await self._app(scope, receive, paced)


async def _send_in_chunks(send: Send, message: Message) -> None:
    body = message.get("body", b"")
    if len(body) <= CHUNK_BYTES:  # such as the small events of a stream
        await send(message)
        return
    view = memoryview(body)
    for begin in range(0, len(body), CHUNK_BYTES):
        end = begin + CHUNK_BYTES
        more = end < len(body) or message.get("more_body", False)
        await send({"type": "http.response.body", "body": bytes(view[begin:end]), "more_body": more})
        await asyncio.sleep(0)  # a fast client must not block the others


def _content_length(message: Message) -> int:
    return next((int(value) for name, value in message.get("headers", ()) if name == b"content-length"), 0)
