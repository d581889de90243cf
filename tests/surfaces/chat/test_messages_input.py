"""Requests of the Messages API, whole and damaged."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from apexbridge.agent.request import BadRequestError, read_request
from apexbridge.surfaces.http.chat.messages_input import read_messages_request, signature_of
from tests.chat.strictness import problem_of

Json = dict[str, Any]
DAMAGED = 4_000
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
ANSWER: list[Json] = [
    {"type": "thinking", "thinking": "first", "signature": signature_of("reasoning", "m")},
    {"type": "text", "text": "Let me see."},
    {"type": "mcp_tool_use", "id": "1", "name": "calculate", "server_name": "apexbridge", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "42"}]},
    {"type": "thinking", "thinking": "second", "signature": signature_of("reasoning", "m")},
    {"type": "text", "text": "\n\nNow yours."},
    {"type": "tool_use", "id": "a", "name": "look", "input": {"a": 1}},
    {"type": "tool_use", "id": "b", "name": "listen", "input": {}},
]
RESULTS: list[Json] = [
    {"type": "text", "text": "Before."},
    {
        "type": "tool_result",
        "tool_use_id": "b",
        "content": [{"type": "text", "text": "loud"}, IMAGE, {"type": "tool_reference", "tool_name": "look"}],
    },
    {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "dark"},
    {"type": "document", "title": "d", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
    {"type": "document", "title": "e", "source": {"type": "content", "content": [{"type": "text", "text": "inside"}]}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
    {"type": "search_result", "title": "f", "source": "g", "content": [{"type": "text", "text": "found"}]},
    {"type": "container_upload", "file_id": "file-1"},
    {"type": "no_such_block", "text": 1},
    {"type": "text", "text": "After."},
]
REQUEST: Json = {
    "model": "m",
    "max_tokens": 10,
    "system": [{"type": "text", "text": "Be kind."}],
    "stream": True,
    "thinking": {"type": "enabled", "budget_tokens": 100},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {}}},
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "stop_sequences": ["END"],
    "container": {"id": "x", "skills": [{"type": "custom", "skill_id": "s", "version": "1"}]},
    "x_bridge": {"tools": True, "skills": ["a"]},
    "tools": [
        {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "custom", "name": "listen", "input_schema": {}},
    ],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "Mind the gap."},
        {"role": "assistant", "content": ANSWER},
        {"role": "system", "content": "Held until the results."},
        {"role": "user", "content": RESULTS},
    ],
}
VALUES: list[Any] = [None, 1, -1, 1.5, "", "x", [], {}, True, [1], [None], [[]], "\ud800", "system", "base64", "none"]
VALUES += [{"type": "text"}, {"type": "text", "text": 1}, {"type": ["a"]}, {"type": {}}, RESULTS[1], ANSWER[-1]]


def test_a_conversation_is_converted() -> None:
    asked = read_messages_request(REQUEST)
    first, user, answer, *results, last = asked.body["messages"]
    assert first == {"role": "system", "content": "Be kind."}
    assert user == {"role": "user", "content": "hi\n<system>\nMind the gap.\n</system>"}
    assert (answer["content"], answer["reasoning"]) == ("Let me see.\n\nNow yours.", "second")
    assert [call["id"] for call in answer["tool_calls"]] == ["a", "b"]
    assert [(one["tool_call_id"], one["name"], one["content"]) for one in results] == [
        ("b", "listen", "loud\nThe tool look is available now."),
        ("a", "look", "Error: dark"),
    ]
    texts = [part.get("text", part["type"]) for part in last["content"]]
    assert texts[1:3] == ["image_url", "Before."]
    assert texts[3:9] == ["file", "e", "inside", "plain", "f\ng\nfound", "file"]
    assert texts[9:] == ["After.", "<system>\nHeld until the results.\n</system>"]
    assert [tool["function"]["name"] for tool in asked.body["tools"]] == ["look", "listen"]
    assert "defer_loading" not in asked.body["tools"][0]
    assert asked.body["x_bridge"] == {"workspace": "x", "tools": True, "skills": ["a"]}
    assert problem_of({key: value for key, value in asked.body.items() if key != "x_bridge"}) is None


def test_a_damaged_request_is_refused_or_read() -> None:
    chance = random.Random(7)
    outcomes = [_read(_damaged(chance)) for _ in range(DAMAGED)]
    assert min(outcomes.count(True), outcomes.count(False)) > DAMAGED // 5


def _read(body: Any) -> bool:
    try:
        read_request(read_messages_request(body).body, may_pass_through=False)
    except BadRequestError:
        return False
    return True


def _damaged(chance: random.Random) -> Json:
    body = copy.deepcopy(REQUEST)
    for _ in range(chance.choice([1, 1, 2, 3])):
        path = chance.choice([path for path in _paths(body) if path])
        parent: Any = body
        for step in path[:-1]:
            parent = parent[step]
        if chance.random() < 0.25:
            del parent[path[-1]]
        else:
            parent[path[-1]] = copy.deepcopy(chance.choice(VALUES))
    return body


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))
