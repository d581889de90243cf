"""JSON files that people edit: comments and trailing commas are read, and an edit changes only the text it must.

VS Code, Cursor and others read this dialect, JSONC.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 100
DEFAULT_INDENT = "  "
_SPACE = re.compile(r"(?:[ \t\r\n]++|//[^\r\n]*+|/\*.*?\*/)*+", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*+"')
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_BYTE_ORDER_MARK = "\ufeff"
_JSON = json.JSONDecoder(parse_constant=lambda name: _refuse_constant(name))


class JsoncError(ValueError):
    """The text is not JSONC, or the value cannot be set in it."""


def loads(text: str) -> Any:
    """Parse JSONC. A text without any value is an empty object. Raises JsoncError."""
    return _parse(text, ()).value


def value_at(text: str, path: Sequence[str]) -> Any:
    """The value at a path of keys; None if it is missing. Raises JsoncError."""
    value = loads(text)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def with_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with a value at a path of keys; objects on the way are created.

    Everything else is unchanged, comments included. Raises JsoncError.
    """
    root, depth = _parse(text, path), 0
    if root.is_absent:
        text = f"{text.rstrip()}{_line_end(text)}{{}}{_line_end(text)}".lstrip()
        root = _parse(text, path)
    node = root
    for key in path:
        if not isinstance(node.value, dict):
            raise JsoncError(f"{_name(path[:depth])} is not an object")
        found = [child for name, child in node.members if name == key]
        if len(found) > 1:
            raise JsoncError(f"{_name(path[: depth + 1])} is there twice")
        if not found:
            break
        (node,) = found
        depth += 1
    if depth == len(path):
        return text if _equal(node.value, value) else _replaced(text, node, value)
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    return _appended(text, root, node, value, key=path[depth])


def with_item(text: str, path: Sequence[str], item: dict[str, Any], *, key: str) -> str:
    """Return the text with an object in the list at a path. One with the same `key` is replaced. Raises JsoncError."""
    root = node = _parse(text, (*path, ""))
    for name in path:
        children = dict(node.members)
        if name not in children:
            return with_value(text, path, [item])
        node = children[name]
    if not isinstance(node.value, list):
        raise JsoncError(f"{_name(path)} is not a list")
    for _, child in node.members:
        if isinstance(child.value, dict) and child.value.get(key) == item[key]:
            return text if _equal(child.value, item) else _replaced(text, child, item)
    return _appended(text, root, node, item)


# ------------------------------------------------------------------------------------------------------------ reading
@dataclass(slots=True)
class _Node:
    """A value and its span in the text."""

    start: int
    end: int
    value: Any
    members: list[tuple[str, "_Node"]] = field(default_factory=list)
    """Members of an object, or items of a list with empty keys."""
    has_trailing_comma: bool = False
    is_absent: bool = False


def _parse(text: str, path: Sequence[str]) -> _Node:
    """Parse a text. The members of containers on the path are nodes; other values are only values."""
    start = _after_space(text, len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0)
    if start == len(text):
        return _Node(start, start, {}, is_absent=True)
    node = _value(text, start, tuple(path), 0)
    if (end := _after_space(text, node.end)) != len(text):
        raise _problem(text, end, "the end of the file")
    return node


def _value(text: str, start: int, path: Sequence[str], depth: int) -> _Node:
    if depth > MAX_DEPTH:
        raise JsoncError(f"it is nested more than {MAX_DEPTH} levels deep")
    if not path:
        try:  # thirty times as fast as the parser below
            value, end = _JSON.raw_decode(text, start)
            return _Node(start, end, value)
        except (ValueError, RecursionError):
            pass  # it has comments, or is invalid
    match text[start : start + 1]:
        case "{" | "[":
            return _container(text, start, path, depth)
        case '"':
            end = _string_end(text, start)
            return _Node(start, end, _string(text, start, end))
    found = _SCALAR.match(text, start)
    if found is None:
        raise _problem(text, start, "a value")
    return _Node(start, found.end(), json.loads(found[0]))


