"""Runs of installed skills: queue, events, cancellation, history, artifacts, input files, statistics, restarts."""

import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from apexbridge.bridge import DATABASE_FILE, Bridge
from apexbridge.errors import ApexBridgeError, InvalidInputError, SkillExecutionError, SkillTimeoutError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.settings import Settings
from apexbridge.skills.models import DirectSkillResult
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.runs.tracker import Run
from apexbridge.storage.database import Database
from apexbridge.storage.run_store import RunFilter, RunRow, RunStore
from tests.making import skill_zip
from tests.waiting import until

pytestmark = pytest.mark.anyio
TIMEOUT_SECONDS = 60
ECHO = "import json, os, sys\nprint(json.dumps({'env': os.environ['INPUT_JSON'], 'args': sys.argv[1:]}))\n"
WAITS = "import sys, time\nprint('begun', flush=True)\ntime.sleep(60)\n"


async def install(bridge: Bridge, name: str, script: str, *, suffix: str = "py", **fields: Any) -> None:
    await bridge.skills.install_skill(skill_zip(name, files={f"scripts/execute.{suffix}": script}, **fields))


async def start(bridge: Bridge, name: str, **call: Any) -> Run:
    started = await bridge.skills.runner.call(SkillCall(skill=name, **call))
    assert isinstance(started, Run)
    return started


async def execute(bridge: Bridge, name: str, input: dict[str, Any] | None = None, **call: Any) -> ExecutionResult:
    with anyio.fail_after(TIMEOUT_SECONDS):
        result = await bridge.skills.execute_skill(name, input, **call)
    assert isinstance(result, ExecutionResult)
    return result


async def until_output(run: Run) -> None:
    with anyio.fail_after(TIMEOUT_SECONDS):
        async for event in run.log.follow():
            if event.kind == "stdout":
                return


@pytest.fixture
async def serial(data_dir: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    """One run at a time, a queue of one."""
    settings = Settings(data_dir=data_dir, sandbox_max_concurrency=1, sandbox_queue=1)
    async with Bridge.open(settings, watch=False, embedder=embedder) as opened:
        yield opened


# ---------------------------------------------------------------------------------------------------------- results
@pytest.mark.requirement("B1", "B2", "B3")
@pytest.mark.parametrize(
    ("suffix", "script"),
    [
        ("js", "console.log(process.env.SKILL_NAME)"),
        ("mjs", "import os from 'os'; console.log(process.env.SKILL_NAME)"),
        ("cjs", "console.log(process.env.SKILL_NAME)"),
        ("py", "import os\nprint(os.environ['SKILL_NAME'])"),
        ("sh", 'echo "$SKILL_NAME"'),
    ],
)
async def test_an_installed_skill_runs_in_its_own_process(bridge: Bridge, suffix: str, script: str) -> None:
    await install(bridge, "git-commit", script, suffix=suffix)
    result = await execute(bridge, "git-commit")
    assert (result.success, result.status, result.stdout, result.stderr) == (True, "success", "git-commit\n", "")
    assert (result.exit_code, result.error, result.output) == (0, None, result.stdout)
    assert result.duration > 0
    assert result.enforcement["fs"] == "mount namespace"
    payload = json.loads(result.model_dump_json())
    assert {"error", "errorCode"}.isdisjoint(payload)


@pytest.mark.requirement("B12")
async def test_started_calls_are_counted_and_the_counts_survive_a_restart(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "fails", "raise SystemExit(3)")
        await install(bridge, "works", "print('well')")
        assert (await bridge.executor.get_stats("works")).call_count == 0
        for name in ("fails", "works", "works"):
            await execute(bridge, name)
        with pytest.raises(ApexBridgeError):
            await execute(bridge, "works", script="scripts/none.py")
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        works, fails = await bridge.executor.get_stats("works"), await bridge.executor.get_stats("fails")
    assert (works.tool_name, works.call_count, works.success_count, works.success_rate) == ("works", 2, 2, 1.0)
    assert (fails.call_count, fails.success_count, fails.success_rate) == (1, 0, 0.0)
    assert works.average_duration > 0
    assert fails.average_duration > 0


@pytest.mark.requirement("B5", "B17")
async def test_the_timeout_comes_from_the_call_the_skill_or_the_default_within_the_cap(
    data_dir: Path, embedder: Embedder
) -> None:
    settings = Settings(data_dir=data_dir, sandbox_max_timeout_seconds=2)
    script = "import os\nprint(os.environ['TIMEOUT'])"
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "own", script, timeout=1234)
        await install(bridge, "other", script)
        assert (await execute(bridge, "own")).stdout == "1234\n"
        assert (await execute(bridge, "own", timeout=999)).stdout == "999\n"
        assert (await execute(bridge, "own", timeout=99_999)).stdout == "2000\n"
        assert (await execute(bridge, "other")).stdout == "2000\n", "a default above the cap is lowered to the cap"
        await bridge.executor.set_timeout(1500)
        assert (await execute(bridge, "other")).stdout == "1500\n"
        for wrong in (0, -1, 2001):
            with pytest.raises(InvalidInputError):
                await bridge.executor.set_timeout(wrong)
        assert (await execute(bridge, "other")).stdout == "1500\n"


