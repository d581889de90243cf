"""Answers with and without calls of our tools, whole and as a stream."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.chat.live import Live
from tests.chat.upstream import USAGE, Step, Upstream, call, completion, written

pytestmark = pytest.mark.requirement("G1")
Json = dict[str, Any]
TWICE = {
    "prompt_tokens": 20,
    "completion_tokens": 10,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def test_a_plain_answer_is_returned_with_its_usage(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Hello there, 你好."))
    answer = bridge_server.answer(is_stream, model)
    assert (answer["content"], answer["finish_reason"], answer["usage"]) == ("Hello there, 你好.", "stop", USAGE)
    report = answer["x_bridge"]
    assert (report["turns"], report["calls"], report["stopCause"]) == (1, 0, "answered")
    assert upstream.bodies(model)[0]["model"] == model


@pytest.mark.requirement("G3")
def test_a_call_of_our_tool_is_not_visible_to_the_client(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(
        Step(text="Let me see.", calls=[call("calculate", {"expression": "6*7"})]),
        lambda body: Step(text=f"It is {body['messages'][-1]['content']}."),
    )
    answer = bridge_server.answer(is_stream, model)
    assert (answer["content"], answer["finish_reason"]) == ("Let me see.\n\nIt is 42.", "stop")
    assert (answer["tool_calls"], answer["usage"]) == ([], TWICE)
    assert (answer["x_bridge"]["turns"], answer["x_bridge"]["calls"]) == (2, 1)


def test_a_stream_reports_usage_only_on_request(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("datetime")]), Step(text="Now."))
    assert bridge_server.stream(model).whole()["usage"] is None
    assert all("usage" not in chunk for chunk in bridge_server.stream(model).chunks)


def test_missing_usage_of_the_upstream_is_not_a_failure(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(Step(text="Hi.", usage=None))
    answer = bridge_server.answer(is_stream, model)
    assert (answer["content"], answer["usage"]) == ("Hi.", None)


def test_text_is_streamed_in_the_chunks_of_the_model(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="one two three four"))
    streamed = bridge_server.stream(model)
    assert [delta["content"] for delta in streamed.deltas[1:-1]] == ["one t", "wo th", "ree f", "our"]


def test_results_of_parallel_calls_are_in_the_order_of_the_calls(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    calls = [call("calculate", {"expression": f"{number}+0"}) for number in range(8)]
    model = upstream.play(Step(calls=calls), Step(text="Done."))
    assert bridge_server.answer(is_stream, model)["x_bridge"]["calls"] == 8
    asked, *results = upstream.bodies(model)[1]["messages"][-9:]
    assert asked == {"role": "assistant", "content": None, "tool_calls": calls}
    assert [(one["tool_call_id"], one["content"]) for one in results] == [
        (made["id"], str(number)) for number, made in enumerate(calls)
    ]


@pytest.mark.parametrize(
    "quirks",
    [
        {"no_index"},
        {"no_id"},
        {"no_index", "no_id", "whole_calls"},
        {"object_arguments"},
        {"interleaved"},
        {"role_always", "empty_first", "crlf", "comments"},
        {"no_done", "usage_always"},
        {"plain_json"},
    ],
    ids=lambda quirks: " ".join(sorted(quirks)),
)
def test_quirks_of_upstreams_are_normalized(bridge_server: Live, upstream: Upstream, quirks: set[str]) -> None:
    calls = [call("calculate", {"expression": "20+22"}), call("calculate", {"expression": "1+0"})]
    model = upstream.play(
        Step(calls=calls, finish="stop", quirks=frozenset(quirks)),
        lambda body: Step(text=" and ".join(one["content"] for one in body["messages"][-2:]), quirks=frozenset(quirks)),
    )
    answer = bridge_server.answer(True, model)
    assert (answer["content"], answer["finish_reason"], answer["usage"]) == ("42 and 1", "stop", TWICE)


def test_the_tools_are_the_same_bytes_in_every_turn_and_every_request(bridge_server: Live, upstream: Upstream) -> None:
    calls = [Step(calls=[call("calculate", {"expression": f"{number}"})]) for number in range(3)]
    model = upstream.play(*calls, Step(text="Done."))
    bridge_server.ask(model)
    bridge_server.ask(model, "something else", temperature=0.3)
    tools = {json.dumps(body["tools"], ensure_ascii=False) for body in upstream.bodies(model)}
    assert (len(tools), len(upstream.bodies(model))) == (1, 5)
    starts = [seen.raw[: seen.raw.index(b'"messages"')] for seen in upstream.seen(model)[:4]]
    assert len(set(starts)) == 1


def test_unknown_fields_are_passed_on_in_both_directions(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    more = {"seed": 7, "logit_bias": {"50256": -100}, "metadata": {"键": ["值", None, 1.5]}, "service_tier": "flex"}
    model = upstream.play(Step(text="Hi.", fields={"reasoning_content": "hm", "annotations": [1]}))
    if is_stream:
        assert {"reasoning_content": "hm", "annotations": [1]} in bridge_server.stream(model, **more).deltas
    else:
        message = bridge_server.ask(model, **more)["choices"][0]["message"]
        assert (message["reasoning_content"], message["annotations"]) == ("hm", [1])
    body = upstream.bodies(model)[0]
    assert {key: body[key] for key in more} == more
    assert "x_bridge" not in body


def test_top_level_fields_of_an_upstream_answer_reach_the_client(bridge_server: Live, upstream: Upstream) -> None:
    more = {"system_fingerprint": "fp_1", "citations": ["a"]}
    whole = upstream.play(lambda body: Step(body={**completion(body, Step(text="Hi.")), **more}))
    assert more.items() <= bridge_server.ask(whole).items()
    chunk = {"choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}], **more}
    streamed = upstream.play(Step(events=[b"data: " + json.dumps(chunk).encode() + b"\n\n"]))
    assert more.items() <= bridge_server.stream(streamed).chunks[-1].items()


@pytest.mark.requirement("G8")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
def test_the_text_of_the_user_is_never_changed(bridge_server: Live, upstream: Upstream, text: str) -> None:
    model = upstream.play(Step(text="Hi."))
    messages = [{"role": "user", "content": text}, {"role": "user", "content": [{"type": "text", "text": text}]}]
    answer = bridge_server.http.post(
        "/v1/chat/completions", content=json.dumps({"model": model, "messages": messages})
    ).raise_for_status()
    assert answer.json()["choices"][0]["message"]["content"] == "Hi."
    assert upstream.bodies(model)[0]["messages"][1:] == messages


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1), st.booleans())
def test_the_text_of_the_model_is_never_changed(
    bridge_server: Live, upstream: Upstream, text: str, is_stream: bool
) -> None:
    assert bridge_server.answer(is_stream, upstream.play(Step(text=text)))["content"] == text


@pytest.mark.parametrize("text", ["[Step 1] I will count.", "Is 3 <", '{"plan": "count"}', "```"])
def test_text_beside_a_call_is_shown_even_if_it_looks_like_markup(
    bridge_server: Live, upstream: Upstream, is_stream: bool, text: str
) -> None:
    model = upstream.play(Step(text=text, calls=[call("calculate", {"expression": "1+1"})]), Step(text="2."))
    assert bridge_server.answer(is_stream, model)["content"] == f"{text}\n\n2."


def test_text_that_only_resembles_a_call_is_shown(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    fenced = '```json\n{"name": "calculate", "arguments": {}}\n```'
    text = f'```python\nx = 1\n```\nNot <tool_call>{{"name": "unknown"}}</tool_call>, but\n{fenced}'
    model = upstream.play(Step(text=text))
    assert bridge_server.answer(is_stream, model)["content"] == text


def test_content_parts_and_the_developer_role_are_passed_on(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    messages = [
        {"role": "developer", "content": "Be brief.", "name": "dev"},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
    ]
    model = upstream.play(Step(text="A square."))
    assert bridge_server.answer(is_stream, model, messages)["content"] == "A square."
    first, second = upstream.bodies(model)[0]["messages"]
    assert (first["role"], first["name"]) == ("developer", "dev")
    assert first["content"].startswith("Be brief.\n\n")
    assert second == messages[1]


def test_several_choices_are_possible_only_if_our_tools_are_off(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    refused = bridge_server.post(model, n=2)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    for more in ({"x_bridge": {"tools": False}}, {"tool_choice": "none", "tools": [CLIENT_TOOL]}):
        assert len(bridge_server.ask(model, n=2, **more)["choices"]) == 2
    text_model = upstream.play(Step(text="Hi."), kind="text")
    refused_in_text_mode = bridge_server.post(text_model, n=2, tools=[CLIENT_TOOL], x_bridge={"tools": False})
    assert (refused_in_text_mode.status_code, refused_in_text_mode.json()["error"]["param"]) == (400, "n")


CLIENT_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_tool_choice_none_is_accepted_without_tools(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Hi."))
    response = bridge_server.post(model, tool_choice="none", stream=is_stream)
    assert response.status_code == 200, response.text
    assert "tool_choice" not in upstream.bodies(model)[0]


def test_a_chunk_without_choices_is_not_passed_on(bridge_server: Live, upstream: Upstream) -> None:
    events = [b'data: {"ping": 1}\n\n', b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n']
    model = upstream.play(Step(events=events))
    for more in ({}, {"x_bridge": {"tools": False}}):
        assert all("choices" in chunk for chunk in bridge_server.stream(model, **more).chunks)


def test_an_answer_is_converted_between_whole_and_stream_as_requested(bridge_server: Live, upstream: Upstream) -> None:
    """Some servers always_streams stream, and some never_streams do."""
    step = Step(text="Hi there.", calls=[call("f", {"a": 1}, "x")], fields={"reasoning_content": "hm"})
    never_streams = upstream.play(Step(text=step.text, calls=step.calls, quirks=frozenset({"plain_json"})))
    streamed = bridge_server.stream(never_streams, tools=[CLIENT_TOOL], x_bridge={"tools": False})
    assert streamed.deltas == [
        {"role": "assistant", "content": "Hi there.", "tool_calls": [{"index": 0, **step.calls[0]}]}
    ]
    always_streams = upstream.play(Step(events=written({"model": "m", "stream": True}, step)))
    completion = bridge_server.ask(always_streams, tools=[CLIENT_TOOL], x_bridge={"tools": False})
    assert (completion["object"], completion["choices"][0]["finish_reason"]) == ("chat.completion", "tool_calls")
    assert completion["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hi there.",
        "reasoning_content": "hm",
        "tool_calls": [*step.calls],
    }


def test_the_answer_of_the_upstream_is_unchanged_if_our_tools_are_off(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi.", calls=[call("calculate", {"expression": "1"})]))
    completion = bridge_server.ask(model, x_bridge={"tools": False}, seed=1)
    assert (completion["id"], completion["created"], completion["model"]) == ("up-1", 1, f"{model}-2026")
    assert completion["choices"][0]["finish_reason"] == "tool_calls"
    assert upstream.bodies(model)[0] == {"model": model, "messages": [{"role": "user", "content": "hello"}], "seed": 1}
    streamed = bridge_server.stream(model, x_bridge={"tools": False})
    assert streamed.events[-1] == "[DONE]"
    assert {chunk["id"] for chunk in streamed.chunks} == {"up-1"}
    assert all(isinstance(chunk["choices"], list) for chunk in streamed.chunks)


RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}


def test_a_response_format_is_requested_only_in_the_last_turn(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(
        Step(calls=[call("calculate", {"expression": "6*7"})]), Step(text="It is 42."), Step(text='{"sum": 42}')
    )
    answer = bridge_server.answer(is_stream, model, response_format=RESPONSE_FORMAT)
    assert (answer["content"], answer["finish_reason"]) == ('{"sum": 42}', "stop")
    assert [body.get("response_format") for body in upstream.bodies(model)] == [None, None, RESPONSE_FORMAT]
    assert upstream.bodies(model)[2]["tool_choice"] == "none"


def test_a_response_format_is_passed_on_if_our_tools_are_off(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="{}"))
    bridge_server.ask(model, response_format=RESPONSE_FORMAT, x_bridge={"tools": False})
    assert [body["response_format"] for body in upstream.bodies(model)] == [RESPONSE_FORMAT]


def test_the_response_format_text_needs_no_additional_turn(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    bridge_server.ask(model, response_format={"type": "text"})
    assert [body["response_format"] for body in upstream.bodies(model)] == [{"type": "text"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calculate"}}])
def test_a_required_call_is_required_only_in_the_first_turn(
    bridge_server: Live, upstream: Upstream, is_stream: bool, choice: Any
) -> None:
    model = upstream.play(Step(calls=[call("calculate", {"expression": "6*7"})]), Step(text="42"))
    assert bridge_server.answer(is_stream, model, tool_choice=choice)["content"] == "42"
    assert [body.get("tool_choice") for body in upstream.bodies(model)] == [choice, "auto"]


def test_the_listed_models_are_those_of_the_upstream(bridge_server: Live, upstream: Upstream) -> None:
    listed = bridge_server.http.get("/v1/models").json()
    assert listed["object"] == "list"
    # The upstream lists another model, which this server does not route to it.
    assert [model["id"] for model in listed["data"]] == ["native-listed"]
    assert bridge_server.http.get("/v1/models/native-listed").json()["object"] == "model"
    assert bridge_server.http.get("/v1/models/unserved").status_code == 404
    missing = bridge_server.http.get("/v1/models/vendor/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_a_request_keeps_its_id_or_gets_one(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    response = bridge_server.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert bridge_server.post(model).headers["x-request-id"].startswith("req_")
