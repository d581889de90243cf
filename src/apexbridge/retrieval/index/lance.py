"""The durable index: LanceDB tables of skills and of past requests.

Importing LanceDB costs more than a second of CPU, so it is imported by the first call that needs it.
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

from apexbridge._fs import make_private_folder, take_from_others
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.usage import UsagePair

SKILLS, USAGE = "skills", "past"
_KEYS = {SKILLS: "name", USAGE: "key"}
_ATTRIBUTES = {"at": "taught_at"}
"""Columns whose attribute has another name."""
TABLE_WITH_TEXTS = "usage"
"""Of versions that stored the text of past requests."""
KEEP_OLD_VERSIONS = timedelta(minutes=1)
"""Longer than any reader needs to read a version."""
NAMES_PER_DELETE = 500
_OS_ERROR = re.compile(r"(?P<message>[A-Z][\w -]{1,100}) \(os error (?P<number>\d+)\)")


class StoreError(Exception):
    """The tables cannot be opened, read or written; the message says why."""

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage
        """Whether writing everything again may help. On a full or read-only disk it would not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSkill:
    document: Document
    vector: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything the tables hold for one embedding model."""

    skills: list[IndexedSkill]
    pairs: list[tuple[UsagePair, Floats]]
    has_pairs_of_other_models: bool = False
    """Whether there are past requests embedded by another model, which cannot be used any more."""


class LanceStore:
    """Skills and past requests on disk. Its calls block, and only one thread may call at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: Any = None
        self._tables: dict[str, Any] = {}

    def signature(self) -> str:
        """Changes with every commit; empty without tables. Does not import LanceDB."""
        found = []
        for table in (SKILLS, USAGE):
            try:
                with os.scandir(self.path / f"{table}.lance" / "_versions") as entries:
                    manifests = [entry for entry in entries if entry.name.endswith(".manifest")]
                    newest = min(
                        manifests, key=lambda entry: entry.name, default=None
                    )  # Lance numbers versions downwards
                    if newest is not None:
                        found.append(f"{table}/{newest.name}/{newest.stat().st_size}")
            except OSError:
                continue
        return " ".join(found)

    def exists(self) -> bool:
        return self.path.exists()

    def read(self, embedder: str, dimensions: int) -> Contents:
        """What is stored for this model. Vectors of other models are left out.

        Raises:
            StoreError: the tables cannot be opened or read.
        """
        with _store_errors():
            skills = [
                IndexedSkill(document=Document.from_stored(row), vector=vector)
                for row, vector in self._rows(SKILLS, embedder, dimensions)
            ]
            pairs = [
                (UsagePair(taught_at=row.pop("at"), **row), vector)
                for row, vector in self._rows(USAGE, embedder, dimensions)
            ]
            table = self._open(USAGE)
            has_others = table is not None and dimensions > 0 and table.count_rows() > len(pairs)
        return Contents(
            skills=skills, pairs=sorted(pairs, key=lambda pair: pair[0].taught_at), has_pairs_of_other_models=has_others
        )

    def model(self) -> tuple[str, int] | None:
        """The id of the model whose vectors are stored, and their length.

        Raises:
            StoreError: the table cannot be opened.
        """
        with _store_errors():
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
            if row.pop("embedder") == embedder:
                yield row, vector

    def write_skills(self, embedder: str, puts: Sequence[IndexedSkill], drops: Sequence[str]) -> None:
        """Add or replace skills, and delete others by name.

        Raises:
            StoreError: the change was not written, or not completely.
        """
        self._write(SKILLS, embedder, [(skill.document, skill.vector) for skill in puts], drops)

    def write_pairs(self, embedder: str, puts: Sequence[tuple[UsagePair, Floats]], drops: Sequence[str]) -> None:
        """Add or replace pairs, and delete others by key.

        Raises:
            StoreError: the change was not written, or not completely.
        """
        self._write(USAGE, embedder, puts, drops)

    def _write(
        self, name: str, embedder: str, puts: Sequence[tuple[Document | UsagePair, Floats]], drops: Sequence[str]
    ) -> None:
        with _store_errors():
            table = self._open_or_create(name, len(puts[0][1])) if puts else self._open(name)
            if puts:
                rows = _arrow_table(name, embedder, puts)
                table.merge_insert(_KEYS[name]).when_matched_update_all().when_not_matched_insert_all().execute(rows)
            if drops and table is not None:
                _delete(table, _KEYS[name], drops)
            take_from_others(self.path)

    def rewrite_pairs(self, embedder: str, pairs: Sequence[tuple[UsagePair, Floats]]) -> None:
        """Store exactly these pairs, and remove every other pair from every file.

        LanceDB keeps a deleted row in its data files until a tenth of them is deleted, and its key in the transaction
        log. So the table is written again, and every older version is removed.

        Raises:
            StoreError: the table is unchanged, or has the new pairs but also old versions.
        """
        with _store_errors():
            if pairs:
                rows = _arrow_table(USAGE, embedder, pairs)
                self._tables[USAGE] = self._connected().create_table(USAGE, data=rows, mode="overwrite")
                self.optimize(at_once=True)
            elif self._tables.pop(USAGE, None) is not None or (self.path / f"{USAGE}.lance").exists():
                self._connected().drop_table(USAGE)
            for copy in self._copies():
                shutil.rmtree(copy, ignore_errors=True)
            take_from_others(self.path)

    def remove_texts(self) -> bool:
        """Remove tables of earlier versions that contain the text of requests; returns whether there were any.

        Raises:
            StoreError: a table could not be removed.
        """
        folders = [self.path, *self._copies()]
        found = [folder for folder in folders if (folder / f"{TABLE_WITH_TEXTS}.lance").exists()]
        with _store_errors():
            for folder in found:
                shutil.rmtree(folder / f"{TABLE_WITH_TEXTS}.lance" if folder == self.path else folder)
        return bool(found)

    def _copies(self) -> list[Path]:
        """Folders of a quarantined store, and of one that a crash left incomplete."""
        return [self.path.with_name(f"{self.path.name}.{suffix}") for suffix in ("damaged", "new")]

    def replace(self, embedder: str, contents: Contents) -> None:
        """Replace everything. It is written to another folder first, so that a failure loses nothing.

        Raises:
            StoreError: the store could not be written.
        """
        new = LanceStore(self.path.with_name(f"{self.path.name}.new"))
        with _store_errors():
            shutil.rmtree(new.path, ignore_errors=True)
            if contents.skills:
                new.write_skills(embedder, contents.skills, [])
            if contents.pairs:
                new.write_pairs(embedder, contents.pairs, [])
            self.quarantine()
            if new.path.exists():
                new.path.rename(self.path)

    def quarantine(self) -> None:
        """Rename a damaged store. If the path is not a directory, it is not ours and stays.

        Raises:
            StoreError: the path is not a directory, or it cannot be renamed.
        """
        self._database, self._tables = None, {}
        with _store_errors():
            if self.path.is_dir() and not self.path.is_symlink():
                damaged = self.path.with_name(f"{self.path.name}.damaged")
                shutil.rmtree(damaged, ignore_errors=True)
                self.path.rename(damaged)
            elif self.exists():
                raise StoreError(f"{self.path.name} is not a directory")

    def optimize(self, *, at_once: bool = False) -> None:
        """Merge the fragments of single commits and remove old versions; with `at_once`, also recent ones.

        Raises:
            StoreError: the tables could not be optimized.
        """
        with _store_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # LanceDB warns that readers of old versions fail
            for table in self._tables.values():
                if at_once:
                    table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
                else:
                    table.optimize(cleanup_older_than=KEEP_OLD_VERSIONS)
        take_from_others(self.path)

    def _connected(self) -> Any:
        if self._database is None:
            os.environ.setdefault("LANCEDB_LOG", "error")
            import lancedb

            make_private_folder(self.path)  # LanceDB creates its files with the modes of the umask
            self._database = lancedb.connect(self.path)
        return self._database

    def _open(self, name: str) -> Any:
        """A table; None if it does not exist yet."""
        if name not in self._tables:
            if not (self.path / f"{name}.lance").exists():
                if self.exists() and not self.path.is_dir():
                    raise StoreError(f"{self.path.name} is not a directory")
                return None
            self._tables[name] = self._connected().open_table(name)
        return self._tables[name]

    def _open_or_create(self, name: str, dimensions: int) -> Any:
        """A table for vectors of this length; one for another length is overwritten."""
        table = self._open(name)
        if table is None or not _fits(table, name, dimensions):
            table = self._connected().create_table(name, schema=_schema(name, dimensions), mode="overwrite")
            self._tables[name] = table
        return table


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn errors of LanceDB, Arrow and the disk into StoreError, without paths of this server."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(error.strerror or type(error).__name__) from error
    except ImportError as error:
        raise StoreError("LanceDB is not properly installed") from error
    except Exception as error:  # LanceDB raises RuntimeError and ValueError for errors of every kind
        os_error = _OS_ERROR.search(str(error))
        if os_error and int(os_error["number"]) != errno.ENOENT:  # a full disk, too many open files: temporary
            raise StoreError(os_error["message"]) from error
        raise StoreError("its files are damaged or missing", is_damage=True) from error


def _fits(table: Any, name: str, dimensions: int) -> bool:
    """Whether a table has the current columns and vectors of this length."""
    return bool(table.schema.equals(_schema(name, dimensions)))


def _schema(name: str, dimensions: int) -> Any:
    import pyarrow as pa

    columns = {
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
    return pa.schema([*columns[name], ("embedder", pa.string()), ("vector", pa.list_(pa.float32(), dimensions))])


def _arrow_table(name: str, embedder: str, rows: Sequence[tuple[Document | UsagePair, Floats]]) -> Any:
    import pyarrow as pa

    vectors = np.stack([vector for _, vector in rows]).astype(np.float32)
    *columns, _, _ = schema = _schema(name, vectors.shape[1])
    return pa.Table.from_arrays(
        [
            *(
                pa.array([getattr(row, _ATTRIBUTES.get(column.name, column.name)) for row, _ in rows], column.type)
                for column in columns
            ),
            pa.array([embedder] * len(rows), pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
        ],
        schema=schema,
    )


def _delete(table: Any, column: str, values: Sequence[str]) -> None:
    for start in range(0, len(values), NAMES_PER_DELETE):
        quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values[start : start + NAMES_PER_DELETE])
        table.delete(f"{column} IN ({quoted})")