@pytest.mark.requirement("F7")
async def test_the_executor_runs_renders_validates_and_raises_on_demand(bridge: Bridge) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    await install(bridge, "typed", "import time\ntime.sleep(60)", parameters=schema)
    await install(bridge, "fails", "raise SystemExit(3)")
    await bridge.skills.install_skill(skill_zip("words", body="Say {{input.x}}."))
    assert (await bridge.executor.validate_input("typed", {"n": 1})).valid
    verdict = await bridge.executor.validate_input("typed", {"n": "one"})
    assert (verdict.valid, [error.path for error in verdict.errors]) == (False, ["n"])
    assert (await bridge.executor.validate_input("words", {"any": "thing"})).valid
    assert (await bridge.executor.execute_direct("words", {"x": "hello"})).content == "Say hello."
    with pytest.raises(SkillTimeoutError):
        (await bridge.executor.execute("typed", {"n": 1}, timeout=200)).raise_for_status()
    with pytest.raises(SkillExecutionError):
        (await bridge.executor.execute("fails")).raise_for_status()


@pytest.mark.requirement("B16")
async def test_a_dangerous_skill_runs_with_an_approval_or_if_approvals_are_off(
    data_dir: Path, embedder: Embedder
) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as bridge:
        await install(bridge, "danger", "print('done')", dangerous=True, confirm="Really?")
        with pytest.raises(ApexBridgeError) as caught:
            await execute(bridge, "danger")
        assert (caught.value.code, caught.value.details["confirm"]) == ("CONFIRMATION_REQUIRED", "Really?")
        id = caught.value.details["approvalId"]
        await bridge.approvals.decide(id, approve=True)
        result = await bridge.skills.execute_skill("danger", approval=id)
        assert isinstance(result, ExecutionResult)
        assert result.stdout == "done\n"
    settings = Settings(data_dir=data_dir, confirm_dangerous=False)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        assert (await execute(bridge, "danger")).stdout == "done\n"


async def test_only_direct_mode_works_if_the_sandbox_backend_is_too_weak(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, sandbox_backend="plain")
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "echo", ECHO)
        await bridge.prepare_sandbox()
        for _ in range(2):
            with pytest.raises(ApexBridgeError) as caught:
                await execute(bridge, "echo")
            assert caught.value.code == "SANDBOX_UNAVAILABLE"
            assert "fs, net, syscalls" in caught.value.message
        assert (await bridge.skills.skill_statistics("echo")).call_count == 0
        assert (await bridge.runs.page(RunFilter(), page=1, limit=10)).total == 0
        assert isinstance(await bridge.skills.execute_skill("echo", mode="direct"), DirectSkillResult)


# ------------------------------------------------------------------------------------------------------ queue, cancel
@pytest.mark.requirement("B13")
async def test_runs_are_queued_and_a_full_queue_is_reported(serial: Bridge) -> None:
    await install(serial, "waits", WAITS)
    await install(serial, "quick", "print('quick')")
    first = await start(serial, "waits")
    await until_output(first)
    second = await start(serial, "quick")
    with pytest.raises(ApexBridgeError) as caught:
        await start(serial, "quick")
    assert caught.value.code == "QUEUE_FULL"
    assert caught.value.details["retryAfter"] >= 1
    page = await serial.runs.page(RunFilter(), page=1, limit=10)
    assert [(run.skill, run.state) for run in page.executions] == [("quick", "pending"), ("waits", "running")]
    first.cancel()
    with anyio.fail_after(TIMEOUT_SECONDS):
        assert (await second.result()).success
        result = await first.result()
    assert (result.error_code, result.exit_code, result.stdout) == ("CANCELLED", 137, "begun\n")


