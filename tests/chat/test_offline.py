"""The offline planner answers without an upstream, with the same loop and tools."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from apexbridge._request_id import REQUEST_ID
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import call
from tests.making import skill_markdown, zip_of

pytestmark = pytest.mark.requirement("G10")


@pytest.fixture(scope="module")
def server(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", None, embedder) as opened:
        script = "import json, sys\nprint('upper:', json.load(sys.stdin)['text'].upper())\n"
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        words = "Turns a text into capital letters."
        opened.install("shouting", {"scripts/execute.py": script}, description=words, parameters=schema)
        opened.install("poem-writing", description="How to write a poem about the sea.", body="# Count the syllables\n")
        long = "# Knead\n" + "text\n" * 400 + "## Let it rise\n# Bake\n"
        opened.install("bread-baking", description="How to bake sourdough bread at home.", body=long)
        opened.do(opened.bridge.builtins.execute("file-write", {"path": "note.txt", "content": "Remember the milk."}))
        yield opened


def answer_to(server: Live, text: Any, is_stream: bool = False, **more: Any) -> str:
    answer = server.answer(is_stream, "apex-offline", text, **more)
    assert answer["finish_reason"] == "stop"
    assert "not a language model" in answer["content"] or "不是语言模型" in answer["content"]
    return str(answer["content"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What is 6*7?", "6*7 = 42"),
        ("hello", "Hello."),
        ("Hi there!", "Hello."),
        ("thanks", "You are welcome."),
        ("what can you do", "calculate"),
        ("what day is it", " UTC."),
        ("15% of 340", "340 * 15% = 51"),
        ("how much is 17 * 23 in total", "17 * 23 = 391"),
        ("what is 2+2?", "2+2 = 4"),
        ("what is 3 plus 4", "= 7"),
        ("5!", "= 120"),
        ("你好", "你好。"),
        ("谢谢", "不客气。"),
        ("你能做什么", "没有语言模型时"),
        ("340的15%是多少", "340 * 15% = 51"),
        ("340的百分之15是多少", "= 51"),
        ("3加4等于多少", "= 7"),
        ("how do I bake sourdough bread", "Let it rise"),
        ("sqrt(144) + 10", "22"),
        ("今天星期几？", "星期"),
        ("What time is it?", "20"),
        ("read the file note.txt", "Remember the milk."),
        ("list my files", "note.txt"),
        ("turn this text into capital letters", "CAPITAL LETTERS"),
        ("how do I write a poem about the sea", "Count the syllables"),
        ("xyzzy plugh", "skill"),
        ("hey, what's 15% of 340?", "340 * 15% = 51"),
        ("thanks, now what is 3*4?", "3*4 = 12"),
        ("what is 1,234 + 5,678", "1234 + 5678 = 6912"),
        ("square root of 144", "sqrt(144) = 12"),
        ("144的平方根是多少", "sqrt(144) = 12"),
        ("百分之十五的340", "340 * 15% = 51"),
        ("340的百分之二十五是多少", "340 * 25% = 85"),
        ("what time is it in Tokyo", " Asia/Tokyo."),
        ("what time is it in Narnia?", "There is no zone"),
        ("what day is 2026-12-25", "Friday, 25 December 2026."),
        ("What day was yesterday?", "Yesterday: "),
        ("what's today's date?", " UTC."),
        ("today", " UTC."),
        ("明天星期几", "明天是20"),
        ("thanks a lot!", "You are welcome."),
        ("bye", "Goodbye."),
        ("再见", "再见。"),
        ("help me", "Without a language model I can"),
        ("Hello, what can you do?", "Without a language model I can"),
        ("有什么功能", "没有语言模型时"),
        ("what skills do you have", "- bread-baking: How to bake"),
        ("list skills", "- shouting: Turns a text"),
        ("有哪些技能？", "- poem-writing: "),
        ("read the file none.txt", "did not work"),
        ("", "nothing"),
    ],
)
def test_the_planner_uses_tools_and_says_that_it_is_not_a_language_model(
    server: Live, text: str, words: str, is_stream: bool
) -> None:
    assert words in answer_to(server, text, is_stream)


def test_an_unknown_model_is_an_error_that_lists_the_models(server: Live, is_stream: bool) -> None:
    response = server.post("gpt-5", "6*7", stream=is_stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "apex-offline" in error["message"]
    assert "APEX_LLM_BASE_URL" in error["message"]
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["apex-offline"]
    assert "42" in server.post("", "6*7").json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "text",
    ["what happened on 2026-11-17", "summarise my log", "what is the error in line 12", "version 1.2.3 of the tool"],
)
def test_numbers_and_words_that_are_not_a_sum_are_not_calculated(server: Live, text: str) -> None:
    assert " = " not in answer_to(server, text)


@pytest.mark.parametrize(
    "text",
    ["now fill the PDF form", "I need a poster for today's event", "今天天气怎么样", "hello world in capital letters"],
)
def test_a_word_of_a_date_or_a_greeting_does_not_hide_the_task(server: Live, text: str) -> None:
    answer = answer_to(server, text)
    assert "UTC" not in answer
    assert "Hello. I calculate" not in answer


def test_long_instructions_are_summarized_with_a_link(server: Live) -> None:
    answer = answer_to(server, "how do I bake sourdough bread")
    assert len(answer) < 1_000
    for words in ("How to bake sourdough bread", "- Knead", "- Bake", "40"):
        assert words in answer
    assert "apex skills show bread-baking" in answer
    assert server.http.get("/api/skills/bread-baking/files/SKILL.md").status_code == 200
    assert "/api/skills/bread-baking/files/SKILL.md" in answer


@pytest.mark.parametrize(
    "text", ["why?", "make it shorter", "and the second one?", "再短一点", "hmm, that is odd to me"]
)
def test_a_follow_up_is_not_understood_and_says_so(server: Live, text: str) -> None:
    before = [{"role": "user", "content": "how do I bake sourdough bread"}, {"role": "assistant", "content": "Knead."}]
    answer = answer_to(server, [*before, {"role": "user", "content": text}])
    assert "follow-up" in answer or "后续问题" in answer
    assert "APEX_LLM_BASE_URL" in answer
    assert "= 42" in answer_to(server, [*before, {"role": "user", "content": "6*7"}])


def test_a_skill_that_is_served_under_its_plugins_name_is_used(server: Live) -> None:
    crane = skill_markdown("poem-writing", description="How to fold a paper crane.", body="# Crease the wings\n")
    server.do(server.bridge.skills.install_skill(zip_of({"origami/skills/poem-writing/SKILL.md": crane})))
    assert "Crease the wings" in answer_to(server, "how do I fold a paper crane")


def test_usage_is_estimated(server: Live) -> None:
    for more in ({}, {"x_bridge": {"tools": False}}):
        usage = server.post("apex-offline", "6*7", **more).json()["usage"]
        assert usage["prompt_tokens"] > 0
        assert usage["completion_tokens"] > 0
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        streamed = server.post("apex-offline", "6*7", stream=True, stream_options={"include_usage": True}, **more).text
        assert '"total_tokens"' in streamed
        assert '"total_tokens"' not in server.post("apex-offline", "6*7", stream=True, **more).text


@pytest.mark.parametrize("text", ["6*7", "hello", "how do I write a poem about the sea", "xyzzy plugh"])
@pytest.mark.parametrize("tools", [True, False])
def test_a_json_object_is_answered_with_one(server: Live, text: str, tools: bool, is_stream: bool) -> None:
    form = {"type": "json_object"}
    answer = server.answer(is_stream, "apex-offline", text, response_format=form, x_bridge={"tools": tools})
    assert list(json.loads(answer["content"])) == ["answer"]
    if text == "6*7" and tools:
        assert json.loads(answer["content"]) == {"answer": "6*7 = 42"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "required", "x_bridge": {"tools": False}}, "tool_choice"),
    ],
)
def test_what_the_planner_cannot_do_is_refused(server: Live, fields: Any, param: str, is_stream: bool) -> None:
    response = server.post("apex-offline", "hello", stream=is_stream, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def function(name: str, *required: str, kind: str = "string") -> Any:
    properties = {field: {"type": kind} for field in required}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.mark.parametrize("tools", [True, False])
def test_a_named_client_function_is_called(server: Live, tools: bool, is_stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "note"}}
    more = {"tools": [function("other"), function("note", "text")], "x_bridge": {"tools": tools}}
    answer = server.answer(is_stream, "apex-offline", "buy milk", tool_choice=choice, **more)
    (made,) = answer["tool_calls"]
    assert answer["finish_reason"] == "tool_calls"
    assert made["function"]["name"] == "note"
    assert json.loads(made["function"]["arguments"]) == {"text": "buy milk"}
    result = {"role": "tool", "tool_call_id": made["id"], "content": "noted: buy milk"}
    turn = {"role": "assistant", "content": None, "tool_calls": [made]}
    messages = [{"role": "user", "content": "buy milk"}, turn, result]
    assert "noted: buy milk" in answer_to(server, messages, is_stream, tool_choice=choice, **more)


def test_required_calls_a_tool_or_is_refused(server: Live, is_stream: bool) -> None:
    more = {"tool_choice": "required", "x_bridge": {"tools": False}}
    answer = server.answer(is_stream, "apex-offline", "hello", tools=[function("ping")], **more)
    assert answer["tool_calls"][0]["function"]["name"] == "ping"
    refused = server.post("apex-offline", "hello", tools=[function("add", "a", "b")], stream=is_stream, **more)
    assert refused.status_code == 400
    assert "add" in refused.json()["error"]["message"]
    assert "42" in answer_to(server, "6*7", is_stream, tool_choice="required")


def test_required_means_one_of_the_clients_tools_if_there_are_any(server: Live, is_stream: bool) -> None:
    more = {"tool_choice": "required", "tools": [function("add", "a", "b"), function("note", "text")]}
    answer = server.answer(is_stream, "apex-offline", "write a poem about the sea", **more)
    (made,) = answer["tool_calls"]
    assert (answer["finish_reason"], made["function"]["name"]) == ("tool_calls", "note")
    more["tools"] = [function("add", "a", "b")]
    refused = server.post("apex-offline", "write a poem about the sea", stream=is_stream, **more)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


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
    ids: list[str | None] = []

    class NoteId(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            ids.append(REQUEST_ID.get())
            return True

    with caplog.filtering(NoteId()), caplog.at_level(logging.INFO, logger="apexbridge.agent.loop"):
        answer_to(server, "turn this text into capital letters")
    steps = [
        (record.getMessage().split(",")[0], id)
        for record, id in zip(caplog.records, ids, strict=True)
        if record.name == "apexbridge.agent.loop"
    ]
    assert [step for step, _ in steps] == [
        "chat: model apex-offline",
        "chat: search search_skills",
        "chat: model apex-offline",
        "chat: tool run_skill",
        "chat: model apex-offline",
    ]
    assert len({id for _, id in steps}) == 1
    assert str(steps[0][1]).startswith("req_")
