"""Finds out how skills changed, from the tool registry, in which each skill is a tool."""

import asyncio
from collections.abc import Callable, Iterable

from apexbridge.monitoring.server_events import SkillEvent
from apexbridge.tools.naming import SKILL_PREFIX, skill_tool_id
from apexbridge.tools.registry import ToolRegistry

COLLECT_SECONDS = 0.1
"""Changes are published together: an import of a folder changes hundreds of skills."""
_MORE_EXACT: frozenset[SkillEvent] = frozenset({"edited", "restored"})
"""Causes of a change that the registry shows as an installed or updated skill."""


class SkillChanges:
    """Every change of a skill on disk ends in the registry, also one that the watcher found."""

    def __init__(self, registry: ToolRegistry, publish: Callable[[SkillEvent, Iterable[str]], None]) -> None:
        self._registry = registry
        self._publish = publish
        self._states: dict[str, tuple[str, bool]] = {}
        """Content hash of each skill, and whether it is enabled."""
        self._changed: set[str] = set()
        self._differed: set[str] = set()
        """Skills that were in another state for a moment, which readers may have seen."""
        self._noted: dict[SkillEvent, set[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Follow the registry. The skills of this moment are not published."""
        ids = (tool.id for tool in self._registry.list() if tool.id.startswith(SKILL_PREFIX))
        self._states = {id.removeprefix(SKILL_PREFIX): state for id in ids if (state := self._state(id)) is not None}
        self._unsubscribe = self._registry.subscribe(self._tool_changed)

    def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, change: SkillEvent, names: Iterable[str]) -> None:
        """Note a change, or its cause, that the registry does not show."""
        if self._unsubscribe is not None:
            self._noted.setdefault(change, set()).update(names)
            self._schedule()

    def _tool_changed(self, id: str) -> None:
        if id.startswith(SKILL_PREFIX):
            name = id.removeprefix(SKILL_PREFIX)
            self._changed.add(name)
            if self._state(id) != self._states.get(name):
                self._differed.add(name)
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECT_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, set()
        differed, self._differed = self._differed, set()
        noted, self._noted = self._noted, {}
        explained = {name for change in _MORE_EXACT for name in noted.get(change, ())}
        for name in changed:
            change = self._change_of(name, differed=name in differed)
            if change is not None and not (change in ("installed", "updated") and name in explained):
                noted.setdefault(change, set()).add(name)
        for change, names in noted.items():
            self._publish(change, names)

    def _change_of(self, name: str, *, differed: bool) -> SkillEvent | None:
        """What readers see of a change. Indexing, for example, registers a skill again without a difference."""
        before, state = self._states.get(name), self._state(skill_tool_id(name))
        if state is None:
            return "removed" if self._states.pop(name, None) is not None else None
        self._states[name] = state
        if before is None:
            return "installed"
        if before[0] != state[0]:
            return "updated"
        if before == state and not differed:
            return None
        return "enabled" if state[1] else "disabled"

    def _state(self, id: str) -> tuple[str, bool] | None:
        tool = self._registry.find(id)
        return (tool.metadata.content_hash, self._registry.is_enabled(id)) if tool is not None else None
