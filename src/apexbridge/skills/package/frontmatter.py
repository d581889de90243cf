"""Reads and edits the YAML block at the top of a SKILL.md. An edit changes no byte outside the edited value.

Every value has its position in the file. An edit replaces the text there, and parses the result again to verify that
nothing else changed. Lenient parsing reads a block that is not valid YAML line by line.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.errors import FieldNotEditableError, InvalidInputError, SkillParseError
from apexbridge.skills import MAX_DESCRIPTION_CHARACTERS
from apexbridge.skills.package.yaml_block import Field, FrontmatterError, quote, read_block

MAX_BLOCK_BYTES = 64 * 1024

_OPENING = re.compile(r"\ufeff?---[ \t]*\r?\n")
_CLOSING = re.compile(r"^(?:---|\.\.\.)[ \t]*\r?(?:\n|\Z)", re.MULTILINE)
_KEY_LINE = re.compile(
    r"""("[^"\n]{1,80}"|'[^'\n]{1,80}'|[^\W\d_][^:\n#"'{}\[\]]{0,79}?|_[\w.-]{0,79})[ \t]*:(?=[ \t\r\n]|\Z)[ \t]*"""
)
_INDENTED_KEY_LINE = re.compile(r"^[ \t]+(?=(?:name|description)[ \t]*:[ \t])", re.MULTILINE)
_TIGHT_KEY_LINE = re.compile(r"(name|description):(?=\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A problem that lenient parsing ignored."""

    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed SKILL.md."""

    text: str
    fields: Mapping[str, Field]
    block_start: int | None
    """The offset of the block's first line; None if the file has no block."""
    block_end: int
    body_start: int
    notices: tuple[Notice, ...] = ()
    is_sound: bool = True
    """Whether the block is delimited and valid YAML, or missing; otherwise its keys were read one by one."""

    @property
    def body(self) -> str:
        """The Markdown after the block."""
        return self.text[self.body_start :]

    def value(self, key: str) -> Any:
        """The value of a top-level key; None if missing."""
        field = self.fields.get(key)
        return field.value if field else None


def parse(text: str) -> Document:
    """Parse a file with a well-formed block.

    Raises:
        FrontmatterError: the block is missing, not valid YAML, too large, or uses YAML features that are not allowed.
    """
    opening = _OPENING.match(text)
    if not opening:
        raise FrontmatterError("YAML frontmatter must be at the top of the file, between two lines of ---")
    closing = _CLOSING.search(text, opening.end())
    if not closing:
        raise FrontmatterError("YAML frontmatter is not closed: a line of --- is missing after it")
    block = text[opening.end() : closing.start()]
    _check_size(block)
    fields = read_block(block, offset=opening.end(), first_line=2)
    return Document(
        text=text,
        fields=fields,
        block_start=opening.end(),
        block_end=closing.start(),
        body_start=closing.end(),
    )


def parse_leniently(text: str) -> Document:
    """Parse any text, with a notice for each problem that was ignored.

    Raises:
        FrontmatterError: the block is larger than `MAX_BLOCK_BYTES`.
    """
    try:
        return parse(text)
    except FrontmatterError as error:
        reason = error
    found = _find_block(text)
    if found is None:
        return Document(text=text, fields={}, block_start=None, block_end=0, body_start=0)
    start, end, body_start, notices, is_delimited = found
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
        is_sound=is_delimited and _is_sound(text[start:end]),
    )


def replace_description(text: str, description: str, *, name: str) -> str:
    """Replace the description and keep every other byte. A file without a block gets one, with `name`.

    Raises:
        FrontmatterError: the description cannot be replaced without changing something else.
    """
    before = parse_leniently(text)
    if before.block_start is None:
        edited = with_new_block(text, {"name": name, "description": description})
    else:
        edited = with_value(before, "description", description)
    _prove_only_description_changed(before, parse_leniently(edited), description)
    return edited


def with_value(document: Document, key: str, value: str) -> str:
    """Replace the value of a key, or add the key at the start of the block; returns the new text."""
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
    """Insert a block at the start of the text."""
    mark, following = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    lines = ["---", *(f"{key}: {quote(value)}" for key, value in values.items()), "---", ""]
    return mark + newline_of(text).join(lines) + following


def newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


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


