"""A call of `calculate` against a bare `eval` of the same expression, which would be neither exact nor safe."""

import statistics
import time

from apexbridge.tools.builtin.calculator import calculate
from apexbridge.tools.registry import ToolRegistry
from benchmarks.measuring import Comparison

ROUNDS = 3000
EXPRESSIONS = {
    "sqrt(144) + 10": "sqrt(144) + 10",
    "round(1234.56 * 1.19, 2)": "round(1234.56 * 1.19, 2)",
    "(1+2)*(3+4)/7 - 2^10 + sin(pi/6)": "(1+2)*(3+4)/7 - 2**10 + sin(pi/6)",
    "1000 * (1 + 0.05/12)^120": "1000 * (1 + 0.05/12)**120",
    "2^0.5": "2**0.5",
}
"""As we read them, and as Python does."""
NAMES = "from math import pi, sin, sqrt"


async def run() -> list[Comparison]:
    """The slowest of a hundred calls against what is promised; the ratio to a bare `eval` is shown besides."""
    results: list[Comparison] = []
    registry = ToolRegistry()
    registry.register(calculate)
    known: dict[str, object] = {}
    exec(NAMES, known)
    for expression, python in EXPRESSIONS.items():
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            await registry.execute("calculate", {"expression": expression})
            between = time.perf_counter()
            eval(python, known)
            bare.append((time.perf_counter() - between) * 1000)
            ours.append((between - begun) * 1000)
        half, most = _percentiles(ours)
        half_of_eval, _ = _percentiles(bare)
        print(f"calculate {expression}: p50 {half:.3f} ms, p99 {most:.3f} ms, {half / half_of_eval:.1f} x a bare eval")
        results.append(
            Comparison(
                what=f"p99 of calculate {expression}",
                ours_ms=most,
                baseline="the 5 ms allowed",
                baseline_ms=5,
                goal=1,
                spread=most / half,
            )
        )
    return results


def _percentiles(times: list[float]) -> tuple[float, float]:
    hundredths = statistics.quantiles(times, n=100)
    return hundredths[49], hundredths[98]
