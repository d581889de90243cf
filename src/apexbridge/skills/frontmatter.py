"""Read and edit the YAML block at the top of a SKILL.md without ever touching a byte that was not asked for.

Reading goes through PyYAML's *events*: no object of YAML's choosing is ever built, aliases are refused before they
can multiply, and every value knows its place in the file. Editing splices new text into that place and reads the
result again to prove that nothing else changed.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

MAX_BLOCK_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_EVENTS = 5_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = re.compile(r"\ufeff?---[ \t]*\r?\n")
_CLOSING = re.compile(r"^(?:---|\.\.\.)[ \t]*\r?(?:\n|\Z)", re.MULTILINE)
_KEY_LINE = re.compile(
    r"""("[^"\n]{1,80}"|'[^'\n]{1,80}'|[^\W\d_][^:\n#"'{}\[\]]{0,79}?|_[\w.-]{0,79})[ \t]*:(?=[ \t\r\n]|\Z)[ \t]*"""
)
_INDENTED_KEY_LINE = re.compile(r"^[ \t]+(?=(?:name|description)[ \t]*:[ \t])", re.MULTILINE)
_HEADER_COMMENT = re.compile(r"[|>][^\n#]*?([ \t]+#[^\r\n]*)")
_TIGHT_KEY_LINE = re.compile(r"(name|description):(?=\S)")
_COLON = re.compile(r"\s*:")
_CORE_TAG = re.compile(r"tag:yaml\.org,2002:(?:str|int|float|bool|null|map|seq)\Z")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?\Z")
# What json.dumps leaves bare but a YAML reader takes for a line break, a mark or an unprintable character.
_YAML_ESCAPES = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class FrontmatterError(ValueError):
    """The block cannot be read; `line` is the line of the file, counted from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One top-level entry of the block."""

    key: str
    value: Any
    """Typed by YAML's core schema; dates and the like stay text."""
    raw: str | None
    """The scalar's own text, so that `version: 1.10` stays `1.10`; None for lists and maps."""
    line: int
    start: int
    end: int
    """Where the value stands in the file's text."""
    tail: str = ""
    """The line ends that a block scalar or list swallowed, to be kept when the value is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something a lenient reading had to overlook."""

    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A SKILL.md taken apart."""

    text: str
    fields: Mapping[str, Field]
    block_start: int | None
    """Where the block's first line begins; None where the file has no block."""
    block_end: int
    body_start: int
    notices: tuple[Notice, ...] = ()

    @property
    def body(self) -> str:
        """The Markdown after the block."""
        return self.text[self.body_start :]

    def value(self, key: str) -> Any:
        """The value of a top-level key, or None."""
        field = self.fields.get(key)
        return field.value if field else None


def parse(text: str) -> Document:
    """Read a file whose block is well-formed.

    Raises:
        FrontmatterError: there is no block, or it breaks a guard or YAML itself.
    """
    opening = _OPENING.match(text)
    if not opening:
        raise FrontmatterError("YAML frontmatter must be at the top of the file, between two lines of ---")
    closing = _CLOSING.search(text, opening.end())
    if not closing:
        raise FrontmatterError("YAML frontmatter is not closed: a line of --- is missing after it")
    block = text[opening.end() : closing.start()]
    _check_size(block)
    fields = _read_block(block, offset=opening.end(), first_line=2)
    return Document(
        text=text,
        fields=fields,
        block_start=opening.end(),
        block_end=closing.start(),
        body_start=closing.end(),
    )


