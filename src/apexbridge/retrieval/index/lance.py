"""The durable index: LanceDB tables of skills and of past requests, written in groups.

The import alone costs more than a second of CPU, so it waits for the first call that needs it.
"""

import errno
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexbridge._fs import make_private_folder, take_from_others
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.usage import UsagePair

Floats = NDArray[np.float32]
SKILLS, USAGE = "skills", "past"
TABLE_WITH_TEXTS = "usage"
"""Of versions that kept the text of past requests."""
KEEP_OLD_VERSIONS = timedelta(minutes=1)
"""Longer than any reader needs to read one through."""
NAMES_A_DELETE = 500
_OS_ERROR = re.compile(r"(?P<words>[A-Z][\w -]{1,100}) \(os error (?P<number>\d+)\)")


class StoreError(Exception):
    """The tables cannot be opened, read or written; the message says why."""

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage
        """Whether writing everything anew may help; on a full or closed disk it would not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSkill:
    """A skill with its vector."""

    document: Document
    vector: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything the tables hold for one embedding model."""

    skills: list[IndexedSkill]
    pairs: list[tuple[UsagePair, Floats]]
    has_others: bool = False
    """Whether there are past requests that another model read; they are of no use any more."""


class LanceStore:
    """Skills and past requests on disk. Its calls block; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: Any = None
        self._tables: dict[str, Any] = {}

    # ------------------------------------------------------------------------------------------------- reading
    def signature(self) -> str:
        """Changes with every commit; empty where there is nothing. Costs no import."""
        found = []
        for table in (SKILLS, USAGE):
            try:
                with os.scandir(self.path / f"{table}.lance" / "_versions") as entries:
                    manifests = [entry for entry in entries if entry.name.endswith(".manifest")]
                    newest = min(manifests, key=lambda entry: entry.name, default=None)  # Lance counts downwards
                    if newest is not None:
                        found.append(f"{table}/{newest.name}/{newest.stat().st_size}")
            except OSError:
                continue
        return " ".join(found)

    def exists(self) -> bool:
        """Whether anything was ever stored here."""
        return self.path.exists()

    def read(self, embedder: str, dimensions: int) -> Contents:
        """What is stored for this model; vectors of another model are of no use.

        Raises:
            StoreError: the tables cannot be opened or read.
        """
        with _faults():
            skills = [
                IndexedSkill(document=_document(row), vector=vector)
                for row, vector in self._rows(SKILLS, embedder, dimensions)
            ]
            pairs = [
                (
                    UsagePair(
                        key=row["key"],
                        skill=row["skill"],
                        caller=row["caller"],
                        chat=row["chat"],
                        taught_at=row["at"],
                    ),
                    vector,
                )
                for row, vector in self._rows(USAGE, embedder, dimensions)
            ]
            table = self._open(USAGE)
            has_others = table is not None and dimensions > 0 and table.count_rows() > len(pairs)
        return Contents(skills=skills, pairs=sorted(pairs, key=lambda pair: pair[0].taught_at), has_others=has_others)

    def model(self) -> tuple[str, int] | None:
        """Whose vectors are stored, and how long they are.

        Raises:
            StoreError: the table cannot be opened.
        """
        with _faults():
            table = self._open(SKILLS)
            if table is None:
                return None
            rows = table.search().select(["embedder"]).limit(1).to_arrow().to_pylist()
            return (rows[0]["embedder"], table.schema.field("vector").type.list_size) if rows else None

    def _rows(self, name: str, embedder: str, dimensions: int) -> Iterator[tuple[dict[str, Any], Floats]]:
        table = self._open(name)
        if table is None or not _fits(table, name, dimensions):
            return
        table.checkout_latest()
        found = table.to_arrow()
        vectors = np.asarray(found["vector"].combine_chunks().flatten(), np.float32).reshape(-1, dimensions)
        for row, vector in zip(found.drop_columns(["vector"]).to_pylist(), vectors, strict=True):
            if row["embedder"] == embedder:
                yield row, vector

    # ------------------------------------------------------------------------------------------------- writing
    def write_skills(self, embedder: str, puts: Sequence[IndexedSkill], drops: Sequence[str]) -> None:
        """Put these in place of what was stored under their names, and remove others.

        Raises:
            StoreError: nothing, or not everything, was written.
        """
        with _faults():
            table = self._writable(SKILLS, len(puts[0].vector)) if puts else self._open(SKILLS)
            if puts:
                rows = _skill_table(embedder, puts)
                table.merge_insert("name").when_matched_update_all().when_not_matched_insert_all().execute(rows)
            if drops and table is not None:
                _delete(table, "name", drops)
            take_from_others(self.path)

    def write_pairs(self, embedder: str, puts: Sequence[tuple[UsagePair, Floats]], drops: Sequence[str]) -> None:
        """Remember these pairs, and forget those with these keys.

        Raises:
            StoreError: nothing, or not everything, was written.
        """
        with _faults():
            table = self._writable(USAGE, len(puts[0][1])) if puts else self._open(USAGE)
            if puts:
                rows = _pair_table(embedder, puts)
                table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(rows)
            if drops and table is not None:
                _delete(table, "key", drops)
            take_from_others(self.path)

    def rewrite_pairs(self, embedder: str, pairs: Sequence[tuple[UsagePair, Floats]]) -> None:
        """Store exactly these pairs, and leave nothing of any other one in a file.

        A deleted row stays in LanceDB's data files until a tenth of them is deleted, and its key in the transaction
        log. So the table is written again, and every older version removed.

        Raises:
            StoreError: it could not be done; the table is as it was, or has the new pairs and old versions of it.
        """
        with _faults():
            if pairs:
                rows = _pair_table(embedder, pairs)
                self._tables[USAGE] = self._connected().create_table(USAGE, data=rows, mode="overwrite")
                self.optimize(at_once=True)
            elif self._tables.pop(USAGE, None) is not None or (self.path / f"{USAGE}.lance").exists():
                self._connected().drop_table(USAGE)
            for copy in self._copies():
                shutil.rmtree(copy, ignore_errors=True)
            take_from_others(self.path)

    def remove_texts(self) -> bool:
        """Remove what earlier versions stored with the text of requests; returns whether there was any.

        Raises:
            StoreError: it could not be removed.
        """
        places = [self.path, *self._copies()]
        found = [place for place in places if (place / f"{TABLE_WITH_TEXTS}.lance").exists()]
        with _faults():
            for place in found:
                shutil.rmtree(place / f"{TABLE_WITH_TEXTS}.lance" if place == self.path else place)
        return bool(found)

    def _copies(self) -> list[Path]:
        """Where a damaged index, and one that was being written at a crash, are left."""
        return [self.path.with_name(f"{self.path.name}.{suffix}") for suffix in ("damaged", "new")]

    def replace(self, embedder: str, contents: Contents) -> None:
        """Begin anew with exactly this: written beside first, so that a failure costs nothing that was there.

        Raises:
            StoreError: it could not be written.
        """
        beside = LanceStore(self.path.with_name(f"{self.path.name}.new"))
        with _faults():
            shutil.rmtree(beside.path, ignore_errors=True)
            if contents.skills:
                beside.write_skills(embedder, contents.skills, [])
            if contents.pairs:
                beside.write_pairs(embedder, contents.pairs, [])
            self.quarantine()
            if beside.path.exists():
                beside.path.rename(self.path)

    def quarantine(self) -> None:
        """Put a damaged index out of the way, under another name; what stands there and is none of ours stays.

        Raises:
            StoreError: there is no directory at the place, or it cannot be moved.
        """
        self._database, self._tables = None, {}
        with _faults():
            if self.path.is_dir() and not self.path.is_symlink():
                aside = self.path.with_name(f"{self.path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                self.path.rename(aside)
            elif self.exists():
                raise StoreError("something else stands at its place")

    def optimize(self, *, at_once: bool = False) -> None:
        """Join the fragments that single commits leave and remove old versions; `at_once` even the newest of those.

        Raises:
            StoreError: it could not be done now.
        """
        with _faults(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that readers of old versions fail, which is the point
            for table in self._tables.values():
                if at_once:
                    table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
                else:
                    table.optimize(cleanup_older_than=KEEP_OLD_VERSIONS)
        take_from_others(self.path)

    # ------------------------------------------------------------------------------------------------- details
    def _connected(self) -> Any:
        if self._database is None:
            os.environ.setdefault("LANCEDB_LOG", "error")
            import lancedb

            make_private_folder(self.path)  # LanceDB creates its files as the umask says
            self._database = lancedb.connect(self.path)
        return self._database

    def _open(self, name: str) -> Any:
        """A table; None where there is none yet."""
        if name not in self._tables:
            if not (self.path / f"{name}.lance").exists():
                if self.exists() and not self.path.is_dir():
                    raise StoreError("something else stands at its place")
                return None
            self._tables[name] = self._connected().open_table(name)
        return self._tables[name]

    def _writable(self, name: str, dimensions: int) -> Any:
        """A table for vectors of this length; one for another length is of no use any more."""
        table = self._open(name)
        if table is None or not _fits(table, name, dimensions):
            table = self._connected().create_table(name, schema=_schema(name, dimensions), mode="overwrite")
            self._tables[name] = table
        return table


@contextmanager
def _faults() -> Iterator[None]:
    """Whatever LanceDB, Arrow or the disk throw, said as one kind of error without a path of the server."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(error.strerror or type(error).__name__) from error
    except ImportError as error:
        raise StoreError("LanceDB is not properly installed") from error
    except Exception as error:  # LanceDB raises RuntimeError and ValueError for faults of every kind
        told = _OS_ERROR.search(str(error))
        if told and int(told["number"]) != errno.ENOENT:  # a full disk, too many files: that may pass by itself
            raise StoreError(told["words"]) from error
        raise StoreError("its files are damaged or missing", is_damage=True) from error


