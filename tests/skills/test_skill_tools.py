"""Skills as tools: created by the factory, kept in sync, and read and run through the built-ins."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from apexbridge import Bridge, Settings
from apexbridge._text import estimated_tokens as tokens
from apexbridge.errors import (
    ApexBridgeError,
    InvalidInputError,
    InvalidSkillStructureError,
    PermissionDeniedError,
    SkillExecutionError,
    SkillNotFoundError,
    SkillParseError,
    SkillTimeoutError,
    ToolNotFoundError,
)
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.models import DirectSkillResult
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.tool_factory import SkillToolFactory
from apexbridge.storage.run_store import RunFilter
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.packages import register_packages
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool
from tests.making import skill_markdown, skill_zip, zip_of

pytestmark = pytest.mark.anyio
ECHO = "import json, sys\nprint(json.dumps(json.load(sys.stdin), sort_keys=True))\n"
OUTCOME = ExecutionResult(id="0" * 32, success=True, status="success", stdout="done\n", exit_code=0, duration=1)


@pytest.fixture
async def bridge(data_dir: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as opened:
        yield opened


async def install(bridge: Bridge, name: str, files: Mapping[str, str] | None = None, **fields: Any) -> None:
    await bridge.skills.install_skill(skill_zip(name, files=files or {}, **fields), overwrite=True)


# ------------------------------------------------------------------------------------------------------- the factory
class Calls:
    """Records the calls of the factory's tools."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str | None, dict[str, Any]]] = []

    async def __call__(self, call: SkillCall) -> ExecutionResult | DirectSkillResult:
        self.received.append((call.skill, call.mode, dict(call.input)))
        return OUTCOME


@pytest.mark.requirement("F3")
async def test_a_skill_markdown_becomes_a_sandbox_tool_or_a_direct_one() -> None:
    calls, registry = Calls(), ToolRegistry()
    factory = SkillToolFactory(calls)
    words = registry.register(factory.from_skill_markdown(skill_markdown("words", body="Say {{input.x}}.")))
    runs = registry.register(factory.from_skill_markdown(skill_markdown("runs"), entry="scripts/execute.py"))
    assert (words.id, runs.id, runs.metadata.category) == ("skill:words", "skill:runs", "skill")
    said = await registry.execute("skill:words", {"x": "hello"})
    assert (said.output, said.data["mode"]) == ("Say hello.", "direct")
    assert (await registry.execute("skill:runs", {"a": 1, "name": "runs"})).output == "done"
    assert calls.received == [("runs", "sandbox", {"a": 1, "name": "runs"})]
    with pytest.raises(InvalidSkillStructureError, match="Missing required fields: name, description"):
        factory.from_skill_markdown("---\nversion: 1\n---\n")


@pytest.mark.requirement("F3")
async def test_only_a_tool_that_runs_a_script_is_dangerous() -> None:
    calls = Calls()
    factory = SkillToolFactory(calls)
    metadata = factory.from_skill_markdown(skill_markdown("both", dangerous=True)).metadata
    assert not metadata.dangerous, "instructions alone are not dangerous"
    assert factory.from_skill_markdown(skill_markdown("both", dangerous=True), entry="index.js").metadata.dangerous


# ------------------------------------------------------------------------------------------------------------ errors
@pytest.mark.requirement("F6")
async def test_errors_of_skills_have_one_shape_and_a_result_can_raise_them(bridge: Bridge, data_dir: Path) -> None:
    await install(bridge, "fails", {"scripts/execute.py": "raise ValueError('boom')"})
    await install(bridge, "sleeps", {"scripts/execute.py": "import time; time.sleep(60)"})
    failed = await bridge.executor.execute("fails")
    with pytest.raises(SkillExecutionError) as execution:
        failed.raise_for_status()
    payload = execution.value.to_json()
    assert (payload["name"], payload["message"]) == ("SkillError", "ValueError: boom")
    assert {
        "skillName": "fails",
        "mode": "sandbox",
        "cause": "EXIT_NONZERO",
        "duration": failed.duration,
    }.items() <= payload["details"].items()
    with pytest.raises(SkillTimeoutError):
        (await bridge.executor.execute("sleeps", timeout=300)).raise_for_status()
    with pytest.raises(SkillNotFoundError) as missing:
        await bridge.executor.execute("none")
    assert missing.value.to_json()["details"] == {"skillName": "none"}
    (data_dir / "skills/fails/SKILL.md").write_text("")
    with pytest.raises(SkillParseError):
        await bridge.skills.reload_skill("fails")


