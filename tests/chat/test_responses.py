"""`/v1/responses`: the same loop as chat completions, in the format of OpenAI's Responses API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.responses_client import answer, items_of, post, respond, stream, text_of
from tests.chat.upstream import Play, Step, Upstream, call, refusal
from tests.waiting import wait_until

Json = dict[str, Any]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Json = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}
SUM = Step(text="Let me see.", calls=[call("calculate", {"expression": "6*7"})])
MAKE = "import pathlib\npathlib.Path('made.txt').write_text('made')\nprint('made it')\n"


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        opened.install("maker", {"scripts/execute.py": MAKE}, body="# Maker\n")
        opened.install("risky", {"scripts/execute.py": "print('risky ran')\n"}, dangerous=True, confirm="Sure?")
        yield opened


def echo(body: Json) -> Step:
    return Step(text=f"heard {body['messages'][-1]['content']}")


def conversation(upstream: Upstream, model: str) -> list[Json]:
    """The messages of the last request to the model, without the system prompt."""
    return [message for message in upstream.bodies(model)[-1]["messages"] if message["role"] != "system"]


# -------------------------------------------------------------------------------------------------------- answers
def test_a_text_is_answered_with_the_complete_object(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Hello, 你好."))
    response = answer(server, is_stream, model, metadata={"a": "b"}, temperature=0.5)
    assert (response["status"], text_of(response)) == ("completed", "Hello, 你好.")
    assert (response["metadata"], response["temperature"], response["top_p"]) == ({"a": "b"}, 0.5, 1.0)
    assert (response["usage"]["input_tokens"], response["usage"]["total_tokens"]) == (10, 15)
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 2
    assert response["model"] == f"{model}-2026"
    assert conversation(upstream, model) == [{"role": "user", "content": "hello"}]
    assert upstream.bodies(model)[0]["temperature"] == 0.5


def test_the_events_of_a_text_come_in_order(server: Live, upstream: Upstream) -> None:
    events = stream(server, upstream.play(Step(text="Hello you")))
    assert events.types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events.text == "Hello you"
    assert events.response["x_bridge"]["stopCause"] == "answered"


def test_calls_of_our_tools_are_mcp_calls(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(SUM, echo)
    response = answer(server, is_stream, model)
    assert [item["type"] for item in response["output"]] == ["message", "mcp_call", "message"]
    made = response["output"][1]
    assert (made["server_label"], made["name"], json.loads(made["arguments"])) == (
        "apexbridge",
        "calculate",
        {"expression": "6*7"},
    )
    assert (made["output"], made["error"], made["status"]) == ("42", None, "completed")
    assert text_of(response) == "Let me see.\n\nheard 42"


def test_the_events_of_our_calls_come_in_order(server: Live, upstream: Upstream) -> None:
    both = [call("calculate", {"expression": "1+1"}), call("calculate", {"expression": "1/0"})]
    events = stream(server, upstream.play(Step(calls=both), Step(text="ok")))
    started = [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
    ]
    done = ["response.mcp_call.completed", "response.output_item.done"]
    failed = ["response.mcp_call.failed", "response.output_item.done"]
    assert events.types[2:14] == [*started, *started, *done, *failed]
    good, bad = items_of(events.response, "mcp_call")
    assert (good["output"], bad["output"]) == ("2", None)
    assert (bad["status"], "zero" in bad["error"]) == ("failed", True)


def test_a_skill_runs_and_its_file_is_listed(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(calls=[call("run_skill", {"name": "maker"})]), Step(text="done"))
    response = answer(server, is_stream, model)
    assert "made it" in items_of(response, "mcp_call")[0]["output"]
    (file,) = response["x_bridge"]["files"]
    assert server.http.get(file["url"]).text == "made"


def test_reasoning_is_an_item_of_its_own(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="It is 4.", fields={"reasoning_content": "2 and 2"}))
    response = answer(server, is_stream, model)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "2 and 2"}]
    assert "encrypted_content" not in response["output"][0]  # the schema of Open Responses allows only a string


def test_calls_of_the_clients_tools_end_the_response(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="One moment.", calls=[call("get_weather", {"city": "Rome"}, id="call_w")]), echo)
    response = answer(server, is_stream, model, tools=[WEATHER])
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    made = response["output"][1]
    assert (made["name"], made["call_id"], json.loads(made["arguments"])) == (
        "get_weather",
        "call_w",
        {"city": "Rome"},
    )
    assert response["tools"] == [{**WEATHER, "strict": None}]
    result = {"type": "function_call_output", "call_id": "call_w", "output": "sunny"}
    history = [{"role": "user", "content": "hello"}, *response["output"], result]
    assert text_of(answer(server, is_stream, model, history, tools=[WEATHER], store=False)) == "heard sunny"
    sent = conversation(upstream, model)
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["content"] == "One moment."


def test_a_turn_with_calls_of_both_sides_is_restored(server: Live, upstream: Upstream, is_stream: bool) -> None:
    mixed = [call("calculate", {"expression": "6*7"}), call("get_weather", {"city": "Rome"})]
    model = upstream.play(Step(calls=mixed), echo)
    response = answer(server, is_stream, model, tools=[WEATHER])
    assert [item["type"] for item in response["output"]] == ["mcp_call", "function_call"]
    made = response["output"][1]["call_id"]
    result = {"type": "function_call_output", "call_id": made, "output": "sunny"}
    later = answer(server, is_stream, model, [result], tools=[WEATHER], previous_response_id=response["id"])
    assert text_of(later) == "heard sunny"
    [_, ours, first, second] = conversation(upstream, model)
    assert [one["function"]["name"] for one in ours["tool_calls"]] == ["calculate", "get_weather"]
    assert (first["content"], second["content"]) == ("42", "sunny")


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_cut_answer_is_incomplete(
    server: Live, upstream: Upstream, is_stream: bool, finish: str, reason: str
) -> None:
    response = answer(server, is_stream, upstream.play(Step(text="half", finish=finish)), max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert response["output"][0]["status"] == "incomplete"


def test_an_answer_without_usage_has_null(server: Live, upstream: Upstream, is_stream: bool) -> None:
    assert answer(server, is_stream, upstream.play(Step(text="x", usage=None)))["usage"] is None


def test_an_answer_without_text_is_an_empty_message(server: Live, upstream: Upstream, is_stream: bool) -> None:
    response = answer(server, is_stream, upstream.play(Step(calls=SUM.calls), Step(text="")))
    assert [item["type"] for item in response["output"]] == ["mcp_call", "message"]
    assert (text_of(response), response["status"]) == ("", "completed")
    response = answer(server, is_stream, upstream.play(Step(text="", fields={"reasoning": "Nothing to say."})))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]


def test_a_refusal_of_the_model_is_text(server: Live, upstream: Upstream, is_stream: bool) -> None:
    assert text_of(answer(server, is_stream, upstream.play(Step(fields={"refusal": "I cannot."})))) == "I cannot."


def test_tools_can_be_switched_off(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="plain"))
    response = answer(server, is_stream, model, x_bridge={"tools": False}, parallel_tool_calls=True, tool_choice="auto")
    assert text_of(response) == "plain"
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(upstream.bodies(model)[0])


# --------------------------------------------------------------------------------------------------------- errors
def test_an_error_before_the_stream_has_its_status(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(refusal(429, "You exceeded your quota", code="insufficient_quota", retry_after="3600"))
    response = post(server, model, stream=is_stream)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3600")
    assert response.json()["error"]["code"] == "insufficient_quota"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": "x"}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tool_calls": 1.5}, "max_tool_calls"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"prompt_cache_key": 1}, "prompt_cache_key"),
    ],
)
def test_a_wrong_field_is_refused_under_its_own_name(
    server: Live, upstream: Upstream, fields: Json, param: str
) -> None:
    response = post(server, upstream.play(Step(text="hi")), **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/chat/completions"])
def test_a_compressed_request_is_refused(server: Live, path: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    response = server.http.post(path, content=b"(\xb5/\xfd", headers=headers)
    assert response.status_code == 415
    assert "without compression" in response.json()["error"]["message"]


def test_an_error_has_the_fields_and_types_of_the_api(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(status=400, body={"error": {"message": "No.", "code": 400, "more": 1}}))
    error = post(server, model, stream=is_stream).json()["error"]
    assert error == {"message": "No.", "type": "server_error", "code": "400", "param": None, "more": 1}


def test_an_error_in_a_stream_is_two_events(server: Live, upstream: Upstream) -> None:
    events = stream(server, upstream.play(Step(text="half of a long answer", cut_after=4)))
    assert events.types[-2:] == ["error", "response.failed"]
    error, failed = events.events[-2:]
    assert error["code"] == error["error"]["code"] == failed["response"]["error"]["code"] == "upstream_cut"
    assert "broke off" in error["message"]
    assert error["error"]["type"] == failed["response"]["error"]["type"] == "upstream_error"
    assert failed["response"]["status"] == "failed"


def test_a_failed_stream_is_not_stored(server: Live, upstream: Upstream) -> None:
    events = stream(server, upstream.play(Step(text="half of a long answer", cut_after=4)))
    assert server.http.get(f"/v1/responses/{events.response['id']}").status_code == 404


# ----------------------------------------------------------------------------------------------------- second turn
def test_a_response_is_continued_by_its_id(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(SUM, Step(text="42."), Step(text="43."), Step(text="44."))
    first = answer(server, is_stream, model, "six times seven?", instructions="Be brief.")
    second = answer(server, is_stream, model, "plus one?", previous_response_id=first["id"])
    third = answer(server, is_stream, model, "plus two?", previous_response_id=second["id"])
    assert (second["previous_response_id"], third["previous_response_id"]) == (first["id"], second["id"])
    assert conversation(upstream, model) == [
        {"role": "user", "content": "six times seven?"},
        {"role": "assistant", "content": "Let me see.\n\n42."},
        {"role": "user", "content": "plus one?"},
        {"role": "assistant", "content": "43."},
        {"role": "user", "content": "plus two?"},
    ]
    assert "Be brief." in upstream.bodies(model)[0]["messages"][0]["content"]
    assert "Be brief." not in upstream.bodies(model)[-1]["messages"][0]["content"]


def test_items_are_referred_to_by_their_ids(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(
        Step(text="Let me see.", calls=SUM.calls, fields={"reasoning": "easy"}), Step(text="42."), Step(text="43.")
    )
    first = answer(server, is_stream, model, "six times seven?")
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    history = [{"role": "user", "content": "six times seven?"}, *references, {"role": "user", "content": "plus one?"}]
    assert text_of(answer(server, is_stream, model, history)) == "43."
    assert conversation(upstream, model) == [
        {"role": "user", "content": "six times seven?"},
        {"role": "assistant", "content": "Let me see.\n\n42.", "reasoning": "easy"},
        {"role": "user", "content": "plus one?"},
    ]


def test_a_reference_of_a_stored_request_is_resolved_later(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="one"), Step(text="two"), Step(text="three"))
    first = respond(server, model, "1")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    second = respond(server, model, [{"role": "user", "content": "1"}, reference, {"role": "user", "content": "2"}])
    respond(server, model, "3", previous_response_id=second["id"])
    assert [message["content"] for message in conversation(upstream, model)] == ["1", "one", "2", "two", "3"]


def test_a_conversation_of_references_goes_on_for_many_turns(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(*(Step(text=f"a{number}") for number in range(4)))
    history: list[Json] = []
    for number in range(4):  # from the third on, earlier requests themselves have references
        history.append({"role": "user", "content": f"q{number}"})
        response = answer(server, is_stream, model, history)
        history += [{"type": "item_reference", "id": item["id"]} for item in response["output"]]
    said = [message["content"] for message in conversation(upstream, model)]
    assert said == ["q0", "a0", "q1", "a1", "q2", "a2", "q3"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_in_the_field_in_which_it_came(
    server: Live, upstream: Upstream, field: str, is_stream: bool
) -> None:
    model = upstream.play(Step(calls=[call("get_weather", {"city": "Rome"})], fields={field: "I need it."}), echo)
    included = ["reasoning.encrypted_content"]
    first = answer(server, is_stream, model, tools=[WEATHER], include=included, store=False)
    thought, made = first["output"]
    assert (thought["encrypted_content"], thought["summary"][0]["text"]) == (field, "I need it.")
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "sunny"}
    history = [{"role": "user", "content": "hello"}, thought, made, result]
    answer(server, is_stream, model, history, tools=[WEATHER], store=False)
    assert conversation(upstream, model)[1][field] == "I need it."


def test_what_only_chat_completions_can_carry_goes_back_too(server: Live, upstream: Upstream, is_stream: bool) -> None:
    parts = [
        {"type": "reasoning.text", "text": "I need it.", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "d"},
    ]
    made = {**call("get_weather", {"city": "Rome"}), "extra_content": {"google": {"thought_signature": "t"}}}
    model = upstream.play(Step(calls=[made], fields={"reasoning_details": parts}), echo)
    first = answer(server, is_stream, model, tools=[WEATHER])
    thought, called = first["output"]
    assert thought["summary"][0]["text"] == "I need it."
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "sunny"}
    answer(server, is_stream, model, [result], tools=[WEATHER], previous_response_id=first["id"])
    assistant = conversation(upstream, model)[1]
    assert assistant["reasoning_details"] == parts
    assert [one["extra_content"] for one in assistant["tool_calls"]] == [made["extra_content"]]
    assert not {"reasoning", "reasoning_content"} & assistant.keys()


def test_the_workspace_is_found_again(server: Live, upstream: Upstream, is_stream: bool) -> None:
    write = call("file_write", {"path": "note.txt", "content": "remember"})
    read = call("file_read", {"path": "note.txt"})
    steps: list[Play] = [Step(calls=[write]), Step(text="noted"), Step(calls=[read]), echo]
    model = upstream.play(*steps)
    first = answer(server, is_stream, model)
    second = answer(server, is_stream, model, "read it", previous_response_id=first["id"])
    assert "remember" in text_of(second)
    assert second["x_bridge"]["workspace"] == first["x_bridge"]["workspace"]
    model = upstream.play(*steps)
    first = answer(server, is_stream, model, f"unstored {is_stream}", store=False)
    history = [{"role": "user", "content": f"unstored {is_stream}"}, *first["output"]]
    second = answer(server, is_stream, model, [*history, {"role": "user", "content": "read it"}], store=False)
    assert "remember" in text_of(second)


def test_a_dangerous_call_is_approved_with_an_approval_item(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(calls=[call("run_skill", {"name": "risky", "input": {"n": is_stream}})]), echo)
    options = {"approvals": "tool"}
    first = answer(server, is_stream, model, x_bridge=options)
    (asked,) = items_of(first, "mcp_approval_request")
    assert "Sure?" in json.loads(asked["arguments"])["summary"]
    agreed = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    second = answer(server, is_stream, model, [agreed], x_bridge=options, previous_response_id=first["id"])
    assert "risky ran" in text_of(second)
    assert "risky ran" in items_of(second, "mcp_call")[0]["output"]


def test_an_approval_works_without_a_store_and_a_refusal_counts(server: Live, upstream: Upstream) -> None:
    for approve, expected in ((True, "risky ran"), (False, "did not agree")):
        model = upstream.play(Step(calls=[call("run_skill", {"name": "risky", "input": {"a": approve}})]), echo)
        first = respond(server, model, x_bridge={"approvals": "tool"}, store=False)
        (asked,) = items_of(first, "mcp_approval_request")
        decision = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": approve}
        history = [{"role": "user", "content": "hello"}, *first["output"], decision]
        second = respond(server, model, history, x_bridge={"approvals": "tool"}, store=False)
        assert expected in text_of(second)


# ------------------------------------------------------------------------------------------------- stored responses
def test_a_stored_response_can_be_read_listed_and_deleted(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="hi", fields={"reasoning_content": "hm"}))
    items = [{"role": "user", "content": f"message {number}"} for number in range(3)]
    made = respond(server, model, items)
    path = f"/v1/responses/{made['id']}"
    assert server.http.get(path).json() == made
    included = server.http.get(path, params={"include[]": "reasoning.encrypted_content"}).json()
    assert included["output"][0]["encrypted_content"] == "reasoning_content"
    page = server.http.get(f"{path}/input_items", params={"limit": 2}).json()
    assert [item["content"] for item in page["data"]] == ["message 2", "message 1"]
    assert (page["has_more"], page["last_id"]) == (True, page["data"][1]["id"])
    second_page = server.http.get(f"{path}/input_items", params={"after": page["last_id"]}).json()
    assert [item["content"] for item in second_page["data"]] == ["message 0"]
    assert second_page["has_more"] is False
    assert server.http.get(path, params={"stream": "true"}).json()["error"]["param"] == "stream"
    assert server.http.delete(path).json() == {"id": made["id"], "object": "response", "deleted": True}
    for method, gone in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items"), ("POST", f"{path}/cancel")):
        response = server.http.request(method, gone)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")
    response = post(server, model, previous_response_id=made["id"])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert made["id"] in response.json()["error"]["message"]


def test_a_response_that_is_not_to_be_stored_is_not(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="hi"))
    made = answer(server, is_stream, model, store=False)
    assert made["store"] is False
    assert server.http.get(f"/v1/responses/{made['id']}").status_code == 404
    reference = [{"type": "item_reference", "id": made["output"][0]["id"]}, {"role": "user", "content": "x"}]
    response = post(server, model, reference)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "item_not_found")


def test_the_tokens_of_a_request_are_estimated(server: Live, upstream: Upstream) -> None:
    def count(**body: Any) -> int:
        counted = server.http.post("/v1/responses/input_tokens", json={"model": "native-x", **body}).json()
        assert counted["object"] == "response.input_tokens"
        return int(counted["input_tokens"])

    small, with_tools = count(input="hello", x_bridge={"tools": False}), count(input="hello")
    assert small < 20 < 500 < with_tools < 4_000
    assert count(input="word " * 4_000, x_bridge={"tools": False}) > 4_000
    made = respond(server, upstream.play(Step(text="answer " * 1_000)))
    assert count(input="x", previous_response_id=made["id"]) > with_tools + 1_000
    response = server.http.post("/v1/responses/input_tokens", json={"input": 5})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")


def test_what_is_not_offered_is_refused_clearly(server: Live, upstream: Upstream) -> None:
    made = respond(server, upstream.play(Step(text="hi")))
    cancelled = server.http.post(f"/v1/responses/{made['id']}/cancel")
    assert (cancelled.status_code, "background" in cancelled.json()["error"]["message"]) == (400, True)
    compacted = server.http.post("/v1/responses/compact", json={"model": "m", "input": "x"})
    assert (compacted.status_code, compacted.json()["error"]["code"]) == (404, "not_found")
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    socket = server.http.get("/v1/responses", headers={**upgrade, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert 400 <= socket.status_code < 500
    for field, value in (("background", True), ("conversation", "conv_1"), ("prompt", {"id": "p"})):
        response = post(server, "native-x", **{field: value})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)


# ----------------------------------------------------------------------------------------------------- bad requests
BAD: dict[str, tuple[Json, str | None]] = {
    "no input": ({}, "input"),
    "an empty input": ({"input": []}, "input"),
    "a number": ({"input": 5}, "input"),
    "an item without a type": ({"input": [5]}, "input[0]"),
    "a type that is a list": ({"input": [{"type": []}]}, "input[0]"),
    "an unknown role": ({"input": [{"role": "robot", "content": "x"}]}, "input[0]"),
    "content that is a number": ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    "a part that is a text": ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
    "a text that is a number": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
        "input[0].content[0].text",
    ),
    "a file by its address": (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://x/"}]}]},
        "input[0].content[0]",
    ),
    "a result without a call": (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "input[0]",
    ),
    "a result without an output": ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0]"),
    "a call without arguments": ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
    "a foreign reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
    "a reference without an id": ({"input": [{"type": "item_reference"}]}, "input"),
    "tools that are no list": ({"input": "x", "tools": {}}, "tools"),
    "a tool that is a text": ({"input": "x", "tools": ["f"]}, "tools[0]"),
    "a tool without a name": ({"input": "x", "tools": [{"type": "function"}]}, "tools[0]"),
    "a namespace without tools": ({"input": "x", "tools": [{"type": "namespace", "name": "n"}]}, "tools[0]"),
    "too many tools": ({"input": "x", "tools": [{"type": "function", "name": "f"}] * 1_001}, "tools"),
    "a choice that is a number": ({"input": "x", "tool_choice": 5}, "tool_choice"),
    "a choice without a name": ({"input": "x", "tool_choice": {"type": "function"}}, "tool_choice"),
    "instructions that are a list": ({"input": "x", "instructions": ["x"]}, "instructions"),
    "a store that is a text": ({"input": "x", "store": "no"}, "store"),
    "a stream that is a text": ({"input": "x", "stream": "yes"}, "stream"),
    "a schema that is a text": ({"input": "x", "text": {"format": {"type": "json_schema", "schema": "x"}}}, None),
    "an unknown option": ({"input": "x", "x_bridge": {"magic": True}}, "x_bridge.magic"),
    "an unknown response": ({"input": "x", "previous_response_id": "resp_0"}, "previous_response_id"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_and_names_the_field(server: Live, name: str) -> None:
    body, param = BAD[name]
    response = server.http.post("/v1/responses", json={"model": "native-x", **body})
    assert response.status_code in (400, 404), response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_strange_ids_of_items_are_replaced(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="ok"))
    items = [{"role": "user", "content": "x", "id": id} for id in (None, 5, [1], {"a": 1}, "mine")]
    made = respond(server, model, items)
    listed = server.http.get(f"/v1/responses/{made['id']}/input_items", params={"order": "asc"}).json()
    ids = [item["id"] for item in listed["data"]]
    assert ([id[:3] for id in ids], len(set(ids))) == (["in_", "in_", "in_", "in_", "min"], 5)
    again = [{"id": ids[0]}, {"type": "item_reference", "id": made["output"][0]["id"]}, items[4]]
    respond(server, model, again)
    assert [message["content"] for message in conversation(upstream, model)] == ["x", "ok", "x"]


def test_malformed_bodies_are_refused(server: Live) -> None:
    for content in (b"", b"[", b"[]", b'"x"', b"\xff\xfe", b'{"input": NaN}', b"[" * 10_000):
        response = server.http.post("/v1/responses", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, content
    large = server.http.post("/v1/responses", json={"model": "m", "input": "x" * 9_000_000})
    assert large.status_code == 413


def test_strange_text_survives_the_store(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="ok"))
    body = b'{"model": "%s", "input": "half \\ud83d of a pair", "metadata": {"n": "%s"}}' % (
        model.encode(),
        b"9" * 400,
    )
    made = server.http.post("/v1/responses", content=body, headers={"content-type": "application/json"}).json()
    assert made["status"] == "completed"
    assert server.http.get(f"/v1/responses/{made['id']}/input_items").status_code == 200
    assert post(server, model, previous_response_id=made["id"]).status_code == 200


# -------------------------------------------------------------------------------------------------------- several keys
def test_a_key_cannot_continue_read_or_delete_responses_of_another(server: Live, upstream: Upstream) -> None:
    def key(name: str, *scopes: str) -> Json:
        made = server.http.post("/api/keys", json={"name": name, "scopes": list(scopes)}).raise_for_status().json()
        return {"authorization": f"Bearer {made['key']}"}

    model = upstream.play(Step(text="secret"))
    first, others = key("first", "chat"), [key("second", "chat"), key("boss", "admin", "chat"), {}]
    body = {"model": model, "input": "mine"}
    made = server.http.post("/v1/responses", json=body, headers=first).raise_for_status().json()
    path, reference = f"/v1/responses/{made['id']}", {"type": "item_reference", "id": made["output"][0]["id"]}
    for headers in others:
        assert server.http.get(path, headers=headers).status_code == 404
        assert server.http.get(f"{path}/input_items", headers=headers).status_code == 404
        assert server.http.delete(path, headers=headers).status_code == 404
        continued = {**body, "previous_response_id": made["id"]}
        assert server.http.post("/v1/responses", json=continued, headers=headers).status_code == 400
        referring = {**body, "input": [reference, {"role": "user", "content": "x"}]}
        assert server.http.post("/v1/responses", json=referring, headers=headers).status_code == 404
    assert server.http.get(path, headers=first).json() == made
    assert server.http.get(path, headers=key("reader", "read")).status_code == 403


def test_a_client_that_disconnects_cancels_its_request_and_stores_nothing(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="a long answer", hang_after=3))
    with server.http.stream("POST", "/v1/responses", json={"model": model, "input": "x", "stream": True}) as response:
        events = response.iter_lines()
        while "response.output_text.delta" not in (line := next(events)):
            pass
    wait_until(lambda: upstream.seen(model)[0].was_disconnected)
    id = json.loads(line.removeprefix("data: "))["item_id"] if line.startswith("data: ") else ""
    assert server.http.get(f"/v1/responses/resp_{id[4:32]}").status_code == 404


def test_what_was_stored_survives_a_restart(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("served") / "data"
    model = upstream.play(Step(text="one"), Step(text="two"))
    with live(folder, upstream, embedder) as first:
        made = respond(first, model)
    with live(folder, upstream, embedder) as second:
        respond(second, model, "more", previous_response_id=made["id"])
    assert [message["content"] for message in conversation(upstream, model)] == ["hello", "one", "more"]


def test_a_deleted_response_leaves_no_words_in_the_files(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("served") / "data"

    def has_words() -> bool:
        return any(b"xyzzy" in path.read_bytes() for path in folder.glob("apex.sqlite3*"))

    with live(folder, upstream, embedder) as server:
        model = upstream.play(Step(text="the answer to xyzzy"))
        made = respond(server, model, "what is xyzzy")
        server.http.get(f"/v1/responses/{made['id']}").raise_for_status()
        assert has_words()
        server.http.delete(f"/v1/responses/{made['id']}").raise_for_status()
        assert not has_words()
        respond(server, model, "what is xyzzy", store=False)
        assert not has_words()


@pytest.mark.parametrize("setting", [{"response_retention_days": 0}, {"chat_records": "off"}])
def test_an_operator_can_switch_the_store_off(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory, setting: Json
) -> None:
    folder = tmp_path_factory.mktemp("served") / "data"
    with live(folder, upstream, embedder, **setting) as server:
        made = respond(server, upstream.play(Step(text="one")), store=True)
        assert made["store"] is False
        assert server.http.get(f"/v1/responses/{made['id']}").status_code == 404


# --------------------------------------------------------------------------------------------------------- other forms
def test_custom_and_namespaced_tools_come_back_in_their_own_form(
    server: Live, upstream: Upstream, is_stream: bool
) -> None:
    tools: list[Json] = [
        {"type": "custom", "name": "patch", "description": "Patch."},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
        {"type": "web_search"},
    ]
    made = [call("patch", {"input": "*** Begin"}, id="c1"), call("files__read", {"path": "x"}, id="c2")]
    model = upstream.play(Step(calls=made), echo)
    first = answer(server, is_stream, model, tools=tools)
    patch, read = first["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "*** Begin")
    assert (read["type"], read["name"], read["namespace"]) == ("function_call", "read", "files")
    results = [
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "text"}]},
    ]
    second = answer(server, is_stream, model, results, tools=tools, previous_response_id=first["id"])
    assert text_of(second) == "heard text"
    assert [message["role"] for message in conversation(upstream, model)] == ["user", "assistant", "tool", "tool"]


def test_images_reach_the_model_and_files_the_workspace(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("file_read", {"path": "note.txt"})]), echo)
    uploaded = server.http.post("/v1/files", files={"file": ("up.txt", b"uploaded")}, data={"purpose": "user_data"})
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
        {"type": "input_file", "filename": "note.txt", "file_data": "data:text/plain;base64,bm90ZWQ="},
        {"type": "input_file", "file_id": uploaded.json()["id"]},
    ]
    response = respond(server, model, [{"role": "user", "content": parts}])
    assert "noted" in text_of(response)
    text, image, note, file = conversation(upstream, model)[0]["content"]
    assert (text["text"], image["image_url"]["url"]) == ("look", "data:image/png;base64,iVBORw0KGgo=")
    assert ("note.txt" in note["text"], "up.txt" in file["text"]) == (True, True)
    missing = [{"role": "user", "content": [{"type": "input_file", "file_id": "file-none"}]}]
    refused = post(server, model, missing)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "file_not_found")


def test_a_format_is_asked_for_in_the_last_turn(server: Live, upstream: Upstream) -> None:
    model = upstream.play(SUM, Step(text='{"n": 42}'))
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    response = respond(server, model, text={"format": form})
    assert response["text"]["format"] == {**form, "description": None}
    first, *_, last = upstream.bodies(model)
    assert "response_format" not in first
    assert last["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}


def test_models_without_tool_calls_work_too(server: Live, upstream: Upstream, is_stream: bool) -> None:
    step = Step(text='<tool_call>{"name": "calculate", "arguments": {"expression": "6*7"}}</tool_call>')
    model = upstream.play(step, Step(text="It is 42."), kind="text")
    response = answer(server, is_stream, model)
    assert [item["type"] for item in response["output"]] == ["mcp_call", "message"]
    assert items_of(response, "mcp_call")[0]["output"] == "42"


def test_the_request_is_recorded_like_a_chat(server: Live, upstream: Upstream) -> None:
    model = upstream.play(SUM, Step(text="42."))
    respond(server, model)
    (record,) = server.http.get("/api/chats", params={"model": model}).json()["chats"]
    assert (record["turns"], record["calls"], record["outcome"]) == (2, 1, "answered")
