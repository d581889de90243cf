"""The launcher as a process: what happens when it dies, when the server dies, and what both leave behind."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from apexbridge.errors import ServerError
from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import SECONDS, Bench, OutputRecorder, descendants, descriptors, marker, named, quiet
from tests.sandbox.conftest import KINDS
from tests.sandbox.other_hosts import report_of
from tests.waiting import until

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
kinds = pytest.mark.parametrize("kind", list(KINDS))
SERVER = """
import asyncio, sys
from pathlib import Path
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import SECONDS, Bench
from tests.sandbox.conftest import KINDS

async def main():
    sandbox = Sandbox(KINDS[sys.argv[1]])
    async with sandbox.running():
        await sandbox.warm_up()
        listener = lambda _, text: print(text, end="", flush=True)
        bench = Bench(sandbox, Path(sys.argv[2]))
        text = "setsid sh -c 'sleep 1000; true' $1 & echo begun; sleep 1000"
        await bench.run(text, "sh", args=(sys.argv[3],), listener=listener)

asyncio.run(main())
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate temporary folder that the users of runs can traverse."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield path


async def launcher_of(sandbox: Sandbox) -> int:
    pid = (await sandbox.ready()).launcher.pid
    assert pid is not None
    return pid


@kinds
async def test_a_run_is_killed_with_its_launcher_and_the_next_one_works(kind: str, tmp_path: Path) -> None:
    sandbox, mark, recorder = Sandbox(KINDS[kind]), marker(), OutputRecorder()
    results: list[ExecutionResult] = []
    async with sandbox.running():
        bench = Bench(sandbox, tmp_path)
        await sandbox.warm_up()
        first = await launcher_of(sandbox)
        below = descendants(first)

        async def run() -> None:
            text = f"setsid sh -c 'sleep 1000; true' {mark} & echo begun; sleep 1000"
            results.append(await bench.run(text, "sh", listener=recorder))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await recorder.wait_for("begun\n")
            await until(lambda: bool(named(mark)))
            os.kill(first, signal.SIGKILL)
        assert (results[0].status, results[0].error_code, results[0].exit_code) == ("error", "KILLED", 137)
        assert results[0].stdout == "begun\n"
        await until(lambda: not named(mark))
        for suffix, text in (("py", "print('again')"), ("js", "console.log('again')"), ("sh", "echo again")):
            assert (await bench.run(text, suffix)).stdout == "again\n"
        assert await launcher_of(sandbox) != first
        await until(lambda: not below & descendants(os.getpid()))


@kinds
async def test_a_launcher_that_dies_while_nothing_runs_is_replaced(kind: str, tmp_path: Path) -> None:
    sandbox = Sandbox(KINDS[kind])
    async with sandbox.running():
        await sandbox.warm_up()
        for _ in range(3):
            os.kill(await launcher_of(sandbox), signal.SIGKILL)
            await until(lambda: not sandbox._session or not sandbox._session.launcher.is_alive)
            assert (await Bench(sandbox, tmp_path).run("print('again')")).stdout == "again\n"


@pytest.mark.slow
@kinds
async def test_all_processes_end_when_the_server_dies(kind: str, tmp_path: Path) -> None:
    mark = marker()
    server = await anyio.open_process([sys.executable, "-c", SERVER, kind, str(tmp_path), mark], cwd=ROOT)
    async with server:
        assert server.stdout is not None
        with anyio.fail_after(SECONDS):
            assert await server.stdout.receive() == b"begun\n"
        await until(lambda: bool(set(named(mark)) - {server.pid}))
        below = descendants(server.pid)
        assert len(below) > 3
        server.kill()
    await until(lambda: not named(mark))
    await until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])


