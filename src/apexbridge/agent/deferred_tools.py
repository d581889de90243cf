"""Client tools with `defer_loading`: found by keywords, sent to the model once found."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from apexbridge.retrieval.text import name_words, tokens, translated

Json = dict[str, Any]
MAX_FOUND = 5
MAX_PARAMETERS = 50
"""Parameter names that are searched."""
MAX_CHARACTERS = 100_000
"""Searched in all tools together. A request can have a thousand tools, and stemming is slow."""
MIN_TOOL_CHARACTERS, MAX_TOOL_CHARACTERS = 100, 1_000
"""Searched in each tool."""
MAX_NAME_CHARACTERS = 64
MARK = "defer_loading"


def is_deferred(tool: Mapping[str, Any]) -> bool:
    """Whether the tool or its function has `defer_loading: true`."""
    function = tool.get("function")
    return tool.get(MARK) is True or (isinstance(function, dict) and function.get(MARK) is True)


def without_mark(tool: Json) -> Json:
    """The tool without `defer_loading`, for the upstream."""
    plain = {key: value for key, value in tool.items() if key != MARK}
    function = plain.get("function")
    if isinstance(function, dict) and MARK in function:
        plain["function"] = {key: value for key, value in function.items() if key != MARK}
    return plain


class DeferredTools:
    """The client's deferred tools that have not been found yet.

    They are few and change with each request, so keywords have to do: they are not embedded.
    """

    def __init__(self, tools: Sequence[Json]) -> None:
        self._tools = {tool["function"]["name"]: without_mark(tool) for tool in tools}
        self._words: dict[str, set[str]] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def __bool__(self) -> bool:
        return bool(self._tools)

    def take(self, name: str) -> Json | None:
        """Remove and return a tool."""
        return self._tools.pop(name, None)

    def take_all(self) -> list[Json]:
        """Remove and return all tools."""
        taken = list(self._tools.values())
        self._tools.clear()
        return taken

    def find(self, query: str) -> list[str]:
        """Names of the best matches: rare common words count most, also in the other language.

        Call it in a thread: stemming the words of all tools takes up to half a second.
        """
        if self._words is None:
            share = MAX_CHARACTERS // max(1, len(self._tools))
            limit = min(max(share, MIN_TOOL_CHARACTERS), MAX_TOOL_CHARACTERS)
            self._words = {name: _words(tool, limit) for name, tool in self._tools.items()}
        known = {name: words for name, words in self._words.items() if name in self._tools}
        spread = Counter(word for words in known.values() for word in words)
        wanted = {*tokens(query), *translated(query)}
        scores = {
            name: sum(math.log(1 + len(known) / spread[word]) for word in words & wanted)
            for name, words in known.items()
        }
        best = sorted((name for name, score in scores.items() if score > 0), key=lambda name: (-scores[name], name))
        return best[:MAX_FOUND]


def _words(tool: Json, limit: int) -> set[str]:
    function = tool["function"]
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    names = list(properties)[:MAX_PARAMETERS] if isinstance(properties, dict) else []
    description = str(function.get("description") or "")[:limit]
    texts = [name_words(function["name"][:MAX_NAME_CHARACTERS]), description]
    texts += [name_words(name[:MAX_NAME_CHARACTERS]) for name in names]
    return set(tokens(" ".join(texts)[:limit]))
