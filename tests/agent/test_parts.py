"""Units of the chat loop: usage, limits, the prompt, arguments, and suspended turns."""

import asyncio
from typing import Any

import pytest

from apexbridge.agent import suspended_turns
from apexbridge.agent.budget import Budget, ChatLimits, add_usage
from apexbridge.agent.loop import default_prompt
from apexbridge.agent.suspended_turns import Asked, Question, SuspendedTurns
from apexbridge.agent.tool_calls import read_arguments
from apexbridge.llm.tool_modes import with_system
from tests.chat.upstream import call

Json = dict[str, Any]


# ---------------------------------------------------------------------------------------------------------------- usage
def test_usage_numbers_are_summed_at_every_depth_and_of_other_values_the_last_is_used() -> None:
    first = {"total_tokens": 3, "details": {"cached": 1, "note": "a"}, "cost": 0.5, "tier": "x", "flag": True}
    second = {
        "total_tokens": 4,
        "details": {"cached": 2, "note": "b", "new": 7},
        "cost": 0.25,
        "tier": None,
        "flag": True,
    }
    assert add_usage(first, second) == {
        "total_tokens": 7,
        "details": {"cached": 3, "note": "b", "new": 7},
        "cost": 0.75,
        "tier": "x",
        "flag": True,
    }
    assert first["total_tokens"] == 3


def test_missing_usage_counts_nothing() -> None:
    assert add_usage(None, None) is None
    assert add_usage({"a": 1}, None) == add_usage(None, {"a": 1}) == {"a": 1}


# --------------------------------------------------------------------------------------------------------------- limits
def test_a_budget_is_exhausted_before_the_last_turn() -> None:
    budget = Budget(ChatLimits(turns=3, calls=2, seconds=100))
    assert (budget.exhausted(), budget.calls_left()) == (None, 2)
    budget.calls = 2
    assert (budget.exhausted(), budget.calls_left()) == ("max_calls", 0)
    budget.turns = 2
    assert budget.exhausted() == "max_turns"
    assert Budget(ChatLimits(seconds=0)).exhausted() == "max_seconds"


# --------------------------------------------------------------------------------------------------------------- prompt
def test_our_prompt_is_appended_to_the_first_system_message() -> None:
    user = {"role": "user", "content": "hello"}
    assert with_system([user], "ours") == [{"role": "system", "content": "ours"}, user]
    assert with_system([{"role": "system", "content": "theirs"}, user], "ours") == [
        {"role": "system", "content": "theirs\n\nours"},
        user,
    ]
    assert with_system([user, {"role": "developer", "content": None, "name": "n"}], "ours") == [
        user,
        {"role": "developer", "content": "ours", "name": "n"},
    ]
    parts = [{"type": "text", "text": "theirs"}]
    joined = with_system([{"role": "system", "content": parts}], "ours")
    assert joined == [{"role": "system", "content": [*parts, {"type": "text", "text": "\n\nours"}]}]
    assert parts == [{"type": "text", "text": "theirs"}]
    assert "search_skills" in default_prompt()


# ------------------------------------------------------------------------------------------------------------ arguments
@pytest.mark.parametrize("written", ["", "  ", "{}", "null"])
def test_missing_arguments_are_an_empty_object(written: str) -> None:
    assert read_arguments(written) == ({}, None)


@pytest.mark.parametrize("written", ["{broken", "[1]", '"text"', "7", "[" * 100_000, '{"a":' * 50_000, "9" * 5_000])
def test_arguments_that_are_not_a_json_object_are_a_problem(written: str) -> None:
    arguments, problem = read_arguments(written)
    assert arguments == {}
    assert problem is not None
    assert "JSON object" in problem


# ------------------------------------------------------------------------------------------------------ suspended turns
OURS, THEIRS = call("calculate", {"expression": "1+1"}, "ours"), call("get_weather", {"city": "上海"}, "theirs")
RESULT = {"role": "tool", "tool_call_id": "ours", "content": "2"}
BOTH = {"role": "assistant", "content": "Hm.", "tool_calls": [OURS, THEIRS]}


def next_request(*calls: Json) -> list[Json]:
    """The next request of a client: its own calls and their results."""
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "sunny"} for one in calls]
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Hm.", "tool_calls": [*calls]}, *results]


def suspended(caller: str = "") -> SuspendedTurns:
    turns = SuspendedTurns()
    turns.keep(caller, BOTH, [RESULT], [THEIRS])
    return turns


def restored(turns: SuspendedTurns, messages: list[Json]) -> list[Json]:
    conversation, asked = turns.restored("", messages)
    assert asked == []
    return conversation


def test_a_suspended_turn_is_restored_by_the_next_request() -> None:
    user, assistant, result = next_request(THEIRS)
    assert restored(suspended(), [user, assistant, result]) == [user, BOTH, RESULT, result]


def test_the_text_of_earlier_turns_of_a_request_is_restored_once() -> None:
    earlier: list[Json] = [{"role": "assistant", "content": "First.", "tool_calls": [OURS]}, RESULT]
    turns = SuspendedTurns()
    turns.keep("", {**BOTH, "tool_calls": [THEIRS]}, [], [THEIRS], before=earlier)
    user, assistant, result = next_request(THEIRS)
    assistant["content"] = "First.\n\nHm."  # clients see the text of all turns as one
    own = {"role": "assistant", "content": "Hm.", "tool_calls": [THEIRS]}
    assert restored(turns, [user, assistant, result]) == [user, *earlier, own, result]


