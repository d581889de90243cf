"""One turn of a model, assembled from the chunks of its stream."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
MAX_CALLS = 1_000
"""In one turn."""
MAX_CHARACTERS = 16 * 1024 * 1024
MAX_EXTRA_FIELDS = 100
MAX_NAME_CHARACTERS = 4_096
"""Of a tool's name. Each chunk of a name copies what came before."""
MAX_CHECKED_CHARACTERS = 1024 * 1024
"""Characters that are parsed to check whether arguments are complete, over all attempts of a turn."""
REASONING_TEXTS = ("reasoning_content", "reasoning")
REASONING_PARTS = "reasoning_details"
REASONING_FIELDS = (*REASONING_TEXTS, REASONING_PARTS)
"""Names that servers use for the model's reasoning: a text, or a list of parts."""
_OWN_KEYS = {"id", "object", "created", "model", "choices", "usage"}
_OWN_CHOICE_KEYS = {"index", "delta", "message", "finish_reason"}
_OWN_CALL_KEYS = {"index", "id", "type", "function"}


def reasoning_in(fields: Json) -> tuple[str, str] | None:
    """The reasoning in a delta: its field and its text. Servers may send the same text in several fields."""
    for name in REASONING_FIELDS:
        value = fields.get(name)
        if isinstance(value, list):
            parts = [part for part in value if isinstance(part, dict)]
            value = "".join(
                text for part in parts for key in ("text", "summary") if isinstance(text := part.get(key), str)
            )
        if isinstance(value, str) and value:
            return name, value
    return None