@kinds
async def test_a_closed_sandbox_leaves_nothing_behind(kind: str, tmp_path: Path, temporary: Path) -> None:
    await quiet()
    before, opened = descendants(os.getpid()), descriptors()
    sandbox = Sandbox(KINDS[kind])
    async with sandbox.running():
        bench = Bench(sandbox, tmp_path)
        for suffix, text in (("py", "print(1)"), ("js", "console.log(1)"), ("sh", "echo 1")):
            assert (await bench.run(text, suffix)).success
        assert list(temporary.iterdir())
        launcher = await launcher_of(sandbox)
    # Not `rglob`: it raises an error when another test removes its group meanwhile.
    assert f"apexbridge-{launcher}" not in {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names}
    assert descendants(os.getpid()) == before
    assert list(temporary.iterdir()) == []
    assert descriptors() == opened
    with pytest.raises(ServerError) as caught:
        await sandbox.ready()
    assert caught.value.code == "SANDBOX_UNAVAILABLE"


@kinds
async def test_closing_a_sandbox_kills_its_runs(kind: str, tmp_path: Path) -> None:
    sandbox, mark, recorder = Sandbox(KINDS[kind]), marker(), OutputRecorder()
    results: list[ExecutionResult] = []

    async def run() -> None:
        results.append(
            await Bench(sandbox, tmp_path).run(f"echo begun; sh -c 'sleep 1000; true' {mark}", "sh", listener=recorder)
        )

    async with anyio.create_task_group() as tasks, sandbox.running():
        tasks.start_soon(run)
        await recorder.wait_for("begun\n")
    assert results[0].error_code == "KILLED"
    await until(lambda: not named(mark))


async def test_nothing_is_started_before_the_first_job(tmp_path: Path) -> None:
    await quiet()
    before = descendants(os.getpid())
    sandbox = Sandbox(SandboxSettings(backend="bubblewrap"))
    async with sandbox.running():
        assert descendants(os.getpid()) == before


async def test_without_a_required_guarantee_nothing_runs(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxSettings(backend="plain"))
    async with sandbox.running():
        with pytest.raises(ServerError) as caught:
            await Bench(sandbox, tmp_path).run("print('must not run')")
    assert (caught.value.code, caught.value.status) == ("SANDBOX_UNAVAILABLE", 503)
    assert "fs" in caught.value.message


async def test_without_bubblewrap_landlock_is_used_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.sandbox.backends.find_bubblewrap", lambda path: None)
    sandbox = Sandbox(SandboxSettings(warm=0))
    async with sandbox.running():
        result = await Bench(sandbox, tmp_path).run("print('held')")
        assert (await sandbox.ready()).rejected == {"bubblewrap": "bubblewrap is not installed"}
    assert (result.stdout, result.enforcement["fs"]) == ("held\n", "landlock")


async def test_an_operator_can_choose_plain_by_requiring_fewer_guarantees(tmp_path: Path) -> None:
    mark = marker()
    settings = SandboxSettings(backend="plain", require=("tree_kill", "memory", "env", "fds"))
    sandbox = Sandbox(settings)
    async with sandbox.running():
        bench = Bench(sandbox, tmp_path)
        result = await bench.run(f"setsid sh -c 'sleep 1000; true' {mark} > /dev/null 2>&1 & echo done", "sh")
        assert (result.stdout, named(mark)) == ("done\n", [])
        assert {name for name, how in result.enforcement.items() if how is None} == {"fs", "net", "syscalls"}
        result = await bench.run("taken = []\nwhile True: taken.append(bytearray(8 << 20))")
        assert (result.error, result.exit_code) == ("Out of memory", 137)
        result = await bench.run("import time; time.sleep(1000)", timeout_ms=300)
        assert (result.status, result.exit_code) == ("timeout", 124)


def test_a_program_that_is_installed_while_the_server_runs_has_its_files_in_etc() -> None:
    seen = [[".", "first"], [".", "first", "first/second"], [".", "first", "first/second", "third"]]
    assert report_of("installing") == {"cold": seen, "warm": seen, "code": seen}
