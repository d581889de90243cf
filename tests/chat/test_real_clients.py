"""Real client libraries over loopback: the same scenarios with each."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.chat.clients.python import PARTS, LangChainClient, OpenAIClient, run_scenario
from tests.chat.live import TIMEOUT_SECONDS, Live
from tests.chat.upstream import USAGE, Play, Step, Upstream, call, refusal
from tests.clients.install import HERE, installed, node

pytestmark = [pytest.mark.requirement("G1"), pytest.mark.requirement("G5"), pytest.mark.slow]
Json = dict[str, Any]
Table = dict[tuple[str, str], Json]
METHODS = {
    "whole": "whole",
    "whole_tool": "whole",
    "whole_error": "whole",
    "parts": "parts",
    "client_tool": "tool",
    "stream": "stream",
    "stream_tool": "stream",
    "stream_error": "stream",
    "stream_broken": "stream",
}
CLIENTS = ["openai for Python", "LangChain", "openai for Node", "AI SDK"]
QUOTA = refusal(429, "You exceeded your quota", code="insufficient_quota", retry_after="3600")
SUM = Step(text="Let me see.", calls=[call("calculate", {"expression": "6*7"})])


def echo(body: Json) -> Step:
    return Step(text=f"I was told: {body['messages'][-1]['content']}")


def mixed(body: Json) -> Step:
    return Step(calls=[call("calculate", {"expression": "6*7"}), call("get_weather", {"city": "上海"})])


SCRIPTS: dict[str, list[Play]] = {
    "whole": [Step(text="Hello, 你好.")],
    "whole_tool": [SUM, echo],
    "whole_error": [QUOTA],
    "parts": [Step(text="A square.")],
    "client_tool": [mixed, echo],
    "stream": [Step(text="Hello, 你好.")],
    "stream_tool": [SUM, echo],
    "stream_error": [QUOTA],
    "stream_broken": [Step(text="half of a long answer", cut_after=4)],
}


def with_python(kind: type[OpenAIClient | LangChainClient], url: str, models: dict[str, str]) -> Json:
    with openai.DefaultHttpxClient(trust_env=False) as http:
        return {scenario: run_scenario(kind(url, http, model), METHODS[scenario]) for scenario, model in models.items()}


def with_node(name: str, url: str, models: dict[str, str], folder: Path) -> Json:
    (folder / "node_modules").symlink_to(installed() / "node_modules")
    shutil.copy(Path(__file__).parent / "clients/client.mjs", folder)
    command = [str(node()), "client.mjs", f"{url}/v1", name, json.dumps(models)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    results: Json = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def models(upstream: Upstream) -> dict[str, dict[str, str]]:
    """The model of each scenario, by client."""
    return {client: {name: upstream.play(*steps) for name, steps in SCRIPTS.items()} for client in CLIENTS}


@pytest.fixture(scope="module")
def table(bridge_server: Live, models: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The result of each scenario, by client."""
    url = bridge_server.url
    results = {
        "openai for Python": with_python(OpenAIClient, url, models["openai for Python"]),
        "LangChain": with_python(LangChainClient, url, models["LangChain"]),
        "openai for Node": with_node("openai", url, models["openai for Node"], tmp_path_factory.mktemp("node")),
        "AI SDK": with_node("ai", url, models["AI SDK"], tmp_path_factory.mktemp("node")),
    }
    return {(client, scenario): result for client, own in results.items() for scenario, result in own.items()}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("scenario", ["whole", "stream"])
def test_a_plain_answer_arrives_with_its_usage(table: Table, client: str, scenario: str) -> None:
    assert table[client, scenario] == {"text": "Hello, 你好.", "finish": "stop", "tokens": USAGE["total_tokens"]}


@pytest.mark.parametrize("scenario", ["whole_tool", "stream_tool"])
def test_a_call_of_our_tool_is_not_visible_to_the_client(table: Table, client: str, scenario: str) -> None:
    assert table[client, scenario] == {"text": "Let me see.\n\nI was told: 42", "finish": "stop", "tokens": 30}


def test_a_client_runs_its_own_tool_beside_ours(
    table: Table, client: str, models: dict[str, dict[str, str]], upstream: Upstream
) -> None:
    assert table[client, "client_tool"]["text"].startswith("I was told: sunny in ")
    sent = upstream.bodies(models[client]["client_tool"])[1]["messages"]
    made, ours, theirs = sent[-3:]
    assert [one["function"]["name"] for one in made["tool_calls"]] == ["calculate", "get_weather"]
    assert (ours["content"], "上海" in theirs["content"]) == ("42", True)


@pytest.mark.parametrize("scenario", ["whole_error", "stream_error"])
def test_a_refusal_has_its_status_and_code(table: Table, client: str, scenario: str) -> None:
    error = table[client, scenario]["error"]
    assert (error["status"], error["code"]) == (429, "insufficient_quota")
    assert "You exceeded your quota" in error["message"]


def test_a_broken_stream_is_an_error_and_not_a_short_answer(table: Table, client: str) -> None:
    error = table[client, "stream_broken"]["error"]
    assert "broke off" in error["message"]


def test_content_parts_reach_the_model(
    table: Table, client: str, models: dict[str, dict[str, str]], upstream: Upstream
) -> None:
    assert table[client, "parts"]["text"] == "A square."
    [*_, message] = upstream.bodies(models[client]["parts"])[0]["messages"]
    assert message == {"role": "user", "content": PARTS}


def test_the_lock_file_of_the_node_clients_names_no_registry() -> None:
    text = (HERE / "package-lock.json").read_text("utf-8")
    assert "://" not in text
    lock = json.loads(text)
    packages = [package for name, package in lock["packages"].items() if name]
    assert packages
    assert all("integrity" in package and "resolved" not in package for package in packages)