class Turn:
    """The turn so far. Tolerates the differences between servers in how they split and label chunks."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.finish_reason: str | None = None
        self.usage: Json | None = None
        self.model: str | None = None
        self.has_text = False
        self.beside: Json = {}
        """Fields next to the choices, such as a fingerprint. The last value of each."""
        self._reasoning: dict[str, list[Any]] = {}
        """Texts or parts of the reasoning, by the name of their field."""
        self._calls: dict[int, _Call] = {}
        self._characters = 0
        self._checked_characters = 0
        self._last = -1
        self._next_index = 0
        self._by_id: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        """The first call of each id."""
        self._moved: dict[int, int] = {}
        """New indexes of calls whose index was taken."""

    def take_chunk(self, chunk: Json) -> tuple[Json, Json]:
        """Add a chunk. Returns its delta without tool calls, and the other fields of its choice.

        A whole message in a single chunk is accepted too.

        Raises:
            UpstreamError: the turn exceeds a limit.
        """
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        self.model = self.model or chunk.get("model")
        if not chunk.keys() <= _OWN_KEYS:
            self.beside |= {key: value for key, value in chunk.items() if key not in _OWN_KEYS and value is not None}
            _check_extra(self.beside)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None:
            return {}, {}
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"]
        delta = choice.get("delta") or choice.get("message") or {}
        beside: Json = {}
        if not choice.keys() <= _OWN_CHOICE_KEYS:
            beside = {key: value for key, value in choice.items() if key not in _OWN_CHOICE_KEYS and value is not None}
        if not isinstance(delta, dict):
            return {}, beside
        text = delta.get("content")
        if isinstance(text, str) and text:
            self.content.append(text)
            self._count(text)
            self.has_text = True
            if len(delta) == 1:  # fast path: nearly all chunks
                return {"content": text}, beside
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._take_call(call)
        fields = {key: value for key, value in delta.items() if key not in ("role", "tool_calls") and value is not None}
        for name in REASONING_FIELDS:
            if fields.get(name):
                self._take_reasoning(name, fields[name])
        return fields, beside

    @property
    def text(self) -> str:
        return "".join(self.content)

    @property
    def tool_calls(self) -> list[Json]:
        return [self._calls[index].to_dict() for index in sorted(self._calls)]

    @property
    def made_calls(self) -> bool:
        return bool(self._calls)

    def message(self, calls: list[Json] | None = None) -> Json:
        """The turn as a message. If it made calls, it has the reasoning: models go on with it after the results."""
        found = self.tool_calls if calls is None else calls
        message: Json = {"role": "assistant", "content": self.text or (None if found else "")}
        return message | ({**self.reasoning, "tool_calls": found} if found else {})

    @property
    def is_hidden_in_part(self) -> bool:
        """Whether it has fields that no API but chat completions can carry, and that some models require back."""
        has_parts = isinstance(self.reasoning.get(REASONING_PARTS), list)
        return has_parts or any(call.extra for call in self._calls.values())

    @property
    def reasoning(self) -> Json:
        """The model's reasoning, in the fields in which it came."""
        return {
            name: "".join(parts) if isinstance(parts[0], str) else list(parts)
            for name, parts in self._reasoning.items()
        }

    def _take_reasoning(self, name: str, value: Any) -> None:
        """Add a text, or a list of parts, to a field. What does not fit the field's first value is left out."""
        known = self._reasoning.setdefault(name, [])
        is_text = isinstance(known[0] if known else value, str)
        if is_text and isinstance(value, str):
            known.append(value)
            self._count(value)
        elif not is_text and isinstance(value, list):
            known += value
            self._count(json.dumps(value, default=str))
        if not known:
            del self._reasoning[name]

    def add_call(self, name: str, arguments: str) -> None:
        """Add a call that was found in the text."""
        self._take_call({"index": self._next_index, "function": {"name": name, "arguments": arguments}})

    def _take_call(self, delta: Json) -> None:
        function = delta.get("function")
        if not isinstance(function, dict):
            function = {}
        index = self._index(delta.get("index"), delta.get("id"), is_named=bool(function.get("name")))
        call = self._calls.get(index)
        if call is None:
            if len(self._calls) >= MAX_CALLS:
                raise UpstreamError.invalid("The model made too many calls at once.")
            call = self._calls[index] = _Call()
        self._last = index
        self._next_index = max(self._next_index, index + 1)
        if delta.get("id"):
            id = str(delta["id"])
            if self._owners.setdefault(id, index) == index:
                call.id = id  # a duplicate gets a new id: results refer to it
            self._by_id[id] = index
        if function.get("name"):
            name = str(function["name"])
            call.name = name if name.startswith(call.name) else call.name + name
            if len(call.name) > MAX_NAME_CHARACTERS:
                raise UpstreamError.invalid("The model called a tool without end.")
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, str) and arguments:
            call.arguments.append(arguments)
            call.is_complete = None
            self._count(arguments)
        if not delta.keys() <= _OWN_CALL_KEYS:
            call.extra |= {key: value for key, value in delta.items() if key not in _OWN_CALL_KEYS}
            _check_extra(call.extra)

    def _index(self, index: Any, id: Any, *, is_named: bool) -> int:
        """The call that a delta belongs to: by index, else by id. A name starts a new call, else it is the last one."""
        if isinstance(index, int) and not isinstance(index, bool):
            own = self._moved.get(index, index)
            taken = self._calls.get(own)
            if is_named and id and taken is not None and taken.id not in ("", str(id)):
                self._moved[index] = own = self._next_index  # some servers send index 0 for every call
            return own
        if id:
            own = self._by_id.get(str(id), self._next_index)
            # Some servers send the same id for every call. A complete call does not take a second name.
            return self._next_index if is_named and self._is_complete(own) else own
        return self._next_index if is_named or self._last < 0 else self._last

    def _is_complete(self, index: int) -> bool:
        """Whether the arguments so far are JSON. Beyond MAX_CHECKED_CHARACTERS they count as incomplete."""
        call = self._calls.get(index)
        if call is None:
            return False
        if call.is_complete is None and self._checked_characters <= MAX_CHECKED_CHARACTERS:
            arguments = "".join(call.arguments)
            self._checked_characters += len(arguments)
            try:
                json.loads(arguments)
                call.is_complete = True
            except (ValueError, RecursionError):
                call.is_complete = False
        return call.is_complete is True

    def _count(self, text: str) -> None:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise UpstreamError.invalid("The model's server sent too much.")


@dataclass(slots=True)
class _Call:
    """A tool call so far."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    is_complete: bool | None = None
    """Whether the arguments are complete JSON; None if they were not checked yet."""
    extra: Json = field(default_factory=dict)

    def to_dict(self) -> Json:
        self.id = self.id or f"call_{uuid.uuid4().hex[:24]}"
        function = {"name": self.name, "arguments": "".join(self.arguments) or "{}"}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


def _check_extra(fields: Json) -> None:
    """Unknown fields are passed on, up to a limit: each event of a stream could add others."""
    if len(fields) > MAX_EXTRA_FIELDS:
        raise UpstreamError.invalid("The model's server sent too many unknown fields.")