async def test_a_failing_script_returns_an_error_result_and_does_not_raise(bridge: Bridge) -> None:
    await install(bridge, "fails", {"scripts/execute.py": "import sys\nsys.stderr.write('why\\n')\nsys.exit(3)"})
    result = await bridge.tools.execute("skill:fails", call_id="c")
    assert result.is_error
    assert "EXIT_NONZERO" in result.output
    assert "why" in result.output
    assert result.data["exitCode"] == 3
    record = bridge.tools.get_state("c")
    assert record is not None
    assert record.state.status == "error"


# --------------------------------------------------------------------------------------------------------- built-ins
@pytest.mark.requirement("A1")
async def test_built_ins_run_in_this_process_and_start_no_other(bridge: Bridge) -> None:
    await install(bridge, "words", {"reference.md": "more"}, body="Words.")
    await bridge.tools.execute("file-write", {"path": "a.txt", "content": "x"})
    started: list[str] = []
    listening = True

    def record_process_start(event: str, _: object) -> None:
        if listening and event in (
            "subprocess.Popen",
            "os.fork",
            "os.forkpty",
            "os.posix_spawn",
            "os.exec",
            "os.system",
        ):
            started.append(event)

    sys.addaudithook(record_process_start)
    try:
        for id, input in {
            "calculate": {"expression": "2^10"},
            "datetime": {},
            "file-read": {"path": "a.txt"},
            "file-write": {"path": "b.txt", "content": "y"},
            "list-files": {},
            "platform-detect": {},
            "read-skill": {"name": "words", "path": "reference.md"},
            "vector-search": {"query": "words"},
        }.items():
            assert (await bridge.builtins.execute(id, input))["success"]
    finally:
        listening = False
    assert started == []
    assert bridge.builtins.tools.get("calculate") is bridge.tools.get("calculate")


@pytest.mark.requirement("B18")
async def test_a_script_without_a_derived_schema_takes_args(bridge: Bridge) -> None:
    source = "const { parseArgs } = require('node:util');\nconst options = { out: { type: 'string' } };\n"
    source += "console.log(parseArgs({ options, allowPositionals: true }).values.out ?? 'none');\n"
    await install(bridge, "node", {"scripts/execute.js": source, "scripts/helper.js": source})
    assert set(bridge.tools.get("skill:node").parameters.schema["properties"]) == {"name"}
    entry = {"name": "node", "args": ["--out", "a"]}
    assert (await bridge.tools.execute("run-skill", entry)).output == "a"
    helper = {"name": "node", "script": "scripts/helper.js", "input": {"out": "b"}}
    assert (await bridge.tools.execute("run-skill", helper)).output == "b"
    assert (await bridge.tools.execute("skill:node", {"out": "c"})).output == "none"


@pytest.mark.requirement("A4")
async def test_the_built_in_executor_runs_built_ins_only(bridge: Bridge) -> None:
    await install(bridge, "words")
    for name in ("none", "skill:words"):
        with pytest.raises(ToolNotFoundError) as caught:
            await bridge.builtins.execute(name)
        assert (caught.value.message, caught.value.code) == (f"BuiltIn tool not found: {name}", "TOOL_NOT_FOUND")
    with pytest.raises(InvalidInputError):
        bridge.builtins.tools.register(Tool.define("x", description="d", execute=print))


