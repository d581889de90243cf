"""Measures how the CPU cost of a function grows with the size of its input."""

import time
from collections.abc import Callable
from contextlib import suppress

BASE = 4_000
FACTORS = (1, 2, 4, 8)
"""Sizes in multiples of the base."""
MOST_GROWTH = 24
"""A cost that grows linearly grows by 8 over these sizes, a quadratic one by 64; caches and allocators add noise."""
LEAST_SECONDS = 0.002
"""Below this cost of the largest input nothing is judged: it is noise."""
ATTEMPTS = 6


def growth(work: Callable[[str], object], text_of: Callable[[int], str], *, base: int = BASE) -> float:
    """How much more CPU the largest input costs than the smallest, in the best of several attempts.

    CPU time of this thread, not wall time: other processes do not count. The minimum over attempts is what the work
    itself costs, so each attempt can only lower the figure towards it.
    """
    texts = [text_of(base * factor) for factor in FACTORS]
    least = [float("inf")] * len(texts)
    ratio = float("inf")
    for _ in range(ATTEMPTS):
        for position, text in enumerate(texts):
            least[position] = min(least[position], _cpu_seconds(work, text))
        if least[-1] < LEAST_SECONDS:
            return 1.0
        ratio = least[-1] / max(least[0], LEAST_SECONDS / MOST_GROWTH)
        if ratio <= MOST_GROWTH:
            break
    return ratio


def _cpu_seconds(work: Callable[[str], object], text: str) -> float:
    begun = time.thread_time()
    with suppress(Exception):  # a refusal is a fine answer to hostile input; only its cost matters
        work(text)
    return time.thread_time() - begun
