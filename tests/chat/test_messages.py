"""The Messages API over HTTP."""

import base64
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.surfaces.http.chat import endpoint
from tests.chat.live import Live, live, request_until_disconnect
from tests.chat.messages_client import HEADERS, answer, body_of, events_of, joined, post, shape_of, text_of
from tests.chat.upstream import Step, Upstream, call, refusal
from tests.waiting import wait_until

Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Json = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
SUM = Step(text="Let me see.", calls=[call("calculate", {"expression": "6*7"})])


def echo(body: Json) -> Step:
    return Step(text=f"I was told: {body['messages'][-1]['content']}")


def sent(upstream: Upstream, model: str, turn: int = -1) -> Json:
    return upstream.bodies(model)[turn]


# ------------------------------------------------------------------------------------------------------------ answers
def test_an_answer_is_a_message(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Hello, 你好."))
    message = answer(bridge_server, is_stream, model)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", f"{model}-2026")
    assert message["content"] == [{"type": "text", "text": "Hello, 你好."}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"] == {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 5,
    }
    assert message["x_bridge"]["stopCause"] == "answered"
    assert sent(upstream, model)["max_tokens"] == 1000


def test_calls_of_our_tools_are_shown_as_calls_of_an_mcp_server(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    message = answer(bridge_server, is_stream, upstream.play(SUM, echo))
    assert shape_of(message) == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
    _, use, result, _ = message["content"]
    assert (use["name"], use["server_name"], use["input"]) == ("calculate", "apexbridge", {"expression": "6*7"})
    assert (result["tool_use_id"], result["is_error"]) == (use["id"], False)
    assert result["content"] == [{"type": "text", "text": "42"}]
    assert text_of(message) == "Let me see.\n\nI was told: 42"
    assert message["usage"]["output_tokens"] == 10


def test_calls_of_our_tools_can_be_hidden(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    message = answer(bridge_server, is_stream, upstream.play(SUM, echo), x_bridge={"activity": False})
    assert text_of(message) == "Let me see.\n\nI was told: 42"
    assert set(shape_of(message)) == {"text"}


def test_a_failed_call_of_our_tool_is_an_error(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(calls=[call("calculate", "[1,"), call("no_such", {})]), Step(text="Sorry."))
    message = answer(bridge_server, is_stream, model)
    blocks = message["content"]
    uses = [block for block in blocks if block["type"] == "mcp_tool_use"]
    results = [block for block in blocks if block["type"] == "mcp_tool_result"]
    assert [block["is_error"] for block in results] == [True, True]
    assert [block["tool_use_id"] for block in results] == [block["id"] for block in uses]
    assert uses[0]["input"] == {"invalid_arguments": "[1,"}
    assert "TOOL_NOT_FOUND" in results[1]["content"][0]["text"]


def test_runs_are_code_execution_for_a_client_with_that_tool(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(Step(calls=[call("run_code", {"language": "python", "code": "print(6*7)"})]), echo)
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
    message = answer(bridge_server, is_stream, model, tools=tools)
    assert shape_of(message) == ["server_tool_use", "bash_code_execution_tool_result", "text"]
    use, result, _ = message["content"]
    assert (use["name"], use["input"]) == ("bash_code_execution", {"command": "print(6*7)"})
    assert result["tool_use_id"] == use["id"]
    content = result["content"]
    assert (content["type"], content["return_code"], content["stderr"]) == ("bash_code_execution_result", 0, "")
    assert "42" in content["stdout"]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("odd", "end_turn")],
)
def test_the_stop_reason_follows_from_the_finish_reason(
    bridge_server: Live, upstream: Upstream, is_stream: bool, finish: str, reason: str
) -> None:
    assert answer(bridge_server, is_stream, upstream.play(Step(text="x", finish=finish)))["stop_reason"] == reason


def test_reasoning_is_a_thinking_block(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Yes.", fields={"reasoning_content": "Hm. ", "reasoning": "Hm. "}))
    message = answer(bridge_server, is_stream, model)
    assert shape_of(message) == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "Hm. "
    assert message["content"][0]["signature"]


def with_result(first: Json) -> list[Json]:
    """The conversation with an answer of thinking and a call, and the call's result."""
    result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "sunny"}
    return [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_with_the_calls_that_it_led_to(
    bridge_server: Live, upstream: Upstream, is_stream: bool, field: str
) -> None:
    step = Step(calls=[call("get_weather", {"city": "Rome"})], fields={field: "Which city?"})
    model = upstream.play(step, Step(text="Sunny."))
    first = answer(bridge_server, is_stream, model, tools=[WEATHER])
    assert shape_of(first) == ["thinking", "tool_use"]
    answer(bridge_server, is_stream, model, with_result(first), tools=[WEATHER])
    made = sent(upstream, model)["messages"][-2]
    assert made[field] == "Which city?"
    assert "signature" not in json.dumps(made)


def test_what_only_chat_completions_can_carry_goes_back_too(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    parts = [{"type": "reasoning.summary", "summary": "Which city?"}, {"type": "reasoning.encrypted", "data": "d"}]
    made = {**call("get_weather", {"city": "Rome"}), "extra_content": {"google": {"thought_signature": "t"}}}
    model = upstream.play(Step(calls=[made], fields={"reasoning_details": parts}), Step(text="Sunny."))
    first = answer(bridge_server, is_stream, model, tools=[WEATHER])
    assert (shape_of(first), first["content"][0]["thinking"]) == (["thinking", "tool_use"], "Which city?")
    answer(bridge_server, is_stream, model, with_result(first), tools=[WEATHER])
    assistant = sent(upstream, model)["messages"][-2]
    assert assistant["reasoning_details"] == parts
    assert [one["extra_content"] for one in assistant["tool_calls"]] == [made["extra_content"]]


@pytest.mark.parametrize("signature", ["", "EqQBCgIYAhIM", "!", base64.b64encode(b"[[]]").decode()])
def test_foreign_thinking_is_not_sent_to_the_model(bridge_server: Live, upstream: Upstream, signature: str) -> None:
    model = upstream.play(Step(text="Sunny."))
    blocks = [
        {"type": "thinking", "thinking": "secret thought", "signature": signature},
        {"type": "redacted_thinking", "data": "secret thought"},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result]},
    ]
    answer(bridge_server, False, model, conversation, tools=[WEATHER])
    assert "secret thought" not in json.dumps(sent(upstream, model))


def test_a_found_stop_sequence_is_named(bridge_server: Live, upstream: Upstream) -> None:
    def stopped(body: Json) -> Step:
        assert body["stop"] == ["END"]
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        return Step(body={"model": "m", "choices": [{**choice, "stop_reason": "END"}]})

    message = answer(bridge_server, False, upstream.play(stopped), stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_a_refusal_in_a_field_of_its_own_is_text(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(fields={"refusal": "I cannot do that."}, finish="content_filter"))
    message = answer(bridge_server, is_stream, model)
    assert (text_of(message), message["stop_reason"]) == ("I cannot do that.", "refusal")


# ------------------------------------------------------------------------------------------------------- client tools
def test_a_client_runs_its_own_tool_beside_ours(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    mixed = Step(calls=[call("calculate", {"expression": "6*7"}), call("get_weather", {"city": "上海"})])
    model = upstream.play(mixed, echo)
    first = answer(bridge_server, is_stream, model, tools=[WEATHER])
    assert shape_of(first) == ["mcp_tool_use", "mcp_tool_result", "tool_use"]
    assert first["stop_reason"] == "tool_use"
    made = first["content"][-1]
    assert (made["name"], made["input"]) == ("get_weather", {"city": "上海"})
    content = [{"type": "tool_result", "tool_use_id": made["id"], "content": [{"type": "text", "text": "sunny"}]}]
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": content},
    ]
    second = answer(bridge_server, is_stream, model, conversation, tools=[WEATHER])
    assert text_of(second) == "I was told: sunny"
    asked, ours, theirs = sent(upstream, model)["messages"][-3:]
    assert [one["function"]["name"] for one in asked["tool_calls"]] == ["calculate", "get_weather"]
    assert (ours["content"], theirs["content"]) == ("42", "sunny")


def test_long_names_of_client_tools_reach_the_model_shortened(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    name = "mcp__a-server-with-a-long-name__" + "and_a_tool_with_a_longer_one" * 3

    def calls_it(body: Json) -> Step:
        return Step(calls=[call(body["tools"][-1]["function"]["name"], {"city": "Rome"}, id="call_1")])

    model = upstream.play(calls_it, Step(text="Done."))
    tools = [{**WEATHER, "name": name}]
    made = answer(bridge_server, is_stream, model, tools=tools)["content"][0]
    assert made["name"] == name
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "x"}]},
    ]
    choice = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
    assert text_of(answer(bridge_server, is_stream, model, conversation, tools=tools, tool_choice=choice)) == "Done."
    body = sent(upstream, model)
    assert len(body["tool_choice"]["function"]["name"]) == 64
    assert body["parallel_tool_calls"] is False


