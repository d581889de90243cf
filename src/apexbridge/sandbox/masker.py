"""Masking a stream of text: every occurrence of every pattern, also where they overlap, in time linear in the text.

This is the automaton of Aho and Corasick with two changes. Its states are ranges of the sorted patterns, made when the
text first reaches them, so a pattern of many thousand characters costs nothing until it is printed. And if no
pattern is under way, `str.find` leads to the next place where one can begin.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

MASK = "***"
_BEGINNING = 4
"""Characters of a pattern that are looked for; fewer if a pattern has fewer."""
_FIELDS = 4

State = tuple[int, int, int]
"""First and last index (exclusive) of the patterns that begin with what was read, and how many characters that is."""


class Masker:
    """Masks one stream that arrives in pieces. The result does not depend on where the pieces end."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = sorted({pattern for pattern in patterns if pattern})
        self._root: State = (0, len(self._patterns), 0)
        self._beginning = min([_BEGINNING, *map(len, self._patterns)])
        self._beginnings = sorted({pattern[: self._beginning] for pattern in self._patterns})
        self._state = self._root
        self._nodes = _Nodes()
        self._held = ""
        """The end of the text so far, which may be the beginning of a pattern."""
        self._held_at = 0
        """Where that begins. Places are counted from the beginning of the stream."""
        self._matches: deque[tuple[int, int]] = deque()
        """Begin and end of what was found and not masked yet, both ascending."""
        self._masked_until = 0
        self.examined = 0
        """Steps of the automaton so far: the cost of the search, independent of the machine."""

    def add(self, piece: str) -> str:
        """Take the next piece; returns the text that is certain by now, masked."""
        if not self._patterns:
            return piece
        text = self._held + piece
        self._search(text, len(self._held))
        return self._release(text, len(text) - self._state[2])

    def end(self, *, cut: bool = False) -> str:
        """The rest; nothing of it if the stream was `cut`, as it may be the beginning of a secret."""
        rest = "" if cut else self._release(self._held, len(self._held))
        self._held = ""
        self._state = self._root
        return rest

    def _release(self, text: str, size: int) -> str:
        """The first characters of the text, with a mask for each match; matches that overlap get one together."""
        begin, until = self._held_at, self._held_at + size
        pieces: list[str] = []
        at = max(begin, self._masked_until)
        while self._matches and self._matches[0][0] < until:
            first, last = self._matches.popleft()
            if first >= self._masked_until:
                pieces += [text[at - begin : first - begin], MASK]
            self._masked_until = max(self._masked_until, last)
            at = self._masked_until
        pieces.append(text[at - begin : size])
        self._held, self._held_at = text[size:], until
        return "".join(pieces)

    def _search(self, text: str, at: int) -> None:
        """Follow the text from a place on, and note the longest match for each place where one ends."""
        state, matches, offset = self._state, self._matches, self._held_at
        known: dict[str, int] = {}
        while at < len(text):
            if state == self._root:
                at = self._next_beginning(text, at, known)
                if at >= len(text):
                    break
            state = self._step(state, text[at])
            at += 1
            if length := self._nodes.longest_match(state):
                first = offset + at - length
                while matches and matches[-1][0] >= first:  # inside this one
                    matches.pop()
                matches.append((first, offset + at))
        self._state = state

    def _next_beginning(self, text: str, at: int, known: dict[str, int]) -> int:
        """The next place where a pattern can begin; the last few characters are too short to tell, and count."""
        nearest = max(at, len(text) - self._beginning + 1)
        for beginning in self._beginnings:
            place = known.get(beginning, -1)
            if place < at:
                place = text.find(beginning, at)
                known[beginning] = place = place if place >= 0 else len(text)
            nearest = min(nearest, place)
        return nearest

    def _step(self, state: State, character: str) -> State:
        """The state after one more character."""
        while True:
            self.examined += 1
            below = self._below(state, character)
            if below is not None:
                if below not in self._nodes:
                    self._make(state, below, character)
                return below
            if state == self._root:
                return state
            state = self._fall(state)

    def _below(self, state: State, character: str) -> State | None:
        """The patterns that go on with this character."""
        low, high, depth = state
        if high - low == 1:
            pattern = self._patterns[low]
            return (low, high, depth + 1) if len(pattern) > depth and pattern[depth] == character else None

        def at_depth(pattern: str) -> str:
            return pattern[depth : depth + 1]

        first = bisect_left(self._patterns, character, low, high, key=at_depth)
        last = bisect_right(self._patterns, character, first, high, key=at_depth)
        return (first, last, depth + 1) if first < last else None

    def _fall(self, state: State) -> State:
        """The longest proper end of what was read that a pattern begins with."""
        return self._nodes.fall(state) if state[2] > 1 else self._root

    def _make(self, state: State, below: State, character: str) -> None:
        """Note where a new state falls back to; states that this leads to are made as well."""
        made = [below]
        target = self._root
        while state != self._root:
            state = self._fall(state)
            while (target_below := self._below(state, character)) is None and state != self._root:
                self.examined += 1
                state = self._fall(state)
            self.examined += 1
            if target_below is None:
                break
            if target_below in self._nodes:
                target = target_below
                break
            made.append(target_below)
        for each in reversed(made):
            is_pattern = len(self._patterns[each[0]]) == each[2]
            longest = each[2] if is_pattern else self._nodes.longest_match(target)
            self._nodes.put(each, target, longest)
            target = each


class _Nodes:
    """What is known of each state: the one it falls back to, and the longest pattern that it ends in.

    A state is identified by its first pattern and its depth. Along one pattern the depths follow each other, so plain
    arrays hold them: a few bytes each for patterns of any length.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, array[int]]] = {}

    def __contains__(self, state: State) -> bool:
        row = self._rows.get(state[0])
        return row is not None and row[0] <= state[2] < row[0] + len(row[1]) // _FIELDS

    def put(self, state: State, fall: State, longest: int) -> None:
        _, numbers = self._rows.setdefault(state[0], (state[2], array("L")))
        numbers.extend((*fall, longest))

    def fall(self, state: State) -> State:
        first, numbers = self._rows[state[0]]
        at = (state[2] - first) * _FIELDS
        return numbers[at], numbers[at + 1], numbers[at + 2]

    def longest_match(self, state: State) -> int:
        """0 if there is none."""
        if not state[2]:
            return 0
        first, numbers = self._rows[state[0]]
        return numbers[(state[2] - first) * _FIELDS + 3]
