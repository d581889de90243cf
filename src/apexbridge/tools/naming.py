"""The names that models and other clients see: letters, digits, `_` and `-`, at most 64 characters."""

import hashlib
import re
from collections.abc import Iterable

MAX_CHARACTERS = 64
HASH_CHARACTERS = 8
SKILL_PREFIX = "skill:"
MCP_CATEGORY = "mcp"
"""Category of the tools of MCP servers. Models call these by their ids, which are valid names."""
SKILL_IDENTIFIER = "The skill's identifier"
"""Description of the `name` that every skill tool takes in addition to the skill's own parameters."""
_OWN_NAMES = {"vector-search": "search_skills", "read-skill": "load_skill"}
"""Names that models understand better than the registry's ids."""
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


def skill_tool_id(name: str) -> str:
    return f"{SKILL_PREFIX}{name}"


def wire_name(id: str) -> str:
    """The wire name of a tool, without regard to the names of other tools."""
    if id in _OWN_NAMES:
        return _OWN_NAMES[id]
    if id.startswith(SKILL_PREFIX):  # skill names consist of lower-case letters, digits and hyphens already
        name = f"skill__{_FORBIDDEN.sub('_', id.removeprefix(SKILL_PREFIX))}"
    else:
        name = _FORBIDDEN.sub("_", id).replace("-", "_")
    return name if len(name) <= MAX_CHARACTERS else _hashed(name, id)


def _hashed(name: str, id: str) -> str:
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    return f"{name[: MAX_CHARACTERS - HASH_CHARACTERS - 1]}_{digest}"


def is_wire_name(name: str) -> bool:
    return 0 < len(name) <= MAX_CHARACTERS and _FORBIDDEN.search(name) is None


def shortened(name: str) -> str:
    """A client's name of its own tool, as upstreams accept it."""
    return name if is_wire_name(name) else _hashed(_FORBIDDEN.sub("_", name), name)


class WireNames:
    """Unique wire names for several tools."""

    def __init__(self, ids: Iterable[str], *, taken: Iterable[str] = ()) -> None:
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        used = set(taken)
        for id in ids:
            name = wire_name(id)
            if name in used:
                name = _hashed(name, id)
            used.add(name)
            self._names[id] = name
            self._ids[name] = id

    def name(self, id: str) -> str:
        return self._names[id]

    def id(self, name: str) -> str | None:
        """The id of the tool with this name; None if missing."""
        return self._ids.get(name)
