"""Measures how the CPU cost of a function grows with the size of its input."""

import time
from collections.abc import Callable
from contextlib import suppress

BASE = 4_000
FACTORS = (1, 2, 4, 8)
"""Input sizes, as multiples of the base."""
MOST_GROWTH = 24
"""Over these sizes a linear cost grows 8-fold and a quadratic one 64-fold; caches and allocators add noise."""
LEAST_SECONDS = 0.002
"""If the largest input costs less than this, the measurement is noise and counts as linear."""
ATTEMPTS = 6


def growth(work: Callable[[str], object], text_of: Callable[[int], str], *, base: int = BASE) -> float:
    """Return the CPU cost of the largest input divided by that of the smallest.

    Measures CPU time of this thread, so other processes do not count. Takes the minimum over several attempts, since
    noise only adds to the cost.
    """
    texts = [text_of(base * factor) for factor in FACTORS]
    least = [float("inf")] * len(texts)
    ratio = float("inf")
    for _ in range(ATTEMPTS):
        for index, text in enumerate(texts):
            least[index] = min(least[index], _cpu_seconds(work, text))
        if least[-1] < LEAST_SECONDS:
            return 1.0
        ratio = least[-1] / max(least[0], LEAST_SECONDS / MOST_GROWTH)
        if ratio <= MOST_GROWTH:
            break
    return ratio


def _cpu_seconds(work: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    with suppress(Exception):  # rejecting hostile input is fine; only the cost matters
        work(text)
    return time.thread_time() - started
