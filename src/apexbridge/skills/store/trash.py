"""Removed skills, which can be restored for some days, and skills of other roots, which are hidden instead.

An entry of the trash is a folder with a record and the removed folders. The record is written first: a crash leaves
either an entry without folders, which is deleted at the next start, or a complete one.
"""

import json
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from apexbridge._fs import replace_file
from apexbridge._time import MAX_MS, MS_PER_DAY, now_ms
from apexbridge.disk import MB, size_on_disk
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.skills.store.catalog import FolderKey
from apexbridge.skills.store.names import folder_of_name
from apexbridge.skills.store.plugins import PLAN_FILE, PluginRecord
from apexbridge.wire import WireModel

KEEP_DAYS = 7
MAX_TRASH_BYTES = 1024 * MB
"""All entries together. The oldest are deleted first."""
RECORD_FILE = "removed.json"
_GONE = "gone."
"""Prefix of removed folders. Folders of skills contain no dot, so it cannot collide."""


FolderName = Annotated[str, Field(pattern=r"^[^/\x00]+$")]
"""The name of a skill; of a folder that is not a valid skill, its own."""


class RemovedSkill(WireModel):
    """A removed folder, and what is known about it apart from its files."""

    name: FolderName
    description: str = ""
    enabled: bool = True
    packages: tuple[str, ...] = ()
    """Packages that were added to it."""


class Removed(WireModel):
    """The record of an entry: one skill, or a plugin with all its skills."""

    kind: Literal["skill", "plugin"]
    name: FolderName
    skills: tuple[RemovedSkill, ...]
    removed_at: int = Field(ge=0, le=MAX_MS)
    plugin: PluginRecord | None = None
    """The plugin, as it was."""

    @property
    def names(self) -> list[str]:
        return [skill.name for skill in self.skills]

    @property
    def until(self) -> int:
        """When it is deleted, in milliseconds since 1970."""
        return min(self.removed_at + KEEP_DAYS * MS_PER_DAY, MAX_MS)


def gone_folder(entry: Path, name: str) -> Path:
    """Where an entry, or the stage of a plan, holds the removed skill that was served under this name."""
    return entry / f"{_GONE}{folder_of_name(name)}"


class Trash:
    """The entries below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        """Held while an entry is made, restored or deleted."""

    def begin(self, record: Removed, fill: Callable[[Path], object] = lambda entry: None) -> Path:
        """Create an entry with its record, durably; returns its folder. `fill` is called before the record exists."""
        entry = self.folder / uuid.uuid4().hex
        entry.mkdir(mode=0o700)
        try:
            fill(entry)
            data = record.model_dump_json(indent=1).encode()
            replace_file(entry / RECORD_FILE, data, beside=entry, mode=0o600, durable=True)
        except BaseException:
            remove_tree(str(entry))
            raise
        return entry

    def all(self) -> list[tuple[Path, Removed]]:
        """Complete entries that have not expired, the newest first."""
        now = now_ms()
        found = [(entry, record) for entry in self._entries() if (record := self.read(entry)) and record.until > now]
        return sorted(found, key=lambda item: item[1].removed_at, reverse=True)

    def read(self, entry: Path) -> Removed | None:
        """The record of an entry; None if it is missing or invalid, or if the entry has no folders."""
        try:
            record = Removed.model_validate(json.loads((entry / RECORD_FILE).read_bytes()))
        except (OSError, ValueError, ValidationError):
            return None
        return record if any(os.path.lexists(gone_folder(entry, name)) for name in record.names) else None

    def sweep(self) -> None:
        """Delete expired entries, the oldest beyond the size limit, and leftovers of a crash."""
        with self.lock:
            kept_bytes, live = 0, self.all()
            keep = set()
            for entry, _ in live:
                kept_bytes += size_on_disk(entry)
                if kept_bytes <= MAX_TRASH_BYTES:
                    keep.add(entry)
            for entry in self._entries():
                if entry not in keep and not os.path.lexists(entry / PLAN_FILE):
                    remove_tree(str(entry))

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


class HiddenSkill(WireModel):
    """A skill of another root that is not served."""

    root: str
    folder: str
    name: str
    hidden_at: int = Field(ge=0, le=MAX_MS)
    packages: tuple[str, ...] = ()
    """Packages that were added to it."""

    @property
    def key(self) -> FolderKey:
        return self.root, self.folder


class HiddenSkills:
    """A file that lists the hidden skills. Read once, and written at every change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._skills = {skill.key: skill for skill in self._read()}

    def __contains__(self, key: FolderKey) -> bool:
        return key in self._skills

    def all(self) -> list[HiddenSkill]:
        return sorted(self._skills.values(), key=lambda skill: skill.hidden_at, reverse=True)

    def add(self, skill: HiddenSkill) -> None:
        self._write([*self.all(), skill])

    def remove(self, key: FolderKey) -> None:
        self._write([skill for skill in self.all() if skill.key != key])

    def _write(self, skills: Sequence[HiddenSkill]) -> None:
        data = json.dumps([skill.model_dump(mode="json") for skill in skills], ensure_ascii=False, indent=1).encode()
        replace_file(self._path, data, beside=self._path.parent, mode=0o600, durable=True)
        self._skills = {skill.key: skill for skill in skills}

    def _read(self) -> list[HiddenSkill]:
        try:
            found = json.loads(self._path.read_bytes())
            return [HiddenSkill.model_validate(item) for item in found] if isinstance(found, list) else []
        except (OSError, ValueError, ValidationError):
            return []
