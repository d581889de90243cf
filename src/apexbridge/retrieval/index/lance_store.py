"""The durable index: LanceDB tables of skills and of past requests."""

import errno
import os
import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from apexbridge._fs import exchange, make_private_folder, take_from_others
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.snapshot import draft_of, is_current
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.usage import UsagePair

SKILLS, USAGE = "skills", "past"
_KEYS = {SKILLS: "name", USAGE: "key"}
TABLE_WITH_TEXTS = "usage"
"""Of versions that stored the text of past requests."""
KEEP_OLD_VERSIONS = timedelta(minutes=1)
"""Longer than any reader needs to read a version."""
NAMES_PER_DELETE = 500
ROWS_PER_BATCH = 1000
_OS_ERROR = re.compile(r"(?P<message>[A-Z][\w -]{1,100}) \(os error (?P<number>\d+)\)")

Row = tuple[Document | UsagePair, Floats]


class StoreError(Exception):
    """The tables cannot be opened, read or written; the message says why."""

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage
        """Whether writing everything again may help. On a full or read-only disk it would not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything that is to be stored: copies of the indexes, and past use."""

    indexes: Mapping[Kind, VectorIndex]
    pairs: list[tuple[UsagePair, Floats]]

    def skills(self) -> Iterator[list[tuple[Document, Floats]]]:
        """Skills and tools that have a vector, in batches."""
        for index in self.indexes.values():
            yield from index.stored()


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


