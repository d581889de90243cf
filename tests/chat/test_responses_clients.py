"""Real client libraries of `/v1/responses` over loopback: the same scenarios with each."""

import importlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import Play, Step, Upstream, call
from tests.clients.install import installed, node

pytestmark = pytest.mark.slow
Json = dict[str, Any]
Results = dict[str, Json]
FIRST, SECOND = "First question.", "Second question."
PYTHON_CLIENTS = ("openai for Python", "LangChain", "pydantic-ai", "OpenAI Agents")
NODE_CLIENTS = {
    "openai for Node": "openai",
    "AI SDK, openai": "ai-openai",
    "AI SDK, open-responses": "ai-open-responses",
}
CLIENTS = [*PYTHON_CLIENTS, *NODE_CLIENTS]
NODE_SECONDS = 300
RUN = Step(text="Let me see.", calls=[call("run_skill", {"name": "maker"})])


def echo(body: Json) -> Step:
    return Step(text=f"I was told: {body['messages'][-1]['content']}")


def mixed(body: Json) -> Step:
    return Step(calls=[call("calculate", {"expression": "6*7"}), call("get_weather", {"city": "上海"})])


SCRIPTS: dict[str, list[Play]] = {
    "text": [Step(text="Hello, 你好.")],
    "stream": [Step(text="Hello, 你好.", fields={"reasoning_content": "A greeting."})],
    "tool": [mixed, echo],
    "skill": [RUN, echo],
    "turns": [RUN, Step(text="Done."), Step(text="Two.")],
    "thought": [Step(text="Done.", fields={"reasoning_content": "It is easy."}), Step(text="Two.")],
    "broken": [Step(text="half of a long answer", cut_after=4)],
}


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        opened.install("maker", {"scripts/execute.py": "print('made it')\n"}, body="# Maker\n")
        yield opened


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def models(client: str, upstream: Upstream) -> dict[str, str]:
    """The model of each scenario."""
    return {name: upstream.play(*steps) for name, steps in SCRIPTS.items()}


@pytest.fixture(scope="module")
def results(client: str, server: Live, models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The result of each scenario."""
    if client in PYTHON_CLIENTS:
        python = importlib.import_module("tests.chat.clients.responses_python")  # takes seconds: not while collecting
        return dict(python.run_scenarios(client, server.url, models))
    folder = tmp_path_factory.mktemp("node")
    (folder / "node_modules").symlink_to(installed() / "node_modules")
    shutil.copy(Path(__file__).parent / "clients/responses.mjs", folder)
    command = [str(node()), "responses.mjs", f"{server.url}/v1", NODE_CLIENTS[client], json.dumps(models)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NODE_SECONDS)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("scenario", ["text", "stream"])
def test_a_plain_answer_arrives_with_its_usage(results: Results, scenario: str) -> None:
    assert (results[scenario].get("text"), results[scenario].get("tokens")) == ("Hello, 你好.", 15), results[scenario]


def test_a_client_runs_its_own_tool_beside_ours(results: Results, models: dict[str, str], upstream: Upstream) -> None:
    assert results["tool"].get("text") == "I was told: sunny in 上海", results["tool"]
    made, ours, theirs = upstream.bodies(models["tool"])[-1]["messages"][-3:]
    assert [one["function"]["name"] for one in made["tool_calls"]] == ["calculate", "get_weather"]
    assert (ours["content"], theirs["content"]) == ("42", "sunny in 上海")


def test_a_skill_runs_in_between(results: Results) -> None:
    assert "made it" in results["skill"].get("text", ""), results["skill"]
    assert results["skill"]["tokens"] == 30


def test_a_second_turn_has_the_whole_conversation(results: Results, models: dict[str, str], upstream: Upstream) -> None:
    assert results["turns"].get("text") == "Two.", results["turns"]
    sent = upstream.bodies(models["turns"])[-1]["messages"]
    conversation = [(message["role"], message["content"]) for message in sent if message["role"] != "system"]
    assert conversation == [("user", FIRST), ("assistant", "Let me see.\n\nDone."), ("user", SECOND)]


def test_a_broken_stream_is_an_error_and_not_a_short_answer(results: Results) -> None:
    assert "broke off" in results["broken"].get("error", ""), results["broken"]


def test_reasoning_comes_back_in_the_second_turn(
    results: Results, client: str, models: dict[str, str], upstream: Upstream
) -> None:
    assert results["thought"].get("text") == "Two.", results["thought"]
    answered = upstream.bodies(models["thought"])[-1]["messages"][-2]
    if client == "pydantic-ai":  # for models that it does not know, it writes reasoning into the text
        assert "It is easy." in answered["content"]
    else:
        assert (answered["content"], answered.get("reasoning_content")) == ("Done.", "It is easy.")
