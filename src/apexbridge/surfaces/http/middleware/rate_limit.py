"""Rate limit per API key: a token bucket."""

import math
import time
from collections.abc import Callable


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
