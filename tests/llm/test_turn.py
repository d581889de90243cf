"""A turn is put together from pieces, however a server cuts and labels them."""

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


def turn_of(*told: Json) -> Turn:
    turn = Turn()
    for chunk in told:
        turn.take_chunk(chunk)
    return turn


def delta(**fields: Any) -> Json:
    return {"choices": [{"index": 0, "delta": fields}]}


def names_and_arguments(turn: Turn) -> list[tuple[str, Any]]:
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in turn.tool_calls]


@given(st.sets(st.sampled_from(QUIRKS)))
def test_calls_and_text_come_out_the_same_whatever_the_quirks(quirks: set[str]) -> None:
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
def test_pieces_without_an_index_find_their_call(quirks: set[str]) -> None:
    turn = turn_of(*chunks({"model": "m"}, Step(calls=CALLS, quirks=frozenset(quirks))))
    assert names_and_arguments(turn) == [("calculate", {"expression": "1+1"}), ("get_weather", {"city": "上海"})]


@pytest.mark.parametrize("quirks", [set(), {"object_arguments"}, {"no_id"}])
def test_a_whole_answer_is_taken_as_well(quirks: set[str]) -> None:
    turn = turn_of(completion({"model": "m"}, Step(text="Hm.", calls=CALLS, quirks=frozenset(quirks))))
    assert turn.text == "Hm."
    assert [name for name, _ in names_and_arguments(turn)] == ["calculate", "get_weather"]


def test_two_calls_under_one_index_are_two_calls() -> None:
    first, second = ({"index": 0, **one} for one in CALLS)
    turn = turn_of(delta(tool_calls=[first]), delta(tool_calls=[second]))
    assert names_and_arguments(turn) == [("calculate", {"expression": "1+1"}), ("get_weather", {"city": "上海"})]


def test_an_id_repeated_in_every_piece_is_one_call() -> None:
    pieces = ['{"a"', ": 1}"]
    told = [{"id": "x", "function": {"name": "f", "arguments": piece}} for piece in pieces]
    assert names_and_arguments(turn_of(*(delta(tool_calls=[piece]) for piece in told))) == [("f", {"a": 1})]


def test_whole_calls_that_all_have_the_same_id_are_several_calls_with_ids_of_their_own() -> None:
    turn = Turn()
    for city in ("Bern", "Brest"):
        piece = {"id": "call_0", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        turn.take_chunk({"choices": [{"delta": {"tool_calls": [piece]}}]})
    assert [json.loads(call["function"]["arguments"])["city"] for call in turn.tool_calls] == ["Bern", "Brest"]
    assert len({call["id"] for call in turn.tool_calls}) == 2


def test_indices_with_gaps_keep_their_order() -> None:
    told = [{"index": index, "id": f"c{index}", "function": {"name": f"f{index}"}} for index in (3, 1)]
    turn = turn_of(delta(tool_calls=told), delta(tool_calls=[{"function": {"name": "late"}}]))
    assert [name for name, _ in names_and_arguments(turn)] == ["f1", "f3", "late"]


def test_a_name_that_comes_in_pieces_or_again_and_again() -> None:
    turn = turn_of(*(delta(tool_calls=[{"index": 0, "function": {"name": name}}]) for name in ("calc", "ulate")))
    assert turn.tool_calls[0]["function"]["name"] == "calculate"
    turn = turn_of(*(delta(tool_calls=[{"index": 0, "function": {"name": "calculate"}}]) for _ in range(3)))
    assert turn.tool_calls[0]["function"]["name"] == "calculate"


def test_a_turn_does_not_grow_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_module, "MAX_CHARACTERS", 100)
    call = {"function": {"arguments": "b" * 30}}
    chunk = {"choices": [{"delta": {"content": "a" * 30, "tool_calls": [call]}}]}
    turn = turn_of(chunk)
    with pytest.raises(UpstreamError, match="502"):
        turn.take_chunk(chunk)


@pytest.mark.parametrize("reason", [5, True, {"a": 1}, ["stop"]])
def test_a_reason_to_finish_is_a_word(reason: Any) -> None:
    assert turn_of({"choices": [{"delta": {}, "finish_reason": reason}]}).finish_reason is None


def test_a_call_without_arguments_has_empty_ones() -> None:
    turn = turn_of(delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "datetime"}}]))
    assert turn.message() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "datetime", "arguments": "{}"}}],
    }


def test_argument_bytes_are_kept_as_they_are() -> None:
    written = '{"b":1,  "a":"\\u4e0a", "n": 1.0e2}'
    turn = turn_of(*chunks({"model": "m"}, Step(calls=[call("f", written)])))
    assert turn.tool_calls[0]["function"]["arguments"] == written


def test_fields_that_nobody_knows_are_given_back() -> None:
    kept, beside = Turn().take_chunk(
        {"choices": [{"delta": {"role": "assistant", "reasoning_content": "hm"}, "logprobs": {"content": []}}]}
    )
    assert (kept, beside) == ({"reasoning_content": "hm"}, {"logprobs": {"content": []}})


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
def test_an_odd_chunk_does_no_harm(chunk: Json) -> None:
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
def test_whatever_stands_in_a_call_a_turn_can_be_read(pieces: list[Json]) -> None:
    turn = turn_of(*(delta(tool_calls=[piece]) for piece in pieces))
    for one in turn.tool_calls:
        assert isinstance(one["id"], str)
        assert isinstance(one["function"]["arguments"], str)
