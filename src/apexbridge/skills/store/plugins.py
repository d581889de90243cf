"""Plugins: groups of skills that are installed and removed together, and the plan of such a change."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from apexbridge._fs import replace_file
from apexbridge._time import MAX_MS
from apexbridge.skills.models import NAME_PATTERN
from apexbridge.wire import WireModel

PLAN_FILE = "plan.json"
Name = Annotated[str, Field(pattern=NAME_PATTERN.pattern.removesuffix(r"\Z") + "$")]


class PluginRecord(WireModel):
    """A plugin and the skills that came with it."""

    name: Name
    version: str | None = None
    description: str | None = None
    installed_at: int = Field(ge=0, le=MAX_MS)
    skills: tuple[Name, ...]

    def having(self, skills: Sequence[str]) -> "PluginRecord":
        """The same plugin with these skills."""
        return self.model_copy(update={"skills": tuple(skills)})


class Plan(WireModel):
    """A change of several skills at once; written down before it begins, so that a crash cannot leave half of it."""

    plugin: PluginRecord
    """As it will be; without skills it goes."""
    before: PluginRecord | None
    """As it was."""
    skills: dict[Name, str]
    """What is put in place: names and content hashes."""
    superseded: tuple[Name, ...]
    """What goes."""

    def write(self, stage: Path) -> None:
        """Write the plan durably to its stage. From here on it is applied, even after a crash."""
        replace_file(stage / PLAN_FILE, self.model_dump_json().encode(), beside=stage, mode=0o600, durable=True)

    @classmethod
    def read(cls, stage: Path) -> "Plan | None":
        """The plan of a stage; None if missing or incomplete: such a change never began."""
        try:
            return cls.model_validate(json.loads((stage / PLAN_FILE).read_bytes()))
        except (OSError, ValueError, ValidationError):
            return None


class PluginRecords:
    """A folder with one record per plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()

    def all(self) -> list[PluginRecord]:
        """Every plugin, sorted by name. Invalid files are ignored."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                record = PluginRecord.model_validate(json.loads(path.read_bytes()))
            except (OSError, ValueError, ValidationError):
                continue
            if record.name == path.stem:
                found.append(record)
        return found

    def named(self, name: str) -> PluginRecord | None:
        return next((record for record in self.all() if record.name == name), None)

    def write(self, record: PluginRecord) -> None:
        """Write a plugin's record, or delete it if no skill is left."""
        path = self.folder / f"{record.name}.json"
        with self._lock:
            if record.skills:
                data = record.model_dump_json(indent=1).encode()
                replace_file(path, data, beside=self.folder, mode=0o600, durable=True)
            else:
                path.unlink(missing_ok=True)

    def drop(self, names: Sequence[str], except_plugin: str | None = None) -> None:
        """Remove replaced or deleted skills from the records of all plugins except one."""
        with self._lock:
            for record in self.all():
                left = [name for name in record.skills if name not in names]
                if record.name != except_plugin and len(left) < len(record.skills):
                    self.write(record.having(left))
