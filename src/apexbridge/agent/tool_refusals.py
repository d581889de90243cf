"""Detects whether an upstream rejected a request because of its tools.

Upstreams say so only in the message, and messages quote the request. Text of the client must not decide, because the
tool mode of a model is remembered for all callers.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
MAX_MESSAGE = 2_000
MAX_QUOTED = 2_000
"""Compared characters of the message, and of each text of the request."""
MAX_NODES, MAX_COMPARED = 100_000, 200_000
"""Keys and values of a request, and characters of those that could mislead. Errors for larger requests are ignored."""
LONG_RUN = 4
"""Consecutive words of the request that count as a quotation, even a truncated one."""
_STATUSES = frozenset({400, 404, 422, 501})
_TOOL_WORDS = ("tool", "function", "response_format", "json_schema", "grammar")
_UNABLE_WORDS = (
    "support",
    "requires",
    "enable",
    "unrecognized",
    "unknown",
    "unexpected",
    "not permitted",
    "not allowed",
)
"""Words of a server that lacks support. Complaints about invalid tools use other words."""
_PROTOCOL = frozenset(
    {
        "function",
        "function_call",
        "functions",
        "json_schema",
        "parallel_tool_calls",
        "response_format",
        "tool",
        "tool_call_id",
        "tool_calls",
        "tool_choice",
        "tools",
    }
)
"""Words of every request with tools. A message that contains one is about tools."""
_WORD = re.compile(r"\w+")
_SIGNAL = re.compile("|".join((*_TOOL_WORDS, *_UNABLE_WORDS)), re.IGNORECASE)


def is_about_tools(error: UpstreamError, request: Json, tools: Collection[str] = ()) -> bool:
    """Whether the message, without quotations of the request, says that tools are not supported.

    An error that names one of the offered `tools` is about that tool: another tool mode would not help.
    """
    fields = error.error
    if error.status not in _STATUSES or fields.get("code") == "model_not_found" or fields.get("param") == "model":
        return False
    words = _WORD.findall(str(fields.get("message", ""))[:MAX_MESSAGE].lower())
    if not _says_so(words) or not {name.lower() for name in tools}.isdisjoint(words):
        return False
    seen: set[str] = set()
    compared = 0
    for count, text in enumerate(_texts(request)):
        if count > MAX_NODES or compared > MAX_COMPARED:
            return False
        quoted = text[:MAX_QUOTED].lower()
        if quoted in seen or quoted in _PROTOCOL or not _SIGNAL.search(quoted):
            continue
        seen.add(quoted)
        compared += len(quoted)
        words = _without(words, _WORD.findall(quoted))
        if not _says_so(words):
            return False
    return True


def _says_so(words: list[str]) -> bool:
    text = " ".join(words)
    return any(word in text for word in _TOOL_WORDS) and any(word in text for word in _UNABLE_WORDS)


def _texts(value: Any) -> Iterator[str]:
    """Every key and text, and "" for other values. Iterative, because the client chooses the depth."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        yield found if isinstance(found, str) else ""
        if isinstance(found, dict):
            waiting += found.keys()
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _without(words: list[str], quoted: list[str]) -> list[str]:
    """The words without each run that quotes the beginning of a text: all of it, or at least a few words."""
    least = min(len(quoted), LONG_RUN)
    left: list[str] = []
    start = 0
    while start < len(words):
        run = 0
        while run < len(quoted) and start + run < len(words) and words[start + run] == quoted[run]:
            run += 1
        if run >= max(least, 1):
            start += run
        else:
            left.append(words[start])
            start += 1
    return left
