"""Runs: a separate process, the runtime, errors, live output, cancellation."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from apexbridge.errors import SkillPermissionError
from apexbridge.sandbox.config import GUARANTEES, SandboxSettings
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import SECONDS, Bench, OutputRecorder, marker, named
from tests.waiting import until

pytestmark = pytest.mark.anyio
HELLO = {
    "js": "console.log('hello')",
    "mjs": "import fs from 'node:fs'; await null; console.log(typeof fs.readFileSync === 'function' && 'hello')",
    "cjs": "const { join } = require('path'); console.log(join('hello', '.'))",
    "py": "print('hello')",
    "sh": "echo hello",
}
FOREVER = {
    "py": "print('begun', flush=True)\nwhile True: pass",
    "js": "console.log('begun'); setTimeout(() => { for (;;); }, 20)",
    "sh": "echo begun; while :; do :; done",
}
suffixes = pytest.mark.parametrize("suffix", list(FOREVER))


class Ongoing:
    """A run in the background that ends on request."""

    def __init__(self) -> None:
        self.recorder = OutputRecorder()
        self.cancel: Callable[[], None] = lambda: None
        self.result: ExecutionResult | None = None

    def started(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel

    async def run(self, bench: Bench, text: str, suffix: str, args: tuple[str, ...] = ()) -> None:
        self.result = await bench.run(text, suffix, args=args, listener=self.recorder, on_start=self.started)


# ----------------------------------------------------------------------------------------------------- own process
@pytest.mark.requirement("B1")
@suffixes
async def test_a_busy_script_does_not_block_the_event_loop(bench: Bench, suffix: str) -> None:
    ongoing = Ongoing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ongoing.run, bench, FOREVER[suffix], suffix)
        await ongoing.recorder.wait_for("begun\n")
        with anyio.fail_after(SECONDS):
            for _ in range(200):
                await anyio.sleep(0.001)
        assert ongoing.result is None
        ongoing.cancel()
    assert ongoing.result is not None
    assert (ongoing.result.error_code, ongoing.result.stdout) == ("CANCELLED", "begun\n")


@pytest.mark.requirement("B1")
async def test_a_script_runs_in_its_own_process(cold: Bench) -> None:
    ongoing, mark = Ongoing(), marker()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ongoing.run, cold, FOREVER["sh"], "sh", (mark,))
        await ongoing.recorder.wait_for("begun\n")
        found = named(mark)
        assert found
        assert os.getpid() not in found
        ongoing.cancel()
    assert named(mark) == []


# --------------------------------------------------------------------------------------------------------- runtimes
@pytest.mark.requirement("B2")
@pytest.mark.requirement("B3")
@pytest.mark.parametrize("suffix", list(HELLO))
async def test_each_kind_of_script_has_its_runtime(bench: Bench, suffix: str) -> None:
    result = await bench.run(HELLO[suffix], suffix)
    assert (result.success, result.status, result.stdout, result.stderr) == (True, "success", "hello\n", "")
    assert (result.exit_code, result.error, result.error_code, result.truncated) == (0, None, None, False)
    assert 0 < result.duration < SECONDS * 1000
    assert set(result.enforcement) == set(GUARANTEES)
    assert None not in result.enforcement.values()


@pytest.mark.requirement("B2")
async def test_a_script_in_the_root_of_a_skill_can_run(bench: Bench) -> None:
    text = "console.log(require('./lib/words.js') + ' ' + (require.main === module) + ' ' + __filename)"
    result = await bench.run("", "js", script="index.js", files_beside={"index.js": text, "lib/words.js": WORDS})
    assert result.stdout.split()[:2] == ["hello", "true"]


WORDS = "module.exports = 'hello'"


@pytest.mark.requirement("B2")
async def test_python_has_none_of_the_servers_packages(bench: Bench) -> None:
    text = """