@pytest.mark.requirement("F5")
async def test_the_allowed_tools_of_a_skill_apply_until_the_next_skill_is_read(bridge: Bridge) -> None:
    await install(bridge, "reader", None, **{"allowed-tools": "Read, WebFetch"})
    await install(bridge, "free")
    conversation = Conversation(id="c")
    read = await bridge.tools.execute("read-skill", {"name": "reader"}, conversation=conversation)
    assert read.notices == ("allowed-tools of reader names WebFetch, which is not a tool here",)
    assert "file_read, list_files" in read.output
    with pytest.raises(PermissionDeniedError, match="calculate is not among the allowed tools of reader"):
        await bridge.tools.execute("calculate", {"expression": "1"}, conversation=conversation)
    await bridge.tools.execute("list-files", conversation=conversation)
    await bridge.tools.execute("read-skill", {"name": "free"}, conversation=conversation)
    await bridge.tools.execute("calculate", {"expression": "1"}, conversation=conversation)


@pytest.mark.requirement("F5")
async def test_a_shell_in_allowed_tools_allows_only_the_skills_own_scripts(bridge: Bridge) -> None:
    await install(bridge, "own", {"scripts/a.py": "print('own')"}, **{"allowed-tools": "Bash(python:*)"})
    await install(bridge, "other", {"scripts/a.py": "print('other')"})
    conversation = Conversation(id="c")
    await bridge.tools.execute("read-skill", {"name": "own"}, conversation=conversation)
    result = await bridge.tools.execute(
        "run-skill", {"name": "own", "script": "scripts/a.py"}, conversation=conversation
    )
    assert result.output == "own"
    with pytest.raises(PermissionDeniedError):
        await bridge.tools.execute("run-skill", {"name": "other", "script": "scripts/a.py"}, conversation=conversation)


@pytest.mark.requirement("F5")
@pytest.mark.parametrize("allowed", ["run_skill", "run-skill", "skill:echo", "skill__echo", "skill:*"])
async def test_run_skill_is_allowed_by_its_own_name_or_by_the_skills_tool(bridge: Bridge, allowed: str) -> None:
    await install(bridge, "echo", {"scripts/execute.py": ECHO})
    await install(bridge, "guide", None, **{"allowed-tools": [allowed]})
    conversation = Conversation(id="c")
    await bridge.tools.execute("read-skill", {"name": "guide"}, conversation=conversation)
    result = await bridge.tools.execute("run-skill", {"name": "echo", "input": {"a": 1}}, conversation=conversation)
    assert json.loads(result.output) == {"a": 1}


@pytest.mark.requirement("F11")
async def test_repeated_runs_of_a_skill_with_the_same_input_add_a_notice(bridge: Bridge) -> None:
    await install(bridge, "echo", {"scripts/execute.py": ECHO})
    conversation, call = Conversation(id="c"), {"name": "echo", "input": {"a": 1}}
    notices = [(await bridge.tools.execute("run-skill", call, conversation=conversation)).notices for _ in range(3)]
    assert notices[:2] == [(), ()]
    assert "run-skill was called 3 times in a row" in notices[2][0]


async def test_allowed_tools_above_the_limit_are_left_out(bridge: Bridge) -> None:
    await install(bridge, "greedy", None, **{"allowed-tools": [f"tool{number}*x*y" for number in range(2000)]})
    result = await bridge.tools.execute("read-skill", {"name": "greedy"}, conversation=Conversation(id="c"))
    assert len(result.notices) == 11
    assert "2000 names; those after 100 are ignored" in result.notices[0]


# ---------------------------------------------------------------------------------------------------------- approvals
async def approve_call(bridge: Bridge, id: str, input: dict[str, Any] | None = None) -> str:
    with pytest.raises(ApexBridgeError) as caught:
        await bridge.tools.execute(id, input or {})
    assert caught.value.code == "CONFIRMATION_REQUIRED"
    approval = str(caught.value.details["approvalId"])
    await bridge.approvals.decide(approval, approve=True)
    return approval


@pytest.mark.requirement("B16")
@pytest.mark.parametrize("entry_point", ["tool", "skill"])
async def test_an_approval_is_invalid_after_the_script_changed(
    bridge: Bridge, data_dir: Path, entry_point: str
) -> None:
    await install(bridge, "wipe", {"scripts/execute.py": "print('good')"}, dangerous=True)
    approval = await approve_call(bridge, "skill:wipe")
    (data_dir / "skills/wipe/scripts/execute.py").write_text("print('evil')")
    by_tool = bridge.tools.execute("skill:wipe", approval=approval)
    by_skill = bridge.skills.execute_skill("wipe", approval=approval)
    call, unused = (by_tool, by_skill) if entry_point == "tool" else (by_skill, by_tool)
    unused.close()
    with pytest.raises(ApexBridgeError) as caught:
        await call
    assert caught.value.code == "APPROVAL_INVALID"
    assert (await bridge.runs.page(RunFilter(), page=1, limit=10)).total == 0


