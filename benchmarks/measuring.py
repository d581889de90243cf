"""Medians of interleaved runs, so that noise of the machine affects both sides."""

import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

Timed = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A figure, its baseline, and the maximum ratio."""

    what: str
    ours_ms: float
    baseline: str
    baseline_ms: float
    goal: float
    spread: float
    """Maximum of our times divided by their median: the noise of the run."""
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        """Our figure divided by the baseline."""
        return self.ours_ms / self.baseline_ms

    def __str__(self) -> str:
        verdict = "met" if self.ratio <= self.goal else "MISSED"
        return (
            f"{self.what}: {self.ours_ms:.2f} {self.unit}, {self.ratio:.2f} x {self.baseline} "
            f"({self.baseline_ms:.2f} {self.unit}); "
            f"goal {self.goal:g} x {verdict}; noise {self.spread:.1f}"
        )


def within_limit(what: str, figure: float, limit: float, *, unit: str = "ms") -> Comparison:
    """A figure without a baseline, but with a limit."""
    return Comparison(
        what=what,
        ours_ms=figure,
        baseline="the limit",
        baseline_ms=limit,
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
    """Run both alternately and compare their medians. The first round of each fills caches and does not count.

    `between` is awaited after each run and not timed.
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


def cpu_ms(pid: int) -> float:
    """CPU time of a process so far, with threads that have ended. It is counted in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
