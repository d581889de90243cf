"""Finds tool calls that a model wrote into its text."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_TEXT_CHARACTERS = 64 * 1024
MAX_MARKS = 100
"""Marks that are tried. Each failed attempt costs a pass over the text: the JSON decoder counts lines."""
HOLD_CHARACTERS = 400
"""Text that starts like JSON and contains no tool name by then is not a call."""
FENCE_CHARACTERS = 32
"""The line that opens a fence is shorter."""
_DECODER = json.JSONDecoder()
_MARKED = re.compile(r"<(tool_call|function_call|tool|function)(?:=([\w-]{1,64}))?>\s*", re.IGNORECASE)
_FENCE = re.compile(r"\s*```[ \t]*(json|tool_call|tool_code|tool|javascript|js)?[ \t]*\n?", re.IGNORECASE)
_NAME_KEYS = ("name", "tool", "tool_name", "function", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_MARKS = ("tool_call", "function_call", "tool", "function")
_PART_OF_A_NAME = re.compile(r"[\w-]{0,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedCalls:
    before: str
    """Text before the first call."""
    calls: tuple[tuple[str, str], ...]
    """Name and arguments as JSON, in order."""


def extract_calls(text: str, is_known: Callable[[str], bool]) -> ExtractedCalls | None:
    """Calls of known tools in a text: in tags, in a code fence, or as bare JSON. None if there are none."""
    if len(text) > MAX_TEXT_CHARACTERS:
        return None
    return _marked(text, is_known) or _whole(text, is_known)


def _marked(text: str, is_known: Callable[[str], bool]) -> ExtractedCalls | None:
    calls: list[tuple[str, str]] = []
    first: int | None = None
    for mark in islice(_MARKED.finditer(text), MAX_MARKS):
        value, _ = _value_at(text, mark.end())
        found = _calls_of(value, is_known)
        if not found and mark[2] and is_known(mark[2]) and isinstance(value, dict):
            found = [(mark[2], _dumped(value))]
        if found:
            first = mark.start() if first is None else first
            calls += found
    return ExtractedCalls(before=text[:first].strip(), calls=tuple(calls)) if calls else None


def _whole(text: str, is_known: Callable[[str], bool]) -> ExtractedCalls | None:
    """A text that is only a call, or ends in a fenced one."""
    fence = text.find("```")
    opened = _FENCE.match(text, fence) if fence >= 0 else None
    if opened and (found := _calls_of(_value_at(text, opened.end())[0], is_known)):
        return ExtractedCalls(before=text[:fence].strip(), calls=tuple(found))
    begin = len(text) - len(text.lstrip())
    value, end = _value_at(text, begin)
    if value is not None and not text[end:].strip() and (found := _calls_of(value, is_known)):
        return ExtractedCalls(before="", calls=tuple(found))
    return None


def _calls_of(value: Any, is_known: Callable[[str], bool]) -> list[tuple[str, str]]:
    if isinstance(value, list):
        found = [_call_of(item, is_known) for item in value]
        return [call for call in found if call] if found and all(found) else []
    call = _call_of(value, is_known)
    return [call] if call else []


def _call_of(value: Any, is_known: Callable[[str], bool]) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    if name is None or not is_known(name):
        return None
    arguments: Any = next((value[key] for key in _ARGUMENT_KEYS if key in value), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return name, arguments
    return name, _dumped(arguments if arguments is not None else {})


def _value_at(text: str, index: int) -> tuple[Any, int]:
    """The JSON object or list that begins there, and its end; None if there is none."""
    if text[index : index + 1] not in ("{", "["):
        return None, index
    try:
        return _DECODER.raw_decode(text, index)
    except (ValueError, RecursionError):
        return None, index


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class TextGate:
    """Streams a model's text, and holds back text that may turn out to be a tool call."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._held: list[str] = []
        self._count = 0
        self._scanned = 0
        """Held characters that contain no mark; they are scanned once."""
        self._start = ""
        """The beginning of the text, until it is clear whether it is a call."""
        self._is_open = False
        self._is_marked = False
        self._may_be_fenced = True
        """Calls are searched in the first fence only."""

    def feed(self, text: str) -> str:
        """Add text; returns what can be shown now."""
        self._count += len(text)
        if self._is_open and not self._held and "<" not in text and "`" not in text:
            return text
        self._held.append(text)
        if self._count > MAX_TEXT_CHARACTERS:  # longer texts are not searched
            return self._release(len(self.held))
        if self._is_marked:
            return ""
        if not self._is_open:
            self._start = (self._start + text).lstrip()[: HOLD_CHARACTERS + 64]
            if not self._start or (self._start[0] in "{[" and _may_name_a_tool(self._start)):
                return ""
            self._is_open = True
        held = self.held
        mark, self._is_marked = _mark_in(held, self._scanned)
        self._scanned = mark
        end = min(mark, self._fence_in(held))
        is_leading_space = self._count == len(held) and end < len(held) and not held[:end].strip()
        return self._release(0 if is_leading_space else end)

    @property
    def held(self) -> str:
        """Text that has not been shown yet."""
        return "".join(self._held)

    def _release(self, end: int) -> str:
        held = self.held
        self._held = [held[end:]] if end < len(held) else []
        self._scanned = max(0, self._scanned - end)
        return held[:end]

    def _fence_in(self, text: str) -> int:
        """Index of a fence that may contain a call, or the end of the text."""
        if not self._may_be_fenced:
            return len(text)
        fence = text.find("```")
        if fence < 0:
            return len(text.rstrip("`"))  # these may become a fence
        if self._may_hold_a_call(text[fence:]):
            # A closed fence with a call is final: do not parse it again for every further chunk.
            self._is_marked = self._is_marked or "```" in text[fence + 3 :]
            return fence
        self._may_be_fenced = False
        return len(text)

    def _may_hold_a_call(self, block: str) -> bool:
        if "\n" not in block and "{" not in block and len(block) < FENCE_CHARACTERS:
            return True
        opened = _FENCE.match(block)
        inner = block[opened.end() :].lstrip() if opened else ""
        closed = inner.find("```")
        if closed >= 0:
            return bool(_calls_of(_value_at(inner, 0)[0], self._is_known))
        return not inner or (inner[0] in "{[" and _may_name_a_tool(inner))


def _may_name_a_tool(text: str) -> bool:
    names = ('"name"', '"tool', '"function', '"action"')
    return len(text) < HOLD_CHARACTERS or any(name in text[:HOLD_CHARACTERS] for name in names)


LOOK_AHEAD = 200
"""Characters after `<` that decide whether it is a mark."""


def _mark_in(text: str, start: int = 0) -> tuple[int, bool]:
    """Index where a marked call begins or may begin (else the end of the text), and whether it certainly does."""
    index = start - 1
    while (index := text.find("<", index + 1)) >= 0:
        opens = _opens(text[index : index + LOOK_AHEAD])
        if opens is not False:
            return index, opens is True
    return len(text), False


def _opens(text: str) -> bool | None:
    """Whether a text that begins with `<` is a mark followed by a call; None if it is too short to decide."""
    mark = _MARKED.match(text)
    if mark is not None:
        if mark.end() < len(text):
            return text[mark.end()] in "{["
        return None if len(text) < LOOK_AHEAD else False
    word, equals, name = text[1:].lower().partition("=")
    if equals:
        return None if word in _MARKS and _PART_OF_A_NAME.match(name) else False
    return None if any(known.startswith(word) for known in _MARKS) else False
