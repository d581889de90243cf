"""Real clients of the Messages API over loopback: the same scenarios with each."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chat.clients.anthropic_python import (
    AnthropicClient,
    BetaClient,
    Client,
    LangChainClient,
    PydanticAIClient,
    run_scenario,
)
from tests.chat.live import TIMEOUT_SECONDS, Live
from tests.chat.upstream import USAGE, Play, Step, Upstream, call, refusal
from tests.clients.install import installed, node

pytestmark = [
    pytest.mark.slow,
    # LangChain does not know the calls of MCP servers unless a beta is enabled, and passes them on with a warning.
    pytest.mark.filterwarnings("ignore:Received unexpected tool content block:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]
Json = dict[str, Any]
Table = dict[tuple[str, str], Json]
SUM = Step(text="Let me see.", calls=[call("calculate", {"expression": "6*7"})])


def echo(body: Json) -> Step:
    return Step(text=f"I was told: {body['messages'][-1]['content']}")


MIXED = Step(
    calls=[call("calculate", {"expression": "6*7"}), call("get_weather", {"city": "上海"})],
    fields={"reasoning_content": "Which city?"},
)
SCENARIOS: dict[str, tuple[str, list[Play]]] = {
    "whole": ("whole", [Step(text="Hello, 你好.")]),
    "stream": ("stream", [Step(text="Hello, 你好.")]),
    "thinking": ("stream", [Step(text="Yes.", fields={"reasoning_content": "Hm."})]),
    "whole_calls": ("whole", [SUM, echo]),
    "stream_calls": ("stream", [SUM, echo]),
    "turns": ("turns", [SUM, echo, echo]),
    "tool": ("tool", [MIXED, echo]),
    "stream_tool": ("stream_tool", [MIXED, echo]),
    "skill": ("stream", [Step(calls=[call("run_skill", {"name": "greeter"})]), echo]),
    "whole_error": ("whole", [refusal(429, "You exceeded your quota", code="insufficient_quota", retry_after="3600")]),
    "stream_error": ("stream", [refusal(400, "No such luck")]),
    "stream_broken": ("stream", [Step(text="half of a long answer", cut_after=4)]),
}
PYTHON: dict[str, Callable[[str, str], Client]] = {
    "anthropic for Python": AnthropicClient,
    "anthropic for Python, beta": BetaClient,
    "LangChain": LangChainClient,
    "pydantic-ai": PydanticAIClient,
}
NODE = {"anthropic for Node": "anthropic", "AI SDK": "ai"}
CLIENTS = [*PYTHON, *NODE]
Models = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def models(upstream: Upstream) -> Models:
    """The model of each scenario, by client."""
    return {client: {name: upstream.play(*steps) for name, (_, steps) in SCENARIOS.items()} for client in CLIENTS}


@pytest.fixture(scope="module")
def table(bridge_server: Live, models: Models, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The result of each scenario, by client."""
    bridge_server.install("greeter", {"scripts/execute.sh": "echo Good morning\n"})
    url = bridge_server.url
    results: dict[str, Json] = {
        client: {name: run_scenario(kind(url, model), SCENARIOS[name][0]) for name, model in models[client].items()}
        for client, kind in PYTHON.items()
    }
    for client, name in NODE.items():
        results[client] = with_node(name, url, models[client], tmp_path_factory.mktemp("node"))
    return {(client, scenario): result for client, own in results.items() for scenario, result in own.items()}


def with_node(name: str, url: str, models: dict[str, str], folder: Path) -> Json:
    (folder / "node_modules").symlink_to(installed() / "node_modules")
    shutil.copy(Path(__file__).parent / "clients/anthropic_client.mjs", folder)
    jobs = {scenario: [SCENARIOS[scenario][0], model] for scenario, model in models.items()}
    command = [str(node()), "anthropic_client.mjs", url, name, json.dumps(jobs)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    results: Json = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("scenario", ["whole", "stream"])
def test_a_plain_answer_arrives_with_its_usage(table: Table, client: str, scenario: str) -> None:
    expected = {"text": "Hello, 你好.", "stop": "end_turn", "tokens": USAGE["completion_tokens"]}
    assert table[client, scenario] == expected


def test_thinking_does_not_disturb(table: Table, client: str) -> None:
    assert table[client, "thinking"]["text"] == "Yes."


@pytest.mark.parametrize("scenario", ["whole_calls", "stream_calls"])
def test_calls_of_our_tools_do_not_disturb(table: Table, client: str, scenario: str) -> None:
    assert "".join(table[client, scenario]["text"].split()) == "Letmesee.Iwastold:42"
    assert (table[client, scenario]["stop"], table[client, scenario]["tokens"]) == ("end_turn", 10)


def test_an_answer_with_calls_of_our_tools_can_be_continued(
    table: Table, client: str, models: Models, upstream: Upstream
) -> None:
    assert table[client, "turns"]["text"] == "I was told: and again"
    sent = upstream.bodies(models[client]["turns"])[-1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert "".join(sent[2]["content"].split()) == "Letmesee.Iwastold:42"


@pytest.mark.parametrize("scenario", ["tool", "stream_tool"])
def test_a_client_runs_its_own_tool_beside_ours(
    table: Table, client: str, scenario: str, models: Models, upstream: Upstream
) -> None:
    assert table[client, scenario]["text"].strip().endswith("I was told: sunny in 上海")
    sent = upstream.bodies(models[client][scenario])[1]["messages"]
    made, ours, theirs = sent[-3:]
    assert [one["function"]["name"] for one in made["tool_calls"]] == ["calculate", "get_weather"]
    assert made["reasoning_content"] == "Which city?"
    assert (ours["content"], theirs["content"]) == ("42", "sunny in 上海")


def test_a_skill_runs(table: Table, client: str) -> None:
    assert "Good morning" in table[client, "skill"]["text"]


@pytest.mark.parametrize(
    ("scenario", "status", "message"),
    [("whole_error", 429, "You exceeded your quota"), ("stream_error", 400, "No such luck")],
)
def test_a_refusal_has_its_status(table: Table, client: str, scenario: str, status: int, message: str) -> None:
    error = table[client, scenario]["error"]
    assert (error["status"], message in error["message"]) == (status, True)


def test_a_broken_stream_is_an_error(table: Table, client: str) -> None:
    assert "broke off" in table[client, "stream_broken"]["error"]["message"]
