"""Globs for paths: `*`, `?` and `**`, matched one folder at a time."""

import fnmatch
import itertools
import re

_Indexes = frozenset[int]


class Glob:
    """A pattern. Its state is the set of segments that the rest of a path can match, so a folder is matched once."""

    def __init__(self, pattern: str) -> None:
        segments = pattern.split("/")
        merged = [key for key, run in itertools.groupby(segments) for key in (["**"] if key == "**" else run)]
        self._segments = [None if segment == "**" else _compiled(segment) for segment in merged]
        self.start = self._expanded({0})

    def matches(self, state: _Indexes, name: str) -> bool:
        """Whether an entry of this name matches the whole pattern."""
        last = len(self._segments) - 1
        segment = self._segments[last]
        return last in state and (segment is None or segment.match(name) is not None)

    def enter(self, state: _Indexes, name: str) -> _Indexes:
        """The state below a folder of this name; empty if nothing below can match."""
        reached = set()
        for index in state:
            segment = self._segments[index]
            if segment is None:
                reached.add(index)
            elif index < len(self._segments) - 1 and segment.match(name):
                reached.add(index + 1)
        return self._expanded(reached)

    def _expanded(self, indexes: set[int]) -> _Indexes:
        """`**/` also matches no folder at all."""
        after = {index + 1 for index in indexes if self._segments[index] is None}
        return frozenset(indexes | after & set(range(len(self._segments))))


def _compiled(segment: str) -> re.Pattern[str]:
    # fnmatch compiles `*` to an expression that does not backtrack, so patterns with many `*` are fast. `[` is literal.
    return re.compile(fnmatch.translate(segment.replace("[", "[[]")))
