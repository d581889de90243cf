"""Tools are offered in three modes. The mode of a model is learnt from its responses."""

import json
from typing import Any

import jsonschema_rs
import pytest

from apexbridge.llm import tool_modes
from apexbridge.llm.config import Upstream
from apexbridge.llm.tool_modes import (
    ActiveMode,
    ModeMemory,
    Offer,
    neutralised,
    read_answer,
    read_calls,
    request_body,
    text_of,
)
from tests.chat.upstream import call

Json = dict[str, Any]
TOOL = {
    "type": "function",
    "function": {"name": "calculate", "description": "Computes.", "parameters": {"type": "object"}},
}
AUTO = Upstream(base_url="http://a", tool_mode="auto")
ASKED: list[Json] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "1+1?"}]
DONE: list[Json] = [
    *ASKED,
    {"role": "assistant", "content": "Hm.", "tool_calls": [call("calculate", {"expression": "1+1"}, "c")]},
    {"role": "tool", "tool_call_id": "c", "name": "calculate", "content": "2 <|im_end|>"},
]


def body_in(mode: ActiveMode, messages: list[Json], choice: Any = None, **fields: Any) -> Json:
    body = {"model": "m", "messages": "replaced", "tools": "replaced", "tool_choice": "replaced", **fields}
    return request_body(mode, body, messages, Offer(tools=[TOOL], choice=choice))


def actions(body: Json) -> list[str]:
    steps = body["response_format"]["json_schema"]["schema"]["anyOf"]
    return [step["properties"]["action"]["enum"][0] for step in steps]


def is_known(name: str) -> bool:
    return name == "calculate"


def test_native_mode_leaves_messages_unchanged() -> None:
    assert body_in("native", DONE, "auto", seed=1) == {
        "model": "m",
        "seed": 1,
        "messages": DONE,
        "tools": [TOOL],
        "tool_choice": "auto",
    }
    assert "tool_choice" not in body_in("native", DONE)


def test_a_request_without_tools_does_not_mention_them() -> None:
    for mode in ("native", "schema", "text"):
        assert request_body(mode, {"model": "m"}, ASKED, Offer(tools=[])) == {"model": "m", "messages": ASKED}


def test_in_schema_mode_the_next_step_is_a_tool_or_an_answer() -> None:
    body = body_in("schema", DONE, parallel_tool_calls=True, seed=1)
    assert actions(body) == ["calculate", "answer"]
    assert {"tools", "tool_choice", "parallel_tool_calls"} & set(body) == set()
    assert body["seed"] == 1
    system, user, assistant, result = body["messages"]
    assert system["content"].startswith("Be kind.\n\n")
    assert '"type":"object"' in system["content"]
    assert user == ASKED[1]
    head, written = assistant["content"].split("\n")
    assert (head, json.loads(written)) == ("Hm.", {"action": "calculate", "arguments": {"expression": "1+1"}})
    assert result["role"] == "user"
    assert "2" in result["content"]
    assert "<|im_end|>" not in result["content"]


def test_a_required_call_excludes_an_answer() -> None:
    body = body_in("schema", ASKED, "required")
    assert actions(body) == ["calculate"]


def test_a_named_tool_excludes_all_others() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    choice = {"type": "function", "function": {"name": "other"}}
    body = request_body("schema", {"model": "m"}, ASKED, Offer(tools=[TOOL, other], choice=choice))
    assert actions(body) == ["other"]


def test_a_schema_enforces_the_arguments_of_each_tool() -> None:
    parameters: list[Any] = [
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        None,
    ]
    tools = [
        {"type": "function", "function": {"name": f"t{index}", "parameters": own}}
        for index, own in enumerate(parameters)
    ]
    body = request_body("schema", {"model": "m"}, ASKED, Offer(tools=tools))
    steps = body["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [step["properties"].get("arguments") for step in steps] == [
        parameters[0],
        {"type": "object"},
        {"type": "object"},
        None,
    ]
    assert all(step["required"] == list(step["properties"]) for step in steps)
    whole = jsonschema_rs.validator_for({"anyOf": steps})
    assert whole.is_valid({"action": "t0", "arguments": {"city": "Bern"}})
    assert whole.is_valid({"action": "answer", "text": "Hi."})
    assert not whole.is_valid({"action": "t0", "arguments": {}})
    assert not whole.is_valid({"action": "answer"})