async def test_a_queued_run_can_be_cancelled_and_is_not_counted(serial: Bridge) -> None:
    await install(serial, "waits", WAITS)
    first, second = await start(serial, "waits"), await start(serial, "waits")
    await until_output(first)
    await serial.runs.cancel(second.id)
    with anyio.fail_after(TIMEOUT_SECONDS):
        result = await second.result()
    assert (result.error_code, result.exit_code, result.enforcement) == ("CANCELLED", None, {})
    first.cancel()
    with anyio.fail_after(TIMEOUT_SECONDS):
        await first.result()
    assert (await serial.skills.skill_statistics("waits")).call_count == 1
    assert (await serial.runs.get(second.id)).state == "error"


async def test_paths_cannot_change_during_a_background_run(bridge: Bridge, tmp_path: Path) -> None:
    await install(bridge, "waits", WAITS)
    run = await start(bridge, "waits")
    await until_output(run)
    with pytest.raises(ApexBridgeError) as caught:
        await bridge.skills.update_config({"customPaths": [str(tmp_path)]})
    assert caught.value.code == "BUSY"
    assert (await bridge.runs.page(RunFilter(), page=1, limit=5)).total == 1, "an active run is counted once"
    run.cancel()
    with anyio.fail_after(TIMEOUT_SECONDS):
        await run.result()
    await bridge.skills.update_config({"customPaths": [str(tmp_path)]})


async def test_a_cancel_at_any_moment_of_the_start_ends_the_run(serial: Bridge) -> None:
    await install(serial, "sleeps", "sleep 1000", suffix="sh")
    for steps in range(40):
        run = await start(serial, "sleeps")
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        run.cancel()
        with anyio.fail_after(TIMEOUT_SECONDS):
            assert (await run.result()).error_code == "CANCELLED"
    (serial.settings.workspace).mkdir()
    (serial.settings.workspace / "large").write_bytes(b"x" * (20 << 20))
    run = await start(serial, "sleeps", files=["large"], timeout=1)
    with anyio.fail_after(TIMEOUT_SECONDS):
        assert (await run.result()).error_code == "TIMEOUT", "the timeout includes copying the files"


async def test_a_run_that_fails_in_the_server_is_recorded_and_its_events_end(serial: Bridge) -> None:
    await install(serial, "waits", WAITS)
    await install(serial, "gone", ECHO)
    first, second = await start(serial, "waits"), await start(serial, "gone")
    await until_output(first)
    await serial.skills.uninstall_skill("gone")
    first.cancel()
    with anyio.fail_after(TIMEOUT_SECONDS):
        with pytest.raises(ApexBridgeError):
            await second.result()
        events = [event async for event in serial.runs.events(second.id)]
    assert events[-1].kind == "result"
    detail = await serial.runs.get(second.id)
    assert detail.result is not None
    assert (detail.state, detail.result.error_code) == ("error", "SPAWN_FAILED")


async def test_concurrent_starts_are_either_accepted_or_refused(serial: Bridge) -> None:
    await install(serial, "waits", WAITS)
    started: list[Run] = []
    refused: list[str] = []

    async def one() -> None:
        try:
            started.append(await start(serial, "waits"))
        except ApexBridgeError as error:
            refused.append(error.code)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(one)
    assert (len(started), refused) == (2, ["QUEUE_FULL"] * 18)
    for run in started:
        run.cancel()
    with anyio.fail_after(TIMEOUT_SECONDS):
        assert {(await run.result()).error_code for run in started} == {"CANCELLED"}


