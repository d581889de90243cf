"""Helpers for asyncio tasks and threads."""

import asyncio
import os
import signal

from apexbridge._tasks import in_thread


def test_threads_work_in_a_forked_child() -> None:
    assert asyncio.run(in_thread(os.getpid)) == os.getpid()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        is_own = asyncio.run(in_thread(os.getpid)) == os.getpid()
        os._exit(0 if is_own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
