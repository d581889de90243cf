"""A turn is assembled from chunks, independent of how a server splits and labels them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.llm import turn as turn_module
from apexbridge.llm.turn import Turn
from apexbridge.llm.upstream_errors import UpstreamError
from tests.chat.upstream import Step, call, chunks, completion

Json = dict[str, Any]
QUIRKS = ["role_always", "empty_first", "whole_calls", "object_arguments", "interleaved", "usage_always", "no_id"]
CALLS = [call("calculate", {"expression": "1+1"}, "call_a"), call("get_weather", {"city": "上海"}, "call_b")]


def turn_of(*received: Json) -> Turn:
    turn = Turn()
    for chunk in received:
        turn.take_chunk(chunk)
    return turn


def delta(**fields: Any) -> Json:
    return {"choices": [{"index": 0, "delta": fields}]}


def names_and_arguments(turn: Turn) -> list[tuple[str, Any]]:
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in turn.tool_calls]


@given(st.sets(st.sampled_from(QUIRKS)))
def test_quirks_of_a_server_do_not_change_calls_and_text(quirks: set[str]) -> None:
    step = Step(text="Let me see.", calls=CALLS, quirks=frozenset(quirks))
    turn = turn_of(*chunks({"model": "m", "stream_options": {"include_usage": True}}, step))
    assert turn.text == "Let me see."
    assert names_and_arguments(turn) == [("calculate", {"expression": "1+1"}), ("get_weather", {"city": "上海"})]
    assert turn.finish_reason == "tool_calls"
    assert turn.usage == step.usage
    assert turn.model == "m-2026"
    ids = [one["id"] for one in turn.tool_calls]
    assert len(set(ids)) == 2
    assert ids == [one["id"] for one in turn.tool_calls]
    assert ("no_id" in quirks) or ids == ["call_a", "call_b"]
    assert all(set(one) == {"id", "type", "function"} for one in turn.tool_calls)


@pytest.mark.parametrize("quirks", [{"no_index"}, {"no_index", "whole_calls"}, {"no_index", "whole_calls", "no_id"}])
def test_chunks_without_an_index_are_assigned_to_their_call(quirks: set[str]) -> None:
    turn = turn_of(*chunks({"model": "m"}, Step(calls=CALLS, quirks=frozenset(quirks))))
    assert names_and_arguments(turn) == [("calculate", {"expression": "1+1"}), ("get_weather", {"city": "上海"})]


@pytest.mark.parametrize("quirks", [set(), {"object_arguments"}, {"no_id"}])
def test_a_complete_response_is_accepted(quirks: set[str]) -> None:
    turn = turn_of(completion({"model": "m"}, Step(text="Hm.", calls=CALLS, quirks=frozenset(quirks))))
    assert turn.text == "Hm."
    assert [name for name, _ in names_and_arguments(turn)] == ["calculate", "get_weather"]


def test_two_calls_with_one_index_are_two_calls() -> None:
    first, second = ({"index": 0, **one} for one in CALLS)
    turn = turn_of(delta(tool_calls=[first]), delta(tool_calls=[second]))
    assert names_and_arguments(turn) == [("calculate", {"expression": "1+1"}), ("get_weather", {"city": "上海"})]


def test_an_id_repeated_in_every_chunk_is_one_call() -> None:
    fragments = ['{"a"', ": 1}"]
    calls = [{"id": "x", "function": {"name": "f", "arguments": fragment}} for fragment in fragments]
    assert names_and_arguments(turn_of(*(delta(tool_calls=[one]) for one in calls))) == [("f", {"a": 1})]


def test_complete_calls_with_the_same_id_are_separate_calls_with_unique_ids() -> None:
    turn = Turn()
    for city in ("Bern", "Brest"):
        fragment = {"id": "call_0", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        turn.take_chunk({"choices": [{"delta": {"tool_calls": [fragment]}}]})
    assert [json.loads(call["function"]["arguments"])["city"] for call in turn.tool_calls] == ["Bern", "Brest"]
    assert len({call["id"] for call in turn.tool_calls}) == 2


def test_indices_with_gaps_keep_their_order() -> None:
    calls = [{"index": index, "id": f"c{index}", "function": {"name": f"f{index}"}} for index in (3, 1)]
    turn = turn_of(delta(tool_calls=calls), delta(tool_calls=[{"function": {"name": "late"}}]))
    assert [name for name, _ in names_and_arguments(turn)] == ["f1", "f3", "late"]


def test_a_name_may_be_split_or_repeated() -> None:
    turn = turn_of(*(delta(tool_calls=[{"index": 0, "function": {"name": name}}]) for name in ("calc", "ulate")))
    assert turn.tool_calls[0]["function"]["name"] == "calculate"
    turn = turn_of(*(delta(tool_calls=[{"index": 0, "function": {"name": "calculate"}}]) for _ in range(3)))
    assert turn.tool_calls[0]["function"]["name"] == "calculate"


def test_the_size_of_a_turn_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_module, "MAX_CHARACTERS", 100)
    call = {"function": {"arguments": "b" * 30}}
    chunk = {"choices": [{"delta": {"content": "a" * 30, "tool_calls": [call]}}]}
    turn = turn_of(chunk)
    with pytest.raises(UpstreamError, match="502"):
        turn.take_chunk(chunk)


@pytest.mark.parametrize("reason", [5, True, {"a": 1}, ["stop"]])
def test_a_finish_reason_that_is_not_a_string_is_ignored(reason: Any) -> None:
    assert turn_of({"choices": [{"delta": {}, "finish_reason": reason}]}).finish_reason is None


def test_missing_arguments_are_an_empty_object() -> None:
    turn = turn_of(delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "datetime"}}]))
    assert turn.message() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "datetime", "arguments": "{}"}}],
    }


def test_arguments_are_not_reformatted() -> None:
    written = '{"b":1,  "a":"\\u4e0a", "n": 1.0e2}'
    turn = turn_of(*chunks({"model": "m"}, Step(calls=[call("f", written)])))
    assert turn.tool_calls[0]["function"]["arguments"] == written


def test_unknown_fields_are_returned() -> None:
    delta_fields, choice_fields = Turn().take_chunk(
        {"choices": [{"delta": {"role": "assistant", "reasoning_content": "hm"}, "logprobs": {"content": []}}]}
    )
    assert (delta_fields, choice_fields) == ({"reasoning_content": "hm"}, {"logprobs": {"content": []}})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_the_message_of_a_turn_with_calls_has_its_reasoning(name: str) -> None:
    thoughts = [delta(**{name: "I need "}), delta(**{name: ""}), delta(**{name: None}), delta(**{name: "a sum."})]
    answered = turn_of(*thoughts, delta(content="42"))
    assert answered.message() == {"role": "assistant", "content": "42"}
    calling = turn_of(*thoughts, delta(tool_calls=[CALLS[0]]))
    assert calling.message()[name] == "I need a sum."
    assert list(calling.message()) == ["role", "content", name, "tool_calls"]


def test_reasoning_in_parts_is_a_list() -> None:
    parts = [{"type": "reasoning.text", "text": "I need "}, {"type": "reasoning.text", "text": "a sum."}]
    turn = turn_of(*(delta(reasoning_details=[part]) for part in parts), delta(reasoning_details="no list"))
    assert turn.reasoning == {"reasoning_details": parts}


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {"tool_calls": [None]}}]},
        {"choices": [{"delta": {"tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": {"index": 0}}}]},
        {"choices": "x", "usage": "much"},
        {"choices": [], "usage": []},
    ],
)
def test_a_malformed_chunk_is_ignored(chunk: Json) -> None:
    turn = turn_of(chunk, delta(content="ok"))
    assert (turn.text, turn.tool_calls, turn.usage) == ("ok", [], None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"index": JSON, "id": JSON, "type": JSON, "function": JSON}), max_size=4
    )
)
def test_a_turn_with_malformed_calls_can_be_read(calls: list[Json]) -> None:
    turn = turn_of(*(delta(tool_calls=[fragment]) for fragment in calls))
    for one in turn.tool_calls:
        assert isinstance(one["id"], str)
        assert isinstance(one["function"]["arguments"], str)
