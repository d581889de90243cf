"""Set the keys of one table in a TOML file and leave the rest of its text as it is.

The standard library only reads TOML. Every edit is checked by reading the result: if anything but the table changed,
the edit is refused.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"[ \t]*\[")


class TomlError(ValueError):
    """The text is not TOML, or the table cannot be changed in it."""


def with_table(text: str, path: Sequence[str], values: Mapping[str, Any], *, without: Iterable[str] = ()) -> str:
    """Return the text with these values in the table at a path, and without some of its other keys.

    A missing table is appended. Raises TomlError.
    """
    before = _loads(text)
    old = _table(before, path)
    new = {key: value for key, value in (old or {}).items() if key not in set(without) - set(values)} | dict(values)
    if old == new and _types(old) == _types(new):
        return text
    edited = _appended(text, path, new) if old is None else _edited(text, path, old, new)
    try:
        is_exact = _loads(edited) == _with(before, path, new)
    except TomlError:
        is_exact = False
    if not is_exact:
        raise TomlError(f"the table {_dotted(path)} is written in a form that cannot be changed here")
    return edited


def table(text: str, path: Sequence[str]) -> dict[str, Any] | None:
    """The table at a path; None if it is missing. Raises TomlError."""
    return _table(_loads(text), path)


def rendered(path: Sequence[str], values: Mapping[str, Any]) -> str:
    """A table with its header."""
    return "".join([f"[{_dotted(path)}]\n", *(_statement(key, value) for key, value in values.items())])


def _loads(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise TomlError(str(error)) from error


def _table(data: Any, path: Sequence[str]) -> dict[str, Any] | None:
    for key in path:
        if not isinstance(data, dict):
            raise TomlError(f"{_dotted(path)} is not a table")
        if key not in data:
            return None
        data = data[key]
    if not isinstance(data, dict):
        raise TomlError(f"{_dotted(path)} is not a table")
    return data


def _with(data: dict[str, Any], path: Sequence[str], table: dict[str, Any]) -> dict[str, Any]:
    key, *tail = path
    return {**data, key: _with(data.get(key, {}), tail, table) if tail else table}


def _types(value: Any) -> Any:
    """The types of all values: in Python, 1 equals true."""
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    return [_types(item) for item in value] if isinstance(value, list) else type(value)


def _appended(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    end = _line_end(text)
    gap = "" if not text.strip() else end if text.endswith("\n") else end * 2
    return text + gap + rendered(path, values).replace("\n", end)


def _edited(text: str, path: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    lines = text.splitlines(keepends=True)
    end = _line_end(text)
    for key in old.keys() - new.keys():  # a table of its own, such as [mcp_servers.name.env]
        if isinstance(old[key], dict):
            lines = _without_table(lines, [*path, key])
    start = _header_line(lines, path)
    if start is None:
        raise TomlError(f"the table {_dotted(path)} is written in a form that cannot be changed here")
    result = lines[: start + 1]
    pending = {key: value for key, value in new.items() if old.get(key) != value}
    position = start + 1
    while position < len(lines) and not _HEADER.match(lines[position]):
        after = _statement_end(lines, position)
        statement = "".join(lines[position:after])
        name = next(iter(_loads(statement)), None)
        if name in pending:
            result.append(_statement(name, pending.pop(name)).replace("\n", end))
        elif name is None or name in new:
            result.append(statement)
        position = after
    insertion = len(result)  # before the blank lines and comments that precede the next table
    while insertion > start + 1 and (not result[insertion - 1].strip() or result[insertion - 1].lstrip()[0] == "#"):
        insertion -= 1
    if insertion and not result[insertion - 1].endswith("\n"):
        result[insertion - 1] += end
    result[insertion:insertion] = [_statement(key, value).replace("\n", end) for key, value in pending.items()]
    return "".join([*result, *lines[position:]])


def _without_table(lines: list[str], path: Sequence[str]) -> list[str]:
    start = _header_line(lines, path)
    if start is None:
        return lines
    after = start + 1
    while after < len(lines) and not _HEADER.match(lines[after]):
        after = _statement_end(lines, after)
    return lines[:start] + lines[after:]


def _header_line(lines: Sequence[str], path: Sequence[str]) -> int | None:
    keys = r"\s*\.\s*".join(rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')" for key in path)
    header = re.compile(rf"[ \t]*\[\s*{keys}\s*\]\s*(?:#.*)?")
    found = [number for number, line in enumerate(lines) if header.fullmatch(line.rstrip("\r\n"))]
    return found[0] if len(found) == 1 else None


def _statement_end(lines: Sequence[str], start: int) -> int:
    """The line after the statement that starts at a line: the shortest run of lines that is TOML."""
    for end in range(start + 1, len(lines) + 1):
        try:
            _loads("".join(lines[start:end]))
        except TomlError:
            continue
        return end
    raise TomlError(f"line {start + 1} cannot be read")


def _statement(key: str, value: Any) -> str:
    return f"{_key(key)} = {_value(value)}\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        members = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {members} }}" if members else "{}"
    if isinstance(value, str):
        # Strings of JSON are strings of TOML, except for surrogate pairs and the character 127.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _dotted(path: Sequence[str]) -> str:
    return ".".join(map(_key, path))


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