def parse_leniently(text: str) -> Document:
    """Read any text, with a notice for each thing that had to be overlooked.

    Raises:
        FrontmatterError: the block is larger than any reader should try.
    """
    try:
        return parse(text)
    except FrontmatterError as error:
        reason = error
    found = _find_block(text)
    if found is None:
        return Document(text=text, fields={}, block_start=None, block_end=0, body_start=0)
    start, end, body_start, notices = found
    _check_size(text[start:end])
    fields, overlooked = _read_lines(text[start:end], offset=start, first_line=text.count("\n", 0, start) + 1)
    if not notices and not overlooked:
        notices = [Notice(line=reason.line, message=f"the YAML is broken ({reason.message}); read line by line")]
    return Document(
        text=text,
        fields=fields,
        block_start=start,
        block_end=end,
        body_start=body_start,
        notices=(*notices, *overlooked),
    )


def replace_description(text: str, description: str, *, name: str) -> str:
    """The text with a new description and every other byte as it was; `name` is for a file that has no block.

    Raises:
        FrontmatterError: the file is of a shape in which the description cannot be replaced alone.
    """
    before = parse_leniently(text)
    if before.block_start is None:
        edited = with_new_block(text, {"name": name, "description": description})
    else:
        edited = with_value(before, "description", description)
    _prove_only_description_changed(before, parse_leniently(edited), description)
    return edited


def with_value(document: Document, key: str, value: str) -> str:
    """The document's text with one value replaced, or the key added as the block's first line."""
    text, start = document.text, document.block_start or 0
    field = document.fields.get(key)
    if field is None and text[start:].lstrip().startswith("{"):
        start = text.index("{", start) + 1
        return f"{text[:start]}{key}: {quote(value)}, {text[start:]}"
    if field is None:
        return f"{text[:start]}{key}: {quote(value)}{newline_of(text)}{text[start:]}"
    glue = "" if field.start and text[field.start - 1] in " \t" else " "
    return text[: field.start] + glue + quote(value) + field.tail + text[field.end :]


def with_new_block(text: str, values: Mapping[str, str]) -> str:
    """The text with a block in front of it."""
    mark, rest = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    lines = ["---", *(f"{key}: {quote(value)}" for key, value in values.items()), "---", ""]
    return mark + newline_of(text).join(lines) + rest


def newline_of(text: str) -> str:
    """How the text ends its lines."""
    return "\r\n" if "\r\n" in text else "\n"


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


def _prove_only_description_changed(before: Document, after: Document, description: str) -> None:
    def others(document: Document) -> dict[str, Any]:
        return {key: field.value for key, field in document.fields.items() if key != "description"}

    had_block = before.block_start is not None
    same_fields = not had_block or others(before) == others(after)
    same_body = after.body == (before.body if had_block else before.body.removeprefix("\ufeff"))
    if after.value("description") != description or not same_fields or not same_body:
        raise FrontmatterError("the description cannot be replaced without touching something else")


def _check_size(block: str) -> None:
    if len(block.encode("utf-8", "surrogatepass")) > MAX_BLOCK_BYTES:
        raise FrontmatterError(f"the frontmatter is larger than {MAX_BLOCK_BYTES // 1024} KB")


# ------------------------------------------------------------------------------------------- well-formed YAML
def _events(block: str, first_line: int) -> Iterator[Any]:
    """The block's events, each one checked before anyone sees it."""
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
    """What to change, and where; YAML's own words are for those who write parsers."""
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


def _read_block(block: str, *, offset: int, first_line: int) -> dict[str, Field]:
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


def _read_field(key: Any, events: Iterator[Any], block: str, *, offset: int, line: int) -> Field:
    first = next(events)
    value, last = _build(first, events)
    raw = first.value if isinstance(first, yaml.ScalarEvent) else None
    start, end = first.start_mark.index, last.end_mark.index
    if start == end:  # no value at all: it would stand right after the colon
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
        plain = not event.style and event.tag is None  # the C parser says "" where the Python one says None
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
    """What a collection ends with: its bracket, or without brackets its last value; comments after that are not its."""
    return end if begin.flow_style else last


