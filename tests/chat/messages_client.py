"""Requests of the Messages API to a live server, and a check of everything that clients rely on in a stream."""

import json
from typing import Any

import httpx

from tests.chat.live import Live

Json = dict[str, Any]
HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "any"}
_FIELDS = ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
_DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
    "mcp_tool_use": {"input_json_delta"},
    "server_tool_use": {"input_json_delta"},
}


def body_of(model: str, messages: Any = "hello", **fields: Any) -> Json:
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {"model": model, "max_tokens": 1000, "messages": conversation, **fields}


def post(server: Live, model: str, messages: Any = "hello", **fields: Any) -> httpx.Response:
    return server.http.post("/v1/messages", json=body_of(model, messages, **fields), headers=HEADERS)


def answer(server: Live, is_stream: bool, model: str, messages: Any = "hello", **fields: Any) -> Json:
    """The message of an answer, whole or joined from its checked stream."""
    if is_stream:
        return joined(events_of(post(server, model, messages, stream=True, **fields)))
    message: Json = post(server, model, messages, **fields).raise_for_status().json()
    assert set(message) <= {*_FIELDS, "container", "x_bridge"}
    return message


def events_of(response: httpx.Response) -> list[Json]:
    """The data of each event; its name is its type."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.split("\n\n"):
        if block:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


def joined(events: list[Json]) -> Json:
    """Join a stream as clients do, and check the order of its events."""
    events = [event for event in events if event["type"] != "ping"]
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    inputs: list[str] = []
    is_open = False
    for event in events[1:-2]:
        kind = event["type"]
        assert event["index"] == len(message["content"]) - (kind != "content_block_start")
        if kind == "content_block_start":
            assert not is_open
            is_open, inputs = True, []
            message["content"].append(event["content_block"])
            if "input" in event["content_block"]:
                assert event["content_block"]["input"] == {}
            continue
        assert is_open
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if "input" in block:
                block["input"] = json.loads("".join(inputs))
            continue
        assert kind == "content_block_delta"
        delta = event["delta"]
        assert delta["type"] in _DELTAS[block["type"]]
        for name in ("text", "thinking", "signature"):
            if name in delta:
                block[name] += delta[name]
        inputs.append(delta.get("partial_json", ""))
    assert not is_open
    ended = events[-2]
    return {**message, **ended["delta"], "usage": ended["usage"], "x_bridge": ended["x_bridge"]}


def shape_of(message: Json) -> list[str]:
    return [block["type"] for block in message["content"]]


def text_of(message: Json) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")
