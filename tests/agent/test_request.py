"""A request is validated before anything else is done. An error names the invalid field."""

import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.agent.offline import OFFLINE_UPSTREAM, OfflineModel
from apexbridge.agent.request import BadRequestError, ChatRequest, read_request
from apexbridge.llm.tool_modes import Offer, request_body, with_system
from tests.chat.upstream import call

Json = dict[str, Any]
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f"}}


def refused(body: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        read_request(body)
    assert caught.value.message
    return caught.value


def with_message(message: Any) -> Json:
    return {"model": "m", "messages": [USER, message]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], None),
        ("text", None),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [USER] * 10_001}, "messages"),
        (with_message("hello"), "messages[1]"),
        (with_message({"content": "hello"}), "messages[1]"),
        (with_message({"role": "robot", "content": "hello"}), "messages[1]"),
        (with_message({"role": ["user"], "content": "hello"}), "messages[1]"),
        (with_message({"role": {}, "content": "hello"}), "messages[1]"),
        (with_message({"role": "user", "content": 7}), "messages[1].content"),
        (with_message({"role": "tool", "tool_call_id": "x", "content": "orphan"}), "messages[1]"),
        (with_message({"role": "tool", "content": "orphan"}), "messages[1]"),
        (with_message({"role": "assistant", "tool_calls": "x"}), "messages[1].tool_calls"),
        (with_message({"role": "assistant", "tool_calls": [{"type": "function"}]}), "messages[1].tool_calls"),
        (
            with_message({"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}),
            "messages[1].tool_calls",
        ),
        (
            with_message({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "function": 5}]}),
            "messages[1].tool_calls",
        ),
        ({"messages": [USER], "model": 7}, "model"),
        ({"messages": [USER], "stream": "yes"}, "stream"),
        ({"messages": [USER], "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [USER], "stream": True, "stream_options": "usage"}, "stream_options"),
        ({"messages": [USER], "stream": True, "stream_options": [1]}, "stream_options"),
        ({"messages": [USER], "n": 0}, "n"),
        ({"messages": [USER], "n": True}, "n"),
        ({"messages": [USER], "n": 2}, "n"),
        ({"messages": [USER], "tools": {}}, "tools"),
        ({"messages": [USER], "tools": ["f"]}, "tools[0]"),
        ({"messages": [USER], "tools": [TOOL, {"type": "function"}]}, "tools[1]"),
        ({"messages": [USER], "tools": [TOOL, {"type": "custom", "function": {}}]}, "tools[1]"),
        ({"messages": [USER], "tools": [TOOL, {"type": "custom", "function": None}]}, "tools[1]"),
        ({"messages": [USER], "tools": [TOOL] * 10_000}, "tools"),
        ({"messages": [USER], "x_bridge": True}, "x_bridge"),
        ({"messages": [USER], "x_bridge": {"skils": []}}, "x_bridge.skils"),
        ({"messages": [USER], "x_bridge": {"skills": "a"}}, "x_bridge.skills"),
        ({"messages": [USER], "x_bridge": {"skills": [1]}}, "x_bridge.skills"),
        ({"messages": [USER], "x_bridge": {"tools": 1}}, "x_bridge.tools"),
        ({"messages": [USER], "x_bridge": {"approvals": "always"}}, "x_bridge.approvals"),
    ],
)
def test_the_invalid_field_is_named(body: Any, param: str | None) -> None:
    error = refused(body)
    assert (error.status, error.param) == (400, param)


def test_a_tool_message_answers_one_call_of_the_message_before_it() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [call("f", {}, "a"), call("f", {}, "b")]}
    answers = [{"role": "tool", "tool_call_id": id, "content": "x"} for id in ("b", "a")]
    read_request({"messages": [USER, calls, *answers, USER]})
    assert refused({"messages": [USER, calls, answers[0], answers[0]]}).param == "messages[3]"
    assert refused({"messages": [USER, calls, USER, answers[0]]}).param == "messages[3]"


def test_many_calls_may_be_answered_in_any_order() -> None:
    ids = [f"c{number}" for number in range(9_998)]
    calls = {"role": "assistant", "content": None, "tool_calls": [call("f", {}, id) for id in ids]}
    answers = [{"role": "tool", "tool_call_id": id, "content": "x"} for id in reversed(ids)]
    assert len(read_request({"messages": [USER, calls, *answers]}).messages) == 10_000


@pytest.mark.parametrize(
    "body",
    [
        with_message({"role": "r" * 10_000}),
        {"messages": [USER], "x_bridge": {"k" * 10_000: 1}},
        {"messages": [USER], "model": "m" * 10_000},
    ],
)
def test_an_error_quotes_only_the_beginning_of_a_long_value(body: Json) -> None:
    error = refused(body)
    assert len(error.message) + len(error.param or "") < 400


def test_an_overlong_model_name_is_not_found() -> None:
    error = refused({"messages": [USER], "model": "m" * 10_000})
    assert (error.status, error.code, error.openai_code) == (404, "NOT_FOUND", "model_not_found")


