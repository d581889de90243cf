"""Medians of interleaved runs, so that a noisy machine is noisy to both sides."""

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Timed = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A figure, its baseline, and the ratio that is promised."""

    what: str
    ours_ms: float
    baseline: str
    baseline_ms: float
    goal: float
    spread: float
    """Largest of ours over its median: how noisy the run was."""
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        """How many times the baseline."""
        return self.ours_ms / self.baseline_ms

    def __str__(self) -> str:
        verdict = "holds" if self.ratio <= self.goal else "FALLS SHORT"
        return (
            f"{self.what}: {self.ours_ms:.2f} {self.unit}, {self.ratio:.2f} x {self.baseline} "
            f"({self.baseline_ms:.2f} {self.unit}); "
            f"goal {self.goal:g} x {verdict}; noise {self.spread:.1f}"
        )


def promise(what: str, figure: float, most: float, *, unit: str = "ms") -> Comparison:
    """A figure that has no baseline but a number that it must not exceed."""
    return Comparison(
        what=what,
        ours_ms=figure,
        baseline="what is promised",
        baseline_ms=most,
        goal=1.0,
        spread=1.0,
        unit=unit,
    )


async def compare(
    what: str,
    ours: Timed,
    baseline_name: str,
    baseline: Timed,
    *,
    goal: float,
    rounds: int,
    between: Timed | None = None,
) -> Comparison:
    """Run both in turn and compare their medians; the first round of each warms caches and does not count.

    `between` is awaited after each and not timed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for side, work in zip(times, (ours, baseline), strict=True):
            begun = time.perf_counter()
            await work()
            if number:
                side.append((time.perf_counter() - begun) * 1000)
            if between is not None:
                await between()
    own, other = statistics.median(times[0]), statistics.median(times[1])
    spread = max(times[0]) / own
    return Comparison(what=what, ours_ms=own, baseline=baseline_name, baseline_ms=other, goal=goal, spread=spread)