# -------------------------------------------------------------------------------------------------------------- errors
def test_an_upstreams_refusal_has_anthropics_shape(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(refusal(429, "You exceeded your quota", code="insufficient_quota", retry_after="3600"))
    response = post(bridge_server, model, stream=is_stream)
    assert response.status_code == 429
    error = {"type": "rate_limit_error", "message": "You exceeded your quota"}
    assert response.json() == {"type": "error", "error": error, "request_id": response.headers["request-id"]}
    assert response.headers["retry-after"] == "3600"


def test_a_broken_stream_ends_with_an_error(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="half of a long answer", cut_after=4))
    events = events_of(post(bridge_server, model, stream=True))
    assert events[0]["type"] == "message_start"
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")
    assert "broke off" in events[-1]["error"]["message"]


def test_a_conversation_that_is_too_long_is_recognized(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(refusal(400, "This model's maximum context length is 8192 tokens", code="context_length"))
    error = post(bridge_server, model).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.source"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "messages.0.content.0",
        ),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"system": 1}, "system"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools.0.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"container": 1}, "container"),
        ({"container": {"skills": [{}]}}, "container.skills.0.skill_id"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"x_bridge": 1}, "'x_bridge'"),
        ({"x_bridge": {"nothing": 1}}, "'x_bridge'"),
    ],
)
def test_a_bad_request_is_refused_with_the_path_of_the_problem(
    bridge_server: Live, upstream: Upstream, fields: Json, path: str
) -> None:
    model = upstream.play(Step(text="x"))
    response = bridge_server.http.post("/v1/messages", json={**body_of(model), **fields}, headers=HEADERS)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(path), error
    assert upstream.bodies(model) == []


