"""JavaScript as a row of tokens whose brackets match, and the plain values that can be read from it.

No grammar: only as much as is needed to find calls and to read literals in them, in one pass and in linear time.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_VALUE_DEPTH = 6
MAX_ITEMS = 100
MAX_STEPS = 100_000
"""What reading one script may cost."""
_TOKEN = re.compile(
    r"""
    (?P<space>\s++|//[^\n]*+)
    | (?P<name>(?:[^\W\d]|\$)[\w$]*+)
    | (?P<number>\.?\d[\w.]*+)
    | (?P<text>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')
    | (?P<mark>=>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"/(?:[^/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n])*+\])++/\w*+")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*+(?P<end>`|\$\{)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|\r?\n|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_BEFORE_REGEX = {
    "return",
    "typeof",
    "case",
    "in",
    "of",
    "delete",
    "void",
    "throw",
    "new",
    "else",
    "do",
    "await",
    "yield",
}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False}

Span = tuple[int, int]
"""From one token up to another, the second not included."""


class Token(NamedTuple):
    """A name, number, text, or a mark; a `template` is a text with parts that are computed."""

    kind: str
    value: str


class Tokens:
    """The tokens of one script.

    Raises:
        ValueError: texts, comments or brackets do not end.
    """

    def __init__(self, source: str) -> None:
        self.spent = 0
        self.all: list[Token] = []
        self.closing: dict[int, int] = {}
        """Where a bracket that opens at a token is closed."""
        self.opening: dict[int, int] = {}
        self._read(source)
        self.constants = self._constants()

    # ------------------------------------------------------------------------------------------------- tokenizing
    def _read(self, source: str) -> None:
        position = source.find("\n") if source.startswith("#!") else 0
        position = len(source) if position < 0 else position
        open_brackets: list[tuple[str, int]] = []
        while position < len(source):
            token = _TOKEN.match(source, position)
            if token is None:
                raise ValueError("no token")
            kind, text = token.lastgroup or "", token[0]
            start, position = position, token.end()
            if kind == "space":
                continue
            if kind == "text":
                self.all.append(Token("text", _unescaped(text[1:-1])))
            elif kind != "mark":
                self.all.append(Token(kind, text))
            elif text == "/":
                position = self._read_slash(source, start)
            elif text == "`":
                position = self._read_template(source, position, open_brackets)
            elif text in _CLOSING:
                open_brackets.append((_CLOSING[text], len(self.all)))
                self.all.append(Token("mark", text))
            elif text in ")]}":
                expected, opened = open_brackets.pop() if open_brackets else ("", 0)
                if expected == "${" and text == "}":
                    self._close(opened, ")")
                    position = self._read_template(source, position, open_brackets)
                elif text == expected:
                    self._close(opened, text)
                else:
                    raise ValueError("brackets do not match")
            elif text in "\"'":
                raise ValueError("a text does not end")
            else:
                self.all.append(Token("mark", text))
        if open_brackets:
            raise ValueError("a bracket is not closed")

    def _close(self, opened: int, mark: str) -> None:
        self.closing[opened] = len(self.all)
        self.opening[len(self.all)] = opened
        self.all.append(Token("mark", mark))

    def _read_slash(self, source: str, start: int) -> int:
        """A comment, a regular expression, or a division; which of the last two, the token before it tells."""
        if source.startswith("/*", start):
            end = source.find("*/", start + 2)
            if end < 0:
                raise ValueError("a comment does not end")
            return end + 2
        before = self.all[-1] if self.all else Token("mark", "")
        if (before.kind == "mark" and before.value not in (")", "]", "}")) or before.value in _BEFORE_REGEX:
            regex = _REGEX.match(source, start)
            if regex is None:
                raise ValueError("a regular expression does not end")
            self.all.append(Token("regex", ""))
            return regex.end()
        self.all.append(Token("mark", "/"))
        return start + 1

    def _read_template(self, source: str, start: int, open_brackets: list[tuple[str, int]]) -> int:
        """The text up to its end or to its next `${`, whose inside is read as if it stood in parentheses."""
        part = _TEMPLATE.match(source, start)
        if part is None:
            raise ValueError("a template does not end")
        goes_on = bool(self.all) and start > 0 and source[start - 1] == "}"
        if part["end"] == "`":
            is_whole = not goes_on
            self.all.append(Token("text" if is_whole else "template", _unescaped(part[0][:-1]) if is_whole else ""))
        else:
            self.all.append(Token("template", ""))
            open_brackets.append(("${", len(self.all)))
            self.all.append(Token("mark", "("))
        return part.end()

    # ---------------------------------------------------------------------------------------------------- reading
    def is_mark(self, place: int, mark: str) -> bool:
        """Whether that mark stands there."""
        return 0 <= place < len(self.all) and self.all[place] == Token("mark", mark)

    def name(self, place: int) -> str | None:
        """The name that stands there."""
        return self.all[place].value if 0 <= place < len(self.all) and self.all[place].kind == "name" else None

    def spend(self, steps: int = 1) -> None:
        """Count what reading costs: the same constant can be read again and again, and brackets within brackets.

        Raises:
            ValueError: it costs too much.
        """
        self.spent += steps
        if self.spent > MAX_STEPS:
            raise ValueError("there is too much to read")

    def parts(self, opened: int) -> list[Span]:
        """What stands between the commas of a bracket."""
        parts: list[Span] = []
        end = self.closing[opened]
        start = place = opened + 1
        while place < end:
            self.spend()
            if self.is_mark(place, ","):
                parts.append((start, place))
                start = place + 1
            place = self.closing.get(place, place) + 1
        if start < end:
            parts.append((start, end))
        return parts

    def fields(self, span: Span) -> dict[str, Span]:
        """The fields of an object literal, or of the constant that the span names."""
        start, end = self._resolved(span)
        found: dict[str, Span] = {}
        if self.is_mark(start, "{") and self.closing[start] == end - 1:
            for first, last in self.parts(start):
                if self.all[first].kind not in ("name", "text"):
                    continue
                if self.is_mark(first + 1, ":"):
                    found[self.all[first].value] = (first + 2, last)
                elif last == first + 1:
                    found[self.all[first].value] = (first, last)
        return found

    def value(self, span: Span, depth: int = 0) -> Any:
        """A text, number, truth or list; None for whatever has to be computed."""
        self.spend()
        start, end = self._resolved(span) if depth == 0 else span
        if start >= end:
            return None
        first = self.all[start]
        if first.kind == "text":
            return self._joined(start, end)
        if first == Token("mark", "-") and end - start == 2:
            number = _number(self.all[start + 1])
            return None if number is None else -number
        if end - start == 1:
            return _WORDS.get(first.value) if first.kind == "name" else _number(first)
        if first == Token("mark", "[") and self.closing[start] == end - 1 and depth < MAX_VALUE_DEPTH:
            parts = self.parts(start)
            items = [self.value(part, depth + 1) for part in parts] if len(parts) <= MAX_ITEMS else [None]
            return None if any(item is None for item in items) else items
        return None

    def text(self, span: Span) -> str:
        """A text for people; empty where it is computed."""
        value = self.value(span)
        return value if isinstance(value, str) else ""

    def _joined(self, start: int, end: int) -> str | None:
        """`'a' + 'b'`."""
        self.spend(end - start)
        is_sum = (end - start) % 2 == 1 and all(self.is_mark(place, "+") for place in range(start + 1, end, 2))
        texts = self.all[start:end:2]
        return "".join(text.value for text in texts) if is_sum and all(text.kind == "text" for text in texts) else None

    def _resolved(self, span: Span) -> Span:
        start, end = span
        return self.constants.get(self.all[start].value, span) if end - start == 1 and self.name(start) else span

    def _constants(self) -> dict[str, Span]:
        """Names that are given a literal: one token, or one bracket."""
        found: dict[str, Span] = {}
        for name, value in self._assignments():
            if value in self.closing:
                found[name] = (value, self.closing[value] + 1)
            elif value < len(self.all) and self.all[value].kind in ("text", "number"):
                found[name] = (value, value + 1)
        return found

    def _assignments(self) -> Iterator[tuple[str, int]]:
        for place in range(len(self.all) - 2):
            if self.all[place].value in ("const", "let", "var") and self.is_mark(place + 2, "="):
                yield self.all[place + 1].value, place + 3


def _number(token: Token) -> int | float | None:
    if token.kind != "number":
        return None
    digits = token.value.replace("_", "")
    try:
        return int(digits) if digits.isdecimal() else float(digits)
    except ValueError:
        return None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if code in ("\n", "\r\n"):
        return ""
    if len(code) > 1:
        number = int(code.strip("ux{}"), 16)
        return chr(number) if number <= 0x10FFFF else ""
    return _ESCAPED.get(code, code)