async def test_artifacts_that_cannot_be_stored_do_not_fail_the_run(bridge: Bridge) -> None:
    steps = ["import os", "os.chdir('output')", "for _ in range(20):", "    os.mkdir('a' * 250); os.chdir('a' * 250)"]
    deep = "\n".join([*steps, "open('x', 'w')"])
    await install(bridge, "deep", deep)
    await install(bridge, "pipes", "import os\nfor n in range(500):\n    os.mkfifo(f'output/{n}')\n")
    result = await execute(bridge, "deep")
    assert (result.success, result.files, len(result.warnings)) == (True, [], 1)
    assert len((await execute(bridge, "pipes")).warnings) == 21


async def test_a_run_is_cancelled_when_its_caller_stops_waiting(bridge: Bridge) -> None:
    await install(bridge, "waits", WAITS)
    run = await start(bridge, "waits")
    await until_output(run)
    with anyio.move_on_after(0.05):
        await run.result()

    async def is_over() -> bool:
        return (await bridge.runs.get(run.id)).state != "running"

    await until(is_over)
    detail = await bridge.runs.get(run.id)
    assert detail.result is not None
    assert detail.result.error_code == "CANCELLED"


async def test_closing_the_bridge_cancels_active_runs(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "waits", WAITS)
        run = await start(bridge, "waits")
        await until_output(run)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        detail = await bridge.runs.get(run.id)
    assert detail.result is not None
    assert (detail.state, detail.result.error_code) == ("error", "CANCELLED")


async def test_a_run_interrupted_by_a_crash_is_recorded_as_killed(data_dir: Path, embedder: Embedder) -> None:
    data_dir.mkdir(exist_ok=True)
    database = Database(data_dir / DATABASE_FILE)
    row = RunRow(
        id="a" * 32,
        skill="x",
        script="s",
        content_hash="h",
        state="running",
        created_at=1,
        started_at=1,
        input_digest="d",
    )
    await RunStore(database).put(row)
    database.close()
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as bridge:
        detail = await bridge.runs.get(row.id)
    assert detail.result is not None
    assert (detail.state, detail.result.error_code) == ("error", "KILLED")


# ---------------------------------------------------------------------------------------------------- events, history
async def test_events_of_a_run_can_be_followed_from_any_point(bridge: Bridge) -> None:
    await install(bridge, "says", "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)")
    run = await start(bridge, "says")
    with anyio.fail_after(TIMEOUT_SECONDS):
        events = [event async for event in bridge.runs.events(run.id)]
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    pairs = [(event.kind, event.data) for event in events if event.kind != "result"]
    assert pairs[:2] == [("state", "pending"), ("state", "running")]
    streams = {kind: "".join(data for each, data in pairs if each == kind) for kind in ("stdout", "stderr")}
    assert streams == {"stdout": "out\n", "stderr": "err\n"}
    assert pairs[-1] == ("state", "completed")
    assert events[-1].kind == "result"
    assert [event async for event in bridge.runs.events(run.id, after=3)] == events[3:]
    bridge.runs._ended.clear()  # as it is after a restart
    replayed = [(event.kind, event.data) async for event in bridge.runs.events(run.id)]
    assert [kind for kind, _ in replayed] == ["state", "state", "stdout", "stderr", "state", "result"]


@pytest.mark.requirement("B15")
async def test_history_lists_every_run_and_deletes_on_request(bridge: Bridge) -> None:
    await install(bridge, "echo", ECHO)
    await install(bridge, "fails", "raise SystemExit(2)")
    long = "x" * 40_000
    await install(bridge, "long", f"print('{'x' * 40_000}')")
    results = [await execute(bridge, name) for name in ("echo", "fails", "long", "echo")]
    page = await bridge.runs.page(RunFilter(), page=1, limit=10)
    assert (page.total, [run.id for run in page.executions]) == (4, [result.id for result in reversed(results)])
    for run_filter, count in (
        (RunFilter(skill="echo"), 2),
        (RunFilter(state="error"), 1),
        (RunFilter(status="success"), 3),
        (RunFilter(skill="none"), 0),
    ):
        assert (await bridge.runs.page(run_filter, page=1, limit=10)).total == count
    assert len((await bridge.runs.page(RunFilter(), page=2, limit=3)).executions) == 1
    stored = (await bridge.runs.get(results[2].id)).result
    assert stored is not None
    assert stored.stdout == f"{long}\n", "long output is stored in full"
    assert stored == results[2]
    await bridge.runs.delete(results[2].id)
    for call in (bridge.runs.get, bridge.runs.delete, bridge.runs.cancel):
        with pytest.raises(ApexBridgeError) as caught:
            await call(results[2].id)
        assert caught.value.code == "EXECUTION_NOT_FOUND"