def test_a_call_without_its_result_is_refused(bridge_server: Live, upstream: Upstream) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    for last in ([], [{"role": "user", "content": "and?"}]):
        conversation = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [use]}, *last]
        response = post(bridge_server, upstream.play(Step(text="x")), conversation, tools=[WEATHER])
        assert response.status_code == 400
        assert "toolu_1" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "kind"),
    [
        (b"{", {}, 400, "invalid_request_error"),
        (b"[]", {}, 400, "invalid_request_error"),
        (b"x" * (9 << 20), {}, 413, "request_too_large"),
        (b"{}", {"content-type": "text/plain"}, 415, "invalid_request_error"),
        (b"[" * 100_000, {}, 400, "invalid_request_error"),
    ],
)
def test_a_body_that_cannot_be_read_gets_anthropics_error(
    bridge_server: Live, content: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    response = bridge_server.http.post(
        "/v1/messages", content=content, headers={"content-type": "application/json", **headers}
    )
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


def test_other_methods_are_refused(bridge_server: Live) -> None:
    response = bridge_server.http.get("/v1/messages")
    assert (response.status_code, response.json()["type"]) == (405, "error")


def test_an_unknown_model_is_not_found(bridge_server: Live) -> None:
    response = post(bridge_server, "nobody-serves-it")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


# ------------------------------------------------------------------------------------------------------------ requests
def test_the_query_of_beta_clients_is_accepted(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hello."))
    headers = {**HEADERS, "anthropic-beta": "what-ever-2030-01-01,another"}
    response = bridge_server.http.post("/v1/messages?beta=true", json=body_of(model), headers=headers)
    assert text_of(response.json()) == "Hello."


def test_the_requests_of_claude_code_are_answered(bridge_server: Live, upstream: Upstream) -> None:
    def searches(body: Json) -> Step:
        assert "Deferred" not in [tool["function"]["name"] for tool in body["tools"]]
        return Step(calls=[call("ToolSearch", {"query": "deferred"}, id="toolu_1")])

    def uses_it(body: Json) -> Step:
        assert "Deferred" in [tool["function"]["name"] for tool in body["tools"]]
        return Step(text="Done.")

    model = upstream.play(searches, uses_it)
    fields: Json = {
        "stream": True,
        "max_tokens": 32_000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325; cch=1a2b3;"},
            {"type": "text", "text": "You are a CLI."},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "user_1_account__session_2"},
        "temperature": 1,
        "diagnostics": {"anything": [1, 2]},
        "tools": [
            {"name": "ToolSearch", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}},
            {"name": "Deferred", "input_schema": {"type": "object"}, "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
    }
    conversation: list[Json] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"},
                {"type": "text", "text": "Use it.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Only tools of the list exist."},
    ]
    first = joined(events_of(post(bridge_server, model, conversation, **fields)))
    assert first["stop_reason"] == "tool_use"
    reference = {"type": "tool_reference", "tool_name": "Deferred"}
    conversation += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}]},
        {"role": "system", "content": [{"type": "text", "text": "Go on."}]},
    ]
    assert text_of(joined(events_of(post(bridge_server, model, conversation, **fields)))) == "Done."
    body = sent(upstream, model)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert body["messages"][0]["content"].startswith("You are a CLI.\nBe brief.")
    assert "<system>\nOnly tools of the list exist.\n</system>" in body["messages"][1]["content"]
    assert "reasoning_effort" not in body
    assert "user_1_account" not in json.dumps(body)


