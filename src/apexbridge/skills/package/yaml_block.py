"""Reads a YAML block through PyYAML's *events*: with limits, typed by the core schema, each value with its position.

No tagged objects are constructed, and aliases are rejected before they can expand.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MAX_DEPTH = 32
MAX_EVENTS = 5_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEADER_COMMENT = re.compile(r"[|>][^\s#]*([ \t]+#[^\r\n]*)")
_COLON = re.compile(r"\s*:")
_CORE_TAG = re.compile(r"tag:yaml\.org,2002:(?:str|int|float|bool|null|map|seq)\Z")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?\Z")
# json.dumps does not escape these; YAML reads them as line breaks, byte order marks or unprintable characters.
_YAML_ESCAPES = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class FrontmatterError(ValueError):
    """The block is invalid; `line` is the line in the file, counted from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One top-level entry of the block."""

    key: str
    value: Any
    """Typed by YAML's core schema; dates remain text."""
    raw: str | None
    """The original text of a scalar, so that `version: 1.10` stays `1.10`; None for lists and maps."""
    line: int
    start: int
    end: int
    """`start` and `end` are the offsets of the value in the text of the file."""
    tail: str = ""
    """Trailing line ends included in a block scalar or list, to be kept when the value is replaced."""


def read_block(block: str, *, offset: int, first_line: int) -> dict[str, Field]:
    """The top-level fields of a well-formed block."""
    events = _events(block, first_line)
    top: Any = None
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            continue
        top = event
        break
    if top is None or (isinstance(top, yaml.ScalarEvent) and not top.value):
        return {}
    if not isinstance(top, yaml.MappingStartEvent):
        raise FrontmatterError("the frontmatter must be a list of `key: value` lines", first_line)
    fields: dict[str, Field] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        line = first_line + key.start_mark.line
        if not isinstance(key, yaml.ScalarEvent):
            raise FrontmatterError("a key must be plain text", line)
        if key.value in fields:
            raise FrontmatterError(f"the key {key.value!r} appears twice", line)
        fields[key.value] = _read_field(key, events, block, offset=offset, line=line)
    if next(events, None) is not None:
        raise FrontmatterError("the frontmatter must be one YAML document", first_line)
    return fields


def quote(value: str) -> str:
    """A YAML double-quoted scalar on one line."""
    return _YAML_ESCAPES.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def as_core_value(text: str) -> Any:
    """A plain scalar, typed by YAML's core schema: null, booleans and numbers; everything else is text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text) and math.isfinite(number := float(text)):
        return number
    return text


def _events(block: str, first_line: int) -> Iterator[Any]:
    """The events of the block, each checked before it is yielded."""
    depth = 0
    try:
        for count, event in enumerate(yaml.parse(block, Loader=_Loader)):
            line = first_line + event.start_mark.line
            if count > MAX_EVENTS:
                raise FrontmatterError(f"the frontmatter has more than {MAX_EVENTS} nodes", line)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise FrontmatterError("anchors and aliases (&name, *name) are not allowed; quote the text", line)
            tag = getattr(event, "tag", None)
            if tag and not _CORE_TAG.match(tag):
                raise FrontmatterError(f"the tag {tag} is not allowed; quote the text if it is meant as text", line)
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise FrontmatterError(f"nested deeper than {MAX_DEPTH} levels", line)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if not isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                yield event
    except yaml.MarkedYAMLError as error:
        message, mark = _explain(error)
        raise FrontmatterError(message, first_line + (mark.line if mark else 0)) from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise FrontmatterError("a character that YAML does not allow", first_line) from error


def _explain(error: yaml.MarkedYAMLError) -> tuple[str, Any]:
    """What to change, and where: PyYAML's messages are hard to understand for authors of skills."""
    problem, context = error.problem or "not valid YAML", error.context or ""
    if "mapping values are not allowed" in problem:
        return "an unquoted colon: put the value in quotes", error.problem_mark
    if "cannot start any token" in problem:
        return "a value that starts with a tab or a reserved character: put it in quotes", error.problem_mark
    if "quoted scalar" in context:
        return "a quotation mark that is not closed, or a wrong escape", error.context_mark
    if "flow" in context:
        return "a bracket that is not closed, or a value in brackets that needs quotes", error.context_mark
    if "expected ':'" in problem:
        return "a line without a colon; write `key: value`, or indent it", error.context_mark or error.problem_mark
    if "expected key" in problem or "block" in context:
        return "wrong indentation, or text after a closing quote: put the whole value in quotes", error.problem_mark
    return problem, error.problem_mark or error.context_mark


def _read_field(key: Any, events: Iterator[Any], block: str, *, offset: int, line: int) -> Field:
    first = next(events)
    value, last = _build(first, events)
    raw = first.value if isinstance(first, yaml.ScalarEvent) else None
    start, end = first.start_mark.index, last.end_mark.index
    if start == end:  # no value: its position is right after the colon
        colon = _COLON.match(block, key.end_mark.index)
        if colon is None:
            raise FrontmatterError(f"the key {key.value!r} has no colon and no value", line)
        start = end = colon.end()
    written = block[start:end]
    tail = written[len(written.rstrip("\r\n \t")) :]
    if comment := _HEADER_COMMENT.match(written) if getattr(first, "style", None) in ("|", ">") else None:
        tail = comment[1] + tail
    return Field(key=key.value, value=value, raw=raw, line=line, start=offset + start, end=offset + end, tail=tail)


def _build(event: Any, events: Iterator[Any]) -> tuple[Any, Any]:
    """The value that begins with this event, and its last event."""
    if isinstance(event, yaml.ScalarEvent):
        plain = not event.style and event.tag is None  # the style is "" in the C parser and None in the Python one
        return (as_core_value(event.value) if plain else event.value), event
    if isinstance(event, yaml.SequenceStartEvent):
        items, last = [], event
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            value, last = _build(item, events)
            items.append(value)
        return items, _last_of(event, item, last)
    mapping: dict[str, Any] = {}
    last = event
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise FrontmatterError("a key must be plain text", key.start_mark.line + 1)
        mapping[key.value], last = _build(next(events), events)
    return mapping, _last_of(event, key, last)


def _last_of(begin: Any, end: Any, last: Any) -> Any:
    """The last event of a collection: its closing bracket, or in block style its last value, without later comments."""
    return end if begin.flow_style else last
