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
    """Fail a test in which one step of an event loop takes too much CPU, since all other requests wait for it.

    Measures CPU time of the loop's thread, so that a loaded machine does not matter. Garbage collection is subtracted,
    because in this process it walks the objects of all tests. Not measured: fixtures, and steps that import a module or
    build an application, because startup may be slow. In a virtual machine, time stolen by a busy host counts as CPU
    time, so a test that fails only here is rerun once (`--only-rerun` in pyproject.toml).
    """
    blocked: list[str] = []
    collected: dict[int, float] = defaultdict(float)
    """Seconds of garbage collection, by thread id."""
    collection_started: dict[int, float] = {}
    run, build, apps_built = asyncio.Handle._run, FastAPI.__init__, 0

    def counting_init(app: FastAPI, **options: Any) -> None:
        nonlocal apps_built
        apps_built += 1
        build(app, **options)

    def collect(phase: str, _: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == "start":
            collection_started[thread] = time.thread_time()
        else:
            collected[thread] += time.thread_time() - collection_started.pop(thread, time.thread_time())

    def timed_run(handle: asyncio.Handle) -> None:
        thread, state = threading.get_ident(), (len(sys.modules), apps_built)
        started = time.thread_time() - collected[thread]
        run(handle)
        spent = time.thread_time() - collected[thread] - started
        if spent > MAX_STEP_SECONDS and state == (len(sys.modules), apps_built):
            blocked.append(f"{spent * 1000:.0f} ms in {handle}")

    if item.get_closest_marker("computes_in_loop"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed_run)
        patch.setattr(FastAPI, "__init__", counting_init)
        gc.callbacks.append(collect)
        try:
            yield
        finally:
            gc.callbacks.remove(collect)
    assert not blocked, f"the event loop was blocked: {blocked}"
