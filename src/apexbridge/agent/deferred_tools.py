"""Tools of the client's that it wants to be looked for (`defer_loading`): found by their words, sent when found."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from apexbridge.retrieval.glossary import translated
from apexbridge.retrieval.text import name_words, tokens

Json = dict[str, Any]
MAX_FOUND = 5
MAX_PARAMETERS = 50
"""Names of parameters that are looked at."""
MAX_SEARCHED_CHARACTERS = 300
"""Of a description: a request can bring a thousand tools, and their words are read while others wait."""
MAX_NAME_CHARACTERS = 64
MARK = "defer_loading"


def is_deferred(tool: Mapping[str, Any]) -> bool:
    """Whether the client wants this one to be looked for; the mark stands on the tool, or on its function."""
    function = tool.get("function")
    return tool.get(MARK) is True or (isinstance(function, dict) and function.get(MARK) is True)


def without_mark(tool: Json) -> Json:
    """The tool as an upstream knows it."""
    plain = {key: value for key, value in tool.items() if key != MARK}
    function = plain.get("function")
    if isinstance(function, dict) and MARK in function:
        plain["function"] = {key: value for key, value in function.items() if key != MARK}
    return plain


class DeferredTools:
    """The client's tools that wait to be found.

    There are few of them and they are new with each request, so their words have to do: no vectors are made of them.
    """

    def __init__(self, tools: Sequence[Json]) -> None:
        self._tools = {tool["function"]["name"]: without_mark(tool) for tool in tools}
        self._words: dict[str, set[str]] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def __bool__(self) -> bool:
        return bool(self._tools)

    def take(self, name: str) -> Json | None:
        """A tool by its name; it waits no longer."""
        return self._tools.pop(name, None)

    def take_all(self) -> list[Json]:
        """All that wait; they wait no longer."""
        taken = list(self._tools.values())
        self._tools.clear()
        return taken

    def find(self, query: str) -> list[str]:
        """The names of those that fit best: rare words that both have count most; in the other language too."""
        if self._words is None:
            self._words = {name: _words(tool) for name, tool in self._tools.items()}
        known = {name: words for name, words in self._words.items() if name in self._tools}
        spread = Counter(word for words in known.values() for word in words)
        wanted = {*tokens(query), *translated(query)}
        scores = {
            name: sum(math.log(1 + len(known) / spread[word]) for word in words & wanted)
            for name, words in known.items()
        }
        best = sorted((name for name, score in scores.items() if score > 0), key=lambda name: (-scores[name], name))
        return best[:MAX_FOUND]


def _words(tool: Json) -> set[str]:
    function = tool["function"]
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    names = list(properties)[:MAX_PARAMETERS] if isinstance(properties, dict) else []
    description = str(function.get("description") or "")
    texts = [name_words(name[:MAX_NAME_CHARACTERS]) for name in (function["name"], *names)]
    return set(tokens(" ".join([*texts, description[:MAX_SEARCHED_CHARACTERS]])))