def test_text_mode_states_the_tool_choice_in_the_prompt() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "calculate"}}):
        assert "Reply with a call of calculate now" in body_in("text", ASKED, choice)["messages"][0]["content"]
    assert "Reply with a call of" not in body_in("text", ASKED, "auto")["messages"][0]["content"]


@pytest.mark.parametrize("mode", ["schema", "text"])
def test_tools_of_other_types_are_not_described_in_the_prompt(mode: ActiveMode) -> None:
    body = request_body(mode, {"model": "m"}, ASKED, Offer(tools=[TOOL, {"type": "web_search"}]))
    assert "web_search" not in json.dumps(body)
    assert "calculate" in body["messages"][0]["content"]


def test_text_mode_explains_how_to_call_a_tool() -> None:
    body = body_in("text", DONE)
    assert "response_format" not in body
    assert "<tool_call>" in body["messages"][0]["content"]
    assert body["messages"][2]["content"].startswith('Hm.\n<tool_call>{"name": "calculate"')


def test_the_last_turn_asks_for_an_answer_without_calls() -> None:
    body = body_in("text", DONE, "none")
    assert "response_format" not in body
    assert "without calling any tool" in body["messages"][0]["content"]
    form = {"type": "json_schema", "json_schema": {"name": "own", "schema": {}}}
    body = body_in("schema", DONE, "none", response_format=form)
    assert body["response_format"] == form
    assert "without calling any tool" in body["messages"][0]["content"]


def test_in_schema_mode_the_last_turn_can_only_answer() -> None:
    body = body_in("schema", DONE, "none")
    schema = jsonschema_rs.validator_for(body["response_format"]["json_schema"]["schema"])
    assert schema.is_valid({"action": "answer", "text": "Hi."})
    assert not schema.is_valid({"action": "calculate", "arguments": {}})


@pytest.mark.parametrize("mode", ["schema", "text"])
def test_messages_of_the_user_are_unchanged(mode: ActiveMode) -> None:
    messages: list[Json] = [
        {"role": "user", "content": "<|im_start|> [INST] <tool_call>"},
        {"role": "user", "content": [{"type": "x"}]},
    ]
    assert body_in(mode, messages)["messages"][1:] == messages


@pytest.mark.parametrize("mode", ["schema", "text"])
def test_system_messages_with_content_parts_are_preserved(mode: ActiveMode) -> None:
    conversation: list[Json] = [{"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}, ASKED[1]]
    messages = body_in(mode, conversation)["messages"]
    assert messages[0]["content"][:1] == conversation[0]["content"]
    assert messages[1:] == conversation[1:]


def test_calls_and_answers_of_schema_mode_are_parsed() -> None:
    read = read_calls("schema", '{"action": "calculate", "arguments": {"expression": "1"}}', is_known)
    assert read is not None
    assert read.calls == (("calculate", '{"expression": "1"}'),)
    for text in ('{"action": "answer", "text": "2"}', '{"action": "rm"}', "plain", "[" * 100_000, '{"action": 7}'):
        assert read_calls("schema", text, is_known) is None
    assert read_answer("schema", '{"action": "answer", "text": "2"}') == "2"
    for text in ("plain", '{"text": 7}', "[]", "[" * 100_000):
        assert read_answer("schema", text) == text
    assert read_answer("native", '{"text": "2"}') == '{"text": "2"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"action": "answer", "text": "The capital is Par', "The capital is Par"),
        ('{\n "action" : "answer" , "text":"a\\nb \\"c', 'a\nb "c'),
        ('{"action": "answer", "text": "half \\u00e', "half "),
        ('{"action": "answer", "text": "half \\', "half "),
        ('{"action": "answer", "text": "😀 \\ud83d', "😀 "),
        ('{"action": "answer", "text": "', ""),
        ('{"action": "answer"}', ""),
        ('{"action": "calculate", "arguments": {"expre', ""),
        ('{"action": "calculate", "arguments": {}}', ""),
        ("plain {", "plain {"),
    ],
)
def test_only_the_text_of_a_truncated_reply_is_returned(text: str, expected: str) -> None:
    assert read_answer("schema", text).replace("\ud83d", "") == expected


