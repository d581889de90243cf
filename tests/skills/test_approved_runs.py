"""Approved calls of dangerous skills: exactly the approved call runs, once, and every path releases the gate."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.sandbox.models import ExecutionResult, InputFile
from apexbridge.settings import Settings
from apexbridge.skills.runs.input_files import HeldFiles
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.runs.tracker import Run
from tests.making import skill_zip
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B16")]
TIMEOUT_SECONDS = 60
READS = "import glob, sys\nprint([open(name).read() for name in sorted(glob.glob('input/*'))], sys.argv[1:])\n"
WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"


@pytest.fixture
async def serial(data_dir: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    """One run at a time, no queue."""
    settings = Settings(data_dir=data_dir, sandbox_max_concurrency=1, sandbox_queue=0)
    async with Bridge.open(settings, watch=False, embedder=embedder) as opened:
        await install(opened, "danger", READS, dangerous=True)
        await install(opened, "waits", WAITS)
        yield opened


async def install(bridge: Bridge, name: str, script: str, **fields: Any) -> None:
    package = skill_zip(name, files={"scripts/execute.py": script}, **fields)
    await bridge.skills.install_skill(package, overwrite=True)


def workspace_file(bridge: Bridge, name: str, content: str) -> Path:
    path = bridge.settings.data_dir / "workspace" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


async def request_approval(bridge: Bridge, **call: Any) -> str:
    with pytest.raises(ApexBridgeError) as caught:
        await bridge.skills.execute_skill("danger", **call)
    assert caught.value.code == "CONFIRMATION_REQUIRED"
    return str(caught.value.details["approvalId"])


async def approve_call(bridge: Bridge, **call: Any) -> str:
    id = await request_approval(bridge, **call)
    await bridge.approvals.decide(id, approve=True)
    return id


async def code_of(work: Awaitable[Any]) -> str:
    with pytest.raises(ApexBridgeError) as caught, anyio.fail_after(TIMEOUT_SECONDS):
        await work
    return caught.value.code


async def run(bridge: Bridge, **call: Any) -> str:
    with anyio.fail_after(TIMEOUT_SECONDS):
        result = await bridge.skills.execute_skill("danger", **call)
    assert isinstance(result, ExecutionResult)
    return result.stdout.strip()


async def state(bridge: Bridge, id: str) -> str:
    return (await bridge.approvals.get(id)).state


# ------------------------------------------------------------------------------------------------- approved content
async def test_a_call_is_refused_if_a_file_changed_after_the_approval(bridge: Bridge) -> None:
    await install(bridge, "danger", READS, dangerous=True)
    path = workspace_file(bridge, "list.txt", "harmless")
    id = await approve_call(bridge, files=["list.txt"])
    path.write_text("delete everything")
    assert await code_of(run(bridge, files=["list.txt"], approval=id)) == "APPROVAL_INVALID"
    path.write_text("harmless")
    assert await run(bridge, files=["list.txt"], approval=id) == "['harmless'] []"


async def test_a_file_change_after_hashing_does_not_reach_the_run(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install(bridge, "danger", READS, dangerous=True)
    path = workspace_file(bridge, "list.txt", "harmless")
    id = await approve_call(bridge, files=["list.txt"])
    copy = HeldFiles.copy

    def change_after_copy(held: HeldFiles, asked_name: str, source: InputFile) -> None:
        copy(held, asked_name, source)
        path.write_text("delete everything")  # the same inode, which is still open

    monkeypatch.setattr(HeldFiles, "copy", change_after_copy)
    assert await run(bridge, files=["list.txt"], approval=id) == "['harmless'] []"


async def test_an_approval_request_lists_each_file_with_its_digest(bridge: Bridge) -> None:
    await install(bridge, "danger", READS, dangerous=True)
    workspace_file(bridge, "list.txt", "abc")
    detail = await bridge.approvals.detail(await request_approval(bridge, files=["list.txt"]))
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert json.loads(detail.call)["files"] == [{"name": "list.txt", "bytes": 3, "sha256": digest}]
    assert digest in detail.summary


@pytest.mark.parametrize(
    "change",
    [
        {"timeout": 2000},
        {"timeout": None},
        {"args": ["x"]},
        {"script": "scripts/other.py"},
        {"files": ["b.txt"]},
        {"files": ["a.txt", "a.txt"]},
        {"files": []},
        {"input": {"a": 1}},
    ],
    ids=str,
)
async def test_an_approval_is_valid_for_the_exact_call_only(bridge: Bridge, change: dict[str, Any]) -> None:
    files = {"scripts/execute.py": READS, "scripts/other.py": READS}
    await bridge.skills.install_skill(skill_zip("danger", files=files, dangerous=True))
    for name in ("a.txt", "b.txt"):
        workspace_file(bridge, name, name)
    call: dict[str, Any] = {"timeout": 9000, "files": ["a.txt"]}
    id = await approve_call(bridge, **call)
    assert await code_of(run(bridge, **{**call, **change}, approval=id)) == "APPROVAL_INVALID"
    assert await run(bridge, **call, approval=id) == "['a.txt'] []"


# -------------------------------------------------------------------------------------------------------- single use
async def disabled(bridge: Bridge, id: str) -> None:
    await bridge.skills.set_enabled("danger", False)
    assert await code_of(run(bridge, files=["a.txt"], approval=id)) == "TOOL_DISABLED"
    await bridge.skills.set_enabled("danger", True)


async def tool_disabled(bridge: Bridge, id: str) -> None:
    bridge.tools.disable("skill:danger")
    call = bridge.tools.execute("skill:danger", {}, approval=id)
    assert await code_of(call) == "TOOL_DISABLED"
    bridge.tools.enable("skill:danger")


async def other_files(bridge: Bridge, id: str) -> None:
    assert await code_of(run(bridge, files=["none.txt"])) == "INVALID_INPUT"
    assert await code_of(run(bridge, files=["none.txt"], approval=id)) == "APPROVAL_INVALID"
    assert await code_of(run(bridge, files=["b.txt"], approval=id)) == "APPROVAL_INVALID"


async def queue_full(bridge: Bridge, id: str) -> None:
    busy = await bridge.skills.runner.call(SkillCall(skill="waits"))
    assert isinstance(busy, Run)
    assert await code_of(run(bridge, files=["a.txt"], approval=id)) in ("QUEUE_FULL", "APPROVAL_INVALID")
    busy.cancel()
    await busy.result()


async def by_tools(bridge: Bridge, id: str) -> None:
    for name, input in (("skill:danger", {}), ("run-skill", {"name": "danger", "files": ["a.txt"]})):
        assert await code_of(bridge.tools.execute(name, input, approval=id)) == "APPROVAL_INVALID"


async def cancelled(bridge: Bridge, id: str) -> None:
    for steps in range(0, 40, 4):
        task = asyncio.ensure_future(bridge.skills.execute_skill("danger", files=["a.txt"], approval=id))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


async def approvals_disabled(bridge: Bridge, id: str) -> None:
    """A dangerous call that needs no approval, sends one anyway, and fails."""
    confirmation = bridge.approvals
    enabled, confirmation._enabled = confirmation._enabled, False
    try:
        await disabled(bridge, id)
        await queue_full_of_tool(bridge, id)
    finally:
        confirmation._enabled = enabled


async def queue_full_of_tool(bridge: Bridge, id: str) -> None:
    busy = await bridge.skills.runner.call(SkillCall(skill="waits"))
    assert isinstance(busy, Run)
    assert await code_of(bridge.tools.execute("skill:danger", {}, approval=id)) == "QUEUE_FULL"
    busy.cancel()
    await busy.result()


@pytest.mark.parametrize(
    "fail", [disabled, tool_disabled, other_files, queue_full, by_tools, cancelled, approvals_disabled]
)
async def test_a_used_approval_stays_used_when_another_call_with_it_fails(
    serial: Bridge, fail: Callable[[Bridge, str], Awaitable[None]]
) -> None:
    for name in ("a.txt", "b.txt"):
        workspace_file(serial, name, name)
    id = await approve_call(serial, files=["a.txt"])
    assert await run(serial, files=["a.txt"], approval=id) == "['a.txt'] []"
    await fail(serial, id)
    assert await state(serial, id) == "used"
    assert await code_of(run(serial, files=["a.txt"], approval=id)) == "APPROVAL_INVALID"


async def test_a_call_that_never_started_does_not_use_up_its_approval(serial: Bridge) -> None:
    workspace_file(serial, "a.txt", "a.txt")
    id, by_tool = await approve_call(serial, files=["a.txt"]), await approve_call(serial)
    await queue_full(serial, id)
    busy = await serial.skills.runner.call(SkillCall(skill="waits"))
    assert isinstance(busy, Run)
    assert await code_of(serial.tools.execute("skill:danger", {}, approval=by_tool)) == "QUEUE_FULL"
    busy.cancel()
    await busy.result()
    assert (await state(serial, id), await state(serial, by_tool)) == ("approved", "approved")
    assert await run(serial, files=["a.txt"], approval=id) == "['a.txt'] []"
    assert (await serial.tools.execute("skill:danger", {}, approval=by_tool)).output.startswith("[] []")
    assert (await state(serial, id), await state(serial, by_tool)) == ("used", "used")


# --------------------------------------------------------------------------------------------------------- the gate
async def check_gate_is_open(bridge: Bridge) -> None:
    """No work is active, and a skill can be replaced and removed."""
    await until(lambda: not bridge.skills.store.gate.working_count)
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with bridge.skills.store.gate.closed():
            pass
        await install(bridge, "danger", READS, dangerous=True)
        await bridge.skills.uninstall_skill("danger")
    assert bridge.skills.store.gate.working_count == 0


STEPS = [
    "skills.runner._find",
    "skills.runner._hold",
    "runs.inputs.hold",
    "tools.executor.admit",
    "skills.runner._start",
    "runs.start",
    "tools.executor.record",
]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_a_failure_at_any_step_releases_the_gate(
    serial: Bridge, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    workspace_file(serial, "a.txt", "a.txt")
    id = await approve_call(serial, files=["a.txt"])
    owner: Any = serial
    *path, name = step.split(".")
    for attribute in path:
        owner = getattr(owner, attribute)

    def fails(*args: Any, **more: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(type(owner), name, fails)
        with pytest.raises(error):
            await serial.skills.runner.call(SkillCall(skill="danger", files=["a.txt"], approval=id))
    assert await state(serial, id) == "approved"  # only a run that started uses up the approval
    await check_gate_is_open(serial)


@pytest.mark.parametrize("mode", ["direct", "sandbox"])
async def test_a_call_that_cannot_be_recorded_releases_the_gate(
    serial: Bridge, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    def fails(*args: Any, **more: Any) -> Any:
        raise RuntimeError

    for name in ("mark_running", "complete") if mode == "direct" else ("mark_running",):
        with monkeypatch.context() as patch:
            patch.setattr(f"apexbridge.tools.calls.CallRecord.{name}", fails)
            try:
                started = await serial.skills.runner.call(SkillCall(skill="waits", mode=mode))
            except RuntimeError:
                continue
            if isinstance(started, Run):
                started.cancel()
                await started.result()
    await check_gate_is_open(serial)


@pytest.mark.slow
async def test_calls_that_are_cancelled_at_any_moment_release_the_gate(serial: Bridge) -> None:
    workspace_file(serial, "a.txt", "a.txt")
    for steps in range(0, 60, 3):
        id = await approve_call(serial, input={"n": steps}, files=["a.txt"])
        call = serial.skills.execute_skill("danger", {"n": steps}, files=["a.txt"], approval=id)
        task = asyncio.ensure_future(call)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await state(serial, id) in ("approved", "used")
    await check_gate_is_open(serial)


async def test_closing_a_gate_entry_again_releases_it_only_once(serial: Bridge) -> None:
    gate = serial.skills.store.gate
    one, other = await gate.enter(), await gate.enter()
    for _ in range(3):
        one.close()
    assert gate.working_count == 1
    other.close()
    assert gate.working_count == 0