def test_a_client_may_reformat_the_arguments() -> None:
    other = call("get_weather", '{ "city":"\\u4e0a海" }', "theirs")
    assert len(restored(suspended(), next_request(other))) == 4


def test_a_client_may_send_its_calls_in_another_order() -> None:
    turns, more = SuspendedTurns(), call("get_news", {}, "more")
    turns.keep("", {**BOTH, "tool_calls": [OURS, THEIRS, more]}, [RESULT], [THEIRS, more])
    assistant = restored(turns, next_request(more, THEIRS))[1]
    assert assistant["tool_calls"] == [OURS, THEIRS, more]


def test_a_turn_is_not_restored_for_another_caller() -> None:
    messages = next_request(THEIRS)
    assert suspended("a").restored("b", messages) == (messages, [])


def test_a_turn_is_not_restored_for_another_call_with_the_same_id() -> None:
    """Some servers number their calls: `call_0`, `call_1`, in every conversation."""
    messages = next_request(call("get_weather", {"city": "Paris"}, "theirs"))
    assert restored(suspended(), messages) == messages
    messages = next_request(call("get_news", {"city": "上海"}, "theirs"))
    assert restored(suspended(), messages) == messages


def test_a_forgotten_turn_is_not_restored() -> None:
    turns = suspended()
    turns.forget("", [THEIRS])
    messages = next_request(THEIRS)
    assert restored(turns, messages) == messages


def test_a_suspended_turn_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_turns, "KEPT_SECONDS", -1)
    messages = next_request(THEIRS)
    assert restored(suspended(), messages) == messages


def test_the_number_of_suspended_turns_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_turns, "MAX_TURNS", 2)
    turns = SuspendedTurns()
    calls = [call("f", {}, f"c{number}") for number in range(4)]
    for one in calls:
        turns.keep("", {**BOTH, "tool_calls": [OURS, one]}, [RESULT], [one])
    assert [len(restored(turns, next_request(one))) for one in calls] == [3, 3, 4, 4]


def test_many_callers_at_their_limit_do_not_push_out_a_single_turn_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_turns, "MAX_TURNS", 10)
    monkeypatch.setattr(suspended_turns, "MAX_TURNS_OF_A_CALLER", 5)
    turns = SuspendedTurns()
    turns.keep("quiet", BOTH, [RESULT], [THEIRS])
    for number in range(100):
        one = call("f", {}, f"c{number}")
        turns.keep(f"loud{number % 3}", {**BOTH, "tool_calls": [OURS, one]}, [RESULT], [one])
    assert len(turns.restored("quiet", next_request(THEIRS))[0]) == 4
    (count, size) = asyncio.run(turns.usage("loud0"))
    assert (count.used, count.limit, count.total, count.total_limit) == (3, 5, 10, 10)
    assert size.used > 0
    turns.forget_caller("loud0")
    assert [usage.used for usage in asyncio.run(turns.usage("loud0"))] == [0, 0]


def test_results_of_approved_calls_count_towards_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_turns, "MAX_BYTES_OF_A_CALLER", 10_000)
    turns = SuspendedTurns()
    question = Question(asked_as="theirs", call=OURS, approval="a")
    for number in range(3):
        one = call("f", {}, f"c{number}")
        turns.keep("key", {**BOTH, "tool_calls": [OURS, one]}, [], [one], [question])
        results = next(reversed(turns._turns.values())).approved_results
        asked = Asked(question=question, answer="yes", index=0, results=results)
        turns.add_result(asked, {"role": "tool", "content": "x" * 6_000})
    (count, size) = asyncio.run(turns.usage("key"))
    assert (count.used, size.used < 10_000) == (1, True)


def test_replaced_turns_do_not_count_towards_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_turns, "MAX_BYTES", 2_000)
    turns = SuspendedTurns()
    for _ in range(50):
        turns.keep("", BOTH, [RESULT], [THEIRS])
    assert len(restored(turns, next_request(THEIRS))) == 4


def test_malformed_calls_of_a_client_are_unchanged() -> None:
    for calls in (
        [{"id": "theirs"}],
        [{"id": "theirs", "function": None}],
        [{"id": "theirs", "function": {"name": 7}}],
    ):
        messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
        assert restored(suspended(), messages) == messages


@pytest.mark.parametrize(
    ("answer", "is_agreed"),
    [
        ('{"approve": true}', True),
        ('{"approved": true, "note": "fine"}', True),
        ("true", True),
        ("Yes", True),
        (" approve\n", True),
        ('"yes"', True),
        ('{"approve": false, "approved": true}', False),
        ('{"approve": "no"}', False),
        ('{"approve": 1}', False),
        ("1", False),
        ("no", False),
        ("", False),
        ("yes, but not now", False),
        ("[true]", False),
        ("[" * 100_000, False),
    ],
)
def test_only_a_plain_yes_is_an_approval(answer: str, is_agreed: bool) -> None:
    question = Question(asked_as="a", call=OURS, approval="p")
    assert Asked(question=question, answer=answer, index=0).is_agreed is is_agreed