# ------------------------------------------------------------------------------------------------ broken YAML
def _find_block(text: str) -> tuple[int, int, int, list[Notice]] | None:
    """Start and end of something that was meant as frontmatter, where the body begins, and what is odd about it."""
    lead = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    opening = _OPENING.match(text, lead)
    closing = _CLOSING.search(text, opening.end()) if opening else None
    if opening and closing:
        odd = (
            [Notice(line=1, message="the frontmatter must begin on the first line")]
            if text[:lead].strip("\ufeff")
            else []
        )
        return opening.end(), closing.start(), closing.end(), odd
    start = opening.end() if opening else lead
    if not opening and not re.match(r"name[ \t]*:", text[start : start + 80]):
        return None
    line = text.count("\n", 0, start) + 1
    missing = "is not closed by a line of ---" if opening else "is not opened by a line of ---"
    end = _end_of_keys(text, start)
    body_start = closing.end() if (closing := _CLOSING.match(text, end)) else end
    return start, end, body_start, [Notice(line=line, message=f"the frontmatter {missing}")]


def _end_of_keys(text: str, start: int) -> int:
    """Where the lines stop looking like keys and their continuations."""
    position = start
    while position < len(text):
        line_end = text.find("\n", position) + 1 or len(text)
        line = text[position:line_end]
        if not (_KEY_LINE.match(line) or line[0] in " \t-") or line.startswith("---"):
            break
        position = line_end
    return position


def _read_lines(block: str, *, offset: int, first_line: int) -> tuple[dict[str, Field], list[Notice]]:
    """The fields of a broken block: each key is read on its own, and what is no YAML is taken as text."""
    fields: dict[str, Field] = {}
    notices: list[Notice] = []
    for start, end in chunks(block):
        chunk, line = block[start:end], first_line + block.count("\n", 0, start)
        head = key_line(chunk)
        if head is None:
            if chunk.strip() and not chunk.lstrip().startswith("#"):
                notices.append(Notice(line=line, message="a line that is no `key: value` was ignored"))
            continue
        key = head[1].strip("\"'")
        if key in fields:
            notices.append(Notice(line=line, message=f"the key {key!r} appears twice; the first one counts"))
            continue
        try:
            fields.update(_read_block(chunk, offset=offset + start, first_line=line))
        except FrontmatterError as error:
            written = _without_trailing_comments(chunk[head.end() :])
            value = " ".join(written.split())
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            begin = offset + start + head.end()
            fields[key] = Field(key=key, value=value, raw=value, line=line, start=begin, end=begin + len(written))
            notices.append(Notice(line=error.line, message=f"{key}: {error.message}; taken as text"))
    return fields, notices


def _without_trailing_comments(written: str) -> str:
    lines = written.rstrip().splitlines(keepends=True)
    while len(lines) > 1 and (lines[-1].startswith("#") or not lines[-1].strip()):
        lines.pop()
    return "".join(lines).rstrip()


def key_line(chunk: str) -> re.Match[str] | None:
    """The key at the start of a chunk, as the match's first group; the match ends where the value begins."""
    return _KEY_LINE.match(chunk) or _TIGHT_KEY_LINE.match(chunk)


def chunks(block: str) -> Iterator[tuple[int, int]]:
    """Spans of a broken block, each from one top-level key to the next; a key that slipped to the right counts."""
    for start, end in _key_to_key(block):
        inner = _INDENTED_KEY_LINE.search(block, start + 1, end)
        if inner and not _is_sound(block[start:end]):
            yield start, inner.start()
            yield inner.end(), end
        else:
            yield start, end


def _is_sound(chunk: str) -> bool:
    try:
        _read_block(chunk, offset=0, first_line=1)
    except FrontmatterError:
        return False
    return True


def _key_to_key(block: str) -> Iterator[tuple[int, int]]:
    starts = [0]
    position = 0
    while position < len(block):
        rest = block[position : position + 200]
        if position and key_line(rest):
            starts.append(position)
        position = block.find("\n", position) + 1 or len(block)
    yield from zip(starts, [*starts[1:], len(block)], strict=True)
