"""Tool definitions, the registry and the executor."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field

from apexbridge.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ToolDisabledError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
)
from apexbridge.tools.allowance import Allowance
from apexbridge.tools.calls import REMEMBERED_CALLS, ToolState
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.executor import OUTPUT_BYTES
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult

pytestmark = pytest.mark.anyio


class EchoInput(BaseModel):
    text: str = Field(description="The words.")
    times: int = 1


@Tool.define("echo", description="Say it back.", parameters=EchoInput, metadata={"category": "words", "tags": ["talk"]})
async def echo(input: EchoInput, context: ToolContext) -> ToolResult:
    return ToolResult(output=input.text * input.times)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]}


@pytest.fixture
def registry() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register(echo)
    return registry


def tool(id: str, execute: Callable[..., Any], **fields: Any) -> Tool:
    return Tool.define(id, description="For a test.", execute=execute, **fields)


# ------------------------------------------------------------------------------------------------------- defining
@pytest.mark.requirement("F1")
@pytest.mark.requirement("F8")
async def test_a_tool_is_defined_by_a_decorator_or_by_a_call(registry: ToolRegistry) -> None:
    async def double(input: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        return {"success": True, "result": input["n"] * 2}

    registry.register(Tool.define("double", description="Twice.", parameters=SCHEMA, execute=double))
    assert (await registry.execute("double", {"n": 21})).data == {"success": True, "result": 42}
    assert (await registry.execute("echo", {"text": "ab", "times": 2})).output == "abab"
    assert echo.metadata == ToolMetadata(category="words", tags=("talk",))
    metadata = {"permissions": ["net:a:1"], "timeout": 50, "dangerous": True, "confirm": "Sure?"}
    known = tool("known", double, metadata=metadata).metadata
    assert (known.permissions, known.timeout, known.dangerous, known.confirm) == (("net:a:1",), 50, True, "Sure?")


@pytest.mark.requirement("F8")
async def test_the_context_describes_the_call(registry: ToolRegistry) -> None:
    contexts: list[ToolContext] = []
    progress: list[tuple[str, float | None]] = []

    async def record_context(input: dict[str, Any], context: ToolContext) -> str:
        contexts.append(context)
        context.progress("half", 0.5)
        return (await context.registry.execute("echo", {"text": "inner"})).output

    registry.register(tool("look", record_context))
    result = await registry.execute(
        "look",
        {"a": 1},
        call_id="c1",
        message_id="m1",
        conversation=Conversation(id="talk", caller="key-1"),
        progress=lambda message, share: progress.append((message, share)),
    )
    (context,) = contexts
    assert (context.call_id, context.conversation_id, context.message_id, context.caller) == (
        "c1",
        "talk",
        "m1",
        "key-1",
    )
    assert context.input == {"a": 1}
    assert not context.cancelled.is_set()
    assert (result.output, progress) == ("inner", [("half", 0.5)])


@pytest.mark.requirement("F8")
@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"id": ""}, "id"),
        ({"id": "a b"}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"description": " "}, "description"),
        ({"description": "x" * 5000}, "description"),
        ({"parameters": {"type": "array"}}, "object"),
        ({"parameters": {"type": "object", "properties": 5}}, "schema"),
        ({"parameters": {"$ref": "http://127.0.0.1:1/x"}}, "schema"),
        ({"parameters": {"$ref": "file:///etc/passwd"}}, "schema"),
        ({"parameters": {"properties": {"a": {"$ref": "#"}}}}, "schema"),
        ({"metadata": {"colour": "red"}}, "colour"),
        ({"metadata": {"timeout": "soon"}}, "timeout"),
    ],
)
def test_an_invalid_tool_definition_is_refused(fields: dict[str, Any], word: str) -> None:
    arguments = {"id": "x", "description": "For a test.", "execute": lambda input, context: None, **fields}
    with pytest.raises(InvalidInputError, match=word):
        Tool.define(arguments.pop("id"), **arguments)


def test_references_that_grow_a_schema_exponentially_are_refused() -> None:
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)} | {"l40": {}}
    with pytest.raises(InvalidInputError, match="too large"):
        Tool.define("x", description="d", parameters={"$defs": levels, "$ref": "#/$defs/l0"}, execute=print)


async def test_a_pattern_does_not_backtrack_exponentially(registry: ToolRegistry) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    registry.register(Tool.define("match", description="d", parameters=schema, execute=lambda input, context: "ok"))
    with pytest.raises(InvalidInputError):
        await registry.execute("match", {"a": "a" * 50_000 + "!"})


@pytest.mark.parametrize(
    ("returned", "data", "output"),
    [
        ("text", {"success": True, "output": "text"}, "text"),
        ({"a": "ä"}, {"a": "ä"}, '{"a": "ä"}'),
        (None, {"success": True}, ""),
        ([1, 2], [1, 2], "[1, 2]"),
        (EchoInput(text="x"), {"text": "x", "times": 1}, '{"text": "x", "times": 1}'),
        (ToolResult(output="o", data=5), 5, "o"),
    ],
)
async def test_any_return_value_becomes_a_result(registry: ToolRegistry, returned: Any, data: Any, output: str) -> None:
    async def return_value(input: dict[str, Any], context: ToolContext) -> Any:
        return returned

    registry.register(tool("give", return_value))
    result = await registry.execute("give")
    assert (result.data, result.output) == (data, output)


async def test_a_plain_function_runs_in_a_thread_and_an_async_one_does_not(registry: ToolRegistry) -> None:
    async def here(input: dict[str, Any], context: ToolContext) -> str:
        return threading.current_thread().name

    def elsewhere(input: dict[str, Any], context: ToolContext) -> str:
        return threading.current_thread().name

    registry.register(tool("here", here))
    registry.register(tool("elsewhere", elsewhere))
    loop_thread = threading.current_thread().name
    assert (await registry.execute("here")).output == loop_thread
    assert (await registry.execute("elsewhere")).output != loop_thread


# ------------------------------------------------------------------------------------------------------- registry
@pytest.mark.requirement("F9")
async def test_tools_are_registered_updated_disabled_and_removed(registry: ToolRegistry) -> None:
    with pytest.raises(InvalidInputError, match="already"):
        registry.register(echo)
    registry.disable("echo")
    with pytest.raises(ToolDisabledError) as disabled:
        await registry.execute("echo", {"text": "x"})
    assert (disabled.value.code, disabled.value.status) == ("TOOL_DISABLED", 409)
    assert registry.statistics().disabled_tools == 1
    registry.update("echo", description="Say it back, please.")
    assert registry.get("echo").description == "Say it back, please."
    assert not registry.is_enabled("echo")
    registry.enable("echo")
    assert (await registry.execute("echo", {"text": "x"})).output == "x"
    with pytest.raises(InvalidInputError, match="an id stays"):
        registry.update("echo", id="other")
    with pytest.raises(InvalidInputError, match="do not fit"):
        registry.update("echo", colour="red")
    assert registry.unregister("echo")
    assert not registry.unregister("echo")
    for refused in (registry.get, registry.enable, registry.disable, registry.update):
        with pytest.raises(ToolNotFoundError):
            refused("echo")


@pytest.mark.requirement("F9")
def test_tools_are_found_by_category_tag_and_word(registry: ToolRegistry) -> None:
    registry.register(tool("sum", print, metadata={"category": "maths", "tags": ["Numbers"]}))
    assert [found.id for found in registry.list()] == ["echo", "sum"]
    assert [found.id for found in registry.list_by_category("maths")] == ["sum"]
    assert [found.id for found in registry.find_by_tag("numbers")] == ["sum"]
    assert [found.id for found in registry.search("SAY back")] == ["echo"]
    assert registry.search("") == registry.search("nothing of it") == []
    assert registry.statistics().model_dump() == {
        "totalTools": 2,
        "disabledTools": 0,
        "categories": {"maths": 1, "words": 1},
    }


@pytest.mark.requirement("F9")
async def test_the_last_hundred_calls_are_remembered(registry: ToolRegistry) -> None:
    for number in range(REMEMBERED_CALLS + 5):
        await registry.execute("echo", {"text": str(number)}, call_id=f"c{number}")
    with pytest.raises(InvalidInputError):
        await registry.execute("echo", {})
    history = registry.get_history()
    assert len(history) == REMEMBERED_CALLS
    assert [record.call_id for record in registry.get_history(limit=2)] == ["c104", "c103"]
    assert registry.get_history("other") == []
    assert registry.get_state("c0") is None
    state = registry.get_state("c104")
    assert state is not None
    assert (state.state.status, state.state.input) == ("completed", {"text": "104"})


async def test_history_truncates_long_inputs_and_outputs(registry: ToolRegistry) -> None:
    await registry.execute("echo", {"text": "x" * 1_000_000}, call_id="long")
    record = registry.get_state("long")
    assert record is not None
    assert len(json.dumps(asdict(record))) < 5000


# --------------------------------------------------------------------------------------------------------- errors
@pytest.mark.requirement("F9")
@pytest.mark.requirement("F7")
async def test_invalid_input_is_refused_with_every_reason_and_nothing_runs(registry: ToolRegistry) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await registry.execute("echo", {"times": "many"})
    assert caught.value.status == 422
    assert [problem["path"] for problem in caught.value.details["errors"]] == ["text", "times"]
    assert registry.get_history() == []


@pytest.mark.requirement("F9")
async def test_errors_state_whether_they_are_retryable(registry: ToolRegistry) -> None:
    async def fail(input: dict[str, Any], context: ToolContext) -> None:
        raise ValueError("no luck")

    async def wait(input: dict[str, Any], context: ToolContext) -> None:
        await anyio.sleep_forever()

    registry.register(tool("fail", fail))
    registry.register(tool("wait", wait, metadata={"timeout": 20}))
    found: dict[str, bool] = {}
    for id in ("fail", "wait", "none"):
        with pytest.raises(ToolError) as caught:
            await registry.execute(id, call_id=id)
        found[caught.value.code] = caught.value.details["retryable"]
    assert found == {"TOOL_EXECUTION_ERROR": False, "TIMEOUT": True, "TOOL_NOT_FOUND": False}
    registry.register(tool("off", fail))
    registry.disable("off")
    limited = Conversation(id="c", allowance=Allowance.of("a", ["Read"], known=[]))
    for refused in (
        registry.execute("off"),
        registry.execute("echo", {}),
        registry.execute("echo", {"text": "x"}, conversation=limited),
    ):
        with pytest.raises(ToolError) as caught:
            await refused
        assert caught.value.details["retryable"] is False
    states = {record.tool: record.state for record in registry.get_history()}
    assert {tool: state.status for tool, state in states.items()} == {"fail": "error", "wait": "error"}
    assert states["fail"].error == "no luck"


async def test_an_exception_of_a_tool_is_reported_with_its_name(registry: ToolRegistry) -> None:
    def fail(input: dict[str, Any], context: ToolContext) -> None:
        raise LookupError("nothing there")

    registry.register(tool("fail", fail))
    with pytest.raises(ToolExecutionError, match="fail failed: LookupError: nothing there"):
        await registry.execute("fail")


@pytest.mark.requirement("F8")
async def test_a_cancelled_call_is_marked_in_its_context(registry: ToolRegistry) -> None:
    started, contexts = asyncio.Event(), []

    async def wait(input: dict[str, Any], context: ToolContext) -> None:
        contexts.append(context)
        started.set()
        await anyio.sleep_forever()

    registry.register(tool("wait", wait))
    task = asyncio.create_task(registry.execute("wait", call_id="w"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert contexts[0].cancelled.is_set()
    record = registry.get_state("w")
    assert record is not None
    assert record.state.error == "cancelled"


async def test_long_output_keeps_both_ends(registry: ToolRegistry) -> None:
    result = await registry.execute("echo", {"text": f"begin{'ä' * OUTPUT_BYTES}end"})
    assert len(result.output.encode()) < OUTPUT_BYTES + 100
    assert result.output.startswith("begin")
    assert result.output.endswith("end")
    assert "left out" in result.output


@pytest.mark.parametrize("is_async", [True, False])
async def test_system_exit_in_a_tool_fails_its_call_only(registry: ToolRegistry, is_async: bool) -> None:
    async def exit_async(input: dict[str, Any], context: ToolContext) -> None:
        sys.exit(3)

    def exit_sync(input: dict[str, Any], context: ToolContext) -> None:
        sys.exit(3)

    registry.register(tool("leave", exit_async if is_async else exit_sync))
    with pytest.raises(ToolExecutionError, match="SystemExit"):
        await registry.execute("leave")


async def test_the_cost_of_input_validation_is_limited(registry: ToolRegistry) -> None:
    schema = {"properties": {"x": {"type": "array", "items": {"anyOf": [{"const": number} for number in range(500)]}}}}
    registry.register(Tool.define("costly", description="d", parameters=schema, execute=print))
    for items, reason in ((["a"] * 1000, "not valid"), (["a"] * 100_000, "too large to be checked")):
        with pytest.raises(InvalidInputError, match=reason) as caught:
            await registry.execute("costly", {"x": items})
        assert len(caught.value.details["errors"]) == 1
    with pytest.raises(InvalidInputError, match="schema"):
        Tool.define("x", description="d", parameters={"pattern": "[ab]*a[ab]{3000}c"}, execute=print)


# ---------------------------------------------------------------------------------------------------------- state
@pytest.mark.requirement("F10")
def test_a_state_only_moves_forward() -> None:
    pending = ToolState(input={"a": 1})
    running = pending.run()
    completed, failed = running.complete("done"), running.fail("broken")
    assert running.start is not None
    assert completed.end is not None
    assert (completed.output, failed.error) == ("done", "broken")
    refused: list[Callable[[], ToolState]] = [
        lambda: pending.complete("x"),
        lambda: pending.fail("x"),
        running.run,
        completed.run,
        lambda: completed.complete("x"),
        lambda: completed.fail("x"),
        failed.run,
        lambda: failed.complete("x"),
    ]
    for move in refused:
        with pytest.raises(ToolError, match="cannot become"):
            move()
    assert (pending.status, running.status, completed.status) == ("pending", "running", "completed")


# ----------------------------------------------------------------------------------------------------------- loops
@pytest.mark.requirement("F11")
async def test_three_identical_calls_in_a_row_return_a_notice(registry: ToolRegistry) -> None:
    conversation = Conversation(id="c")
    inputs: list[dict[str, Any]] = [{"text": "x", "times": 2}, {"times": 2, "text": "x"}, {"text": "x", "times": 2}]
    notices = [(await registry.execute("echo", input, conversation=conversation)).notices for input in inputs]
    assert notices[:2] == [(), ()]
    assert "echo was called 3 times in a row" in notices[2][0]
    assert (await registry.execute("echo", {"text": "y"}, conversation=conversation)).notices == ()
    assert (await registry.execute("echo", inputs[0], conversation=conversation)).notices == ()


# ------------------------------------------------------------------------------------------------------- allowance
KNOWN = ("file-read", "file-write", "list-files", "run-skill", "vector-search", "read-skill", "skill:a", "skill:b-c")


@pytest.mark.requirement("F5")
@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (["Read"], {"file-read", "list-files"}),
        (["Glob"], {"file-read", "list-files"}),
        (["Grep", "LS"], {"file-read", "list-files"}),
        (["Write"], {"file-write"}),
        (["Edit"], {"file-write"}),
        (["file_write"], {"file-write"}),
        (["skill:*"], {"skill:a", "skill:b-c"}),
        (["skill__b-c"], {"skill:b-c"}),
        (["*"], set(KNOWN)),
        (["Bash(git add:*)"], {"skill:a"}),
        (["run_skill"], {"run-skill"}),
    ],
)
def test_allowed_tools_accept_common_names(names: list[str], allowed: set[str]) -> None:
    allowance = Allowance.of("a", names, known=KNOWN)
    assert allowance is not None
    assert {id for id in KNOWN if allowance.permits(id, {})} == allowed | {"vector-search", "read-skill"}
    assert allowance.warnings == ()


@pytest.mark.requirement("F5")
def test_bash_permits_the_scripts_of_the_skill_itself() -> None:
    allowance = Allowance.of("a", ["Bash"], known=KNOWN)
    assert allowance is not None
    assert allowance.permits("run-skill", {"name": "a", "script": "scripts/x.py"})
    assert not allowance.permits("run-skill", {"name": "b-c"})


@pytest.mark.requirement("F5")
def test_unknown_names_cause_a_warning_and_an_empty_field_limits_nothing() -> None:
    allowance = Allowance.of("a", ["WebFetch", "Read"], known=KNOWN)
    assert allowance is not None
    assert allowance.warnings == ("allowed-tools of a names WebFetch, which is not a tool here",)
    assert Allowance.of("a", [], known=KNOWN) is Allowance.of("a", [" "], known=KNOWN) is None


@pytest.mark.requirement("F5")
async def test_the_executor_refuses_a_tool_that_is_not_allowed(registry: ToolRegistry) -> None:
    conversation = Conversation(id="c", allowance=Allowance.of("a", ["Read"], known=["echo"]))
    with pytest.raises(PermissionDeniedError, match="echo is not among the allowed tools of a: file_read, list_files"):
        await registry.execute("echo", {"text": "x"}, conversation=conversation)