def test_claude_code_gets_the_input_of_our_calls_at_once(bridge_server: Live, upstream: Upstream) -> None:
    headers = {**HEADERS, "x-claude-code-session-id": "1"}
    body = body_of(upstream.play(SUM, echo), stream=True)
    events = events_of(bridge_server.http.post("/v1/messages", json=body, headers=headers))
    uses = [event for event in events if event.get("content_block", {}).get("type") == "mcp_tool_use"]
    assert [event["content_block"]["input"] for event in uses] == [{"expression": "6*7"}]
    assert "input_json_delta" not in json.dumps(events)


def test_an_output_format_is_a_response_format(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text='{"city": "Rome"}'))
    form = {"type": "json_schema", "schema": SCHEMA}
    answer(bridge_server, False, model, output_config={"format": form}, x_bridge={"tools": False})
    assert sent(upstream, model)["response_format"]["json_schema"]["schema"] == SCHEMA


def test_fields_that_a_server_refuses_are_adapted(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    def strict(body: Json) -> Step:
        if "reasoning_effort" in body:
            return refusal(400, '"m" does not support thinking')
        if "parallel_tool_calls" in body:
            return refusal(400, "Unsupported parameter", param="parallel_tool_calls")
        if "max_tokens" in body:
            return refusal(
                400, "'max_tokens' is not supported. Use 'max_completion_tokens' instead.", param="max_tokens"
            )
        if body.get("max_completion_tokens", 0) > 500:
            return refusal(400, "max_completion_tokens is too large: 1000.")
        return Step(text="Hello.")

    model = upstream.play(strict)
    fields: Json = {
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "tools": [WEATHER],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    assert text_of(answer(bridge_server, is_stream, model, **fields)) == "Hello."
    assert "max_completion_tokens" not in sent(upstream, model)
    assert sent(upstream, model, 0)["reasoning_effort"] == "low"
    answer(bridge_server, is_stream, model, max_tokens=100)
    assert sent(upstream, model)["max_completion_tokens"] == 100


def test_other_refusals_are_not_repeated(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(refusal(400, "Invalid image."))
    assert post(bridge_server, model).status_code == 400
    assert len(upstream.bodies(model)) == 1


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32_000}}, "high"),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, None),
        ({"output_config": {"effort": "max"}}, "high"),
        ({"output_config": {"effort": "odd"}}, None),
        ({"thinking": "odd", "output_config": []}, None),
    ],
)
def test_a_budget_for_thinking_is_a_reasoning_effort(
    bridge_server: Live, upstream: Upstream, fields: Json, effort: str | None
) -> None:
    model = upstream.play(Step(text="Hello."))
    answer(bridge_server, False, model, **fields)
    assert sent(upstream, model).get("reasoning_effort") == effort


