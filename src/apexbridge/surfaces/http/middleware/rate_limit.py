"""How many requests each key may make: a bucket that fills by itself, and a request takes one drop."""

import math
import time
from collections.abc import Callable


class RateLimit:
    """A bucket for each key, in memory; a quiet minute fills it again."""

    def __init__(self, requests_a_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._size = float(requests_a_minute)
        self._refill = requests_a_minute / 60
        self._buckets: dict[str, tuple[float, float]] = {}
        """What is left for each key, and when that was so."""

    def take(self, key: str) -> int:
        """0 where the request may go on, else the seconds until the next one may."""
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
