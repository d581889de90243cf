"""Answers in another form than was asked for: some servers always stream, and some never do."""

from collections.abc import Sequence
from typing import Any

from apexbridge.llm.accumulator import Turn

Json = dict[str, Any]


def is_whole(told: Json) -> bool:
    """Whether this is a completion, and no piece of one."""
    choices = told.get("choices")
    return isinstance(choices, list) and any(isinstance(choice, dict) and "message" in choice for choice in choices)


def as_chunk(completion: Json) -> Json:
    """A completion as the only piece of a stream."""
    return {
        **completion,
        "object": "chat.completion.chunk",
        "choices": [_as_delta(choice) if isinstance(choice, dict) else choice for choice in completion["choices"]],
    }


def as_completion(chunks: Sequence[Json]) -> Json:
    """The pieces of a stream as one completion."""
    told: Json = {}
    turns: dict[int, Turn] = {}
    messages: dict[int, Json] = {}
    for chunk in chunks:
        told |= {key: value for key, value in chunk.items() if value is not None or key not in told}
        for choice in chunk.get("choices") or ():
            if isinstance(choice, dict):
                place = choice["index"] if isinstance(choice.get("index"), int) else 0
                fields, _ = turns.setdefault(place, Turn()).take_chunk({"choices": [choice]})
                _join(messages.setdefault(place, {}), fields)
    choices = [
        {
            "index": place,
            "message": {**messages[place], **turn.message()},
            "logprobs": None,
            "finish_reason": turn.finish_reason,
        }
        for place, turn in sorted(turns.items())
    ]
    return {**told, "object": "chat.completion", "choices": choices}


def _as_delta(choice: Json) -> Json:
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice
    delta, calls = dict(message), message.get("tool_calls")
    if isinstance(calls, list):
        made = [call for call in calls if isinstance(call, dict)]
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(made)]
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": delta}


def _join(message: Json, fields: Json) -> None:
    for key, value in fields.items():
        before = message.get(key)
        message[key] = before + value if isinstance(before, str) and isinstance(value, str) else value