def test_a_silent_stream_sends_pings(bridge_server: Live, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "KEEP_ALIVE_SECONDS", 0.05)
    model = upstream.play(Step(calls=[call("datetime")]), Step(text="Now.", delay=0.4))
    events = events_of(post(bridge_server, model, stream=True))
    assert {"type": "ping"} in events
    assert text_of(joined(events)).strip() == "Now."


def test_the_answer_can_come_without_our_tools(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Hello."))
    assert text_of(answer(bridge_server, is_stream, model, x_bridge={"tools": False})) == "Hello."
    assert "tools" not in sent(upstream, model)
    model = upstream.play(Step(text="Hello."))
    assert text_of(answer(bridge_server, is_stream, model, tool_choice={"type": "none"}, tools=[WEATHER])) == "Hello."
    assert [tool["function"]["name"] for tool in sent(upstream, model)["tools"]] == ["get_weather"]


def test_a_model_without_tool_support_can_call_client_tools(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    reply = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    model = upstream.play(Step(text=reply), kind="text")
    message = answer(bridge_server, is_stream, model, tools=[WEATHER], x_bridge={"tools": False})
    assert (shape_of(message), message["content"][0]["input"]) == (["tool_use"], {"city": "Rome"})


# ---------------------------------------------------------------------------------------------------- files and skills
def test_a_document_goes_into_the_container_and_stays_there(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    read = Step(calls=[call("file_read", {"path": "notes.txt"})])
    model = upstream.play(read, Step(text="Read."), read, Step(text="Again."))
    data = base64.b64encode(b"the secret word is plum").decode()
    document = {
        "type": "document",
        "title": "notes.txt",
        "source": {"type": "base64", "media_type": "text/plain", "data": data},
    }
    question = {"type": "text", "text": f"Read it; a stream: {is_stream}."}  # the same words would be ambiguous
    conversation: list[Json] = [{"role": "user", "content": [document, question]}]
    first = answer(bridge_server, is_stream, model, conversation)
    assert "plum" in first["content"][1]["content"][0]["text"]
    container = first["container"]
    assert container["id"] == first["x_bridge"]["workspace"]
    assert datetime.fromisoformat(container["expires_at"])
    conversation += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": "Again."}]
    second = answer(bridge_server, is_stream, model, conversation)
    assert second["container"]["id"] == container["id"]
    model = upstream.play(read, Step(text="Elsewhere."))
    other = answer(bridge_server, is_stream, model, "Read notes.txt", container=container["id"])
    assert "plum" in other["content"][1]["content"][0]["text"]


def test_images_reach_the_model(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("look", {}, id="toolu_1")]), Step(text="A square."))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    remote = {"type": "image", "source": {"type": "url", "url": "https://images.test/a.png"}}
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    conversation: list[Json] = [{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}, remote]}]
    first = answer(bridge_server, False, model, conversation, tools=tools)
    parts = sent(upstream, model)["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "image_url"]
    assert parts[0]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image], "is_error": True}
    conversation += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "text", "text": "See:"}, result]},
    ]
    answer(bridge_server, False, model, conversation, tools=tools)
    tool, user = sent(upstream, model)["messages"][-2:]
    assert (tool["role"], tool["content"]) == ("tool", "Error: ")
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "text"]


