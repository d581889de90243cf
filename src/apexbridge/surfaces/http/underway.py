"""What one API key may have under way at once, so that it cannot take all memory and connections for itself."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive

from apexbridge.errors import RequestError

MAX_REQUESTS = 1024
"""Requests of one key that are not answered yet, streams among them."""
MAX_BODY_BYTES = 128 * 1024 * 1024
"""Bodies of those requests together, as far as they are kept in memory."""
MAX_UPLOADS = 4
"""Archives and uploads of one key that arrive or are looked at."""
MAX_EXPORTS = 4
"""Skills that one key exports at once: each is a file on the disk until it is sent."""
RETRY_SECONDS = 1


class UnderWay:
    """Counts the requests of each key. Callers without a key are not counted."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._uploads: Counter[str] = Counter()
        self._exports: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def request(self, caller: str, *, is_upload: bool, is_export: bool = False) -> Iterator["Counted"]:
        """Count a request while the block lasts.

        Raises:
            RequestError: RATE_LIMITED.
        """
        if self._requests[caller] >= MAX_REQUESTS:
            raise too_much(caller, f"{MAX_REQUESTS} requests")
        if is_upload and self._uploads[caller] >= MAX_UPLOADS:
            raise too_much(caller, f"{MAX_UPLOADS} uploads")
        if is_export and self._exports[caller] >= MAX_EXPORTS:
            raise too_much(caller, f"{MAX_EXPORTS} exports")
        counted = Counted(self, caller, is_in_memory=not is_upload)
        self._requests[caller] += 1
        self._uploads[caller] += is_upload
        self._exports[caller] += is_export
        try:
            yield counted
        finally:
            for counter, number in (
                (self._requests, 1),
                (self._uploads, int(is_upload)),
                (self._exports, int(is_export)),
                (self._bytes, counted.size),
            ):
                counter[caller] -= number
                if not counter[caller]:
                    del counter[caller]

    def add(self, caller: str, size: int) -> None:
        """More of a body has arrived.

        Raises:
            TooMuchError: it is more than the key may have under way.
        """
        if self._bytes[caller] + size > MAX_BODY_BYTES:
            raise TooMuchError(too_much(caller, f"{MAX_BODY_BYTES // 1024 // 1024} MB of requests"))
        self._bytes[caller] += size


class Counted:
    """One request."""

    def __init__(self, under_way: UnderWay, caller: str, *, is_in_memory: bool) -> None:
        self.size = 0
        self._under_way = under_way
        self._caller = caller
        self._is_in_memory = is_in_memory

    def receive(self, receive: Receive) -> Receive:
        """Count what arrives."""
        if not self._is_in_memory:
            return receive

        async def counted() -> Message:
            message = await receive()
            if size := len(message.get("body", b"")):
                self._under_way.add(self._caller, size)
                self.size += size
            return message

        return counted


class TooMuchError(BaseException):
    """Travels past every handler of the app, up to the guard that counts."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


def too_much(caller: str, what: str) -> RequestError:
    """The refusal."""
    return RequestError(
        f"The API key {caller} has {what} under way, which is as much as one key may have. Wait for answers first.",
        code="RATE_LIMITED",
        retryAfter=RETRY_SECONDS,
    )