@pytest.mark.requirement("B16")
async def test_a_queued_approved_run_fails_if_its_skill_is_replaced(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, sandbox_max_concurrency=1)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "busy", {"scripts/execute.py": "import time; time.sleep(60)"})
        await install(bridge, "wipe", {"scripts/execute.py": "print('good')"}, dangerous=True)
        approval = await approve_call(bridge, "skill:wipe")
        busy = await bridge.skills.runner.call(SkillCall(skill="busy"))
        waiting = await bridge.skills.runner.call(SkillCall(skill="wipe", approval=approval))
        assert not isinstance(busy, DirectSkillResult)
        assert not isinstance(waiting, DirectSkillResult)
        await install(bridge, "wipe", {"scripts/execute.py": "print('evil')"}, dangerous=True)
        busy.cancel()
        with pytest.raises(ApexBridgeError) as caught:
            await waiting.result()
        assert caught.value.code == "BUSY"
        record = await bridge.runs.get(waiting.id)
        assert record.result is not None
        assert (record.state, record.result.stdout) == ("error", "")


@pytest.mark.requirement("B16")
async def test_an_approval_is_not_used_up_by_a_call_that_never_started(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, sandbox_max_concurrency=1, sandbox_queue=0)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "busy", {"scripts/execute.py": "import time; time.sleep(60)"})
        await install(bridge, "wipe", {"scripts/execute.py": "print('done')"}, dangerous=True)
        approval = await approve_call(bridge, "skill:wipe")
        busy = await bridge.skills.runner.call(SkillCall(skill="busy"))
        assert not isinstance(busy, DirectSkillResult)
        for refused in (
            bridge.tools.execute("skill:wipe", approval=approval),
            bridge.skills.execute_skill("wipe", approval=approval),
        ):
            with pytest.raises(ApexBridgeError) as caught:
                await refused
            assert caught.value.code == "QUEUE_FULL"
        busy.cancel()
        await busy.result()
        assert (await bridge.tools.execute("skill:wipe", approval=approval)).output == "done"
        states = {record.state.status for record in bridge.tools.get_history("skill:wipe")}
        assert states == {"completed", "error"}


@pytest.mark.requirement("B16")
async def test_a_queued_run_fails_if_its_skill_became_dangerous(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, sandbox_max_concurrency=1)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await install(bridge, "busy", {"scripts/execute.py": "import time; time.sleep(60)"})
        await install(bridge, "meek", {"scripts/execute.py": "print('meek')"})
        busy, waiting = (
            await bridge.skills.runner.call(SkillCall(skill="busy")),
            await bridge.skills.runner.call(SkillCall(skill="meek")),
        )
        assert not isinstance(busy, DirectSkillResult)
        assert not isinstance(waiting, DirectSkillResult)
        await install(bridge, "meek", {"scripts/execute.py": "print('evil')"}, dangerous=True)
        busy.cancel()
        with pytest.raises(ApexBridgeError) as caught:
            await waiting.result()
        assert (caught.value.code, caught.value.details["retryable"]) == ("BUSY", True)


@pytest.mark.requirement("B16")
async def test_an_approval_is_not_used_up_by_a_cancelled_call(bridge: Bridge) -> None:
    await install(bridge, "wipe", {"scripts/execute.py": "print('done')"}, dangerous=True)
    for number in range(30):
        approval = await approve_call(bridge, "skill:wipe", {"number": number})
        task = asyncio.create_task(bridge.tools.execute("skill:wipe", {"number": number}, approval=approval))
        await asyncio.sleep(0.0002 * number)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        ran = {run.input_digest for run in (await bridge.runs.page(RunFilter(), page=1, limit=50)).executions}
        state = (await bridge.approvals.get(approval)).state
        assert state == "approved" or ran, number


