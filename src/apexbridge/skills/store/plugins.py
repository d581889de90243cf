"""Plugins: groups of skills that are installed and removed together, and the plan of such a change."""

import json
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from apexbridge._fs import replace_file
from apexbridge._time import MAX_MS
from apexbridge.skills import NAME_PATTERN, SERVED_NAME_PATTERN
from apexbridge.skills.models import Origin
from apexbridge.skills.store.names import own_name
from apexbridge.wire import WireModel

PLAN_FILE = "plan.json"
Name = Annotated[str, Field(pattern=NAME_PATTERN.pattern.removesuffix(r"\Z") + "$")]
ServedName = Annotated[str, Field(pattern="^" + SERVED_NAME_PATTERN.pattern.removesuffix(r"\Z") + "$")]


class PluginRecord(WireModel):
    """A plugin and the skills that came with it."""

    name: Name
    version: str | None = None
    description: str | None = None
    installed_at: int = Field(ge=0, le=MAX_MS)
    skills: tuple[ServedName, ...]
    """The names under which they are served."""
    origin: Origin | None = None

    def name_of(self, skill: str) -> str | None:
        """The name under which the skill with this own name is served; None if the plugin does not have it."""
        return next((name for name in self.skills if own_name(name) == skill), None)

    def having(self, skills: Sequence[str]) -> "PluginRecord":
        """The same plugin with these skills."""
        return self.model_copy(update={"skills": tuple(skills)})


class PluginChange(WireModel):
    """A plugin before and after a change."""

    after: PluginRecord
    """Without skills, the plugin is removed."""
    before: PluginRecord | None


class Plan(WireModel):
    """A change of several skills at once; written down before it begins, so that a crash cannot leave half of it."""

    plugins: tuple[PluginChange, ...]
    skills: dict[ServedName, str]
    """What is put in place: names and content hashes."""
    superseded: tuple[ServedName, ...]
    """What goes."""
    trash: dict[ServedName, str] = Field(default_factory=dict)
    """Of what goes, entries of the trash that it goes to. The remainder is deleted."""
    restored: tuple[ServedName, ...] = ()
    """What comes back out of the trash."""

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
        self.lock = threading.RLock()
        """Held while a record changes."""

    def all(self) -> list[PluginRecord]:
        """Every plugin, sorted by name. Invalid files are ignored."""
        found = []
        for path in self.folder.glob("*.json"):
            try:
                record = PluginRecord.model_validate(json.loads(path.read_bytes()))
            except (OSError, ValueError, ValidationError):
                continue
            if record.name == path.stem:
                found.append(record)
        return sorted(found, key=lambda record: record.name)

    def named(self, name: str) -> PluginRecord | None:
        return next((record for record in self.all() if record.name == name), None)

    def write(self, record: PluginRecord) -> None:
        """Write a plugin's record, or delete it if no skill is left."""
        path = self.folder / f"{record.name}.json"
        with self.lock:
            if record.skills:
                data = record.model_dump_json(indent=1).encode()
                replace_file(path, data, beside=self.folder, mode=0o600, durable=True)
            else:
                path.unlink(missing_ok=True)

    def drop(self, names: Sequence[str], except_plugins: Collection[str] = ()) -> None:
        """Remove replaced or deleted skills from the records of all plugins except some."""
        with self.lock:
            for record in self.all():
                left = [name for name in record.skills if name not in names]
                if record.name not in except_plugins and len(left) < len(record.skills):
                    self.write(record.having(left))
