"""The check that no test blocks an event loop."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
COMPUTE = """
import time

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def compute(seconds):
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass
"""


@pytest.fixture
def watched(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = computes_in_loop: not watched")
    return pytester


def outcomes(watched: pytest.Pytester, tests: str) -> dict[str, int]:
    watched.makepyfile(COMPUTE + tests)
    options = ("-p", "tests.loop_watchdog", "-k", "asyncio", "--reruns", "1", "--only-rerun", "event loop was blocked")
    return watched.runpytest_subprocess(*options).parseoutcomes()


def test_a_step_that_takes_too_much_cpu_fails_its_test(watched: pytest.Pytester) -> None:
    assert outcomes(watched, "async def test_blocks():\n    compute(0.6)\n")["failed"] == 1


def test_a_test_that_passes_on_its_rerun_passes(watched: pytest.Pytester) -> None:
    tests = "runs = []\nasync def test_once():\n    runs.append(1)\n    compute(0.6 if len(runs) == 1 else 0)\n"
    counts = outcomes(watched, tests)
    assert (counts["passed"], counts["rerun"], counts.get("failed")) == (1, 1, None)


def test_other_failures_are_not_rerun(watched: pytest.Pytester) -> None:
    counts = outcomes(watched, "async def test_wrong():\n    assert False\n")
    assert (counts["failed"], counts.get("rerun")) == (1, None)


def test_steps_that_build_an_application_may_be_slow(watched: pytest.Pytester) -> None:
    tests = "from fastapi import FastAPI\nasync def test_start():\n    FastAPI()\n    compute(0.6)\n"
    assert outcomes(watched, tests)["passed"] == 1
