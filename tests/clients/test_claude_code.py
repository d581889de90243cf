"""Claude Code, the real program: as MCP client, and chatting through this server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.upstream import Step, call
from tests.clients.programs import ClaudeCode, Finished, claude_tool_results
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
PREFIX = "mcp__apexbridge__"
ACTIVITY = ["mcp_tool_use", "mcp_tool_result"]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "data") as running:
        yield running


@pytest.fixture
def claude(server: Served, tmp_path: Path) -> ClaudeCode:
    program = ClaudeCode(home=tmp_path)
    program.connect(server.url)
    return program


def shown_types(finished: Finished) -> list[str]:
    """The types of the blocks of an answer, in order."""
    return [block["type"] for event in finished.of_type("assistant") for block in event["message"]["content"]]


def use_skill() -> list[Step]:
    """The model loads the tools that Claude Code deferred, then finds, loads and runs a skill with them."""
    names = ["list_skills", "search_skills", "load_skill", "run_skill"]
    return [
        Step(calls=[call("ToolSearch", {"query": "select:" + ",".join(PREFIX + name for name in names)})]),
        Step(calls=[call(f"{PREFIX}list_skills"), call(f"{PREFIX}search_skills", {"query": "pig latin translation"})]),
        Step(calls=[call(f"{PREFIX}load_skill", {"name": SKILL})]),
        Step(calls=[call(f"{PREFIX}run_skill", {"name": SKILL, "input": INPUT})]),
        Step(text="It is ananabay."),
    ]


@pytest.mark.parametrize(
    "options",
    [["--stdio"], ["--http"], ["--stdio", "--scope", "project"]],
    ids=["a program", "a URL", "a program of the project"],
)
def test_it_lists_finds_loads_and_runs_a_skill_over_mcp(server: Served, claude: ClaudeCode, options: list[str]) -> None:
    server.configure(claude, "claude-code", *options)
    is_project = "project" in options
    model = server.upstream.play(*use_skill())
    more = ["--mcp-config", str(claude.folder / ".mcp.json")] if is_project else []
    finished = claude.ask("What is banana in Pig Latin?", *more, model=model)
    assert finished.code == 0, finished.out + finished.err
    (start,) = [event for event in finished.of_type("system") if event["subtype"] == "init"]
    assert [(each["name"], each["status"]) for each in start["mcp_servers"]] == [("apexbridge", "connected")]
    results = claude_tool_results(finished)
    assert SKILL in results[f"{PREFIX}list_skills"]
    assert SKILL in results[f"{PREFIX}search_skills"]
    assert BODY.splitlines()[0] in results[f"{PREFIX}load_skill"]
    assert OUTPUT in results[f"{PREFIX}run_skill"]
    assert finished.of_type("result")[0]["result"] == "It is ananabay."


def test_a_skill_runs_here_and_a_command_there_before_the_answer(server: Served, claude: ClaudeCode) -> None:
    model = server.upstream.play(
        Step(calls=[call("search_skills", {"query": "pig latin translation"})]),
        Step(
            text="Both at once.",
            calls=[
                call("run_skill", {"name": SKILL, "input": INPUT}),
                call("Bash", {"command": "echo made by the client > made.txt; cat made.txt", "description": "make"}),
            ],
        ),
        lambda body: Step(text=f"Got {len(body['messages'])} messages."),
    )
    finished = claude.ask("Translate banana, and make a file", model=model)
    assert finished.code == 0, finished.out + finished.err
    assert claude_tool_results(finished)["Bash"] == "made by the client"
    assert (claude.folder / "made.txt").read_text() == "made by the client\n"
    outputs = tool_outputs(server.upstream.bodies(model)[-1]["messages"])
    assert OUTPUT in outputs["run_skill"]
    assert "made by the client" in outputs["Bash"]
    assert finished.of_type("result")[0]["result"].startswith("Got ")
    assert shown_types(finished) == [*ACTIVITY, "text", *ACTIVITY, "tool_use", "text"]
    assert len(server.upstream.bodies(model)) == 3


def test_the_second_turn_knows_the_first(server: Served, claude: ClaudeCode) -> None:
    model = server.upstream.play(
        Step(text="Wait.", calls=[call("run_skill", {"name": SKILL, "input": INPUT})]),
        Step(text="It is ananabay."),
        Step(text="You asked about banana."),
    )
    first = claude.ask("What is banana in Pig Latin?", model=model)
    assert shown_types(first) == ["text", *ACTIVITY, "text"], first.out + first.err
    again = claude.ask("What did I ask?", "--continue", model=model)
    assert again.of_type("result")[0]["result"] == "You asked about banana.", again.out + again.err
    last = server.upstream.bodies(model)[-1]["messages"]
    texts = [str(message["content"]) for message in last if message["role"] == "assistant"]
    assert any("It is ananabay." in text for text in texts)


def test_an_error_in_mid_stream_is_shown_to_the_user(server: Served, claude: ClaudeCode) -> None:
    claude.environment["CLAUDE_CODE_MAX_RETRIES"] = "0"
    model = server.upstream.play(Step(text="half of a long answer", cut_after=4))
    finished = claude.ask("Hello", model=model)
    (result,) = finished.of_type("result")
    assert result["is_error"], finished.out
    assert finished.code != 0
    assert BROKEN in result["result"]


def test_a_skill_is_a_command_of_the_user(server: Served, claude: ClaudeCode) -> None:
    server.configure(claude, "claude-code", "--http")
    model = server.upstream.play(Step(text="Yes."))
    finished = claude.ask(f"/mcp__apexbridge__{SKILL} banana", model=model)
    assert finished.of_type("result")[0]["result"] == "Yes.", finished.out + finished.err
    (body,) = server.upstream.bodies(model)
    assert "Run the script with the word." in str(body["messages"])


def test_a_dangerous_skill_does_not_run_unless_somebody_approves(server: Served, claude: ClaudeCode) -> None:
    server.configure(claude, "claude-code", "--http")
    model = server.upstream.play(
        Step(calls=[call("ToolSearch", {"query": f"select:{PREFIX}run_skill"})]),
        Step(calls=[call(f"{PREFIX}run_skill", {"name": DANGEROUS_SKILL})]),
        Step(text="It was not run."),
    )
    finished = claude.ask("Format the disk", model=model)
    assert finished.of_type("result")[0]["result"] == "It was not run.", finished.out + finished.err
    assert "formatted" not in claude_tool_results(finished)[f"{PREFIX}run_skill"]
    assert server.runs(DANGEROUS_SKILL) == []


@pytest.mark.parametrize("transport", ["--http", "--stdio", None], ids=["a URL", "a program", "chat"])
def test_a_run_ends_with_the_program_that_asked_for_it(
    server: Served, claude: ClaudeCode, transport: str | None
) -> None:
    steps = [Step(calls=[call("run_skill", {"name": LONG_SKILL})])]
    if transport is not None:
        server.configure(claude, "claude-code", transport)
        steps = [
            Step(calls=[call("ToolSearch", {"query": f"select:{PREFIX}run_skill"})]),
            Step(calls=[call(f"{PREFIX}run_skill", {"name": LONG_SKILL})]),
        ]
    before = len(server.runs(LONG_SKILL))
    with claude.started(claude.asking("Work", model=server.upstream.play(*steps))) as process:
        wait_until(lambda: len(server.runs(LONG_SKILL)) > before)
        process.kill()
    wait_until(lambda: server.is_cancelled(LONG_SKILL))


def test_keys_are_read_from_the_environment_and_refusals_are_shown(tmp_path: Path) -> None:
    with served(tmp_path / "data", APEX_API_KEYS_REQUIRED="true") as server:
        claude = ClaudeCode(home=tmp_path / "home")
        claude.connect(server.url)
        del claude.environment["ANTHROPIC_API_KEY"]
        claude.environment["ANTHROPIC_AUTH_TOKEN"] = server.key("chat")
        server.configure(claude, "claude-code", "--http")
        claude.environment["APEX_API_KEY"] = server.key("read", "run")
        finished = claude.ask("What is banana in Pig Latin?", model=server.upstream.play(*use_skill()))
        assert OUTPUT in claude_tool_results(finished)[f"{PREFIX}run_skill"], finished.out + finished.err
        del claude.environment["ANTHROPIC_AUTH_TOKEN"]
        claude.connect(server.url, "apex_wrong")
        refused = claude.ask("Hello", model=server.upstream.play(Step(text="Hello.")))
        assert (refused.code, refused.of_type("result")[0]["is_error"]) == (1, True)
        assert "Invalid API key" in refused.of_type("result")[0]["result"]