def test_only_the_last_model_names_of_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_modes, "REMEMBERED_MODELS", 2)
    modes = ModeMemory()

    def learn(name: str) -> str:
        modes.wrote(AUTO, name)
        return modes.mode(AUTO, name)

    assert [learn(name) for name in ("a", "b", "c")] == ["native"] * 3
    needed = tool_modes.TEXT_CALLS_UNTIL_CHANGE
    assert [learn("a") for _ in range(needed)] == ["native"] * (needed - 1) + ["schema"]  # the first time was forgotten


def test_a_call_with_broken_arguments_is_rendered_with_empty_ones() -> None:
    for written in ("{broken", "[" * 100_000, ""):
        message = {"role": "assistant", "content": None, "tool_calls": [call("calculate", written, "c")]}
        rendered = body_in("schema", [message])["messages"][-1]
        assert json.loads(rendered["content"]) == {"action": "calculate", "arguments": {}}


@pytest.mark.parametrize(
    "mark",
    [
        "<|im_start|>",
        "<｜User｜>",
        "</s>",
        "<<SYS>>",
        "[INST]",
        "[/INST]",
        "[TOOL_RESULTS]",
        "<tool_call>",
        "</tool_response>",
        "</think>",
        "<end_of_turn>",
        "[TOOL_CALLS]",
        "<function=f>",
    ],
)
def test_control_tokens_in_tool_output_are_neutralised(mark: str) -> None:
    text = neutralised(f"before {mark} after 中文 <b>")
    assert mark not in text
    assert text.replace(" ", "") == f"before{mark}after中文<b>"


def test_the_text_of_content_parts_is_joined() -> None:
    assert text_of("a") == "a"
    assert text_of([{"type": "text", "text": "a"}, {"type": "image_url"}, "x", {"text": "b"}]) == "ab"
    assert text_of(None) == text_of(7) == ""


# ------------------------------------------------------------------------------------------------------------- learning
def test_a_configured_mode_never_changes() -> None:
    modes = ModeMemory()
    fixed = Upstream(base_url="http://a", tool_mode="schema")
    modes.wrote(fixed, "m")
    assert modes.after_refusal(fixed, "schema") is None
    assert modes.mode(fixed, "m") == "schema"


def test_a_model_that_writes_calls_as_text_gets_schema_mode() -> None:
    modes = ModeMemory()
    assert modes.mode(AUTO, "m") == "native"
    modes.wrote(AUTO, "m")
    assert modes.mode(AUTO, "m") == "native"
    modes.wrote(AUTO, "m")
    assert modes.mode(AUTO, "m") == "schema"
    assert modes.mode(AUTO, "another") == "native"


def test_a_model_that_made_a_native_call_stays_in_native_mode() -> None:
    modes = ModeMemory()
    modes.accepted(AUTO, "m", "native")
    for _ in range(5):
        modes.wrote(AUTO, "m")
    assert modes.mode(AUTO, "m") == "native"


def test_a_refusal_leads_to_the_next_mode_until_none_is_left() -> None:
    modes = ModeMemory()
    assert modes.after_refusal(AUTO, "native") == "schema"
    assert modes.after_refusal(AUTO, "schema") == "text"
    assert modes.after_refusal(AUTO, "text") is None
    assert modes.mode(AUTO, "m") == "native"  # a refusal alone does not change the mode
    modes.accepted(AUTO, "m", "text")
    assert modes.mode(AUTO, "m") == "text"


def test_the_number_of_remembered_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_modes, "REMEMBERED_MODELS", 3)
    modes = ModeMemory()
    for number in range(10):
        modes.accepted(AUTO, f"m{number}", "schema")
    assert [modes.mode(AUTO, f"m{number}") for number in (0, 6, 7, 9)] == ["native", "native", "schema", "schema"]
