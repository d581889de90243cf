"""Concurrent runs cannot see or signal each other, and no other user of the host can read their input."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, OutputRecorder, command_line, marker, named, processes
from tests.waiting import until

pytestmark = pytest.mark.anyio
FIRST = """
import json, os, socket, sys, time
mark = json.loads(os.environ["INPUT_JSON"])["mark"]
open(mark, "w").write("of the first")
open("output/" + mark, "w").write("of the first")
os.chmod(".", 0o777)
for folder in ("/dev/shm/", "/tmp/"):
    try: open(folder + mark, "w").write("of the first")
    except OSError: pass
try:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\\0" + mark)
    listener.listen()
except OSError: pass
if os.fork() == 0: os.execv("/bin/sh", ["sh", "-c", "sleep 1000; true", mark])
print("begun", os.getcwd(), flush=True)
time.sleep(1000)
"""
SECOND = """
import json, os, signal, socket
payload = json.loads(os.environ["INPUT_JSON"])
mark, reached = payload["mark"], []
def attempt(name, action):
    try:
        if action() is not False: reached.append(name)
    except OSError: pass
for folder in ("/dev/shm", "/tmp", payload["workspace"], payload["workspace"] + "/output"):
    attempt("read in " + folder, lambda: open(folder + "/" + mark))
    attempt("write in " + folder, lambda: open(folder + "/" + mark, "r+"))
    attempt("list " + folder, lambda: mark in os.listdir(folder))
attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + mark))
def sees():
    for name in os.listdir("/proc"):
        if name.isdigit() and name != str(os.getpid()) and mark in open(f"/proc/{name}/cmdline").read(): return True
    return False
attempt("see", sees)
for pid in payload["pids"]:
    attempt("signal", lambda: os.kill(pid, 0))
    attempt("environment", lambda: open(f"/proc/{pid}/environ").read(1))
    attempt("memory", lambda: open(f"/proc/{pid}/mem"))
print(json.dumps(reached))
"""


@asynccontextmanager
async def running_script(bench: Bench, mark: str) -> AsyncIterator[str]:
    """A run that lasts as long as the block; yields the path of its workspace inside the sandbox."""
    recorder = OutputRecorder()
    cancels: list[Callable[[], None]] = []

    async def run() -> None:
        await bench.run(FIRST, input={"mark": mark}, listener=recorder, on_start=cancels.append)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await recorder.wait_for("\n")
        yield recorder.text.split()[1]
        cancels[0]()


@pytest.mark.requirement("B9")
async def test_concurrent_runs_are_isolated_from_each_other(each_backend: Bench) -> None:
    mark = marker()
    async with running_script(each_backend, mark) as workspace:
        await until(lambda: bool(named(mark)))
        pids = named(mark)
        found = await each_backend.run_json(SECOND, input={"mark": mark, "workspace": workspace, "pids": pids})
        assert found == []
        assert named(mark)


@pytest.mark.requirement("B8")
@pytest.mark.parametrize("suffix", ["py", "js", "sh"])
async def test_no_command_line_of_the_host_shows_the_input(each_backend: Bench, suffix: str) -> None:
    mark, recorder = marker(), OutputRecorder()
    cancels: list[Callable[[], None]] = []
    text = {
        "py": "print('begun', flush=True); import time; time.sleep(1000)",
        "js": "console.log('begun'); setTimeout(() => {}, 1e6)",
        "sh": "echo begun; sleep 1000",
    }[suffix]

    async def run() -> None:
        await each_backend.run(text, suffix, input={"secret": mark}, listener=recorder, on_start=cancels.append)

    seen: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        while "begun" not in recorder.text:
            seen += [line for pid in processes() if mark in (line := command_line(pid))]
            await anyio.lowlevel.checkpoint()
        seen += [line for pid in processes() if mark in (line := command_line(pid))]
        cancels[0]()
    assert seen == []


@pytest.mark.requirement("B9")
async def test_a_warm_sandbox_sees_only_the_skill_that_it_runs(bench: Bench, tmp_path: Path) -> None:
    first = bench.write("print('one')", files={"data/private.txt": "of the first skill"})
    assert (await bench.run("", folder=first)).stdout == "one\n"
    await bench.sandbox.warm_up()
    text = """
