"""One turn of a model, assembled from the chunks of its stream."""

import json
import uuid
from typing import Any

from apexbridge.llm.errors import UpstreamError

Json = dict[str, Any]
MAX_CALLS = 1_000
"""In one turn."""
MAX_CHARACTERS = 16 * 1024 * 1024
MAX_EXTRA_FIELDS = 100
MAX_NAME_CHARACTERS = 4_096
"""Of a tool's name. Each chunk of a name copies what came before."""
MAX_CHECKED_CHARACTERS = 1024 * 1024
"""Characters that are parsed to check whether arguments are complete, over all attempts of a turn."""
_OWN_KEYS = {"id", "object", "created", "model", "choices", "usage"}
_OWN_CHOICE_KEYS = {"index", "delta", "message", "finish_reason"}
_OWN_CALL_KEYS = {"index", "id", "type", "function"}


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
        self._calls: dict[int, Json] = {}
        self._arguments: dict[int, list[str]] = {}
        self._characters = 0
        self._checked_characters = 0
        self._last = -1
        self._by_id: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        """The first call of each id."""
        self._whole: dict[int, bool] = {}
        """Whether a call's arguments are complete JSON. Dropped when more of them arrive."""
        self._after_all = 0
        """The index after the highest one taken."""
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
        kept = {key: value for key, value in delta.items() if key not in ("role", "tool_calls") and value is not None}
        return kept, beside

    @property
    def text(self) -> str:
        return "".join(self.content)

    @property
    def tool_calls(self) -> list[Json]:
        return [_finished(self._calls[index], self._written(index)) for index in sorted(self._calls)]

    @property
    def made_calls(self) -> bool:
        return bool(self._calls)

    def message(self, calls: list[Json] | None = None) -> Json:
        found = self.tool_calls if calls is None else calls
        message: Json = {"role": "assistant", "content": self.text or (None if found else "")}
        return message | ({"tool_calls": found} if found else {})

    def add_call(self, name: str, arguments: str) -> None:
        """Add a call that was found in the text."""
        self._take_call({"index": self._after_all, "function": {"name": name, "arguments": arguments}})

    def _take_call(self, piece: Json) -> None:
        index = self._index(piece)
        if index not in self._calls and len(self._calls) >= MAX_CALLS:
            raise UpstreamError.invalid("The model made too many calls at once.")
        self._after_all = max(self._after_all, index + 1)
        call = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        written = self._arguments.setdefault(index, [])
        self._last = index
        if piece.get("id"):
            id = str(piece["id"])
            if self._owners.setdefault(id, index) == index:
                call["id"] = id  # a duplicate gets a new id: results refer to it
            self._by_id[id] = index
        function = piece.get("function") or {}
        if isinstance(function, dict):
            if function.get("name"):
                name = str(function["name"])
                own = call["function"]["name"]
                call["function"]["name"] = name if name.startswith(own) else own + name
                if len(call["function"]["name"]) > MAX_NAME_CHARACTERS:
                    raise UpstreamError.invalid("The model called a tool without end.")
            arguments = function.get("arguments")
            if isinstance(arguments, dict | list):
                arguments = json.dumps(arguments, ensure_ascii=False)
            if isinstance(arguments, str) and arguments:
                written.append(arguments)
                self._whole.pop(index, None)
                self._count(arguments)
        if not piece.keys() <= _OWN_CALL_KEYS:
            call.update({key: value for key, value in piece.items() if key not in _OWN_CALL_KEYS})
            _check_extra(call)

    def _index(self, piece: Json) -> int:
        """The call that a piece belongs to: by index, else by id. A name starts a new call, else it is the last one."""
        index, id = piece.get("index"), piece.get("id")
        function = piece.get("function")
        begins = bool(isinstance(function, dict) and function.get("name"))
        after_all = self._after_all
        if isinstance(index, int) and not isinstance(index, bool):
            place = self._moved.get(index, index)
            taken = self._calls.get(place)
            if begins and id and taken is not None and taken["id"] not in ("", str(id)):
                self._moved[index] = place = after_all  # some servers send index 0 for every call
            return place
        if id:
            place = self._by_id.get(str(id), after_all)
            # Some servers send the same id for every call. A complete call does not take a second name.
            return after_all if begins and self._is_whole(place) else place
        return after_all if begins or self._last < 0 else self._last

    def _written(self, index: int) -> str:
        """The arguments so far. Joined in place, because this is called while more of them arrive."""
        pieces = self._arguments.get(index, [])
        if len(pieces) > 1:
            pieces[:] = ["".join(pieces)]
        return pieces[0] if pieces else ""

    def _is_whole(self, index: int) -> bool:
        """Whether the arguments so far are complete JSON. Beyond MAX_CHECKED_CHARACTERS they count as incomplete."""
        if index not in self._whole and self._checked_characters <= MAX_CHECKED_CHARACTERS:
            arguments = self._written(index)
            self._checked_characters += len(arguments)
            self._whole[index] = _is_json(arguments)
        return self._whole.get(index, False)

    def _count(self, text: str) -> None:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise UpstreamError.invalid("The model's server sent too much.")


def _check_extra(fields: Json) -> None:
    """Unknown fields are passed on, up to a limit: each event of a stream could add others."""
    if len(fields) > MAX_EXTRA_FIELDS:
        raise UpstreamError.invalid("The model's server sent too many unknown fields.")


def _is_json(arguments: str) -> bool:
    if not arguments:
        return False
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def _finished(call: Json, arguments: str) -> Json:
    """The call with an id and arguments."""
    if not call["id"]:
        call["id"] = f"call_{uuid.uuid4().hex[:24]}"
    return {**call, "function": {**call["function"], "arguments": arguments or "{}"}}