def test_an_uploaded_file_is_used_by_its_id(bridge_server: Live, upstream: Upstream) -> None:
    upload = bridge_server.http.post(
        "/v1/files", files={"file": ("plan.txt", b"buy plums")}, data={"purpose": "user_data"}
    )
    id = upload.raise_for_status().json()["id"]
    model = upstream.play(Step(calls=[call("file_read", {"path": "plan.txt"})]), Step(text="Read."))
    blocks = [{"type": "container_upload", "file_id": id}, {"type": "text", "text": "Read it."}]
    message = answer(bridge_server, False, model, [{"role": "user", "content": blocks}])
    assert "buy plums" in message["content"][1]["content"][0]["text"]
    unknown = [{"type": "document", "source": {"type": "file", "file_id": "file-unknown"}}]
    response = post(bridge_server, upstream.play(Step(text="x")), [{"role": "user", "content": unknown}])
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


def test_the_skills_of_a_container_are_offered(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    bridge_server.install("greeter", {"scripts/execute.sh": "echo Good morning\n"})
    model = upstream.play(Step(calls=[call("skill__greeter", {"name": "greeter"})]), echo)
    skills = [{"type": "custom", "skill_id": "greeter", "version": "latest"}]
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
    message = answer(bridge_server, is_stream, model, container={"skills": skills}, tools=tools)
    assert shape_of(message) == ["server_tool_use", "bash_code_execution_tool_result", "text"]
    assert "Good morning" in message["content"][1]["content"]["stdout"]
    assert "skill__greeter" in [tool["function"]["name"] for tool in sent(upstream, model)["tools"]]
    listed = bridge_server.http.get("/v1/skills", headers=HEADERS).raise_for_status().json()["data"]
    [own] = [skill for skill in listed if skill["display_name"] == "greeter"]
    by_id = [{"type": "custom", "skill_id": own["id"]}]
    write = Step(calls=[call("file_write", {"path": "a.txt", "content": "x"})])
    model = upstream.play(write, Step(text="Done."))
    container = answer(bridge_server, is_stream, model, container={"skills": by_id})["container"]
    assert container["skills"] == [{"type": "custom", "skill_id": own["id"], "version": own["latest_version_id"]}]
    assert "skill__greeter" in [tool["function"]["name"] for tool in sent(upstream, model)["tools"]]
    old = [{"type": "custom", "skill_id": own["id"], "version": "99"}]
    assert post(bridge_server, model, container={"skills": old}).status_code == 400
    missing = [{"type": "anthropic", "skill_id": "no-such-skill"}]
    response = post(bridge_server, model, container={"skills": missing})
    assert (response.status_code, "no-such-skill" in response.json()["error"]["message"]) == (400, True)


def test_approvals_can_be_given_as_tool_results(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    bridge_server.install("eraser", {"scripts/execute.sh": "echo erased\n"}, dangerous=True)
    model = upstream.play(Step(calls=[call("run_skill", {"name": "eraser", "input": {"n": is_stream}})]), echo)
    first = answer(bridge_server, is_stream, model, x_bridge={"approvals": "tool"})
    question = first["content"][-1]
    assert (first["stop_reason"], question["name"]) == ("tool_use", "bridge_approve_skill")
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": question["id"], "content": "yes"}]},
    ]
    second = answer(bridge_server, is_stream, model, conversation, x_bridge={"approvals": "tool"})
    assert "erased" in text_of(second)
    assert shape_of(second) == ["mcp_tool_use", "mcp_tool_result", "text"]


# ------------------------------------------------------------------------------------------------------------ records
@pytest.fixture(scope="module")
def recording_server(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("recorded") / "data", upstream, embedder, chat_records="full") as opened:
        yield opened


def test_a_request_is_recorded_like_others(recording_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(SUM, echo)
    response = recording_server.http.post(
        "/v1/messages", json=body_of(model, stream=is_stream), headers={**HEADERS, "x-request-id": f"r-{is_stream}"}
    )
    assert response.headers["request-id"] == f"r-{is_stream}"
    record = recording_server.http.get(f"/api/chats/r-{is_stream}").raise_for_status().json()
    assert (record["model"], record["calls"], record["outcome"]) == (model, 1, "answered")


# --------------------------------------------------------------------------------------------------- tokens and models
def count(server: Live, **fields: Any) -> int:
    response = server.http.post("/v1/messages/count_tokens", json=fields, headers=HEADERS)
    return int(response.raise_for_status().json()["input_tokens"])


def test_tokens_are_counted_with_our_tools_and_without_asking_the_model(
    bridge_server: Live, upstream: Upstream
) -> None:
    model = upstream.play(Step(text="x"))
    short = [{"role": "user", "content": "hello"}]
    long = [{"role": "user", "content": "hello " * 1_000}]
    bare = count(bridge_server, model=model, messages=short, x_bridge={"tools": False})
    assert bare < 20
    assert 1_000 < count(bridge_server, model=model, messages=long, x_bridge={"tools": False}) < 2_000
    assert count(bridge_server, model=model, messages=short) > bare + 500
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}}
    with_image = [{"role": "user", "content": [image]}]
    assert count(bridge_server, model=model, messages=with_image, x_bridge={"tools": False}) < 3_000
    assert upstream.bodies(model) == []


