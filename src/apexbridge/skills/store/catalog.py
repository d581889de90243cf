"""The catalog: a SQLite table of the skills on disk, to list, filter, count and detect changes."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from apexbridge._time import from_ms
from apexbridge.retrieval.documents import SkillFacts
from apexbridge.retrieval.text import derive_tags
from apexbridge.skills import SKILL_FILE, DefaultMode
from apexbridge.skills.models import GrowthPoint, Problem, SkillSort, SkillStatistics, SkillSummary, TagCount, TagList
from apexbridge.skills.package.permissions import canonical
from apexbridge.skills.package.script_arguments import ScriptArguments
from apexbridge.skills.package.skill import Needs, Skill, SkillMetadata, effective_mode
from apexbridge.skills.store.listing import FOLDED, NEEDS_ACCESS, SkillFilter, keys_query
from apexbridge.skills.store.roots import INSTALLED_ROOT
from apexbridge.storage.database import Database

MAX_UNUSED_NAMES = 100
State = Literal["live", "shadowed", "broken"]
FolderKey = tuple[str, str]
"""Root id and folder within it."""


class FolderState(NamedTuple):
    """The columns that show whether a folder has changed."""

    name: str
    state: State
    signature: str
    marker: str
    embedder: str | None
    content_hash: str


class PublicSkill(NamedTuple):
    """What the public index says about a skill."""

    name: str
    description: str
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One folder. The fields are the columns of the table `skills`, in the same order."""

    root: str
    folder: str
    name: str
    state: State
    reason: str | None = None
    filename: str = "SKILL.md"
    description: str = ""
    version: str | None = None
    author: str | None = None
    category: str | None = None
    declared_mode: str | None = None
    entry: str | None = None
    dangerous: bool = False
    enabled: bool = True
    plugin: str | None = None
    tags: tuple[str, ...] = ()
    derived_tags: tuple[str, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    content_hash: str = ""
    signature: str
    marker: str = ""
    embedder: str | None = None
    """The embedding model of its vectors; None if it is not indexed."""
    installed_at: int
    updated_at: int
    warning_count: int = 0
    permissions: tuple[str, ...] = ()
    """Those that it asks for, in canonical form."""
    needs: dict[str, Any] = field(default_factory=dict)
    """The packages that it needs, as `Needs.to_json` returns them."""

    @property
    def key(self) -> FolderKey:
        return self.root, self.folder

    @property
    def metadata(self) -> SkillMetadata:
        """The frontmatter, as of the last scan."""
        own: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.record["metadata"].items()
        }
        return SkillMetadata(**own)

    @property
    def summary(self) -> str:
        """The first characters of the body."""
        return str(self.record["summary"])

    @property
    def body(self) -> str:
        """What of the body is searched; empty for a row of an earlier version, until it is scanned again."""
        return str(self.record.get("body", ""))

    @property
    def warnings(self) -> list[str]:
        """Those of the last scan."""
        return list(self.record["warnings"])

    @property
    def arguments(self) -> dict[str, ScriptArguments]:
        """The arguments that each script declares in its source, by path."""
        return {path: ScriptArguments.from_json(data) for path, data in self.record.get("arguments", {}).items()}

    @property
    def parameters(self) -> dict[str, Any] | None:
        """The JSON Schema of the input: declared, or derived from the entry script. None if unknown."""
        declared: dict[str, Any] | None = self.record["metadata"]["parameters"]
        derived = self.arguments.get(self.entry) if self.entry else None
        return declared if declared is not None else derived.schema() if derived else None

    def to_summary(self, default_mode: DefaultMode, label: str, standing: "Standing | None" = None) -> SkillSummary:
        standing = standing or Standing()
        return SkillSummary.model_construct(
            name=self.name,
            description=self.description,
            version=self.version,
            author=self.author,
            tags=list(self.tags),
            derived_tags=list(self.derived_tags),
            category=self.category,
            mode=effective_mode(self.declared_mode, self.entry, default_mode),
            enabled=self.enabled,
            source=label,
            plugin=self.plugin,
            installed_at=from_ms(self.installed_at),
            updated_at=from_ms(self.updated_at),
            dangerous=self.dangerous,
            warning_count=self.warning_count,
            needs_access=standing.needs_access,
            needs_packages=standing.needs_packages,
            calls=standing.calls,
            failures=standing.failures,
            last_used_at=None if standing.last_called_at is None else from_ms(standing.last_called_at),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known about a skill beside its content: its calls, and what it still needs."""

    calls: int = 0
    failures: int = 0
    last_called_at: int | None = None
    needs_access: bool = False
    needs_packages: bool = False


def columns_of(skill: Skill) -> dict[str, Any]:
    """The columns that come from the skill itself."""
    metadata = skill.metadata
    return {
        "name": metadata.name,
        "filename": skill.filename,
        "description": metadata.description,
        "version": metadata.version,
        "author": metadata.author,
        "category": metadata.category,
        "declared_mode": metadata.mode,
        "entry": skill.entry,
        "dangerous": metadata.dangerous,
        "tags": metadata.tags,
        "derived_tags": derived_tags_of(metadata),
        "record": {
            "metadata": asdict(metadata),
            "summary": skill.summary,
            "body": skill.body,
            "warnings": list(skill.warnings),
            "arguments": {path: own.to_json() for path, own in skill.arguments.items()},
        },
        "size": skill.size,
        "content_hash": skill.content_hash,
        "warning_count": len(skill.warnings),
        "permissions": tuple(dict.fromkeys(map(canonical, metadata.permissions))),
        "needs": skill.needs.to_json(),
    }


def derived_tags_of(metadata: SkillMetadata) -> tuple[str, ...]:
    """Tags derived from name and description, for a skill that declares none."""
    return () if metadata.tags else derive_tags(metadata.name, metadata.description)


_COLUMNS = tuple(column.name for column in fields(Row))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM skills"  # noqa: S608  # the column names are constants
_IN_FOLDERS = (
    """WHERE (root, folder) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))"""
)
_STANDING = f"COALESCE(call_count, 0), COALESCE(call_count - success_count, 0), last_called_at, {NEEDS_ACCESS}"
_FOUND = f"""SELECT skills.rowid, {", ".join(f"skills.{column}" for column in _COLUMNS)}, {_STANDING}
    FROM skills LEFT JOIN call_statistics ON tool = name"""  # noqa: S608


class Catalog:
    """The table of skill folders."""

    def __init__(self, database: Database, default_mode: DefaultMode = "auto") -> None:
        self._database = database
        self.default_mode = default_mode
        """Mode of skills that declare none; can change at run time."""

    # ------------------------------------------------------------------------------------------------- reading
    async def page(
        self, filter: SkillFilter, *, sort: SkillSort = "name", offset: int, limit: int | None
    ) -> tuple[list[tuple[Row, Standing]], int]:
        """Live skills in this order, and their total number."""
        page, total, values = keys_query(filter, sort, self.default_mode)

        def job(connection: sqlite3.Connection) -> tuple[list[tuple[Row, Standing]], int]:
            connection.create_function(FOLDED, 1, str.casefold, deterministic=True)
            keys = connection.execute(page, (*values, -1 if limit is None else limit, offset)).fetchall()
            (count,) = connection.execute(total, values).fetchone()
            return _found(connection, [key for (key,) in keys]), count

        return await self._database.read(job)

    async def standing(self, row: Row) -> Standing:
        """The calls of a live skill, and whether it needs access."""

        def job(connection: sqlite3.Connection) -> Standing:
            found = connection.execute(f"{_FOUND} WHERE name = ? AND state = 'live'", (row.name,)).fetchone()
            return _standing(found) if found else Standing()

        return await self._database.read(job)

    async def needs(self) -> dict[str, Needs]:
        """The packages that each live skill needs, of those that need any or to which some were added."""

        def job(connection: sqlite3.Connection) -> dict[str, Needs]:
            query = """SELECT name, needs FROM skills INDEXED BY skills_with_needs
                       WHERE state = 'live' AND needs <> '{}'
                       UNION SELECT skills.name, needs FROM skills JOIN skill_packages ON skill = skills.name
                       WHERE state = 'live'"""
            return {name: Needs.from_json(json.loads(needs)) for name, needs in connection.execute(query)}

        return await self._database.read(job)

    async def tags(self, prefix: str, limit: int) -> TagList:
        """The most frequent tags of live skills that begin with a prefix."""
        # The subquery has few rows, so that this is faster than a join with all skills.
        query = """SELECT tag, COUNT(*) AS skills, COUNT(*) OVER () FROM skill_tags
                   WHERE (root, folder) NOT IN (SELECT root, folder FROM skills WHERE state <> 'live')
                   AND tag >= ?1 AND substr(tag, 1, length(?1)) = ?1
                   GROUP BY tag ORDER BY skills DESC, tag LIMIT ?2"""
        rows = await self._database.rows(query, prefix.casefold(), limit)
        total = rows[0][2] if rows else 0
        return TagList(tags=[TagCount(tag=tag, count=count) for tag, count, _ in rows], total=total)

    async def live(self, name: str) -> Row | None:
        """The live skill with this name; None if missing."""
        rows = await self._select("WHERE name = ? AND state = 'live'", name)
        return rows[0] if rows else None

    async def at(self, keys: Collection[FolderKey]) -> dict[FolderKey, Row]:
        """The rows of these folders. Unknown folders are omitted."""
        rows = await self._select(_IN_FOLDERS, json.dumps(list(keys)))
        return {row.key: row for row in rows}

    async def named(self, names: Collection[str]) -> list[Row]:
        """All folders with a skill of one of these names, including shadowed and broken ones."""
        return await self._select("WHERE name IN (SELECT value FROM json_each(?))", json.dumps(list(names)))

    async def enabled_after(self, name: str, limit: int) -> list[Row]:
        """The next enabled live skills by name, for lists that continue after a name."""
        return await self._select("WHERE state = 'live' AND enabled AND name > ? ORDER BY name LIMIT ?", name, limit)

    async def all_live(self) -> list[Row]:
        return await self._select("WHERE state = 'live' ORDER BY name")

    async def live_names(self) -> set[str]:
        return {name for (name,) in await self._database.rows("SELECT name FROM skills WHERE state = 'live'")}

    async def embedders(self) -> set[str]:
        """The signatures of the models that live skills were embedded by."""
        query = "SELECT DISTINCT embedder FROM skills WHERE state = 'live' AND embedder IS NOT NULL"
        return {signature for (signature,) in await self._database.rows(query)}

    async def installed_names(self) -> set[str]:
        """The live skills of the installed root."""
        query = "SELECT name FROM skills WHERE state = 'live' AND root = ?"
        return {name for (name,) in await self._database.rows(query, INSTALLED_ROOT)}

    async def public(self, name: str | None = None) -> list[PublicSkill]:
        """Live and enabled skills, sorted by name, without those that declare `metadata: internal: true`; or one."""
        rows = await self._database.rows(
            "SELECT name, description, content_hash FROM skills WHERE state = 'live' AND enabled AND filename = ? "
            "AND lower(COALESCE(json_extract(record, '$.metadata.metadata.internal'), '')) NOT IN ('true', '1') "
            "AND (?2 IS NULL OR name = ?2) ORDER BY name",
            SKILL_FILE,
            name,
        )
        return [PublicSkill(*row) for row in rows]

    async def facts(self, names: Collection[str]) -> dict[str, SkillFacts]:
        """Mode and enabled state of these skills, for search results."""
        rows = await self._database.rows(
            "SELECT name, declared_mode, entry, enabled FROM skills "
            "WHERE state = 'live' AND name IN (SELECT value FROM json_each(?))",
            json.dumps(list(names)),
        )
        return {
            name: SkillFacts(mode=effective_mode(declared, entry, self.default_mode), enabled=bool(enabled))
            for name, declared, entry, enabled in rows
        }

    async def states(self) -> dict[FolderKey, FolderState]:
        """The columns of every folder that are needed to detect changes."""
        rows = await self._database.rows(
            "SELECT root, folder, name, state, signature, marker, embedder, content_hash FROM skills"
        )
        return {(row[0], row[1]): FolderState(*row[2:]) for row in rows}

    async def _select(self, clause: str, *values: object) -> list[Row]:
        def job(connection: sqlite3.Connection) -> list[Row]:  # parses JSON, so not in the event loop
            return [_row(found) for found in connection.execute(f"{_SELECT} {clause}", values)]

        return await self._database.read(job)

    # ------------------------------------------------------------------------------------------------- writing
    async def save(self, rows: Iterable[Row], *, forget: Iterable[FolderKey] = ()) -> None:
        """Insert or replace rows and delete others, in one transaction."""
        keep, gone = list(rows), list(forget)

        def job(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM skills WHERE root = ? AND folder = ?", gone)
            # Live rows last: the unique index allows one live row per name at any time.
            for row in sorted(keep, key=lambda row: row.state == "live"):
                _upsert(connection, row)
            if gone:  # grants are deleted with their skill, no matter how it was removed
                connection.execute("DELETE FROM grants WHERE skill NOT IN (SELECT name FROM skills)")

        await self._database.write(job)

    async def prove_writable(self) -> None:
        """Write a page without changing it, so that a database error occurs before any file is changed."""

        def job(connection: sqlite3.Connection) -> None:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {int(version)}")

        await self._database.write(job)

    async def set_enabled(self, name: str, enabled: bool) -> None:
        """Enable or disable a live skill."""
        await self._database.execute(
            "UPDATE skills SET enabled = ? WHERE name = ? AND state = 'live'", int(enabled), name
        )

    # ------------------------------------------------------------------------------------------------ counting
    async def statistics(self) -> SkillStatistics:
        return await self._database.read(lambda connection: _statistics(connection, self.default_mode))

    async def growth(self, by: Literal["day", "week"]) -> list[GrowthPoint]:
        """First installs per day or week, in UTC. A week has the date of its Monday."""
        day = "date(installed_at / 1000, 'unixepoch')"
        # 'weekday 0' moves forward to Sunday, or stays on it. The Monday of that week is six days earlier.
        shown = day if by == "day" else f"date({day}, 'weekday 0', '-6 days')"
        query = f"SELECT {shown} AS shown, COUNT(*) FROM first_installs GROUP BY shown ORDER BY shown"  # noqa: S608

        return [GrowthPoint(date=date, count=count) for date, count in await self._database.rows(query)]

    async def problems(self, labels: dict[str, str]) -> list[Problem]:
        """Broken and shadowed folders, with the reason."""
        return [
            Problem(
                name=row.name,
                source=labels.get(row.root, "removed root"),
                source_path=f"{row.folder}/{row.filename}",
                kind="shadowed" if row.state == "shadowed" else "broken",
                reason=row.reason or "",
            )
            for row in await self._select("WHERE state <> 'live' ORDER BY name, root, folder")
        ]


def _found(connection: sqlite3.Connection, keys: Sequence[int]) -> list[tuple[Row, Standing]]:
    """The rows with these ids, in the same order."""
    query = f"{_FOUND} WHERE skills.rowid IN (SELECT value FROM json_each(?))"  # noqa: S608
    found = {values[0]: values for values in connection.execute(query, (json.dumps(keys),))}
    end = len(_COLUMNS) + 1
    return [(_row(found[key][1:end]), _standing(found[key])) for key in keys if key in found]


def _standing(values: Sequence[Any]) -> Standing:
    calls, failures, last, needs_access = values[-4:]
    return Standing(calls=calls, failures=failures, last_called_at=last, needs_access=bool(needs_access))


def _row(values: Sequence[Any]) -> Row:
    columns = dict(zip(_COLUMNS, values, strict=True))
    for key in ("tags", "derived_tags", "permissions"):
        columns[key] = tuple(json.loads(columns[key]))
    for key in ("record", "needs"):
        columns[key] = json.loads(columns[key])
    columns["dangerous"], columns["enabled"] = bool(columns["dangerous"]), bool(columns["enabled"])
    return Row(**columns)


def _upsert(connection: sqlite3.Connection, row: Row) -> None:
    values = []
    for column in _COLUMNS:
        value = getattr(row, column)
        values.append(json.dumps(value, ensure_ascii=False) if isinstance(value, (tuple, dict)) else value)
    marks = ", ".join("?" * len(_COLUMNS))
    # Not INSERT OR REPLACE: it would also delete another live row with the same name.
    connection.execute("DELETE FROM skills WHERE root = ? AND folder = ?", row.key)
    connection.execute(f"INSERT INTO skills ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608
    connection.executemany(
        "INSERT OR IGNORE INTO skill_tags VALUES (?, ?, ?, ?)",
        [(tag.casefold(), 0, *row.key) for tag in row.tags]
        + [(tag.casefold(), 1, *row.key) for tag in row.derived_tags],
    )
    if row.state == "live" and row.root == INSTALLED_ROOT:
        connection.execute("INSERT OR IGNORE INTO first_installs VALUES (?, ?)", (row.name, row.installed_at))


def _statistics(connection: sqlite3.Connection, default_mode: DefaultMode) -> SkillStatistics:
    def tags(derived: int) -> dict[str, int]:
        query = """SELECT tag, COUNT(*) FROM skill_tags JOIN skills USING (root, folder)
                   WHERE derived = ? AND state = 'live' GROUP BY tag ORDER BY COUNT(*) DESC, tag"""
        return dict(connection.execute(query, (derived,)).fetchall())

    by_mode = {"sandbox": 0, "direct": 0}
    query = "SELECT declared_mode, entry IS NOT NULL, COUNT(*) FROM skills WHERE state = 'live' GROUP BY 1, 2"
    for declared, has_entry, count in connection.execute(query):
        by_mode[effective_mode(declared, "entry" if has_entry else None, default_mode)] += count
    calls, successes = connection.execute(
        """SELECT COALESCE(SUM(call_count), 0), COALESCE(SUM(success_count), 0) FROM call_statistics
           JOIN skills ON skills.name = tool AND state = 'live'"""
    ).fetchone()
    unused = [
        name
        for (name,) in connection.execute(
            """SELECT name FROM skills LEFT JOIN call_statistics ON tool = name
               WHERE state = 'live' AND call_count IS NULL ORDER BY name"""
        )
    ]
    return SkillStatistics(
        total=sum(by_mode.values()),
        by_tag=tags(0),
        by_derived_tag=tags(1),
        by_mode=by_mode,
        calls=calls,
        success_rate=round(successes / calls, 2) if calls else 0.0,
        unused=len(unused),
        unused_names=unused[:MAX_UNUSED_NAMES],
    )
