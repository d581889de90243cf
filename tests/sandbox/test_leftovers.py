"""Processes that a script leaves behind end with it: daemons, also with ignored signals, stopped, or with its pipes."""

import time
from collections.abc import Callable

import anyio
import pytest

from tests.sandbox.bench import SECONDS, Bench, OutputRecorder, marker, named
from tests.waiting import until

pytestmark = pytest.mark.anyio
LEAVES = {
    "a background job": "sh -c 'sleep 1000; true' {mark} &",
    "one that holds the pipes": "sh -c 'sleep 1000; true' {mark} <&0 &",
    "one without pipes": "sh -c 'sleep 1000; true' {mark} <&- >&- 2>&- &",
    "a session of its own": "setsid sh -c 'sleep 1000; true' {mark} > /dev/null 2>&1 &",
    "deaf to signals": "sh -c 'trap \"\" HUP INT TERM QUIT; sleep 1000; true' {mark} > /dev/null 2>&1 &",
    "stopped": "sh -c 'kill -STOP $$; true' {mark} > /dev/null 2>&1 &",
    "a double fork": "(setsid sh -c '(sh -c \"sleep 1000; true\" {mark} &)' > /dev/null 2>&1 &)",
    "many": "for i in 1 2 3 4 5 6 7 8 9; do setsid sh -c 'sleep 1000; true' {mark} > /dev/null 2>&1 & done",
    "one that comes back": "setsid sh -c 'while :; do sh -c \"sleep 0.01; :\" {mark}; done' {mark} > /dev/null 2>&1 &",
}


@pytest.mark.requirement("B5")
@pytest.mark.parametrize("left", list(LEAVES))
async def test_processes_that_a_script_leaves_behind_end_with_it(each_backend: Bench, left: str) -> None:
    mark = marker()
    result = await each_backend.run(LEAVES[left].format(mark=mark) + "\necho done", "sh")
    assert (result.success, result.stdout) == (True, "done\n")
    assert named(mark) == []


async def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_result(each_backend: Bench) -> None:
    started = time.monotonic()
    text = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(1000)\nprint('done', flush=True)"
    result = await each_backend.run(text)
    assert (result.success, result.stdout) == (True, "done\n")
    assert time.monotonic() - started < SECONDS


async def test_a_script_that_closes_its_output_is_waited_for(each_backend: Bench) -> None:
    text = "import os, time; os.close(1); os.close(2); time.sleep(0.1); os._exit(3)"
    result = await each_backend.run(text)
    assert (result.error_code, result.exit_code, result.stdout) == ("EXIT_NONZERO", 3, "")


async def test_no_output_is_reported_after_the_end(each_backend: Bench) -> None:
    text = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"late ")
print("done", flush=True)
"""
    recorder = OutputRecorder()
    result = await each_backend.run(text, listener=recorder)
    received = recorder.text
    await each_backend.run("pass")
    assert recorder.text == received == result.stdout


@pytest.mark.slow
@pytest.mark.requirement("B5")
@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("sh", "b() { b | b & }; b; sleep 1000"),
        ("py", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
        ("py", "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass"),
    ],
)
async def test_a_fork_bomb_does_not_affect_other_runs(each_backend: Bench, suffix: str, text: str) -> None:
    recorder = OutputRecorder()
    cancels: list[Callable[[], None]] = []
    mark = marker()

    async def explode() -> None:
        result = await each_backend.run(
            text, suffix, args=(mark,), timeout_ms=1500, listener=recorder, on_start=cancels.append
        )
        assert not result.success
        assert result.error_code in ("TIMEOUT", "PROCESS_LIMIT", "EXIT_NONZERO", "OUTPUT_LIMIT")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(explode)
        await until(lambda: bool(cancels))
        assert (await each_backend.run("echo fine", "sh")).stdout == "fine\n"
    await until(lambda: not named(mark))
    assert (await each_backend.run("echo fine", "sh")).stdout == "fine\n"