def _container(text: str, start: int, path: Sequence[str], depth: int) -> _Node:
    is_object = text[start] == "{"
    close = "}" if is_object else "]"
    node = _Node(start, start, {} if is_object else [])
    position = _after_space(text, start + 1)
    while text[position : position + 1] != close:
        if node.members and not node.has_trailing_comma:
            raise _problem(text, position, f"a comma or {close}")
        key = ""
        if is_object:
            end = _string_end(text, position)
            key = _string(text, position, end)
            position = _after_space(text, end)
            if text[position : position + 1] != ":":
                raise _problem(text, position, "a colon")
            position = _after_space(text, position + 1)
        child = _value(text, position, path[1:] if is_object and path[:1] == (key,) else (), depth + 1)
        node.members.append((key, child))
        position = _after_space(text, child.end)
        node.has_trailing_comma = text[position : position + 1] == ","
        if node.has_trailing_comma:
            position = _after_space(text, position + 1)
    node.end = position + 1
    node.value = (
        {key: child.value for key, child in node.members} if is_object else [child.value for _, child in node.members]
    )
    return node


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def _string_end(text: str, start: int) -> int:
    found = _STRING.match(text, start)
    if found is None:
        raise _problem(text, start, "a string in double quotes")
    return found.end()


def _string(text: str, start: int, end: int) -> str:
    try:
        return str(json.loads(text[start:end]))
    except ValueError as error:
        raise _problem(text, start, "a string without unknown escapes") from error


def _problem(text: str, position: int, expected: str) -> JsoncError:
    line = text.count("\n", 0, position) + 1
    return JsoncError(f"line {line}: expected {expected}")


# ------------------------------------------------------------------------------------------------------------ writing
def _replaced(text: str, node: _Node, value: Any) -> str:
    is_one_line = "\n" not in text[: node.end]
    written = _compact(value) if is_one_line else _written(text, value, _indent_at(text, node.start), _unit(text))
    return text[: node.start] + written + text[node.end :]


def _appended(text: str, root: _Node, node: _Node, value: Any, *, key: str | None = None) -> str:
    """Append a member or an item behind everything in a container, comments included."""
    close = node.end - 1
    body, line_end = text[:close].rstrip(), _line_end(text)
    gap = text[len(body) : close]
    if node.members and not node.has_trailing_comma:
        last_end = node.members[-1][1].end
        body = f"{body[:last_end]},{body[last_end:]}"
    comma = "," if node.has_trailing_comma else ""
    head = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    is_minified = "\n" not in text[: root.end] and root is not node
    if "\n" not in text[node.start : close] and (node.members or is_minified):
        return f"{body}{' ' if node.members else ''}{head}{_compact(value)}{comma}{text[close:]}"
    outer = _indent_at(text, node.start)
    inner = outer + _unit(text)
    if node.members and "\n" in text[node.start : node.members[-1][1].start]:
        inner = _indent_at(text, node.members[-1][1].start)
    tail = gap if "\n" in gap else line_end + outer
    return f"{body}{line_end}{inner}{head}{_written(text, value, inner, _unit(text))}{comma}{tail}{text[close:]}"


def _written(text: str, value: Any, indent: str, unit: str) -> str:
    lines = json.dumps(value, ensure_ascii=False, indent=unit).split("\n")
    return f"{_line_end(text)}{indent}".join(lines)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unit(text: str) -> str:
    """The indentation of the first indented line that starts a member."""
    found = re.search(r'\n([ \t]+)["{]', text)
    return found[1] if found else DEFAULT_INDENT


def _indent_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    found = re.match(r"[ \t]*", text[start:position])
    return found[0] if found else ""


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: 1 and true are not, although Python says so."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _name(path: Sequence[str]) -> str:
    return ".".join(path) or "the file"
