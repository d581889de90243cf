"""Fails each test that blocks an event loop."""

import asyncio
import gc
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from fastapi import FastAPI

MAX_STEP_SECONDS = 0.25


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test in which one step of an event loop takes too much CPU: all other requests wait for it meanwhile.

    CPU time of the loop's thread, so that a loaded machine does not matter, without garbage collection, which in this
    process walks the objects of all tests. Fixtures are not watched, nor steps that import a module or build an
    application: a start may take its time. A virtual machine whose host is busy counts time that it did not get as CPU
    time, so a test that fails here alone is run once more (`--only-rerun` in pyproject.toml).
    """
    blocked: list[str] = []
    collected: dict[int, float] = defaultdict(float)
    """Seconds of garbage collection, by thread."""
    begun_at: dict[int, float] = {}
    run, build, built = asyncio.Handle._run, FastAPI.__init__, 0

    def counted(app: FastAPI, **options: Any) -> None:
        nonlocal built
        built += 1
        build(app, **options)

    def collect(phase: str, _: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == "start":
            begun_at[thread] = time.thread_time()
        else:
            collected[thread] += time.thread_time() - begun_at.pop(thread, time.thread_time())

    def timed(handle: asyncio.Handle) -> None:
        thread, starts = threading.get_ident(), (len(sys.modules), built)
        begun = time.thread_time() - collected[thread]
        run(handle)
        spent = time.thread_time() - collected[thread] - begun
        if spent > MAX_STEP_SECONDS and starts == (len(sys.modules), built):
            blocked.append(f"{spent * 1000:.0f} ms in {handle}")

    if item.get_closest_marker("computes_in_loop"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        patch.setattr(FastAPI, "__init__", counted)
        gc.callbacks.append(collect)
        try:
            yield
        finally:
            gc.callbacks.remove(collect)
    assert not blocked, f"the event loop was blocked: {blocked}"
