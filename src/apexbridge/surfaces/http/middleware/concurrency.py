"""Limits on the concurrent requests of one API key, so that it cannot exhaust memory and connections."""

from starlette.types import Message, Receive

from apexbridge.errors import RequestError

MAX_REQUESTS = 1024
"""Unanswered requests of one key, including streams."""
MAX_BODY_BYTES = 128 * 1024 * 1024
"""Total size of the bodies of those requests, as far as they are in memory."""
MAX_UPLOADS = 4
"""Archives and uploads of one key that are being received or inspected."""
MAX_EXPORTS = 4
"""Concurrent exports of one key: each is a file on disk until it is sent."""
RETRY_SECONDS = 1


class UnderWay:
    """Counts the requests of each key. Callers without a key are not counted."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}

    def request(self, caller: str, *, is_upload: bool, is_export: bool = False) -> "Counted":
        """Count a request until the block of the returned context manager ends.

        Raises:
            RequestError: RATE_LIMITED.
        """
        counts = self._counts.get(caller)
        if counts is None:
            counts = self._counts[caller] = _Counts()
        if counts.requests >= MAX_REQUESTS:
            raise too_much(caller, f"{MAX_REQUESTS} requests")
        if is_upload and counts.uploads >= MAX_UPLOADS:
            raise too_much(caller, f"{MAX_UPLOADS} uploads")
        if is_export and counts.exports >= MAX_EXPORTS:
            raise too_much(caller, f"{MAX_EXPORTS} exports")
        return Counted(self._counts, caller, counts, is_upload=is_upload, is_export=is_export)


class _Counts:
    """The unanswered requests of one caller."""

    __slots__ = ("exports", "requests", "size", "uploads")

    def __init__(self) -> None:
        self.requests = self.uploads = self.exports = self.size = 0


class Counted:
    """Context manager that counts one request."""

    __slots__ = ("_all", "_caller", "_counts", "_is_export", "_is_upload", "_size")

    def __init__(
        self, all_counts: dict[str, _Counts], caller: str, counts: _Counts, *, is_upload: bool, is_export: bool
    ) -> None:
        self._all = all_counts
        self._caller = caller
        self._counts = counts
        self._is_upload = is_upload
        self._is_export = is_export
        self._size = 0

    def __enter__(self) -> "Counted":
        self._counts.requests += 1
        self._counts.uploads += self._is_upload
        self._counts.exports += self._is_export
        return self

    def __exit__(self, *_: object) -> None:
        counts = self._counts
        counts.requests -= 1
        counts.uploads -= self._is_upload
        counts.exports -= self._is_export
        counts.size -= self._size
        if not counts.requests:
            del self._all[self._caller]

    def receive(self, receive: Receive) -> Receive:
        """Count received bytes. Uploads go to disk and are not counted here."""
        if self._is_upload:
            return receive

        async def counted() -> Message:
            message = await receive()
            if size := len(message.get("body", b"")):
                if self._counts.size + size > MAX_BODY_BYTES:
                    raise TooMuchError(too_much(self._caller, f"{MAX_BODY_BYTES // 1024 // 1024} MB of requests"))
                self._counts.size += size
                self._size += size
            return message

        return counted


class TooMuchError(BaseException):
    """A BaseException, so that no handler of the app catches it before AccessGuard does."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


def too_much(caller: str, what: str) -> RequestError:
    return RequestError(
        f"The API key {caller} has {what} under way, which is as much as one key may have. Wait for answers first.",
        code="RATE_LIMITED",
        retryAfter=RETRY_SECONDS,
    )
