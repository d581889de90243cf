"""Converts between streams and whole completions: some servers always stream, and some never do."""

from collections.abc import Sequence
from typing import Any

from apexbridge.llm.turn import Turn

Json = dict[str, Any]


def is_completion(payload: Json) -> bool:
    """Whether this is a whole completion, not a chunk."""
    choices = payload.get("choices")
    return isinstance(choices, list) and any(isinstance(choice, dict) and "message" in choice for choice in choices)


def as_chunk(completion: Json) -> Json:
    """A completion as the only chunk of a stream."""
    return {
        **completion,
        "object": "chat.completion.chunk",
        "choices": [_as_delta(choice) if isinstance(choice, dict) else choice for choice in completion["choices"]],
    }


class JoinedFields:
    """Fields of a message that arrive in chunks. Text is joined once at the end: repeated `+=` would be quadratic."""

    def __init__(self) -> None:
        self._values: Json = {}
        self._texts: dict[str, list[str]] = {}

    def add(self, fields: Json) -> None:
        for key, value in fields.items():
            if not isinstance(value, str):
                self._texts.pop(key, None)
                self._values[key] = value
            elif key in self._texts:
                self._texts[key].append(value)
            else:
                self._texts[key] = [value]
                self._values[key] = None  # keeps the order in which the fields came

    def joined(self) -> Json:
        return {key: "".join(self._texts[key]) if key in self._texts else value for key, value in self._values.items()}


class CompletionBuilder:
    """One completion from the chunks of a stream."""

    def __init__(self) -> None:
        self._fields: Json = {}
        self._turns: dict[int, Turn] = {}
        self._messages: dict[int, JoinedFields] = {}

    def add(self, chunks: Sequence[Json]) -> None:
        for chunk in chunks:
            self._fields |= {key: value for key, value in chunk.items() if value is not None or key not in self._fields}
            for choice in chunk.get("choices") or ():
                if isinstance(choice, dict):
                    self._add_choice(choice)

    def completion(self) -> Json:
        choices = [
            {
                "index": index,
                "message": {**self._messages[index].joined(), **turn.message()},
                "logprobs": None,
                "finish_reason": turn.finish_reason,
            }
            for index, turn in sorted(self._turns.items())
        ]
        return {**self._fields, "object": "chat.completion", "choices": choices}

    def _add_choice(self, choice: Json) -> None:
        index = choice["index"] if isinstance(choice.get("index"), int) else 0
        if index not in self._turns:
            self._turns[index], self._messages[index] = Turn(), JoinedFields()
        fields, _ = self._turns[index].take_chunk({"choices": [choice]})
        self._messages[index].add(fields)


def _as_delta(choice: Json) -> Json:
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice
    delta, calls = dict(message), message.get("tool_calls")
    if isinstance(calls, list):
        made = [call for call in calls if isinstance(call, dict)]
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(made)]
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": delta}
