"""The offline planner answers without an upstream, with the same loop and tools."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import call

pytestmark = pytest.mark.requirement("G10")


@pytest.fixture(scope="module")
def server(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", None, embedder) as opened:
        script = "import json, sys\nprint('upper:', json.load(sys.stdin)['text'].upper())\n"
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        words = "Turns a text into capital letters."
        opened.install("shouting", {"scripts/execute.py": script}, description=words, parameters=schema)
        opened.install("poem-writing", description="How to write a poem about the sea.", body="# Count the syllables\n")
        opened.do(opened.bridge.builtins.execute("file-write", {"path": "note.txt", "content": "Remember the milk."}))
        yield opened


def answer_to(server: Live, text: Any, is_stream: bool = False, **more: Any) -> str:
    answer = server.answer(is_stream, "apex-offline", text, **more)
    assert answer["finish_reason"] == "stop"
    assert "not a language model" in answer["content"]
    return str(answer["content"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What is 6*7?", "42"),
        ("sqrt(144) + 10", "22"),
        ("今天星期几？", "20"),
        ("What time is it?", "20"),
        ("read the file note.txt", "Remember the milk."),
        ("list my files", "note.txt"),
        ("turn this text into capital letters", "CAPITAL LETTERS"),
        ("how do I write a poem about the sea", "Count the syllables"),
        ("xyzzy plugh", "skill"),
        ("read the file none.txt", "did not work"),
        ("", "nothing"),
    ],
)
def test_the_planner_uses_tools_and_says_that_it_is_not_a_language_model(
    server: Live, text: str, words: str, is_stream: bool
) -> None:
    assert words in answer_to(server, text, is_stream)


def test_any_model_name_is_answered_by_the_planner_if_there_is_no_upstream(server: Live) -> None:
    assert "42" in server.ask("gpt-5", "6*7")["choices"][0]["message"]["content"]
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["apex-offline"]


def test_the_planner_uses_no_tools_if_the_client_forbids_them(server: Live) -> None:
    for more in ({"x_bridge": {"tools": False}}, {"tool_choice": "none"}):
        completion = server.post("apex-offline", "6*7", **more).raise_for_status().json()
        assert "42" not in completion["choices"][0]["message"]["content"]


def test_unusual_conversations_are_answered(server: Live) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [call("f", {}, "c")]}
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "7"}]}
    user = {"role": "user", "content": [{"type": "text", "text": "6*7"}, {"type": "image_url"}]}
    tools = [{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}]
    assert "42" in answer_to(server, [user])
    assert "7" in answer_to(server, [user, calling, result])
    assert "42" in answer_to(server, [{"role": "system", "content": "x"}, user], tools=tools)


@pytest.mark.requirement("G7")
def test_each_step_is_logged_with_the_id_of_the_request(server: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="apexbridge.agent.loop"):
        answer_to(server, "turn this text into capital letters")
    lines = [record.getMessage() for record in caplog.records if record.name == "apexbridge.agent.loop"]
    ids = {line.split(":")[0] for line in lines}
    assert len(ids) == 1
    assert ids.pop().startswith("chat req_")
    assert [line.split(": ")[1].split(",")[0] for line in lines] == [
        "model apex-offline",
        "search search_skills",
        "model apex-offline",
        "tool run_skill",
        "model apex-offline",
    ]
