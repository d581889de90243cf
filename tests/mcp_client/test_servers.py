"""MCP servers over stdio: their tools, their state, and everything that a server can do wrong."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError, ToolError, ToolExecutionError
from apexbridge.mcp_client import limits, server
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from tests.mcp_client.serving import READ_ONLY, connected, fake, listed, state_of, tools, until_state
from tests.waiting import until

pytestmark = pytest.mark.anyio
INHERITED = {"HOME", "LANG", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"}


def ids(bridge: Bridge) -> list[str]:
    return [tool.id for tool in bridge.tools.list_by_category("mcp")]


def running(group: int) -> list[str]:
    """The processes of a process group, without zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, own, *_ = path.read_text().rpartition(")")[2].split()
            found += [path.parent.name] if int(own) == group and state != "Z" else []
    return found


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(server, "RELIST_PAUSE_SECONDS", 0.01)


# --------------------------------------------------------------------------------------------------------------- calls
async def test_the_tools_of_a_server_are_called_like_any_other(data_dir: Path, embedder: Embedder) -> None:
    async with connected(data_dir, embedder, fake(options=tools("echo", "fail", "nonsense", "huge"))) as bridge:
        assert ids(bridge) == ["fake_echo", "fake_fail", "fake_huge", "fake_nonsense"]
        result = await bridge.tools.execute("fake_echo", {"text": "hello"})
        assert result.output == '{"text": "hello"}'
        assert result.data["success"] is True
        failed = await bridge.tools.execute("fake_fail")
        assert (failed.is_error, failed.output, failed.data["success"]) == (True, "it did not work", False)
        with pytest.raises(ToolError) as unusable:
            await bridge.tools.execute("fake_nonsense")
        assert unusable.value.code == "MCP_UNAVAILABLE"
        long = await bridge.tools.execute("fake_huge", {"size": 2_000_000})
        assert len(long.output.encode()) < 40_000
        assert len(json.dumps(long.data)) <= limits.MAX_RESULT_BYTES
        view = await state_of(bridge)
        assert (view.state, view.era, view.protocol_version) == ("connected", "legacy", "2025-11-25")
        assert (view.server_info, view.tools, view.last_error) == ("fake 1", 4, None)


async def test_calls_are_validated_counted_and_reported(data_dir: Path, embedder: Embedder) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    options = {"tools": [listed("progress", inputSchema=schema, **READ_ONLY)]}
    async with connected(data_dir, embedder, fake(options=options)) as bridge:
        with pytest.raises(ApexBridgeError) as invalid:
            await bridge.tools.execute("fake_progress", {"text": 7})
        assert invalid.value.code == "INVALID_INPUT"
        reports: list[tuple[str, float | None]] = []
        progress = lambda message, share: reports.append((message, share))  # noqa: E731
        await bridge.tools.execute("fake_progress", {"text": "a"}, progress=progress)
        assert reports == [("", 0.25)]
        assert (await bridge.tool_counts())["fake_progress"].calls == 1


async def test_annotations_and_the_operator_decide_what_needs_approval(data_dir: Path, embedder: Embedder) -> None:
    hints: list[dict[str, Any]] = [{}, {"readOnlyHint": True}, {"destructiveHint": False}, {"destructiveHint": True}]
    options = {"tools": [listed(f"act-{number}", annotations=own) for number, own in enumerate(hints)]}
    policies: list[Any] = ["auto", "always", "never"]
    servers = [fake(policy, options=options, approval=policy) for policy in policies]
    async with connected(data_dir, embedder, *servers) as bridge:
        asking = {tool.id for tool in bridge.tools.list_by_category("mcp") if tool.metadata.dangerous}
        assert asking == {"auto_act-0", "auto_act-3", *(f"always_act-{number}" for number in range(4))}
        assert asking == {tool.id for tool in bridge.tools.list_by_category("mcp") if tool.metadata.confirm}
        assert (await bridge.tools.execute("never_act-3")).output == "{}"
        with pytest.raises(ToolError) as refused:
            await bridge.tools.execute("auto_act-3")
        assert refused.value.code == "CONFIRMATION_REQUIRED"
        approval = refused.value.details["approvalId"]
        await bridge.approvals.decide(approval, approve=True)
        assert (await bridge.tools.execute("auto_act-3", approval=approval)).output == "{}"


