"""Ids of the tools of MCP servers: `{server}_{tool}`, letters, digits, `_` and `-`, at most 64 characters."""

import re
from collections.abc import Collection, Mapping, Sequence

from apexbridge.tools.naming import MAX_CHARACTERS

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


def tool_ids(
    server: str, tools: Sequence[str], *, taken: Collection[str], earlier: Mapping[str, str] | None = None
) -> dict[str, str]:
    """An id for each tool of a server, by the tool's own name. Ids that collide are numbered.

    A tool keeps the id that it had `earlier`: conversations and records refer to it.
    """
    used = set(taken)
    ids: dict[str, str] = {}
    for tool in tools:
        if (id := (earlier or {}).get(tool)) is not None and id not in used:
            ids[tool] = id
            used.add(id)
    for tool in tools:
        if tool not in ids:
            ids[tool] = id = _free(_FORBIDDEN.sub("_", f"{server}_{tool}")[:MAX_CHARACTERS], used)
            used.add(id)
    return ids


def _free(name: str, used: Collection[str]) -> str:
    number, free = 1, name
    while free in used:
        number += 1
        suffix = f"_{number}"
        free = name[: MAX_CHARACTERS - len(suffix)] + suffix
    return free