class LanceStore:
    """Skills and past requests on disk. Its calls block and raise StoreError; only one thread may call at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.snapshot = path.with_suffix(".snapshot")
        """Lets a start do without LanceDB's import. It names the commit that it was made from."""
        self._database: Any = None
        self._tables: dict[str, Any] = {}

    def signature(self) -> str:
        """Changes with every commit; empty without tables. Does not import LanceDB."""
        found = []
        for table in (SKILLS, USAGE):
            with suppress(OSError), os.scandir(self.path / f"{table}.lance" / "_versions") as entries:
                manifests = [entry for entry in entries if entry.name.endswith(".manifest")]
                if manifests:
                    newest = min(manifests, key=lambda entry: entry.name)  # Lance numbers versions downwards
                    found.append(f"{table}/{newest.name}/{newest.stat().st_size}")
        return " ".join(found)

    def exists(self) -> bool:
        return self.path.exists()

    @_store_errors()
    def documents(self, embedder: str, dimensions: int) -> list[Document]:
        """Skills and tools with vectors of this model."""
        table = self._table_of(SKILLS, dimensions)
        if table is None:
            return []
        rows = _select(table, [column for column in table.schema.names if column != "vector"]).to_arrow().to_pylist()
        return [Document.from_stored(row) for row in rows if row.pop("embedder") == embedder]

    def vectors(self, names: Collection[str], dimensions: int) -> Iterator[tuple[str, Floats]]:
        """The vectors of some skills and tools, by name. They are read in batches."""
        with _store_errors():
            table = self._table_of(SKILLS, dimensions)
            columns = ["name", "vector"]
            if table is None:
                return
            if len(names) <= NAMES_PER_DELETE:
                batches = iter(_select(table, columns).where(_is_in("name", names)).to_arrow().to_batches())
            else:
                batches = iter(_select(table, columns).to_batches(ROWS_PER_BATCH))
        while True:
            with _store_errors():
                batch = next(batches, None)
                if batch is None:
                    return
                found = np.asarray(batch["vector"].flatten(), np.float32).reshape(-1, dimensions)
                rows = zip(batch["name"].to_pylist(), found, strict=True)
            yield from ((name, vector) for name, vector in rows if name in names)

    @_store_errors()
    def pairs(self, embedder: str, dimensions: int) -> tuple[list[tuple[UsagePair, Floats]], bool]:
        """Past use, the oldest first; and whether there is some of another model, which cannot be used any more."""
        found = []
        if (table := self._table_of(USAGE, dimensions)) is not None:
            rows = table.to_arrow()
            vectors = np.asarray(rows["vector"].combine_chunks().flatten(), np.float32).reshape(-1, dimensions)
            for row, vector in zip(rows.drop_columns(["vector"]).to_pylist(), vectors, strict=True):
                if row.pop("embedder") == embedder:
                    found.append((UsagePair(taught_at=row.pop("at"), **row), vector))
        stored = self._open(USAGE)
        has_others = stored is not None and dimensions > 0 and stored.count_rows() > len(found)
        return sorted(found, key=lambda pair: pair[0].taught_at), has_others

    @_store_errors()
    def model(self) -> tuple[str, int] | None:
        """The id of the model whose vectors are stored, and their length."""
        table = self._open(SKILLS)
        if table is None:
            return None
        rows = table.search().select(["embedder"]).limit(1).to_arrow().to_pylist()
        return (rows[0]["embedder"], table.schema.field("vector").type.list_size) if rows else None

    def _table_of(self, name: str, dimensions: int) -> Any:
        """The newest version of a table; None if it does not exist, or has vectors of another length."""
        table = self._open(name)
        if table is None or not table.schema.equals(_schema(name, dimensions)):
            return None
        table.checkout_latest()
        return table

    @_store_errors()
    def write(self, name: str, embedder: str, puts: Sequence[Row], drops: Sequence[str] = ()) -> None:
        """Add or replace rows of a table, and delete others by key. A failed change may be written in part."""
        table, key = self._open(name), _KEYS[name]
        if puts:
            rows = _arrow_table(name, embedder, puts)
            if table is None or not table.schema.equals(rows.schema):  # vectors of another length: start again
                table = self._connected().create_table(name, schema=rows.schema, mode="overwrite")
                self._tables[name] = table
            table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(rows)
        for start in range(0, len(drops) if table is not None else 0, NAMES_PER_DELETE):
            table.delete(_is_in(key, drops[start : start + NAMES_PER_DELETE]))
        take_from_others(self.path)

    def _append(self, name: str, embedder: str, rows: Sequence[Row]) -> None:
        """Add rows that the table does not have."""
        data = _arrow_table(name, embedder, rows)
        if name in self._tables:
            self._tables[name].add(data)
        else:
            self._tables[name] = self._connected().create_table(name, data=data)

    @_store_errors()
    def rewrite_pairs(self, embedder: str, pairs: Sequence[tuple[UsagePair, Floats]]) -> None:
        """Store exactly these pairs, and remove every other pair from every file.

        LanceDB keeps a deleted row in its data files until a tenth of them is deleted, and its key in the transaction
        log. So the table is written again, and every older version is removed.
        """
        if pairs:
            rows = _arrow_table(USAGE, embedder, pairs)
            self._tables[USAGE] = self._connected().create_table(USAGE, data=rows, mode="overwrite")
            self.optimize(at_once=True)
        elif self._tables.pop(USAGE, None) is not None or (self.path / f"{USAGE}.lance").exists():
            self._connected().drop_table(USAGE)
        for copy in self._copies():
            shutil.rmtree(copy, ignore_errors=True)
        take_from_others(self.path)

    @_store_errors()
    def remove_texts(self) -> bool:
        """Remove files of earlier versions that contain the text of requests; returns whether there were tables."""
        if not is_current(self.snapshot):
            self.snapshot.unlink(missing_ok=True)
        draft_of(self.snapshot).unlink(missing_ok=True)  # left by a crash
        folders = [self.path, *self._copies()]
        found = [folder for folder in folders if (folder / f"{TABLE_WITH_TEXTS}.lance").exists()]
        for folder in found:
            shutil.rmtree(folder / f"{TABLE_WITH_TEXTS}.lance" if folder == self.path else folder)
        return bool(found)

    def _copies(self) -> list[Path]:
        """Folders of a quarantined store, and of one that a crash left incomplete."""
        return [self.path.with_name(f"{self.path.name}.{suffix}") for suffix in ("damaged", "new")]

    @_store_errors()
    def replace(self, embedder: str, contents: Contents) -> None:
        """Replace everything. It is written to another folder first, so that a failure loses nothing."""
        # New tables count their commits from one: an old snapshot could match a later commit.
        self.snapshot.unlink(missing_ok=True)
        new = LanceStore(self.path.with_name(f"{self.path.name}.new"))
        shutil.rmtree(new.path, ignore_errors=True)
        for rows in contents.skills():
            new._append(SKILLS, embedder, rows)
        if contents.pairs:
            new.write(USAGE, embedder, contents.pairs)
        if not self._exchange(new.path):
            self.quarantine()
            if new.path.exists():
                new.path.rename(self.path)

    def _exchange(self, new: Path) -> bool:
        """Quarantine the store and take the new folder at once: a crash between two renames would lose the index."""
        if not new.is_dir() or not self.path.is_dir() or self.path.is_symlink():
            return False
        try:
            exchange(new, self.path)
        except OSError:  # not every file system can
            return False
        self._database, self._tables = None, {}
        damaged = self.path.with_name(f"{self.path.name}.damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        new.rename(damaged)
        return True

    @_store_errors()
    def quarantine(self) -> None:
        """Rename a damaged store. If the path is not a directory, it is not ours and stays."""
        self._database, self._tables = None, {}
        if self.path.is_dir() and not self.path.is_symlink():
            damaged = self.path.with_name(f"{self.path.name}.damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            self.path.rename(damaged)
        elif self.exists():
            raise StoreError(f"{self.path.name} is not a directory")
        self.snapshot.unlink(missing_ok=True)

    @_store_errors()
    def optimize(self, *, at_once: bool = False) -> None:
        """Merge the fragments of single commits and remove old versions; with `at_once`, also recent ones."""
        with warnings.catch_warnings():
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
            import lancedb  # costs more than a second of CPU

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


def _select(table: Any, columns: Sequence[str]) -> Any:
    return table.search().select(list(columns)).limit(max(1, table.count_rows()))


def _is_in(column: str, values: Collection[str]) -> str:
    """An SQL condition."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})"


def _matrix(rows: Sequence[Row], dimensions: int) -> Floats:
    return np.array([vector for _, vector in rows], np.float32).reshape(len(rows), dimensions)


def _arrow() -> Any:
    """The library that LanceDB is built on; as slow to import."""
    import pyarrow

    return pyarrow


def _schema(name: str, dimensions: int) -> Any:
    pa = _arrow()
    text = pa.string()
    columns = {
        SKILLS: {
            "name": text,
            "description": text,
            "tags": pa.list_(text),
            "derived_tags": pa.list_(text),
            "packed_body": text,
            "hidden": pa.bool_(),
            "version": text,
        },
        USAGE: {"key": text, "skill": text, "caller": text, "chat": text, "at": pa.int64()},
    }
    return pa.schema({**columns[name], "embedder": text, "vector": pa.list_(pa.float32(), dimensions)})


def _value(row: Document | UsagePair, column: str) -> Any:
    """What a column has of a row."""
    if isinstance(row, UsagePair):
        return row.taught_at if column == "at" else getattr(row, column)
    return row.packed_body.stored if column == "packed_body" else getattr(row, column)


def _arrow_table(name: str, embedder: str, rows: Sequence[Row]) -> Any:
    pa = _arrow()
    vectors = _matrix(rows, len(rows[0][1]))
    *columns, _, _ = schema = _schema(name, vectors.shape[1])
    values = [[_value(row, column.name) for row, _ in rows] for column in columns]
    return pa.Table.from_arrays(
        [
            *(pa.array(column, field.type) for column, field in zip(values, columns, strict=True)),
            pa.array([embedder] * len(rows), pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
        ],
        schema=schema,
    )
