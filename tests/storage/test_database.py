import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from apexbridge.errors import ServerError
from apexbridge.storage import database as database_module
from apexbridge.storage.call_statistics import CallStatisticsStore
from apexbridge.storage.database import Database, _migrations
from apexbridge.storage.directory import is_owned, owned, storage_faults
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "x.sqlite3")
    yield opened
    opened.close()


def insert(name: str) -> object:
    return lambda connection: connection.execute("INSERT INTO first_installs VALUES (?, 1)", (name,))


async def count(database: Database) -> int:
    def job(connection: sqlite3.Connection) -> int:
        (found,) = connection.execute("SELECT COUNT(*) FROM first_installs").fetchone()
        return int(found)

    return await database.read(job)


async def test_concurrent_writes_share_a_commit_and_each_gets_its_own_result(database: Database) -> None:
    failures: list[str] = []

    async def write(name: str) -> None:
        try:
            await database.write(insert(name))  # type: ignore[arg-type]
        except sqlite3.IntegrityError:
            failures.append(name)

    async with anyio.create_task_group() as tasks:
        for number in range(700):
            tasks.start_soon(write, f"n{number % 650}")
    assert await count(database) == 650
    assert len(failures) == 50


async def test_a_failed_job_rolls_back_only_its_own_changes(database: Database) -> None:
    def insert_and_fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO first_installs VALUES ('half', 1)")
        raise ValueError("stop")

    await database.write(insert("before"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stop"):
        await database.write(insert_and_fail)
    await database.write(insert("after"))  # type: ignore[arg-type]
    assert await count(database) == 2


async def test_the_writer_continues_after_any_error(database: Database) -> None:
    def roll_back_and_fail(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise KeyError("unexpected")

    with pytest.raises(KeyError):
        await database.write(roll_back_and_fail)
    with anyio.fail_after(60):
        await database.write(insert("next"))  # type: ignore[arg-type]
    assert await count(database) == 1


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    for path in (tmp_path / "x.sqlite3", tmp_path / "x.sqlite3-wal"):
        path.touch(0o644)  # as older versions created them
    database = Database(tmp_path / "x.sqlite3")
    await database.write(lambda connection: connection.execute("PRAGMA user_version"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("x.sqlite3*")}
    database.close()
    assert modes == dict.fromkeys(("x.sqlite3", "x.sqlite3-wal", "x.sqlite3-shm"), 0o600)


NEWER = {
    "a higher schema": "PRAGMA user_version = 999",
    "an unknown migration below it": "INSERT INTO migrations VALUES (16)",
}


@pytest.mark.parametrize("change", NEWER)
async def test_a_database_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.sqlite3"
    Database(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(NEWER[change])
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(ServerError, match="newer version") as refused:
        Database(path)
    assert refused.value.code == "NEWER_VERSION"
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.broken-*"))


async def test_a_newer_database_that_this_sqlite_cannot_read_is_not_taken_for_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    Database(path).close()
    data = bytearray(path.read_bytes())
    data[18:20] = b"\x09\x09"  # a file format of the future
    data[60:64] = (999).to_bytes(4)
    data[100:] = b"x" * (len(data) - 100)
    path.write_bytes(data)
    with pytest.raises(ServerError) as refused:
        Database(path)
    assert refused.value.code == "NEWER_VERSION"
    assert [entry.name for entry in tmp_path.glob("x.*")] == ["x.sqlite3"]


@pytest.mark.parametrize("number", [number for number, _ in _migrations()][:-1])
async def test_a_database_of_every_older_version_is_migrated(tmp_path: Path, number: int) -> None:
    path = tmp_path / "x.sqlite3"
    older(path, number)
    opened = Database(path)
    assert await count(opened) == 1
    schema = await opened.read(lambda c: c.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
    opened.close()
    Database(tmp_path / "new.sqlite3").close()
    with closing(sqlite3.connect(tmp_path / "new.sqlite3")) as connection:
        assert {name for name, _ in schema} == {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master")
        }
    assert not list(tmp_path.glob("*.broken-*"))


def older(path: Path, number: int) -> None:
    """Make a database as the release made it whose last migration has this number."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE migrations (number INTEGER PRIMARY KEY)")
        for each, statements in _migrations():
            if each <= number:
                connection.executescript(statements)
                connection.execute("INSERT INTO migrations VALUES (?)", (each,))
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("INSERT INTO first_installs VALUES ('old', 1)")
        connection.commit()


async def test_if_a_migration_fails_none_is_applied_and_the_older_version_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.sqlite3"
    older(path, 5)
    known = _migrations()
    broken = (900, "CREATE TABLE half (x); INSERT INTO first_installs VALUES ('old', 1);")  # breaks a constraint
    monkeypatch.setattr(database_module, "_migrations", lambda: [*known, broken])
    with pytest.raises(ServerError) as refused:
        Database(path)
    assert refused.value.code == "MIGRATION_FAILED"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
        assert connection.execute("SELECT max(number) FROM migrations").fetchone() == (5,)
        assert connection.execute("SELECT name FROM first_installs").fetchall() == [("old",)]
    assert not list(tmp_path.glob("*.broken-*"))
    monkeypatch.undo()
    opened = Database(path)
    assert await count(opened) == 1
    opened.close()


async def test_readers_cannot_write(database: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await database.read(insert("x"))  # type: ignore[arg-type]


async def test_a_transaction_that_cannot_begin_fails_every_job_and_the_next_one_works(database: Database) -> None:
    database._writer.execute("BEGIN")
    with pytest.raises(sqlite3.OperationalError):
        await database.write(insert("x"))  # type: ignore[arg-type]
    await database.write(insert("y"))  # type: ignore[arg-type]
    assert await count(database) == 1


async def test_a_cancelled_caller_does_not_affect_others(database: Database) -> None:
    with anyio.move_on_after(0):
        await database.write(insert("cancelled"))  # type: ignore[arg-type]
    await database.write(insert("next"))  # type: ignore[arg-type]
    assert await count(database) in (1, 2)


async def test_migrations_run_once_and_preserve_data(tmp_path: Path) -> None:
    first = Database(tmp_path / "x.sqlite3")
    await first.write(insert("old"))  # type: ignore[arg-type]
    first.close()
    second = Database(tmp_path / "x.sqlite3")
    assert await count(second) == 1
    assert await second.read(lambda c: c.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"
    second.close()


async def test_a_missing_migration_with_a_lower_number_is_applied(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    first = Database(path)
    await first.write(insert("old"))  # type: ignore[arg-type]
    first.close()
    with closing(sqlite3.connect(path)) as connection:  # as if migration 6 had not existed yet
        connection.executescript("DROP TABLE chats; DELETE FROM migrations WHERE number = 6;")
    second = Database(path)
    assert await second.read(lambda c: c.execute("SELECT count(*) FROM chats").fetchone()[0]) == 0
    assert await count(second) == 1
    second.close()
    assert not list(tmp_path.glob("*.broken-*"))


async def test_a_database_without_a_migrations_table_is_migrated_from_its_user_version(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        for _, statements in _migrations()[:5]:
            connection.executescript(statements)
        connection.executescript("INSERT INTO first_installs VALUES ('old', 1); PRAGMA user_version = 5;")
    opened = Database(path)
    assert await opened.read(lambda c: c.execute("SELECT caller FROM runs").fetchall()) == []
    assert await count(opened) == 1
    opened.close()
    assert not list(tmp_path.glob("*.broken-*"))


async def test_old_runs_get_the_fields_of_their_results(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    result = '{"duration": 12, "errorCode": "EXIT_NONZERO", "exitCode": 3, "files": [{"path": "a", "size": 1}]}'
    columns = "id, skill, script, content_hash, state, created_at, input_digest, result"
    with closing(sqlite3.connect(path)) as connection:
        for number, statements in _migrations():
            if number < 19:
                connection.executescript(statements)
        for id, stored in (("a", result), ("b", None), ("c", "not JSON")):
            values = (id, "x", "x.py", "", "error", 1, "", stored)
            connection.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.executescript("PRAGMA user_version = 18;")
        connection.commit()
    opened = Database(path)
    query = "SELECT duration_ms, error_code, exit_code, file_count, origin FROM runs ORDER BY id"
    assert await opened.read(lambda c: c.execute(query).fetchall()) == [
        (12, "EXIT_NONZERO", 3, 1, None),
        (None, None, None, 0, None),
        (None, None, None, 0, None),
    ]
    opened.close()


def test_damage_beyond_the_first_page_is_detected_and_the_file_renamed(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    Database(path).close()
    whole = path.read_bytes()
    for damage in (whole[:4096] + b"\xaa" * (len(whole) - 4096), whole[:8192] + b"\0" * (len(whole) - 8192)):
        path.write_bytes(damage)
        Database(path).close()
        assert path.read_bytes() == whole
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE call_statistics")
    Database(path).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM call_statistics").fetchone() == (0,)
    assert list(tmp_path.glob("x.sqlite3.broken-*"))


async def test_calls_are_counted_across_restarts(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.sqlite3")
    store = CallStatisticsStore(database)
    for success, duration in ((True, 150), (True, 151), (False, 2000)):
        await store.record("git-commit", success=success, duration_ms=duration)
    database.close()
    again = Database(tmp_path / "x.sqlite3")
    counts = await CallStatisticsStore(again).of("git-commit")
    assert (counts.calls, counts.successes, counts.average_ms, counts.success_rate) == (3, 2, 767, 0.67)
    again.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    assert not is_owned(tmp_path)
    with owned(tmp_path / "data"):
        assert is_owned(tmp_path / "data")
        with pytest.raises(ServerError) as caught, owned(tmp_path / "data"):
            pass
        assert caught.value.code == "DATA_DIR_IN_USE"
    assert not is_owned(tmp_path / "data")


def test_a_data_directory_that_is_not_a_folder_is_an_invalid_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file/data"):
        with pytest.raises(ServerError) as caught, owned(path):
            pass
        assert caught.value.code == "INVALID_SETTING"


@pytest.mark.parametrize("number", [28, 122, 30, 13])
def test_disk_errors_are_storage_full(number: int) -> None:
    with pytest.raises(ServerError) as caught, storage_faults():
        raise OSError(number, "no")
    assert (caught.value.code, caught.value.status) == ("STORAGE_FULL", 507)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN])
def test_sqlite_errors_of_a_full_disk_are_storage_full(code: int) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    with pytest.raises(ServerError), storage_faults():
        raise error


@pytest.mark.parametrize("error", [OSError(5, "I/O"), sqlite3.IntegrityError("twice"), KeyError("x")])
def test_other_errors_are_not_changed(error: Exception) -> None:
    with pytest.raises(type(error)), storage_faults():
        raise error


async def test_a_full_database_is_storage_full(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.sqlite3")
    (pages,) = database._writer.execute("PRAGMA page_count").fetchone()
    database._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ServerError) as caught, storage_faults():
        await database.write(lambda c: c.execute("INSERT INTO first_installs VALUES (?, 1)", ("x" * 100_000,)))
    assert caught.value.code == "STORAGE_FULL"
    assert await count(database) == 0
    database.close()


async def test_deletions_in_quick_succession_truncate_the_wal_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truncated: list[int] = []
    truncate = database._truncate_wal

    def counted() -> None:
        truncate()
        truncated.append(1)

    monkeypatch.setattr(database, "_truncate_wal", counted)
    await database.write(insert("quaggaword"))  # type: ignore[arg-type]
    await database.write(lambda connection: connection.execute("DELETE FROM first_installs"))
    for _ in range(20):
        database.erase_soon()
    await until(lambda: truncated)
    assert len(truncated) == 1
    assert database._erase_timer is None
    assert not any(b"quaggaword" in path.read_bytes() for path in tmp_path.glob("x.sqlite3*"))
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(database.erase)
    assert len(truncated) <= 3, "one in progress, and one for all later requests"