import json, os
found = []
for folder, names, files in os.walk("/"):
    if folder in ("/proc", "/usr", "/sys"): names.clear()
    found += [folder + "/" + name for name in files if name in ("private.txt", "mine.txt")]
print(json.dumps([sorted(os.listdir("/skill")), found, open("/proc/self/mountinfo").read()]))
"""
    second = bench.write(text, files={"data/mine.txt": "of the second skill"})
    skill, found, mounts = await bench.run_json("", folder=second)
    assert (skill, found) == (["data", "scripts"], ["/skill/data/mine.txt"])
    assert first.name not in mounts


@pytest.mark.requirement("B9")
async def test_a_run_does_not_find_files_of_the_previous_one(each_backend: Bench) -> None:
    mark = marker()
    leave = f"""
import os
for folder in (".", "tmp", "output", "/dev/shm", "/tmp"):
    try: open(folder + "/{mark}", "w").close()
    except OSError: pass
"""
    inspect = f"""
import json, os
found = []
for folder, names, files in os.walk("/"):
    if folder in ("/proc", "/usr", "/sys"): names.clear()
    found += [folder for name in files if name == "{mark}"]
print(json.dumps(found))
"""
    assert (await each_backend.run(leave)).success
    assert await each_backend.run_json(inspect) == []


async def test_every_run_started_by_root_has_its_own_user_even_with_two_servers(
    each_backend: Bench, tmp_path: Path
) -> None:
    mark, count = marker(), 3 if os.getuid() == 0 else 1
    text = f"print('begun', flush=True); import os; os.execv('/bin/sh', ['sh', '-c', 'sleep 1000; true', '{mark}'])"
    cancels: list[Callable[[], None]] = []
    another = Sandbox(each_backend.sandbox.settings)
    async with another.running(), anyio.create_task_group() as tasks:
        for bench in (each_backend, each_backend, Bench(another, tmp_path)):
            recorder = OutputRecorder()
            tasks.start_soon(partial(bench.run, text, listener=recorder, on_start=cancels.append))
            await recorder.wait_for("begun\n")
        await until(lambda: len(owners(mark)) >= count)
        found = owners(mark)
        for cancel in cancels:
            cancel()
    assert len(found) == count
    assert 0 not in found


def owners(mark: str) -> set[int]:
    """The users of the scripts' own processes."""
    found = set()
    for pid in named(mark):
        with suppress(OSError):
            if command_line(pid).startswith("sh "):
                found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found


async def test_processes_of_two_runs_do_not_count_against_each_other(each_backend: Bench) -> None:
    children = 45
    text = f"""
import os, signal, time
for number in range({children}):
    if os.fork() == 0: signal.pause()
print("begun", number + 1, flush=True)
time.sleep(1000)
"""
    assert 2 * children > each_backend.sandbox.settings.limits.processes
    cancels: list[Callable[[], None]] = []
    results: list[ExecutionResult] = []

    async def run(recorder: OutputRecorder) -> None:
        results.append(await each_backend.run(text, listener=recorder, on_start=cancels.append))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            recorder = OutputRecorder()
            tasks.start_soon(run, recorder)
            await recorder.wait_for(f"begun {children}\n")
        assert results == [], "all three run at the same time"
        for cancel in cancels:
            cancel()
    ends = [(result.error_code, result.stdout) for result in results]
    assert ends == [("CANCELLED", f"begun {children}\n")] * 3


async def test_a_result_lists_the_mechanism_of_each_guarantee(each_backend: Bench) -> None:
    result = await each_backend.run("pass")
    report = json.loads(result.model_dump_json(by_alias=True))["enforcement"]
    assert set(report) == {"fs", "net", "tree_kill", "memory", "pids", "disk", "env", "fds", "syscalls"}
    assert all(isinstance(mechanism, str) and mechanism for mechanism in report.values())