@pytest.mark.requirement("D5")
async def test_approval_requests_are_deleted_with_the_plugin_of_their_skill(bridge: Bridge) -> None:
    files = {
        "toolbox/skills/wipe/SKILL.md": skill_markdown("wipe", dangerous=True),
        "toolbox/skills/wipe/scripts/execute.py": ECHO,
    }
    await bridge.skills.install_skill(zip_of(files))
    with pytest.raises(ApexBridgeError):
        await bridge.tools.execute("skill:wipe")
    assert len(await bridge.approvals.waiting()) == 1
    await bridge.skills.uninstall_plugin("toolbox")
    assert await bridge.approvals.waiting() == []
    assert bridge.tools.find("skill:wipe") is None


# ------------------------------------------------------------------------------------------------------------- search
async def test_search_results_are_short(bridge: Bridge) -> None:
    schema = {"properties": {"text": {"type": "string"}, "kind": {"enum": ["a", "b"]}}, "required": ["text"]}
    long = "Writes commit messages. " * 40
    for number in range(6):
        await install(
            bridge, f"commit-{number}", {"scripts/execute.py": ECHO}, description=long[:1000], parameters=schema
        )
    result = await bridge.tools.execute("vector-search", {"query": "write a commit message"})
    hits = result.output.split("\n")
    assert len(result.data["results"]) == 5
    assert 'input: text: string, kind?: "a"|"b"' in result.output
    assert "…" in hits[0]
    assert tokens(result.output) <= 800
    empty = await bridge.tools.execute("vector-search", {"query": "xyzzy", "limit": 1})
    assert "run_skill" in empty.output or "No skill fits" in empty.output


async def test_a_skill_hidden_from_models_is_not_in_their_search_results(bridge: Bridge) -> None:
    await install(bridge, "hidden", {"scripts/execute.py": ECHO}, **{"disable-model-invocation": True})
    query = {"query": "hidden"}
    model = await bridge.tools.execute("vector-search", query, conversation=Conversation(id="chat"))
    assert model.data["results"] == []
    assert [hit["name"] for hit in (await bridge.tools.execute("vector-search", query)).data["results"]] == ["hidden"]
    assert (await bridge.tools.execute("run-skill", {"name": "hidden"})).output == "{}"


async def test_the_id_of_a_run_does_not_depend_on_the_call_id(bridge: Bridge, data_dir: Path) -> None:
    await install(bridge, "leaves", {"scripts/execute.py": "open('output/a.txt', 'w').write('left')\nprint('done')"})
    for call_id in ("../../escaped", "same", "same"):
        result = await bridge.tools.execute("skill:leaves", {"a": 1}, call_id=call_id)
        assert (await bridge.runs.get(result.data["id"])).skill == "leaves"
        assert (await bridge.tools.execute("file-read", {"path": result.files[0]})).output == "left"
    assert {path.name for path in data_dir.parent.iterdir()} == {"data", "cwd"}
    assert (await bridge.runs.page(RunFilter(), page=1, limit=10)).total == 3
    (latest, *_) = bridge.tools.get_history("skill:leaves")
    assert (latest.call_id, latest.state.status) == ("same", "completed")


# ---------------------------------------------------------------------------------------------------- other packages
shout = Tool.define("shout", description="Louder.", execute=lambda input, context: str(input["text"]).upper())


def two_tools() -> list[Tool]:
    return [Tool.define(name, description="d", execute=print) for name in ("one", "two")]


def broken() -> list[Tool]:
    raise RuntimeError("broken on purpose")


async def test_packages_register_tools_and_broken_ones_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    registry = ToolRegistry()
    names = ("shout", "two_tools", "broken", "missing", "ECHO", "shout")
    points = [EntryPoint(name=name, value=f"{__name__}:{name}", group="apexbridge.tools") for name in names]
    assert register_packages(registry, points) == ["shout", "one", "two"]
    assert (await registry.execute("shout", {"text": "hey"})).output == "HEY"
    assert "broken on purpose" in caplog.text
    assert "already" in caplog.text
