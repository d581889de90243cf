"""A call of `calculate`, compared with a plain `eval`, which would be neither exact nor safe."""

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
"""In the syntax of `calculate`, and in Python."""
NAMES = "from math import pi, sin, sqrt"


async def run() -> list[Comparison]:
    """Compare the 99th percentile with its limit; also print the ratio to a plain `eval`."""
    results: list[Comparison] = []
    registry = ToolRegistry()
    registry.register(calculate)
    names: dict[str, object] = {}
    exec(NAMES, names)
    for expression, python in EXPRESSIONS.items():
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            await registry.execute("calculate", {"expression": expression})
            between = time.perf_counter()
            eval(python, names)
            bare.append((time.perf_counter() - between) * 1000)
            ours.append((between - begun) * 1000)
        median, p99 = _percentiles(ours)
        median_of_eval, _ = _percentiles(bare)
        ratio = median / median_of_eval
        print(f"calculate {expression}: p50 {median:.3f} ms, p99 {p99:.3f} ms, {ratio:.1f} x a plain eval")
        results.append(
            Comparison(
                what=f"p99 of calculate {expression}",
                ours_ms=p99,
                baseline="the 5 ms allowed",
                baseline_ms=5,
                goal=1,
                spread=p99 / median,
            )
        )
    return results


def _percentiles(times: list[float]) -> tuple[float, float]:
    hundredths = statistics.quantiles(times, n=100)
    return hundredths[49], hundredths[98]