@pytest.mark.requirement("B15")
@pytest.mark.parametrize("recorded", [False, True])
async def test_the_input_is_recorded_only_if_the_operator_enables_it(
    data_dir: Path, embedder: Embedder, recorded: bool
) -> None:
    settings = Settings(data_dir=data_dir, record_input=recorded)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "quiet", "pass")
        one = await execute(bridge, "quiet", {"word": "canary-word", "n": 1})
        other = await execute(bridge, "quiet", {"n": 1, "word": "canary-word"})
        third = await execute(bridge, "quiet", {"n": 2})
        details = [await bridge.runs.get(result.id) for result in (one, other, third)]
    assert (details[0].input is not None) == recorded
    assert details[0].input_digest == details[1].input_digest != details[2].input_digest
    files = [path for path in data_dir.glob("apex.sqlite3*") if b"canary-word" in path.read_bytes()]
    assert bool(files) == recorded


async def test_old_runs_are_deleted_with_their_artifacts(bridge: Bridge, data_dir: Path) -> None:
    await install(bridge, "leaves", "open('output/a.txt', 'w').write('x')")
    old, new = await execute(bridge, "leaves"), await execute(bridge, "leaves")
    store = bridge.runs._store
    row = await store.get(old.id)
    assert row is not None
    long_ago = int(time.time() * 1000) - 31 * 24 * 3600 * 1000
    await store.put(replace(row, created_at=long_ago, ended_at=long_ago))
    await bridge.runs.sweep()
    assert [run.id for run in (await bridge.runs.page(RunFilter(), page=1, limit=10)).executions] == [new.id]
    assert [path.name for path in (data_dir / "runs").iterdir()] == [new.id]


# ----------------------------------------------------------------------------------------------------------- files
@pytest.mark.requirement("B14")
async def test_artifacts_are_stored_listed_and_usable_by_the_next_run(bridge: Bridge) -> None:
    await install(bridge, "makes", "import os\nos.makedirs('output/deep')\nopen('output/deep/a.txt','w').write('one')")
    await install(bridge, "reads", "import os\nprint(open('input/a.txt').read(), os.environ['INPUT_JSON'])")
    made = await execute(bridge, "makes")
    assert [(file.path, file.size) for file in made.files] == [("deep/a.txt", 3)]
    with await bridge.runs.open_file(made.id, "deep/a.txt") as file:
        assert file.read() == b"one"
    read = await execute(bridge, "reads", files=[f"runs/{made.id}/deep/a.txt"])
    assert read.stdout == 'one {"files":["input/a.txt"]}\n'
    for wrong in ("deep", "../result", "deep/../deep/a.txt", "none", ""):
        with pytest.raises(ApexBridgeError) as caught:
            await bridge.runs.open_file(made.id, wrong)
        assert caught.value.code == "FILE_NOT_FOUND"


@pytest.mark.requirement("B19")
async def test_input_files_come_from_workspace_uploads_and_runs_and_cannot_be_changed(
    bridge: Bridge, tmp_path: Path
) -> None:
    script = """
import json, os
names = json.loads(os.environ['INPUT_JSON'])['files']
tried = []
for name in names:
    for change in (lambda: open(name, 'a'), lambda: os.unlink(name), lambda: os.chmod(name, 0o777)):
        try:
            change(); tried.append(name)
        except OSError:
            pass
try:
    open('input/new', 'w'); tried.append('new')
except OSError:
    pass
print(json.dumps([names, [open(name).read() for name in names], tried]))
"""
    await install(bridge, "reads", script)
    workspace = bridge.settings.workspace
    (workspace / "deep").mkdir(parents=True)
    (workspace / "deep/a.txt").write_text("from the workspace")
    with (tmp_path / "up.txt").open("wb+") as file:
        file.write(b"from an upload")
        file.seek(0)
        upload = await bridge.runs.uploads.add(file, "../../a.txt")
    assert (upload.name, upload.size) == ("a.txt", 14)
    result = await execute(bridge, "reads", files=["deep/a.txt", upload.id])
    assert json.loads(result.stdout) == [
        ["input/a.txt", "input/a-2.txt"],
        ["from the workspace", "from an upload"],
        [],
    ]