async def test_a_call_has_a_time_limit_and_a_cancellation_reaches_the_server(
    data_dir: Path, embedder: Embedder, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    config = fake(options={**tools("hang", "echo"), "log": str(log)}, timeout_seconds=1)
    async with connected(data_dir, embedder, config) as bridge:
        with pytest.raises(ToolExecutionError) as late:
            await bridge.tools.execute("fake_hang")
        assert late.value.code == "TIMEOUT"
        await until(lambda: log.read_text().count("notifications/cancelled") == 1)
        call = asyncio.ensure_future(bridge.tools.execute("fake_hang"))
        await until(lambda: log.read_text().count('"hang"') == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: log.read_text().count("notifications/cancelled") == 2)
        assert (await bridge.tools.execute("fake_echo")).output == "{}"
        assert (await state_of(bridge)).state == "connected"


async def test_questions_of_a_server_are_declined(data_dir: Path, embedder: Embedder) -> None:
    async with connected(data_dir, embedder, fake(options=tools("ask"))) as bridge:
        assert json.loads((await bridge.tools.execute("fake_ask")).output) == {"action": "decline"}


# --------------------------------------------------------------------------------------------------------- connections
@pytest.mark.usefixtures("_short_pauses")
async def test_a_server_that_dies_comes_back(data_dir: Path, embedder: Embedder, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with connected(data_dir, embedder, fake(options={**tools("echo", "die"), "log": str(log)})) as bridge:
        with pytest.raises(ToolError) as lost:
            await bridge.tools.execute("fake_die")
        assert lost.value.code == "MCP_UNAVAILABLE"
        await until(lambda: log.read_text().count("started") == 2)
        await until_state(bridge, "connected")
        assert (await bridge.tools.execute("fake_echo")).output == "{}"
        assert (await state_of(bridge)).last_error == "it ended with exit code 9"


async def test_a_server_that_is_down_takes_only_its_own_tools_away(
    data_dir: Path, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(server, "FIRST_PAUSE_SECONDS", 3600)
    one = fake("one", options={"tools": [listed("weather", "Weather of a town.", **READ_ONLY)], "log": str(log)})
    other = fake("other", options={"tools": [listed("forecast", "Weather of next week.", **READ_ONLY)]})
    async with connected(data_dir, embedder, one, other) as bridge:
        found = (await bridge.retrieval.search("weather")).results
        assert {hit.name for hit in found} == {"one_weather", "other_forecast"}
        os.kill(int(log.read_text().split()[1]), signal.SIGKILL)
        view = await until_state(bridge, "waiting", "one")
        assert view.last_error == "it was ended by SIGKILL"
        assert [hit.name for hit in (await bridge.retrieval.search("weather")).results] == ["other_forecast"]
        begun = time.monotonic()
        with pytest.raises(ToolError) as down:
            await bridge.tools.execute("one_weather")
        assert (down.value.code, down.value.details["retryable"]) == ("MCP_UNAVAILABLE", True)
        assert time.monotonic() - begun < 30  # at once, and not after the next attempt
        assert (await bridge.tools.execute("other_forecast")).output == "{}"
        view = await bridge.mcp.reconnect("one", wait_seconds=60)
        assert (view.state, view.last_error) == ("connected", "it was ended by SIGKILL")
        assert (await bridge.tools.execute("one_weather")).output == "{}"


@pytest.mark.usefixtures("_short_pauses")
async def test_changes_of_the_list_are_followed(data_dir: Path, embedder: Embedder) -> None:
    async with connected(data_dir, embedder, fake(options=tools("grow"))) as bridge:
        await bridge.tools.execute("fake_grow")
        await until(lambda: ids(bridge) == ["fake_grow", "fake_grown-1"])


async def test_tools_are_known_at_the_next_start_and_connect_when_they_are_called(
    data_dir: Path, embedder: Embedder
) -> None:
    config = fake(options={"tools": [listed("weather", "Weather of a town.", **READ_ONLY), listed("echo")]})
    async with connected(data_dir, embedder, config) as bridge:
        bridge.tools.disable("fake_echo")
    opening = Bridge.open(Settings(data_dir=data_dir, mcp=(config,)), embedder=embedder, indexing="on-demand")
    async with opening as bridge:
        assert ids(bridge) == ["fake_echo", "fake_weather"]
        await bridge.prepare_search()
        assert [hit.name for hit in (await bridge.retrieval.search("weather in a town")).results] == ["fake_weather"]
        assert (await state_of(bridge)).state == "idle"
        assert (await bridge.tools.execute("fake_weather")).output == "{}"
        assert (await state_of(bridge)).state == "connected"
    async with connected(data_dir, embedder) as bridge:  # no longer configured
        assert ids(bridge) == []
        assert (await bridge.retrieval.search("weather in a town")).results == []


async def test_processes_end_with_the_bridge(data_dir: Path, embedder: Embedder, tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = fake(options={"mode": "stderr-flood", "log": str(log)})  # its child ignores the end of its input
    async with connected(data_dir, embedder, config) as bridge:
        assert (await bridge.tools.execute("fake_echo")).output == "{}"
        group = int(log.read_text().split()[1])
        assert len(running(group)) == 2
    assert running(group) == []


# ------------------------------------------------------------------------------------------------------------- hostile
@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("exit", "it ended with exit code 3: no licence for None"),
        ("not-mcp", "it does not answer"),
        ("silent", "it does not answer"),
        ("huge-description", f"it sent a message of more than {limits.MAX_MESSAGE_BYTES} bytes"),
        ("nonsense-list", "its answer does not follow the protocol"),
        ("deep-list", "it sent a message that is too large: nested deeper than 64 levels"),
    ],
)
async def test_a_server_that_cannot_be_used_is_reported_and_tried_again(
    data_dir: Path, embedder: Embedder, mode: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.mcp_client.connection.CONNECT_SECONDS", 1.0 if "does not" in problem else 60.0)
    async with connected(data_dir, embedder, fake(options={"mode": mode}), fake("good")) as bridge:
        view = await state_of(bridge)
        assert (view.tools, view.last_error) == (0, problem)
        await until_state(bridge, "connected", "good")  # on a busy machine its first attempt may be too slow as well
        assert (await bridge.tools.execute("good_echo")).output == "{}"
        assert ids(bridge) == ["good_echo"]


@pytest.mark.parametrize("mode", ["noise", "stderr-flood", "notification-flood", "endless-pages", "same-page"])
async def test_a_server_that_misbehaves_is_bounded(data_dir: Path, embedder: Embedder, mode: str) -> None:
    async with connected(data_dir, embedder, fake(options={"mode": mode}), fake("good")) as bridge:
        view = await state_of(bridge)
        assert view.state == "connected"
        assert view.tools == {"endless-pages": limits.MAX_PAGES, "same-page": 1}.get(mode, 1)
        assert (await bridge.tools.execute("good_echo")).output == "{}"
        if mode == "endless-pages":
            assert view.problems == [f"the list has more than {limits.MAX_PAGES} pages; what follows is left out"]
        if mode == "same-page":
            assert "again is listed more than once; the first counts" in view.problems


async def test_large_pages_are_not_read_to_the_end(data_dir: Path, embedder: Embedder, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with connected(data_dir, embedder, fake(options={"mode": "large-pages", "log": str(log)})) as bridge:
        view = await state_of(bridge)
        assert (view.state, ids(bridge)) == ("connected", ["fake_small"])
        assert f"the list has more than {limits.MAX_LIST_BYTES} bytes; what follows is left out" in view.problems
    assert log.read_text().count("tools/list") == 3


@pytest.mark.usefixtures("_short_pauses")
async def test_a_server_that_ends_again_and_again_is_started_less_often(
    data_dir: Path, embedder: Embedder, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    config = fake(options={"mode": "exit-later", "log": str(log)})
    async with connected(data_dir, embedder, config):
        await until(lambda: log.read_text().count("started") >= 3)


async def test_a_program_that_does_not_exist_is_reported(data_dir: Path, embedder: Embedder) -> None:
    config = fake().model_copy(update={"command": "/nowhere/server"})
    async with connected(data_dir, embedder, config) as bridge:
        assert (await state_of(bridge)).last_error == "/nowhere/server cannot be started: No such file or directory"


async def test_a_server_without_tools_has_none(data_dir: Path, embedder: Embedder) -> None:
    async with connected(data_dir, embedder, fake(options={"mode": "no-tools"})) as bridge:
        view = await state_of(bridge)
        assert (view.state, view.tools) == ("connected", 0)


# ------------------------------------------------------------------------------------------------------------- secrets
async def test_secrets_are_inserted_by_name_and_never_shown(
    data_dir: Path, embedder: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"API_TOKEN": "Bearer ${secret:TOKEN}", "PLAIN": "value"}
    config = fake(options=tools("environment"), env=variables)
    async with connected(data_dir, embedder, config) as bridge:
        view = await state_of(bridge)
        assert view.last_error == "the secret TOKEN is not set; set it with: apex secrets set TOKEN"
        bridge.skills.grants.secrets.set("TOKEN", "sesame-open-4711")
        view = await bridge.mcp.reconnect("fake", wait_seconds=60)
        assert view.state == "connected"
        assert view.env == {"API_TOKEN": "Bearer ${secret:TOKEN}", "PLAIN": "***"}
        result = await bridge.tools.execute("fake_environment")
        environment = json.loads(result.output)
        assert (environment["API_TOKEN"], environment["PLAIN"]) == ("Bearer ***", "value")
        assert set(environment) <= {"API_TOKEN", "PLAIN", *INHERITED}
        assert "sesame" not in json.dumps(result.data)
    assert "sesame" not in caplog.text


async def test_a_secret_is_masked_in_the_error_of_a_process(data_dir: Path, embedder: Embedder) -> None:
    config = fake(options={"mode": "exit"}, env={"LICENCE": "${secret:LICENCE}"})
    data_dir.mkdir()
    (data_dir / "secrets.json").write_text(json.dumps({"LICENCE": "sesame-open-4711"}))
    async with connected(data_dir, embedder, config) as bridge:
        assert (await state_of(bridge)).last_error == "it ended with exit code 3: no licence for ***"


@pytest.mark.parametrize(
    "options", [{"after": "y" * 190}, {"before": "x" * 180, "on_stdout": True}], ids=["stderr", "stdout"]
)
async def test_a_secret_is_masked_before_the_text_around_it_is_cut(
    data_dir: Path, embedder: Embedder, options: dict[str, Any]
) -> None:
    config = fake(options={"mode": "exit", **options}, env={"LICENCE": "${secret:LICENCE}"})
    data_dir.mkdir()
    (data_dir / "secrets.json").write_text(json.dumps({"LICENCE": "sesame-open-4711"}))
    async with connected(data_dir, embedder, config) as bridge:
        error = (await state_of(bridge)).last_error or ""
    assert "***" in error
    assert not any(part in error for part in ("sesa", "ame-", "4711"))
