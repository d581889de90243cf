"""Codex, the real program: as MCP client, and chatting through this server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.upstream import Play, Step, call
from tests.clients.programs import Codex, codex_items
from tests.clients.served import (
    BODY,
    DANGEROUS_SKILL,
    INPUT,
    LONG_SKILL,
    OUTPUT,
    SKILL,
    Served,
    served,
    tool_outputs,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
BROKEN = "The model's server broke off its answer."
NAMESPACE = "mcp__apexbridge"
APPROVED = ("-c", 'mcp_servers.apexbridge.default_tools_approval_mode="approve"')
"""Without a terminal Codex refuses tools that may change something, unless they are approved beforehand."""
PATIENT = ("-c", "mcp_servers.apexbridge.required=true", "-c", "mcp_servers.apexbridge.startup_timeout_sec=60")
"""Codex starts without the tools of a server that does not answer at once, unless it is required."""
MODERN = ("-c", "features.mcp_2026_07_28=true")
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "data") as running:
        yield running


@pytest.fixture
def codex(server: Served, tmp_path: Path) -> Codex:
    program = Codex(home=tmp_path)
    program.connect(server.url)
    return program


def calling(name: str, arguments: Json | None = None) -> Play:
    """The model calls a tool of Codex's MCP server by the name under which this server offered it."""

    def step(body: Json) -> Step:
        names = [tool["function"]["name"] for tool in body["tools"]]
        offered = [each for each in names if NAMESPACE in each and each.endswith(name)]
        return Step(calls=[call(offered[0], arguments)]) if offered else Step(text=f"No {name} among {names}.")

    return step


@pytest.mark.parametrize(
    ("options", "era"),
    [("--stdio", ()), ("--http", ()), ("--stdio", MODERN), ("--http", MODERN)],
    ids=["a program", "a URL", "a program, 2026-07-28", "a URL, 2026-07-28"],
)
def test_it_lists_finds_loads_and_runs_a_skill_over_mcp(
    server: Served, codex: Codex, options: str, era: tuple[str, ...]
) -> None:
    server.configure(codex, "codex", options)
    model = server.upstream.play(
        calling("list_skills"),
        calling("search_skills", {"query": "pig latin translation"}),
        calling("load_skill", {"name": SKILL}),
        calling("run_skill", {"name": SKILL, "input": INPUT}),
        Step(text="It is ananabay."),
    )
    finished = codex.ask("What is banana in Pig Latin?", *APPROVED, *PATIENT, *era, model=model)
    assert finished.code == 0, finished.out + finished.err
    items = codex_items(finished)
    results = {item["tool"]: json.dumps(item["result"]) for item in items if item["type"] == "mcp_tool_call"}
    assert SKILL in results["list_skills"]
    assert SKILL in results["search_skills"]
    assert BODY.splitlines()[0] in results["load_skill"]
    assert OUTPUT in results["run_skill"]
    assert items[-1]["text"] == "It is ananabay."


def test_a_skill_runs_here_and_a_command_there_before_the_answer(server: Served, codex: Codex) -> None:
    model = server.upstream.play(
        Step(calls=[call("search_skills", {"query": "pig latin translation"})]),
        Step(
            text="Both at once.",
            calls=[
                call("run_skill", {"name": SKILL, "input": INPUT}),
                call("exec_command", {"cmd": "echo made by the client"}),
            ],
        ),
        lambda body: Step(text=f"Got {len(body['messages'])} messages."),
    )
    finished = codex.ask("Translate banana, and say something", model=model)
    assert finished.code == 0, finished.out + finished.err
    (command,) = [item for item in codex_items(finished) if item["type"] == "command_execution"]
    assert (command["aggregated_output"], command["exit_code"]) == ("made by the client\n", 0)
    outputs = tool_outputs(server.upstream.bodies(model)[-1]["messages"])
    assert OUTPUT in outputs["run_skill"]
    assert "made by the client" in outputs["exec_command"]
    assert codex_items(finished)[-1]["text"].startswith("Got ")
    assert len(server.upstream.bodies(model)) == 3


def test_the_second_turn_knows_the_first(server: Served, codex: Codex) -> None:
    model = server.upstream.play(
        Step(text="Wait.", calls=[call("run_skill", {"name": SKILL, "input": INPUT})]),
        Step(text="It is ananabay."),
        Step(text="You asked about banana."),
    )
    assert codex.ask("What is banana in Pig Latin?", model=model).code == 0
    again = codex.ask("What did I ask?", model=model, resume=True)
    assert codex_items(again)[-1]["text"] == "You asked about banana.", again.out + again.err
    last = server.upstream.bodies(model)[-1]["messages"]
    texts = [str(message["content"]) for message in last if message["role"] == "assistant"]
    assert any("It is ananabay." in text for text in texts)


def test_an_error_in_mid_stream_is_shown_to_the_user(server: Served, codex: Codex) -> None:
    model = server.upstream.play(Step(text="half of a long answer", cut_after=4))
    finished = codex.ask("Hello", model=model)
    assert finished.code != 0
    (failed,) = finished.of_type("turn.failed")
    assert BROKEN in failed["error"]["message"]


def test_a_dangerous_skill_does_not_run_unless_somebody_approves(server: Served, codex: Codex) -> None:
    server.configure(codex, "codex", "--http")
    model = server.upstream.play(calling("run_skill", {"name": DANGEROUS_SKILL}), Step(text="It was not run."))
    finished = codex.ask("Format the disk", *APPROVED, *PATIENT, model=model)
    (refused,) = [item for item in codex_items(finished) if item["type"] == "mcp_tool_call"]
    assert refused["status"] == "failed", finished.out + finished.err
    assert server.runs(DANGEROUS_SKILL) == []


@pytest.mark.parametrize("transport", ["--stdio", None], ids=["a program", "chat"])
def test_a_run_ends_with_the_program_that_asked_for_it(server: Served, codex: Codex, transport: str | None) -> None:
    step: Play = Step(calls=[call("run_skill", {"name": LONG_SKILL})])
    options: tuple[str, ...] = ()
    if transport is not None:
        server.configure(codex, "codex", transport)
        step, options = calling("run_skill", {"name": LONG_SKILL}), (*APPROVED, *PATIENT)
    before = len(server.runs(LONG_SKILL))
    with codex.started(codex.asking("Work", *options, model=server.upstream.play(step))) as process:
        wait_until(lambda: len(server.runs(LONG_SKILL)) > before)
        process.kill()
    wait_until(lambda: server.is_cancelled(LONG_SKILL))


def test_keys_are_read_from_the_environment_and_refusals_are_shown(tmp_path: Path) -> None:
    with served(tmp_path / "data", APEX_API_KEYS_REQUIRED="true") as server:
        codex = Codex(home=tmp_path / "home")
        codex.connect(server.url, server.key("chat", "read", "run"))
        server.configure(codex, "codex", "--http")
        model = server.upstream.play(calling("run_skill", {"name": SKILL, "input": INPUT}), Step(text="Done."))
        finished = codex.ask("What is banana in Pig Latin?", *APPROVED, *PATIENT, model=model)
        (run,) = [item for item in codex_items(finished) if item["type"] == "mcp_tool_call"]
        assert OUTPUT in json.dumps(run["result"]), finished.out + finished.err
        codex.environment["APEX_API_KEY"] = "apex_wrong"
        refused = codex.ask("Hello", model=server.upstream.play(Step(text="Hello.")))
        assert refused.code == 1
        (failed,) = refused.of_type("turn.failed")
        assert "401" in failed["error"]["message"]
