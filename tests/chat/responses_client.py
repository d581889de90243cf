"""Requests to `/v1/responses`, and strict checks of what comes back."""

import json
from typing import Any

import httpx

from tests.chat.live import Live

Json = dict[str, Any]
KEYS = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": int | None,
    "status": str,
    "incomplete_details": dict | None,
    "model": str,
    "previous_response_id": str | None,
    "instructions": str | None,
    "output": list,
    "error": dict | None,
    "tools": list,
    "tool_choice": str | dict,
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": int | float,
    "presence_penalty": int | float,
    "frequency_penalty": int | float,
    "temperature": int | float,
    "top_logprobs": int,
    "reasoning": dict | None,
    "usage": dict | None,
    "max_output_tokens": int | None,
    "max_tool_calls": int | None,
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": str | None,
    "prompt_cache_key": str | None,
}
"""What strict clients require of a response object."""
ITEM_KEYS = {
    "message": {"type", "id", "role", "status", "content"},
    "reasoning": {"type", "id", "summary", "content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "custom_tool_call": {"type", "id", "call_id", "name", "input", "status"},
    "mcp_call": {
        "type",
        "id",
        "server_label",
        "name",
        "arguments",
        "output",
        "error",
        "status",
        "approval_request_id",
    },
    "mcp_approval_request": {"type", "id", "server_label", "name", "arguments"},
}
WHERE = {"item_id": str, "output_index": int}
EVENT_KEYS: dict[str, dict[str, Any]] = {
    "response.created": {"response": dict},
    "response.in_progress": {"response": dict},
    "response.completed": {"response": dict},
    "response.incomplete": {"response": dict},
    "response.failed": {"response": dict},
    "response.output_item.added": {"output_index": int, "item": dict},
    "response.output_item.done": {"output_index": int, "item": dict},
    "response.content_part.added": {**WHERE, "content_index": int, "part": dict},
    "response.content_part.done": {**WHERE, "content_index": int, "part": dict},
    "response.output_text.delta": {**WHERE, "content_index": int, "delta": str, "logprobs": list},
    "response.output_text.done": {**WHERE, "content_index": int, "text": str, "logprobs": list},
    "response.reasoning_summary_part.added": {**WHERE, "summary_index": int, "part": dict},
    "response.reasoning_summary_part.done": {**WHERE, "summary_index": int, "part": dict},
    "response.reasoning_summary_text.delta": {**WHERE, "summary_index": int, "delta": str},
    "response.reasoning_summary_text.done": {**WHERE, "summary_index": int, "text": str},
    "response.function_call_arguments.delta": {**WHERE, "delta": str},
    "response.function_call_arguments.done": {**WHERE, "arguments": str},
    "response.custom_tool_call_input.delta": {**WHERE, "delta": str},
    "response.custom_tool_call_input.done": {**WHERE, "input": str},
    "response.mcp_call.in_progress": WHERE,
    "response.mcp_call.completed": WHERE,
    "response.mcp_call.failed": WHERE,
    "response.mcp_call_arguments.delta": {**WHERE, "delta": str},
    "response.mcp_call_arguments.done": {**WHERE, "arguments": str},
    "error": {"code": str, "message": str, "error": dict},
}


def check_response(response: Json) -> Json:
    """Check a response object as a strict client does."""
    for key, kind in KEYS.items():
        assert key in response, key
        assert isinstance(response[key], kind), (key, response[key])
    assert response["object"] == "response"
    assert response["id"].startswith("resp_")
    assert isinstance(response["text"]["format"]["type"], str)
    for tool in response["tools"]:
        assert tool["type"] != "function" or {"name", "description", "parameters", "strict"} <= set(tool)
    if response["usage"] is not None:
        usage = response["usage"]
        counts = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
        counts += [usage["input_tokens_details"][key] for key in ("cached_tokens", "cache_write_tokens")]
        counts.append(usage["output_tokens_details"]["reasoning_tokens"])
        assert all(isinstance(count, int) for count in counts)
    for item in response["output"]:
        check_item(item)
    ids = [item["id"] for item in response["output"]]
    assert len(set(ids)) == len(ids)
    return response


def check_item(item: Json) -> None:
    assert ITEM_KEYS[item["type"]] <= set(item), item
    assert item["type"] != "reasoning" or isinstance(item.get("encrypted_content", ""), str)
    for part in item.get("content", ()):
        assert part.keys() == {"type", "text", "annotations", "logprobs"}


class ResponseEvents:
    """The events of a stream, checked as a strict client does."""

    def __init__(self, data: bytes) -> None:
        blocks = [block for block in data.decode().split("\n\n") if block and not block.startswith(":")]
        assert blocks[-1] == "data: [DONE]", data
        self.events: list[Json] = []
        for number, block in enumerate(blocks[:-1]):
            name, _, line = block.partition("\n")
            event = json.loads(line.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            assert event["sequence_number"] == number
            for key, kind in EVENT_KEYS[event["type"]].items():
                assert isinstance(event[key], kind), (key, event)
            if "response" in event:
                check_response(event["response"])
            self.events.append(event)
        self._check_items()

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def response(self) -> Json:
        """The response of the last event."""
        response: Json = self.events[-1]["response"]
        return response

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if event["type"] == "response.output_text.delta")

    def _check_items(self) -> None:
        """Each item is added, receives its events, and is done; the deltas add up to the item."""
        assert self.types[:2] == ["response.created", "response.in_progress"]
        assert [event["response"]["status"] for event in self.events[:2]] == ["in_progress", "in_progress"]
        done: dict[int, Json] = {}
        added: dict[int, Json] = {}
        deltas: dict[int, str] = {}
        for event in self.events:
            index = event.get("output_index")
            if event["type"] == "response.output_item.added":
                assert index == len(added)
                added[index] = event["item"]
            elif event["type"] == "response.output_item.done":
                assert index in added
                assert index not in done
                check_item(event["item"])
                assert event["item"]["id"] == added[index]["id"]
                done[index] = event["item"]
            elif index is not None:
                assert index in added
                assert index not in done
                assert event["item_id"] == added[index]["id"]
                if event["type"].endswith(".delta"):
                    deltas[index] = deltas.get(index, "") + event["delta"]
        if self.events[-1]["type"] != "response.failed":
            assert [done[index] for index in sorted(added)] == self.response["output"]
        for index, item in done.items():
            match item["type"]:
                case "message":
                    assert deltas.get(index, "") == item["content"][0]["text"]
                    assert added[index]["content"] == []
                case "reasoning":
                    assert deltas[index] == item["summary"][0]["text"]
                case "function_call":
                    assert (deltas[index], added[index]["arguments"]) == (item["arguments"], "")
                case "mcp_call":
                    assert (deltas[index], added[index]["arguments"]) == (item["arguments"], "")
                    assert added[index]["output"] is None


def post(server: Live, model: str, input: Any = "hello", **fields: Any) -> httpx.Response:
    return server.http.post("/v1/responses", json={"model": model, "input": input, **fields})


def respond(server: Live, model: str, input: Any = "hello", **fields: Any) -> Json:
    """Send a request that must succeed, and return the checked response."""
    return check_response(post(server, model, input, **fields).raise_for_status().json())


def stream(server: Live, model: str, input: Any = "hello", **fields: Any) -> ResponseEvents:
    response = post(server, model, input, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return ResponseEvents(response.content)


def answer(server: Live, is_stream: bool, model: str, input: Any = "hello", **fields: Any) -> Json:
    """The checked response, of a whole answer or of a stream."""
    if is_stream:
        return stream(server, model, input, **fields).response
    return respond(server, model, input, **fields)


def text_of(response: Json) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def items_of(response: Json, kind: str) -> list[Json]:
    return [item for item in response["output"] if item["type"] == kind]
