"""Masking of secrets in output: the forms in which programs print them, and a search for all of them in a stream."""

import base64
import html
import json
import re
import shlex
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from urllib.parse import quote, quote_plus

MASK = "***"
MIN_CHARACTERS = 4
"""Shorter values occur in any text."""
_DISTINCTIVE_LINE = re.compile(r"(?:\w\W*){8}")
"""A line of a secret that is masked on its own has eight word characters: `}` or `-----` occur in other text too."""
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_SCRIPT_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""How many JSON writers escape characters that could end a <script> element."""
_PREFIX_CHARACTERS = 4
"""Length of the pattern prefixes that `str.find` searches; less if a pattern is shorter."""
_FIELDS = 4

State = tuple[int, int, int]
"""First and last index (exclusive) of the patterns that start with the text read, and the length of that text."""


def secret_patterns(secrets: Mapping[str, str]) -> list[str]:
    """The texts to mask: the values, and their usual escaped and encoded forms."""
    patterns: dict[str, None] = {}
    for value in secrets.values():
        if len(value) >= MIN_CHARACTERS:
            patterns.update(dict.fromkeys(form for form in _encoded_forms(value) if len(form) >= MIN_CHARACTERS))
    return list(patterns)


def _encoded_forms(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogateescape")
    yield value
    yield from (line for line in map(str.strip, value.splitlines()) if _DISTINCTIVE_LINE.search(line))
    yield from _in_json(value)
    yield from (repr(value)[1:-1], repr(f'{value}"')[1:-2], ascii(value)[1:-1])
    for url_quote in (partial(quote, safe=""), quote, quote_plus):
        quoted = url_quote(value, errors="surrogateescape")
        yield from (quoted, _PERCENT.sub(lambda code: code[0].lower(), quoted))
    escaped = html.escape(value)
    yield from (escaped, html.escape(value, quote=False), escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    yield from (shlex.quote(value).strip("'"), value.replace("'", "'\\''"))
    yield from _in_base64(raw)
    yield from (raw.hex(), raw.hex().upper())


def _in_json(value: str) -> Iterator[str]:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        yield text
        yield json.dumps(text, ensure_ascii=is_ascii)[1:-1]  # JSON in a JSON string
        yield text.replace("/", "\\/")
        yield "".join(_SCRIPT_ESCAPES.get(character, character) for character in text)


def _in_base64(raw: bytes) -> Iterator[str]:
    """Alone, and after one or two other bytes: then only the characters that encode bits of the secret alone."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(raw).decode()
        yield from (encoded, encoded.rstrip("="))
        for before in range(3):
            first, last = -(-8 * before // 6), 8 * (before + len(raw)) // 6
            yield encode(bytes(before) + raw).decode()[first:last]


class StreamMasker:
    """Masks one stream that arrives in chunks: every occurrence of every pattern, in time linear in the text.

    This is the Aho-Corasick automaton with two changes. Its states are ranges of the sorted patterns and are created
    when the text first reaches them, so a pattern of many thousand characters costs nothing until it is printed. And in
    the root state, `str.find` jumps to the next index at which a pattern can start.

    The result does not depend on where chunks end. Overlapping matches are masked together.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = sorted({pattern for pattern in patterns if pattern})
        self._root: State = (0, len(self._patterns), 0)
        self._prefix_length = min([_PREFIX_CHARACTERS, *map(len, self._patterns)])
        self._prefixes = sorted({pattern[: self._prefix_length] for pattern in self._patterns})
        self._state = self._root
        self._nodes = _Nodes()
        self._held = ""
        """The end of the text so far, which may be the start of a pattern."""
        self._held_from = 0
        """Its index in the stream."""
        self._matches: deque[tuple[int, int]] = deque()
        """Start and end of matches that are not masked yet, in ascending order."""
        self._masked_until = 0
        self.examined = 0
        """Steps of the automaton so far: the cost of the search, independent of the hardware."""

    def add(self, chunk: str) -> str:
        """Add the next chunk; returns the text that no later chunk can change, masked."""
        if not self._patterns:
            return chunk
        text = self._held + chunk
        self._search(text, len(self._held))
        return self._release(text, len(text) - self._state[2])

    def end(self, *, cut: bool = False) -> str:
        """The remaining text; nothing if the stream was `cut`, because it may be the start of a secret."""
        tail = "" if cut else self._release(self._held, len(self._held))
        self._held = ""
        self._state = self._root
        return tail

    def _release(self, text: str, size: int) -> str:
        """The first `size` characters of the text, masked."""
        begin, until = self._held_from, self._held_from + size
        parts: list[str] = []
        index = max(begin, self._masked_until)
        while self._matches and self._matches[0][0] < until:
            first, last = self._matches.popleft()
            if first >= self._masked_until:
                parts += [text[index - begin : first - begin], MASK]
            self._masked_until = max(self._masked_until, last)
            index = self._masked_until
        parts.append(text[index - begin : size])
        self._held, self._held_from = text[size:], until
        return "".join(parts)

    def _search(self, text: str, index: int) -> None:
        """Search the text from an index on, and record the longest match at each index where one ends."""
        state, matches, offset = self._state, self._matches, self._held_from
        known: dict[str, int] = {}
        while index < len(text):
            if state == self._root:
                index = self._next_start(text, index, known)
                if index >= len(text):
                    break
            state = self._step(state, text[index])
            index += 1
            if length := self._nodes.longest_match(state):
                first = offset + index - length
                while matches and matches[-1][0] >= first:  # contained in this one
                    matches.pop()
                matches.append((first, offset + index))
        self._state = state

    def _next_start(self, text: str, index: int, known: dict[str, int]) -> int:
        """The next index at which a pattern can start; in the last few characters, one always can."""
        nearest = max(index, len(text) - self._prefix_length + 1)
        for prefix in self._prefixes:
            found = known.get(prefix, -1)
            if found < index:
                found = text.find(prefix, index)
                known[prefix] = found = found if found >= 0 else len(text)
            nearest = min(nearest, found)
        return nearest

    def _step(self, state: State, character: str) -> State:
        while True:
            self.examined += 1
            below = self._below(state, character)
            if below is not None:
                if below not in self._nodes:
                    self._create(state, below, character)
                return below
            if state == self._root:
                return state
            state = self._fallback(state)

    def _below(self, state: State, character: str) -> State | None:
        """The state for the patterns that continue with this character."""
        low, high, depth = state
        if high - low == 1:
            pattern = self._patterns[low]
            return (low, high, depth + 1) if len(pattern) > depth and pattern[depth] == character else None

        def at_depth(pattern: str) -> str:
            return pattern[depth : depth + 1]

        first = bisect_left(self._patterns, character, low, high, key=at_depth)
        last = bisect_right(self._patterns, character, first, high, key=at_depth)
        return (first, last, depth + 1) if first < last else None

    def _fallback(self, state: State) -> State:
        """The state of the longest proper suffix of the text read that is a prefix of a pattern."""
        return self._nodes.fallback(state) if state[2] > 1 else self._root

    def _create(self, state: State, below: State, character: str) -> None:
        """Add a state with its fallback, which is created too if it is missing."""
        created = [below]
        target = self._root
        while state != self._root:
            state = self._fallback(state)
            while (target_below := self._below(state, character)) is None and state != self._root:
                self.examined += 1
                state = self._fallback(state)
            self.examined += 1
            if target_below is None:
                break
            if target_below in self._nodes:
                target = target_below
                break
            created.append(target_below)
        for each in reversed(created):
            is_pattern = len(self._patterns[each[0]]) == each[2]
            longest = each[2] if is_pattern else self._nodes.longest_match(target)
            self._nodes.put(each, target, longest)
            target = each


class _Nodes:
    """The fallback of each state, and the length of the longest pattern that ends in it.

    A state is identified by its first pattern and its depth. The depths along one pattern are consecutive, so they are
    stored in arrays: a few bytes each for patterns of any length.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, array[int]]] = {}

    def __contains__(self, state: State) -> bool:
        row = self._rows.get(state[0])
        return row is not None and row[0] <= state[2] < row[0] + len(row[1]) // _FIELDS

    def put(self, state: State, fallback: State, longest: int) -> None:
        _, numbers = self._rows.setdefault(state[0], (state[2], array("L")))
        numbers.extend((*fallback, longest))

    def fallback(self, state: State) -> State:
        first, numbers = self._rows[state[0]]
        index = (state[2] - first) * _FIELDS
        return numbers[index], numbers[index + 1], numbers[index + 2]

    def longest_match(self, state: State) -> int:
        """0 if there is none."""
        if not state[2]:
            return 0
        first, numbers = self._rows[state[0]]
        return numbers[(state[2] - first) * _FIELDS + 3]