def _fits(table: Any, name: str, dimensions: int) -> bool:
    """Whether a table has today's columns, for vectors of this length."""
    return bool(table.schema.equals(_schema(name, dimensions)))


def _schema(name: str, dimensions: int) -> Any:
    import pyarrow as pa

    own = {
        SKILLS: [
            ("name", pa.string()),
            ("description", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("derived_tags", pa.list_(pa.string())),
            ("hidden", pa.bool_()),
            ("version", pa.string()),
        ],
        USAGE: [
            ("key", pa.string()),
            ("skill", pa.string()),
            ("caller", pa.string()),
            ("chat", pa.string()),
            ("at", pa.int64()),
        ],
    }
    return pa.schema([*own[name], ("embedder", pa.string()), ("vector", pa.list_(pa.float32(), dimensions))])


def _skill_table(embedder: str, skills: Sequence[IndexedSkill]) -> Any:
    rows = [
        {
            "name": skill.document.name,
            "description": skill.document.description,
            "tags": list(skill.document.tags),
            "derived_tags": list(skill.document.derived_tags),
            "hidden": skill.document.hidden,
            "version": skill.document.version,
            "embedder": embedder,
        }
        for skill in skills
    ]
    return _table(SKILLS, rows, [skill.vector for skill in skills])


def _pair_table(embedder: str, pairs: Sequence[tuple[UsagePair, Floats]]) -> Any:
    rows = [
        {
            "key": pair.key,
            "skill": pair.skill,
            "caller": pair.caller,
            "chat": pair.chat,
            "at": pair.taught_at,
            "embedder": embedder,
        }
        for pair, _ in pairs
    ]
    return _table(USAGE, rows, [vector for _, vector in pairs])


def _table(name: str, rows: Sequence[dict[str, Any]], vectors: Sequence[Floats]) -> Any:
    import pyarrow as pa

    stacked = np.stack(vectors).astype(np.float32)
    schema = _schema(name, stacked.shape[1])
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema if field.name != "vector"]
    columns.append(pa.FixedSizeListArray.from_arrays(pa.array(stacked.ravel()), stacked.shape[1]))
    return pa.Table.from_arrays(columns, schema=schema)


def _document(row: dict[str, Any]) -> Document:
    return Document(
        name=row["name"],
        description=row["description"],
        tags=tuple(row["tags"]),
        derived_tags=tuple(row["derived_tags"]),
        hidden=row["hidden"],
        version=row["version"],
    )


def _delete(table: Any, column: str, values: Sequence[str]) -> None:
    for start in range(0, len(values), NAMES_A_DELETE):
        quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values[start : start + NAMES_A_DELETE])
        table.delete(f"{column} IN ({quoted})")
