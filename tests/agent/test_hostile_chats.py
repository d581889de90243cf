"""Hostile clients, models and skills cannot make a chat expensive. The tests count work, not time."""

import difflib
import json
from typing import Any

import pytest

from apexbridge.agent import suspended_turns, tool_offer
from apexbridge.agent.request import BadRequestError, read_request
from apexbridge.agent.suspended_turns import MAX_TURNS_OF_A_CALLER, SuspendedTurns
from apexbridge.agent.tool_calls import suggestion
from apexbridge.agent.tool_offer import MAX_SEARCHED_CHARACTERS, MIN_TOOL_CHARACTERS, DeferredTools
from apexbridge.agent.tool_refusals import MAX_COMPARED, is_about_tools
from apexbridge.llm import text_calls
from apexbridge.llm.text_calls import TextGate
from apexbridge.llm.tool_modes import MAX_RESULT_CHARACTERS, Offer, request_body
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.tools.builtin.skill_tools import cut, signature
from apexbridge.tools.schema import SchemaParameters
from tests.chat.upstream import call

Json = dict[str, Any]
USER = {"role": "user", "content": "hello"}


class Counter:
    """Counts the calls of a function and the characters passed to it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = self.characters = 0

    def __call__(self, text: str, *arguments: Any) -> Any:
        self.calls += 1
        self.characters += len(text)
        return self.function(text, *arguments)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def count(module: Any, name: str) -> Counter:
        counter = Counter(getattr(module, name))
        monkeypatch.setattr(module, name, counter)
        return counter

    return count


def deferred(count: int, *, parameters: int = 50, description: int = 4_000) -> list[Json]:
    properties: Json = {f"p{number}" + "q" * 60: {} for number in range(parameters)}
    return [
        {
            "type": "function",
            "defer_loading": True,
            "function": {
                "name": f"tool{number}",
                "description": f"w{number} " * (description // 6),
                "parameters": {"type": "object", "properties": properties},
            },
        }
        for number in range(count)
    ]


def test_a_search_of_deferred_tools_reads_a_bounded_number_of_characters(counted: Any) -> None:
    tools = DeferredTools(deferred(1_000))
    counter = counted(tool_offer, "tokens")
    assert "tool7" in tools.find("w7")
    assert counter.characters <= max(MAX_SEARCHED_CHARACTERS, 1_000 * MIN_TOOL_CHARACTERS) + 10


def test_a_deferred_tool_is_found_by_a_parameter_name() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"invoice_number": {}}}}}
    assert DeferredTools([tool]).find("invoice") == ["f"]


@pytest.mark.parametrize("text", ["x" * 5_000_000, "中" * 5_000_000, " " * 5_000_000 + "x", "x " * 2_500_000])
def test_a_long_text_is_cut_without_reading_all_of_it(text: str, counted: Any) -> None:
    from apexbridge.tools.builtin import skill_tools

    counter = counted(skill_tools, "estimated_tokens")
    assert len(cut(text, 85)) < 400
    assert counter.characters < 2_000


def test_a_signature_has_a_bounded_length() -> None:
    schema = {"properties": {"p" * 1_000 + str(number): {"enum": ["e" * 10_000] * 8} for number in range(1_000)}}
    assert len(signature(schema)) < 20_000


def test_keys_count_towards_the_size_of_an_input() -> None:
    schema = {"type": "object", "propertyNames": {"allOf": [{"minLength": 9_000_000}] * 300}}
    _, problems = SchemaParameters(schema).read({"k" * 8_000_000: 1})
    assert "too large" in problems[0].message


@pytest.mark.parametrize("value", [{"a": "v" * 100_000}, {"k" * 100_000: "v"}], ids=["value", "key"])
def test_an_input_with_a_long_text_has_only_one_problem(value: Json) -> None:
    checks = {"allOf": [{"minLength": 9_000_000}] * 20}
    schema = {"type": "object", "properties": {"a": checks}, "propertyNames": checks}
    _, problems = SchemaParameters(schema).read(value)
    assert len(problems) == 1


def test_a_fenced_call_is_not_parsed_again_for_each_later_chunk(counted: Any) -> None:
    arguments = json.dumps([[]] * 5_000)
    gate = TextGate(lambda name: name == "calculate")
    counter = counted(text_calls, "_value_at")
    gate.feed(f'```json\n{{"name": "calculate", "arguments": {arguments}}}\n```\n')
    for _ in range(2_000):
        assert gate.feed("x") == ""
    assert counter.calls <= 2


def test_a_suspended_turn_is_compared_once_per_request(counted: Any) -> None:
    turns = SuspendedTurns()
    shown = call("client_tool", {"a": "b" * 10_000}, "c")
    turns.keep("key", {"role": "assistant", "tool_calls": [shown]}, [], [shown])
    counter = counted(suspended_turns, "loads_or")
    messages: list[Json] = [USER, *([{"role": "assistant", "content": None, "tool_calls": [shown]}] * 1_000)]
    turns.restored("key", messages)
    assert counter.calls <= 2


def test_one_caller_does_not_evict_the_turns_of_another() -> None:
    turns = SuspendedTurns()
    own = call("client_tool", {}, "own")
    message = {"role": "assistant", "tool_calls": [own]}
    result = {"role": "tool", "tool_call_id": "x", "content": "hidden"}
    turns.keep("A", message, [result], [own])
    for number in range(suspended_turns.MAX_TURNS + MAX_TURNS_OF_A_CALLER):
        other = call("client_tool", {}, f"c{number}")
        turns.keep("B", {"role": "assistant", "tool_calls": [other]}, [result], [other])
    restored, _ = turns.restored("A", [USER, {"role": "assistant", "content": None, "tool_calls": [own]}])
    assert result in restored


def test_a_suggestion_makes_one_comparison_and_is_short(counted: Any) -> None:
    counter = counted(difflib, "get_close_matches")
    names = [f"some_rather_long_tool_name_{number}" * 3 for number in range(1_000)]
    text = suggestion("some_rather_long_tool_name", names)
    assert counter.calls == 1
    assert len(text) < 2_000


@pytest.mark.parametrize("name", ["", "n" * 257])
def test_empty_and_overlong_names_of_client_tools_are_refused(name: str) -> None:
    tool = {"type": "function", "function": {"name": name}}
    with pytest.raises(BadRequestError) as caught:
        read_request({"messages": [USER], "tools": [tool]})
    assert caught.value.param == "tools[0]"


@pytest.mark.parametrize("mode", ["schema", "text"])
def test_results_are_bounded_for_models_without_tool_support(mode: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call("f", {}, "c")]}
    result = {"role": "tool", "tool_call_id": "c", "content": "<|" * 4_000_000}
    offer = Offer(tools=[{"type": "function", "function": {"name": "f"}}])
    body = request_body(mode, {"model": "m"}, [USER, message, result], offer)
    assert len(body["messages"][-1]["content"]) < 2 * MAX_RESULT_CHARACTERS


def test_a_refusal_is_compared_with_a_bounded_part_of_the_request(counted: Any) -> None:
    from apexbridge.agent import tool_refusals

    class Words:
        compared = 0

        def findall(self, text: str) -> list[str]:
            Words.compared += len(text)
            return [word for word in text.split(" ") if word]

    error = UpstreamError.of_ours(400, "tools are not supported " + "word " * 300, "x")
    texts = [f"function support {number} " + "word " * 390 for number in range(1_000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_refusals, "_WORD", Words())
        is_about_tools(error, {"messages": [{"content": text} for text in texts]})
    assert Words.compared <= MAX_COMPARED + 10_000