# ------------------------------------------------------------------------------------------------ broken YAML
def _find_block(text: str) -> tuple[int, int, int, list[Notice], bool] | None:
    """Find what was meant as frontmatter; None if missing.

    Returns its start, its end, the start of the body, notices, and whether there is a `---` before and after it.
    """
    lead = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    opening = _OPENING.match(text, lead)
    closing = _CLOSING.search(text, opening.end()) if opening else None
    if opening and closing:
        odd = (
            [Notice(line=1, message="the frontmatter must begin on the first line")]
            if text[:lead].strip("\ufeff")
            else []
        )
        return opening.end(), closing.start(), closing.end(), odd, True
    start = opening.end() if opening else lead
    if not opening and not re.match(r"name[ \t]*:", text[start : start + 80]):
        return None
    line = text.count("\n", 0, start) + 1
    missing = "is not closed by a line of ---" if opening else "is not opened by a line of ---"
    end = _end_of_keys(text, start)
    body_start = closing.end() if (closing := _CLOSING.match(text, end)) else end
    return start, end, body_start, [Notice(line=line, message=f"the frontmatter {missing}")], False


def _end_of_keys(text: str, start: int) -> int:
    """The offset of the first line that is neither a key nor a continuation."""
    position = start
    while position < len(text):
        line_end = text.find("\n", position) + 1 or len(text)
        line = text[position:line_end]
        if not (_KEY_LINE.match(line) or line[0] in " \t-") or line.startswith("---"):
            break
        position = line_end
    return position


def _read_lines(block: str, *, offset: int, first_line: int) -> tuple[dict[str, Field], list[Notice]]:
    """Read each key of a broken block separately. A value that is not valid YAML is read as text."""
    fields: dict[str, Field] = {}
    notices: list[Notice] = []
    line, counted = first_line, 0
    for start, end in chunks(block):
        line += block.count("\n", counted, start)
        counted = start
        chunk = block[start:end]
        head = key_line(chunk)
        if head is None:
            if chunk.strip() and not chunk.lstrip().startswith("#"):
                notices.append(Notice(line=line, message="a line that is not a `key: value` pair was ignored"))
            continue
        key = head[1].strip("\"'")
        if key in fields:
            notices.append(Notice(line=line, message=f"the key {key!r} appears twice; the first one counts"))
            continue
        try:
            fields.update(read_block(chunk, offset=offset + start, first_line=line))
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
    """Match the key at the start of a chunk. Group 1 is the key; the value begins at the end of the match."""
    return _KEY_LINE.match(chunk) or _TIGHT_KEY_LINE.match(chunk)


def chunks(block: str) -> Iterator[tuple[int, int]]:
    """Split a broken block into spans, one per top-level key. A `name` or `description` indented by mistake counts."""
    for start, end in _key_to_key(block):
        inner = _INDENTED_KEY_LINE.search(block, start + 1, end)
        if inner and not _is_sound(block[start:end]):
            yield start, inner.start()
            yield inner.end(), end
        else:
            yield start, end


def _is_sound(chunk: str) -> bool:
    try:
        read_block(chunk, offset=0, first_line=1)
    except FrontmatterError:
        return False
    return True


def _key_to_key(block: str) -> Iterator[tuple[int, int]]:
    starts = [0]
    position = 0
    while position < len(block):
        following = block[position : position + 200]
        if position and key_line(following):
            starts.append(position)
        position = block.find("\n", position) + 1 or len(block)
    yield from zip(starts, [*starts[1:], len(block)], strict=True)


def checked_description(value: str | Mapping[str, Any], *, skill: str) -> str:
    """Validate a new description: a string, or a mapping with no other field.

    Raises:
        FieldNotEditableError: the mapping has another field.
        InvalidInputError: the description is not a string, is empty or too long, or has a lone surrogate.
    """
    description: object = value
    if isinstance(value, Mapping):
        if others := [str(key) for key in value if key != "description"]:
            raise FieldNotEditableError(others, skill=skill)
        description = value.get("description")
    if not isinstance(description, str) or not description.strip():
        raise InvalidInputError("description must be text and not empty")
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        raise InvalidInputError(
            f"description has {len(description)} characters; at most {MAX_DESCRIPTION_CHARACTERS} are allowed"
        )
    try:
        description.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError("description contains a lone surrogate") from error
    return description.strip()


def with_description(path: Path, description: str, *, skill: str) -> bytes:
    """The file's content with a new description. Bytes that are not UTF-8 are preserved.

    Raises:
        SkillParseError: the description cannot be replaced without changing something else.
    """
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        return replace_description(text, description, name=skill).encode("utf-8", "surrogateescape")
    except FrontmatterError as error:
        raise SkillParseError(
            f"{path.name} line {error.line}: {error.message}", skill=skill, line=error.line
        ) from error