def test_our_options_are_removed_and_all_other_fields_are_unchanged() -> None:
    body = {"messages": [USER], "model": "m", "seed": 1, "x": [None], "x_bridge": {"skills": ["a"], "debug": True}}
    request = read_request(body, caller="key", request_id="r")
    assert request.body == {"messages": [USER], "model": "m", "seed": 1, "x": [None]}
    assert (request.options.skills, request.options.debug, request.options.approvals) == (("a",), True, "deny")
    assert (request.caller, request.request_id, request.is_stream, request.wants_usage) == ("key", "r", False, False)


@pytest.mark.parametrize("more", [{"x_bridge": {"tools": False}}, {"tool_choice": "none"}])
def test_several_choices_are_allowed_if_our_tools_are_off(more: Json) -> None:
    request = read_request({"messages": [USER], "n": 3, **more})
    assert not request.uses_our_tools


def test_tools_of_other_types_are_left_to_the_upstream() -> None:
    request = read_request({"messages": [USER], "tools": [TOOL, {"type": "web_search"}]})
    assert request.client_names == {"f"}


CUSTOM_CALL = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}
CUSTOM = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CUSTOM_CALL]},
    {"role": "tool", "tool_call_id": "c", "content": None},
]


async def check_every_mode(request: ChatRequest) -> None:
    """In each tool mode the upstream gets the client's fields and messages, and the offline model answers them."""
    offer = Offer(tools=[TOOL, *request.client_tools], choice=request.body.get("tool_choice"))
    messages = with_system(request.messages, "ours")
    fields = {key: value for key, value in request.body.items() if key not in ("messages", "tools", "tool_choice")}
    for mode in ("native", "schema", "text"):
        body = json.loads(json.dumps(request_body(mode, request.body, messages, offer)))
        assert body.items() >= fields.items()
        if mode == "native":
            assert (body["messages"], body["tools"]) == (messages, offer.tools)
        else:
            assert "tools" not in body
            roles = [{"tool": "user"}.get(message["role"], message["role"]) for message in request.messages]
            assert [message["role"] for message in body["messages"]][-len(roles) :] == roles
            assert not any(message.get("tool_calls") for message in body["messages"] if message["role"] == "assistant")
        answer = await (await OfflineModel().ask(OFFLINE_UPSTREAM, body, 1)).next()
        assert answer
        assert answer[0]["choices"]


@pytest.mark.anyio
async def test_calls_of_other_types_in_a_conversation_are_accepted() -> None:
    await check_every_mode(read_request({"messages": CUSTOM}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["role", "content", "tool_calls", "tool_call_id", "name"]
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer"]) | JSON
MESSAGES = st.lists(st.dictionaries(st.sampled_from(FIELDS), ROLES, max_size=5) | JSON, max_size=3) | JSON
BODIES = st.fixed_dictionaries(
    {"messages": MESSAGES},
    optional=dict.fromkeys(("model", "tools", "tool_choice", "stream", "stream_options", "n", "x_bridge"), JSON),
)


@given(BODIES)
def test_any_body_is_either_accepted_or_refused(body: Json) -> None:
    sent = copy.deepcopy(body)
    try:
        request = read_request(body)
    except BadRequestError:
        assert refused(body).status == 400
        return
    assert body == sent
    assert request.body == {key: value for key, value in sent.items() if key != "x_bridge"}
    asyncio.run(check_every_mode(request))


CONTENTS = st.none() | st.text(max_size=6) | st.lists(JSON, max_size=2)
FUNCTIONS = st.fixed_dictionaries({"name": st.text(max_size=6), "arguments": st.text(max_size=6)})
CALLS = st.fixed_dictionaries({"id": st.text(max_size=3), "type": st.just("function"), "function": FUNCTIONS})
PLAIN_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "function"]), "content": CONTENTS},
    optional={"name": JSON},
).map(lambda message: [message])


@st.composite
def answered_calls(draw: st.DrawFn) -> list[Json]:
    """A message with calls, and an answer to each of them."""
    calls = draw(st.lists(CALLS, max_size=3))
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": draw(CONTENTS)} for call in calls]
    return [{"role": "assistant", "content": draw(CONTENTS), "tool_calls": calls}, *draw(st.permutations(answers))]


CONVERSATIONS = st.lists(PLAIN_MESSAGES | answered_calls(), min_size=1, max_size=4).map(
    lambda turns: [message for turn in turns for message in turn]
)


@given(CONVERSATIONS, st.booleans(), st.sampled_from([None, "none", "auto", "required", {"type": "function"}]))
def test_a_conversation_reaches_the_model_in_every_tool_mode(
    messages: list[Json], is_stream: bool, choice: Any
) -> None:
    asyncio.run(check_every_mode(read_request({"messages": messages, "stream": is_stream, "tool_choice": choice})))