@pytest.mark.parametrize("fields", [{}, {"messages": []}, {"messages": [{"role": "user", "content": 1}]}])
def test_a_bad_count_is_refused(bridge_server: Live, fields: Json) -> None:
    response = bridge_server.http.post("/v1/messages/count_tokens", json=fields, headers=HEADERS)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_models_are_listed_in_anthropics_form_for_its_clients(bridge_server: Live) -> None:
    listed = bridge_server.http.get("/v1/models", headers=HEADERS).json()
    assert listed == {
        "data": [
            {
                "type": "model",
                "id": "native-listed",
                "display_name": "native-listed",
                "created_at": "1970-01-01T00:00:00Z",
            }
        ],
        "has_more": False,
        "first_id": "native-listed",
        "last_id": "native-listed",
    }
    one = bridge_server.http.get("/v1/models/native-listed", headers=HEADERS).json()
    assert one == listed["data"][0]
    missing = bridge_server.http.get("/v1/models/no-such", headers=HEADERS)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert "object" in bridge_server.http.get("/v1/models").json()


def test_models_have_pages(bridge_server: Live, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"native-{letter}" for letter in "abc"]
    monkeypatch.setattr(upstream, "models", {"data": [{"id": name} for name in names]})

    def page(**query: str) -> tuple[list[str], bool]:
        listed = bridge_server.http.get("/v1/models", params=query, headers=HEADERS).raise_for_status().json()
        return [model["id"] for model in listed["data"]], listed["has_more"]

    assert page(limit="2") == (names[:2], True)
    assert page(limit="2", after_id=names[1]) == (names[2:], False)
    assert page(limit="1", before_id=names[2]) == ([names[1]], True)
    assert page(after_id=names[2]) == ([], False)
    for query in ({"limit": "0"}, {"limit": "many"}, {"after_id": "no-such"}):
        assert bridge_server.http.get("/v1/models", params=query, headers=HEADERS).status_code == 400


# ---------------------------------------------------------------------------------------------------------- disconnect
def test_a_disconnect_cancels_the_request_to_the_upstream(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(Step(text="a text that never ends", hang_after=3 if is_stream else -1))
    with request_until_disconnect(bridge_server, model, path="/v1/messages", max_tokens=9, stream=is_stream):
        wait_until(lambda: upstream.seen(model))
    wait_until(lambda: upstream.seen(model)[0].was_disconnected)