import importlib.util, json, sys
names = ["fastapi", "pydantic", "anyio", "apexbridge", "pytest", "pip", "numpy"]
print(json.dumps([[name for name in names if importlib.util.find_spec(name)], sys.path]))
"""
    found, path = await bench.run_json(text)
    assert found == []
    assert not [entry for entry in path if "site-packages" in entry or "dist-packages" in entry]


@pytest.mark.requirement("B2")
async def test_python_runs_a_script_as_its_main_module(bench: Bench) -> None:
    text = """
import json, os, sys, __main__
from helper import WORD
print(json.dumps([__name__, __file__, sys.argv, WORD, sorted(vars(__main__))]))
sys.exit
"""
    report = await bench.run_json(text, args=("a", ""), files_beside={"scripts/helper.py": "WORD = 'found'"})
    name, file, argv, word, names = report
    assert (name, word, argv) == ("__main__", "found", [file, "a", ""])
    assert file.endswith("/scripts/execute.py")
    assert {each for each in names if not each.startswith("__")} == {"WORD", "json", "os", "sys"}


@pytest.mark.requirement("B2")
async def test_modules_of_a_skill_shadow_the_standard_library(bench: Bench) -> None:
    beside = {"scripts/json.py": "MINE = True", "scripts/typing.py": "MINE = True"}
    result = await bench.run("import json, typing; print(json.MINE, typing.MINE)", files_beside=beside)
    assert result.stdout == "True True\n", result.stderr


@pytest.mark.requirement("B2")
@pytest.mark.parametrize("first", ["#!/bin/bash", "#!/usr/bin/env bash", "#! /usr/bin/bash"])
async def test_a_shell_script_that_names_bash_is_run_by_bash_if_it_is_installed(cold: Bench, first: str) -> None:
    expected = "bash\n" if shutil.which("bash", path="/bin") else "\n"
    assert (await cold.run(f"{first}\necho ${{BASH_VERSION:+bash}}", "sh")).stdout == expected


@pytest.mark.requirement("B2")
async def test_other_shell_scripts_are_run_by_sh(cold: Bench) -> None:
    assert (await cold.run("#!/usr/bin/env python3\necho plain", "sh")).stdout == "plain\n"


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("py", "import subprocess; print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout)"),
        ("py", "import threading; t = threading.Thread(target=print, args=('child',)); t.start(); t.join()"),
        ("py", "import multiprocessing as m; p = m.Process(target=print, args=('child',)); p.start(); p.join()"),
        ("js", "process.stdout.write(require('child_process').execFileSync(process.execPath, ['-p', '\"child\"']))"),
        ("js", "new (require('worker_threads').Worker)('console.log(\"child\")', { eval: true })"),
        ("js", "new WebAssembly.Memory({ initial: 1 }); console.log('child')"),
        ("sh", "(echo child) | cat"),
    ],
)
async def test_a_script_may_start_children_threads_and_workers(bench: Bench, suffix: str, text: str) -> None:
    result = await bench.run(text, suffix)
    assert (result.stdout.strip(), result.success) == ("child", True), result.stderr


# ----------------------------------------------------------------------------------------------------------- failures
@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("suffix", "text", "error", "exit_code"),
    [
        ("js", "throw new Error('boom')", "boom", 1),
        ("mjs", "throw new Error('boom')", "boom", 1),
        ("js", "class Mine extends Error { name = 'Mine' }; throw new Mine('boom: twice')", "Mine: boom: twice", 1),
        ("js", "class Plain extends Error {}; throw new Plain('boom')", "Plain [Error]: boom", 1),
        ("js", "throw new Error('one\\ntwo')", "one\ntwo", 1),
        ("js", "Promise.reject(new TypeError('later'))", "TypeError: later", 1),
        ("js", "throw new Error('outer', { cause: new Error('inner') })", "outer", 1),
        ("js", "throw 'a string'", "a string", 1),
        ("js", "throw { a: 1 }", "{ a: 1 }", 1),
        ("js", "null.x", "TypeError: Cannot read properties of null (reading 'x')", 1),
        ("js", "console.error('last words'); process.exit(3)", "last words", 3),
        ("js", "process.exitCode = 5", "Exit code 5", 5),
        ("py", "raise ValueError('boom')", "ValueError: boom", 1),
        ("py", "class Mine(Exception): pass\nraise Mine('boom: twice')", "Mine: boom: twice", 1),
        ("py", "raise ValueError('one\\ntwo')", "ValueError: one\ntwo", 1),
        ("py", "try: 1 / 0\nexcept ZeroDivisionError as e: raise KeyError('k') from e", "KeyError: 'k'", 1),
        ("py", "try: 1 / 0\nexcept ZeroDivisionError: raise KeyError('k')", "KeyError: 'k'", 1),
        ("py", "raise ValueError", "ValueError", 1),
        ("py", "raise Exception('boom')", "boom", 1),
        ("py", "{}['files']", "KeyError: 'files'", 1),
        (
            "py",
            "import json; json.loads('')",
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            1,
        ),
        (
            "py",
            "raise ExceptionGroup('both', [ValueError('a'), KeyError('b')])",
            "ExceptionGroup: both (2 sub-exceptions)",
            1,
        ),
        ("js", "throw new TypeError()", "TypeError", 1),
        ("js", "const x = 1; x()", "TypeError: x is not a function", 1),
        ("py", "import sys; sys.exit('last words')", "last words", 1),
        ("py", "import sys; sys.exit(7)", "Exit code 7", 7),
        ("py", "raise KeyboardInterrupt", "KeyboardInterrupt", 130),
        ("sh", "echo first >&2; echo last >&2; echo >&2; exit 4", "last", 4),
        ("sh", "exit 9", "Exit code 9", 9),
    ],
)
async def test_a_failed_script_reports_its_error(
    bench: Bench, suffix: str, text: str, error: str, exit_code: int
) -> None:
    result = await bench.run(text, suffix)
    assert (result.success, result.status, result.error_code) == (False, "error", "EXIT_NONZERO")
    assert (result.error, result.exit_code) == (error, exit_code)
    assert 0 < result.duration < SECONDS * 1000


@pytest.mark.requirement("B4")
async def test_output_before_a_failure_is_reported(bench: Bench) -> None:
    result = await bench.run("import sys; print('so far'); print('and so', file=sys.stderr); raise OSError('no more')")
    assert result.stdout == "so far\n"
    assert result.stderr.startswith("and so\n")
    assert "loaders" not in result.stderr


async def test_a_script_that_kills_itself_is_reported_as_killed(cold: Bench) -> None:
    result = await cold.run("kill -9 $$", "sh")
    assert (result.error_code, result.exit_code) == ("KILLED", 137)


# -------------------------------------------------------------------------------------------------------- not started
@pytest.mark.requirement("B10")
async def test_a_missing_script_is_refused_before_it_runs(cold: Bench) -> None:
    with pytest.raises(SkillPermissionError) as caught:
        await cold.sandbox.check(cold.job("", script="scripts/other.py"))
    assert caught.value.code == "EACCES"


@pytest.mark.requirement("B10")
async def test_a_script_that_cannot_be_read_is_refused_before_it_runs(cold: Bench) -> None:
    job = cold.job("print(1)")
    Path(f"{job.folder}/{job.script}").chmod(0)
    for refused in (cold.sandbox.check(job), cold.sandbox.run(job)):
        with pytest.raises(SkillPermissionError) as caught:
            await refused
        assert caught.value.code == "EACCES"
    Path(f"{job.folder}/{job.script}").chmod(0o644)
    assert (await cold.sandbox.run(job)).success


@pytest.mark.requirement("B11")
@pytest.mark.parametrize("warm", [0, 1])
async def test_a_runtime_that_cannot_start_is_reported_and_others_still_work(tmp_path: Path, warm: int) -> None:
    """A Node that works on the host and not in the sandbox, because its interpreter is not mounted there."""
    beyond, program = tmp_path / "beyond", tmp_path / "broken/bin/node"
    program.parent.mkdir(parents=True)
    beyond.write_text("#!/bin/sh\necho 99.0.0 1000\n")
    program.write_text(f"#!{beyond}\n")
    for path in (beyond, program):
        path.chmod(0o755)
    search = f"{program.parent}:{os.defpath}"
    sandbox = Sandbox(SandboxSettings(backend="bubblewrap", warm=warm, path=search))
    async with sandbox.running():
        await sandbox.warm_up()
        bench = Bench(sandbox, tmp_path)
        result = await bench.run("console.log(1)", "js")
        assert (result.success, result.status, result.error_code) == (False, "error", "SPAWN_FAILED")
        assert result.error is not None
        assert result.error.startswith("Failed to spawn process: ")
        assert result.error.endswith("No such file or directory")
        assert (result.exit_code, result.enforcement) == (None, {})
        assert json.loads(result.model_dump_json(by_alias=True))["exitCode"] is None
        assert (await bench.run(HELLO["py"])).success


# ------------------------------------------------------------------------------------------------------- live, cancel
@suffixes
async def test_output_is_reported_while_the_script_runs(bench: Bench, suffix: str) -> None:
    ongoing = Ongoing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ongoing.run, bench, FOREVER[suffix], suffix)
        await ongoing.recorder.wait_for("begun\n")
        assert ongoing.result is None
        ongoing.cancel()
    assert ongoing.recorder.text.rstrip() == "begun"
    assert {stream for stream, _ in ongoing.recorder.chunks} == {"stdout"}


async def test_both_streams_are_reported_separately(bench: Bench) -> None:
    recorder = OutputRecorder()
    result = await bench.run("import sys; print('one'); print('two', file=sys.stderr)", listener=recorder)
    both = {stream: "".join(text for each, text in recorder.chunks if each == stream) for stream, _ in recorder.chunks}
    assert both == {"stdout": "one\n", "stderr": "two\n"}
    assert (result.stdout, result.stderr) == ("one\n", "two\n")


async def test_a_character_written_byte_by_byte_is_decoded(bench: Bench) -> None:
    text = "import os, time\nfor byte in '日本🐛'.encode(): os.write(1, bytes([byte])); time.sleep(0.001)"
    recorder = OutputRecorder()
    assert (await bench.run(text, listener=recorder)).stdout == "日本🐛"
    assert recorder.text == "日本🐛"


async def test_invalid_utf_8_is_replaced(bench: Bench) -> None:
    assert (await bench.run("import os; os.write(1, b'a\\xff\\xfeb')")).stdout == "a\ufffd\ufffdb"


@suffixes
async def test_a_cancelled_run_ends_with_all_its_children(bench: Bench, suffix: str) -> None:
    ongoing, mark = Ongoing(), marker()
    child = f"['-c', 'sleep 1000; true', '{mark}']"
    text = {
        "py": f"import subprocess; c = subprocess.Popen(['sh', *{child}]); print('begun', flush=True); c.wait()",
        "js": f"require('child_process').spawn('sh', {child}); console.log('begun')",
        "sh": f"sh -c 'sleep 1000; true' {mark} & echo begun; wait",
    }[suffix]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ongoing.run, bench, text, suffix)
        await ongoing.recorder.wait_for("begun\n")
        await until(lambda: bool(named(mark)))
        ongoing.cancel()
        ongoing.cancel()
    assert ongoing.result is not None
    assert (ongoing.result.status, ongoing.result.error_code) == ("error", "CANCELLED")
    assert (ongoing.result.exit_code, ongoing.result.stdout) == (137, "begun\n")
    assert named(mark) == []
    ongoing.cancel()  # after the end, it has no effect


async def test_a_run_is_killed_if_the_task_that_waits_for_it_is_cancelled(bench: Bench) -> None:
    ongoing, mark = Ongoing(), marker()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ongoing.run, bench, f"sh -c 'sleep 1000; true' {mark} & echo begun; wait", "sh")
        await ongoing.recorder.wait_for("begun\n")
        await until(lambda: bool(named(mark)))
        tasks.cancel_scope.cancel()
    await until(lambda: not named(mark))
    assert (await bench.run(HELLO["sh"], "sh")).success