@pytest.mark.requirement("B19")
async def test_missing_outside_and_oversized_input_files_are_refused(bridge: Bridge, tmp_path: Path) -> None:
    await install(bridge, "echo", ECHO)
    workspace = bridge.settings.workspace
    workspace.mkdir()
    (tmp_path / "secret").write_text("s")
    (workspace / "link").symlink_to(tmp_path / "secret")
    (workspace / "folder").mkdir()
    os.mkfifo(workspace / "pipe")
    for wrong in (
        "none",
        "link",
        "folder",
        "pipe",
        "../secret",
        str(tmp_path / "secret"),
        "upload-" + "0" * 32,
        "runs/none/x",
        "runs/../x",
        "",
    ):
        with pytest.raises(InvalidInputError):
            await execute(bridge, "echo", files=[wrong])
    (workspace / "large").write_bytes(b"x" * (51 << 20))
    with pytest.raises(InvalidInputError, match="50 MB"):
        await execute(bridge, "echo", files=["large"])


@pytest.mark.requirement("B18", "C5")
async def test_scripts_by_name_take_arguments_or_their_input_as_options(bridge: Bridge) -> None:
    files = {"scripts/tool.py": ECHO, "scripts/other.sh": 'echo "$@"'}
    await bridge.skills.install_skill(skill_zip("pack", files=files))
    assert isinstance(await bridge.skills.execute_skill("pack"), DirectSkillResult)
    input = {
        "text": "a b",
        "flag": True,
        "off": False,
        "none": None,
        "n": 3,
        "many": [1, 2],
        "minus": "-x",
        "o": {"k": 1},
    }
    result = await execute(bridge, "pack", input, script="scripts/tool.py")
    output = json.loads(result.stdout)
    assert output["args"] == [
        "--text",
        "a b",
        "--flag",
        "--n",
        "3",
        "--many",
        "1",
        "--many",
        "2",
        "--minus=-x",
        "--o",
        '{"k": 1}',
    ]
    assert json.loads(output["env"]) == input
    plain = await execute(bridge, "pack", {"x": 1}, script="scripts/other.sh", args=["-v", "$(id)", "a b"])
    assert plain.stdout == "-v $(id) a b\n"
    with pytest.raises(InvalidInputError, match="NUL"):
        await execute(bridge, "pack", script="scripts/tool.py", args=["a\0b"])
    with pytest.raises(InvalidInputError, match="too long"):
        await execute(bridge, "pack", script="scripts/tool.py", args=["x" * 200_000])


# ----------------------------------------------------------------------------------------------- deleted data on disk
def files_with(word: str, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if word.encode() in path.read_bytes()]


async def test_a_deleted_run_leaves_no_data_on_disk(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, record_input=True)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "echo", ECHO)
        result = await execute(bridge, "echo", {"said": "quagga" + "word"})
        assert result.success, result
        assert files_with("quaggaword", data_dir)
        await bridge.runs.delete(result.id)
        assert files_with("quaggaword", data_dir) == []


async def test_swept_runs_leave_no_data_on_disk(
    data_dir: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as bridge:
        await install(bridge, "echo", ECHO)
        await execute(bridge, "echo", {"said": "quagga" + "word"})
        assert files_with("quaggaword", data_dir)
        monkeypatch.setattr(bridge.runs, "_retention_days", -1)
        await bridge.runs.sweep()
        assert files_with("quaggaword", data_dir) == []


async def test_expired_approval_requests_leave_no_data_on_disk_after_a_start(
    data_dir: Path, embedder: Embedder
) -> None:
    settings = Settings(data_dir=data_dir)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "wipe", ECHO, dangerous=True)
        with pytest.raises(ApexBridgeError):
            await execute(bridge, "wipe", {"said": "quagga" + "word"})
    database = Database(data_dir / DATABASE_FILE)
    await database.write(lambda connection: connection.execute("UPDATE approvals SET expires_at = created_at"))
    database.close()
    assert files_with("quaggaword", data_dir)
    async with Bridge.open(settings, watch=False, embedder=embedder):
        assert files_with("quaggaword", data_dir) == []
