"""The audit log: a chain of rows that shows every change, over two real databases."""

import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage.audit import AUDIT_FILE, REFUSALS_A_MINUTE, Act, AuditLog, AuditReport, exported
from apexbridge.storage.database import Database

pytestmark = pytest.mark.anyio
MAIN_FILE = "apex.sqlite3"
WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
from apexbridge.storage.audit import Act, AuditLog
from apexbridge.storage.database import Database

def kill(*_): os.kill(os.getpid(), signal.SIGKILL)

def trace(statement):
    if statement.startswith("COMMIT"):
        kill()

async def main():
    folder, moment = Path(sys.argv[1]), sys.argv[2]
    log = AuditLog(folder / "audit.sqlite3", Database(folder / "apex.sqlite3"))
    await log.open()
    insert = AuditLog._insert
    match moment:
        case "before the rows":
            AuditLog._insert = kill
        case "before the commit":
            log._connection.set_trace_callback(trace)
        case "after the rows":
            AuditLog._insert = lambda *rows: (insert(*rows), kill())
        case "any time":
            for number in range(1, 1_000_000):
                await log.append(Act(what="skills.install", target=f"skill-{number}", outcome=201))
                print(number, flush=True)
    await asyncio.gather(*(log.append(Act(what="skills.install", target=f"last-{n}", outcome=201)) for n in (1, 2)))

asyncio.run(main())
"""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[AuditLog]:
    database = Database(folder / MAIN_FILE)
    try:
        log = AuditLog(folder / AUDIT_FILE, database)
        await log.open()
        yield log
        await log.close()
    finally:
        database.close()


async def fill(folder: Path, count: int = 6) -> None:
    async with opened(folder) as log:
        for number in range(1, count + 1):
            await log.append(Act(what="skills.install", who="0123abcd", target=f"skill-{number}", outcome=201))


async def verified(folder: Path) -> AuditReport:
    async with opened(folder) as log:
        return await log.verify()


def rows(folder: Path) -> list[dict[str, Any]]:
    return list(exported(folder / AUDIT_FILE))


def execute(file: Path, *statements: str) -> None:
    """Change a database from outside, as with the sqlite3 command."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# ----------------------------------------------------------------------------------------------------------- content
@pytest.mark.requirement("G7")
async def test_a_row_records_the_caller_the_act_the_target_and_the_outcome(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        act = Act(what="skills.grant", who="0123abcd", target="git-commit", detail="net:example.org:443", outcome=200)
        await log.append(act)
        await log.append(Act(what="skills.uninstall", target="日本", outcome=404, request_id="r-1", content_hash="ff"))
        assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.glob(f"{AUDIT_FILE}*")} == {
            AUDIT_FILE: 0o600,
            f"{AUDIT_FILE}-wal": 0o600,
            f"{AUDIT_FILE}-shm": 0o600,
        }
    first, second = rows(tmp_path)
    assert (first["seq"], first["prev"]) == (1, "0" * 64)
    assert {key: first[key] for key in ("who", "what", "target", "detail", "outcome")} == {
        "who": "0123abcd",
        "what": "skills.grant",
        "target": "git-commit",
        "detail": "net:example.org:443",
        "outcome": 200,
    }
    assert (second["prev"], second["target"], second["contentHash"]) == (first["hash"], "日本", "ff")
    assert (second["who"], second["requestId"]) == ("", "r-1")
    assert await verified(tmp_path) == AuditReport(intact=True, count=2)


async def test_an_empty_log_is_intact(tmp_path: Path) -> None:
    assert await verified(tmp_path) == AuditReport(intact=True, count=0)


async def test_keys_are_masked_and_long_values_are_cut(tmp_path: Path) -> None:
    key = f"apex_0123abcd_{'s' * 43}"
    async with opened(tmp_path) as log:
        await log.append(Act(what="x", target=f"a{key}b", detail=key, request_id=key, outcome=404))
        await log.append(Act(what="x" * 5000, target="\ud800" * 5000, outcome=404))
    text = json.dumps(rows(tmp_path))
    assert "sss" not in text
    assert text.count("apex_0123abcd_***") == 3
    assert all(len(json.dumps(row)) < 4096 for row in rows(tmp_path))
    assert b"sss" not in (tmp_path / AUDIT_FILE).read_bytes()
    assert (await verified(tmp_path)).intact


async def test_the_table_refuses_updates_and_deletions(tmp_path: Path) -> None:
    await fill(tmp_path)
    for statement in ("UPDATE audit SET act = '{}'", "DELETE FROM audit WHERE seq = 6"):
        with pytest.raises(sqlite3.IntegrityError):
            execute(tmp_path / AUDIT_FILE, statement)
    assert await verified(tmp_path) == AuditReport(intact=True, count=6)


async def test_a_flood_of_refused_attempts_is_counted_and_does_not_fill_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        for _ in range(5000):
            log.note_refusal(Act(what="skills.install", outcome=401))
        await log.append(Act(what="skills.install", outcome=201))
    written = rows(tmp_path)
    assert REFUSALS_A_MINUTE <= len(written) <= REFUSALS_A_MINUTE + 10
    assert sum(row.get("omitted", 0) for row in written) + len(written) - 2 == 5000


@pytest.mark.requirement("G7")
async def test_a_thousand_concurrent_acts_are_one_chain(tmp_path: Path) -> None:
    async with opened(tmp_path) as log, anyio.create_task_group() as tasks:
        for number in range(1000):
            tasks.start_soon(log.append, Act(what="skills.install", target=str(number), outcome=201))
    assert [row["seq"] for row in rows(tmp_path)] == list(range(1, 1001))
    assert {row["target"] for row in rows(tmp_path)} == {str(number) for number in range(1000)}
    assert await verified(tmp_path) == AuditReport(intact=True, count=1000)


async def test_rows_that_are_added_during_a_verification_are_not_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        is_verified = anyio.Event()

        async def write() -> None:
            while not is_verified.is_set():
                await log.append(Act(what="skills.install", outcome=201))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(write)
            reports = [await log.verify() for _ in range(50)]
            is_verified.set()
    assert all(report.intact for report in reports)
    assert reports[0].count < reports[-1].count


async def test_two_servers_never_write_to_one_log(tmp_path: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    async with Bridge.open(settings, watch=False, embedder=embedder) as first:
        await first.audit.append(Act(what="skills.install", outcome=201))
        with pytest.raises(ServerError) as caught:
            async with Bridge.open(settings, watch=False, embedder=embedder):
                raise AssertionError("opened twice")
        assert caught.value.code == "DATA_DIR_IN_USE"
        assert await first.audit.verify() == AuditReport(intact=True, count=1)


# ------------------------------------------------------------------------------------------------------------ forgery
class Forger:
    """An attacker who can write to the log and compute hashes, but cannot write to the main database."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(sqlite3.connect(file)) as connection:
            self.rows: list[list[Any]] = [list(row) for row in connection.execute("SELECT * FROM audit")]

    def chain(self, start: int = 0) -> None:
        """Renumber the rows from an index on, and recompute their hashes."""
        for index in range(start, len(self.rows)):
            row = self.rows[index]
            row[0] = index + 1
            row[2] = self.rows[index - 1][3] if index else "0" * 64
            self.rehash(row)

    def rehash(self, row: list[Any]) -> None:
        seq, act, prev, _ = row
        row[3] = hashlib.sha256(f"{seq}\n{prev}\n{act}".encode()).hexdigest()

    def add(self, count: int) -> None:
        """Append rows that continue the chain correctly."""
        start = len(self.rows)
        self.rows += [[0, '{"what":"forged"}', "", ""] for _ in range(count)]
        self.chain(start)

    def save(self) -> None:
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("DROP TRIGGER IF EXISTS audit_no_delete")
            connection.execute("DELETE FROM audit")
            connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?)", self.rows)
            connection.commit()


def change(forger: Forger, *, rehash: bool = False) -> None:
    forger.rows[2][1] = forger.rows[2][1].replace("skill-3", "skill-X")
    if rehash:
        forger.rehash(forger.rows[2])


def replace_last(forger: Forger) -> None:
    forger.rows.pop()
    forger.add(1)


def swap(forger: Forger) -> None:
    forger.rows[2][1:], forger.rows[3][1:] = forger.rows[3][1:], forger.rows[2][1:]


def insert(forger: Forger) -> None:
    """Insert a row, and renumber all rows."""
    forger.rows.insert(3, [4, '{"what":"forged"}', forger.rows[2][3], "f" * 64])
    for number, row in enumerate(forger.rows, 1):
        row[0] = number


def rewrite(forger: Forger) -> None:
    """Rewrite the whole chain without one act."""
    del forger.rows[2]
    forger.chain()


def rewrite_same_length(forger: Forger) -> None:
    change(forger)
    forger.chain()


FORGERIES: dict[str, tuple[Callable[[Forger], Any], int]] = {
    "a row changed": (change, 3),
    "a blank added": (lambda forger: forger.rows[2].__setitem__(1, forger.rows[2][1] + " "), 3),
    "text stored as a blob": (lambda forger: forger.rows[2].__setitem__(1, forger.rows[2][1].encode()), 3),
    "a row changed with its hash": (lambda forger: change(forger, rehash=True), 3),
    "the last row replaced": (replace_last, 6),
    "the first row removed": (lambda forger: forger.rows.pop(0), 1),
    "a row in the middle removed": (lambda forger: forger.rows.pop(2), 3),
    "the last row removed": (lambda forger: forger.rows.pop(), 6),
    "all rows removed": (lambda forger: forger.rows.clear(), 1),
    "two rows swapped": (swap, 3),
    "a row inserted": (insert, 4),
    "a row added": (lambda forger: forger.add(1), 7),
    "three rows added": (lambda forger: forger.add(3), 7),
    "a row added that does not follow": (lambda forger: forger.rows.append([7, "{}", "0" * 64, "f" * 64]), 7),
    "a row added far away": (lambda forger: forger.rows.append([99, "{}", forger.rows[-1][3], "f" * 64]), 7),
    "the chain rewritten without a row": (rewrite, 6),
    "the chain rewritten with as many rows": (rewrite_same_length, 6),
}


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("name", FORGERIES)
async def test_every_forgery_is_found_and_later_acts_do_not_hide_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    forge, row = FORGERIES[name]
    await fill(tmp_path)
    forger = Forger(tmp_path / AUDIT_FILE)
    forge(forger)
    forger.save()
    for _ in range(2):
        report = await verified(tmp_path)
        assert (report.intact, report.row) == (False, row), report
        assert report.problem
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", target="later", outcome=201))
        assert (await log.verify()).row == row
    notes = [entry for entry in rows(tmp_path) if entry.get("what") == "audit.damaged"]
    assert len(notes) == ("apex audit verify" in caplog.text) <= 1, "the last row is compared at every start"
    assert rows(tmp_path)[-1]["target"] == "later"


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("name", FORGERIES)
async def test_every_forgery_beside_a_running_server_is_found(tmp_path: Path, name: str) -> None:
    forge, row = FORGERIES[name]
    async with opened(tmp_path) as log:
        for number in range(1, 7):
            await log.append(Act(what="skills.install", target=f"skill-{number}", outcome=201))
        assert (await log.verify()).intact
        forger = Forger(tmp_path / AUDIT_FILE)
        forge(forger)
        forger.save()
        report = await log.verify()
        assert (report.intact, report.row) == (False, row), report
        await log.append(Act(what="skills.install", target="later", outcome=201))
        assert not (await log.verify()).intact
    assert rows(tmp_path)[-1]["target"] == "later"
    assert not (await verified(tmp_path)).intact


async def test_forged_rows_are_named_in_the_report(tmp_path: Path) -> None:
    await fill(tmp_path)
    forger = Forger(tmp_path / AUDIT_FILE)
    forger.add(2)
    forger.save()
    report = await verified(tmp_path)
    assert report == AuditReport(intact=False, count=6, row=7, problem="rows 7 to 8 were not written by this server")
    note = rows(tmp_path)[8]
    assert (note["what"], note["detail"]) == ("audit.damaged", "expected the end at row 6, found it at row 8")


async def test_a_table_of_another_shape_is_reported_and_can_be_exported(tmp_path: Path) -> None:
    await fill(tmp_path, 2)
    execute(
        tmp_path / AUDIT_FILE,
        "DROP TABLE audit",
        "CREATE TABLE audit (seq, act, prev, hash)",
        "INSERT INTO audit VALUES (NULL, x'ff', 1, 2.5), ('x', 'no JSON', NULL, NULL)",
    )
    assert [row.get("act") for row in rows(tmp_path)] == ["b'\\xff'", "no JSON"]
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", target="later", outcome=201))
        report = await log.verify()
    assert (report.intact, report.count) == (False, 0)
    assert "later" in [row.get("target") for row in rows(tmp_path)]


@pytest.mark.requirement("G7")
async def test_an_older_copy_of_the_file_is_found(tmp_path: Path) -> None:
    await fill(tmp_path, 3)
    shutil.copy(tmp_path / AUDIT_FILE, tmp_path / "older")
    await fill(tmp_path, 3)
    shutil.copy(tmp_path / "older", tmp_path / AUDIT_FILE)
    for _ in range(2):
        report = await verified(tmp_path)
        assert (report.intact, report.count, report.row) == (False, 3, 4)


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("is_in_wal", [False, True])
async def test_an_older_copy_beside_a_running_server_is_found(tmp_path: Path, is_in_wal: bool) -> None:
    await fill(tmp_path, 3)
    shutil.copy(tmp_path / AUDIT_FILE, tmp_path / "older")
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", target="fourth", outcome=201))
        if not is_in_wal:
            execute(tmp_path / AUDIT_FILE, "PRAGMA wal_checkpoint(TRUNCATE)")
        (tmp_path / "older").replace(tmp_path / AUDIT_FILE)
        assert "not the file that this server wrote" in str((await log.verify()).problem)
        await log.append(Act(what="skills.install", target="later", outcome=201))
        report = await log.verify()
    targets = [row.get("target") for row in rows(tmp_path)[3:]]
    if is_in_wal:  # SQLite replays the WAL, so no row is missing
        assert (report.intact, targets) == (True, ["fourth", "later"])
    else:
        assert (report.row, targets) == (4, [None, "later"])


@pytest.mark.slow
@pytest.mark.requirement("G7")
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut", "overwritten", "another text file"])
async def test_a_file_that_was_removed_or_damaged_is_found(tmp_path: Path, damage: str) -> None:
    await fill(tmp_path, 200)
    file = tmp_path / AUDIT_FILE
    content = file.read_bytes()
    assert len(content) > 10 * 4096
    match damage:
        case "removed":
            file.unlink()
        case "emptied":
            os.truncate(file, 0)
        case "cut":
            os.truncate(file, len(content) // 2)
        case "overwritten":
            file.write_bytes(content[:8192] + bytes(8192) + content[16384:])
        case _:
            file.unlink()
            (tmp_path / "other").write_text("something else\n")
            file.hardlink_to(tmp_path / "other")
    for _ in range(2):
        report = await verified(tmp_path)
        assert (report.intact, report.count < 200, report.row is not None) == (False, True, True), report


@pytest.mark.parametrize("damage", ["removed", "emptied"])
async def test_a_file_that_is_removed_from_a_running_server_is_found_and_the_log_continues(
    tmp_path: Path, damage: str
) -> None:
    file = tmp_path / AUDIT_FILE
    await fill(tmp_path, 3)
    async with opened(tmp_path) as log:
        if damage == "removed":
            file.unlink()
        else:
            os.truncate(file, 0)
        report = await log.verify()
        assert (report.intact, report.row) == (False, 1)
        await log.ready()
        await log.append(Act(what="skills.install", target="later", outcome=201))
        assert not (await log.verify()).intact
    assert file.stat().st_mode & 0o777 == 0o600
    assert rows(tmp_path)[-1]["target"] == "later", "the log continues at its path, not in an unlinked file"
    assert not (await verified(tmp_path)).intact


def replace_by(path: Path, kind: str) -> None:
    """Replace the log with something that is not a regular file."""
    path.unlink(missing_ok=True)
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a link":
            path.symlink_to("/dev/null")
        case "a folder":
            path.mkdir()
        case "a device":
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        case _:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("kind", ["a pipe", "a link", "a folder", "a device", "a socket"])
async def test_a_log_that_was_replaced_by_something_else_is_not_intact(tmp_path: Path, kind: str, count: int) -> None:
    await fill(tmp_path, count)
    replace_by(tmp_path / AUDIT_FILE, kind)
    for _ in range(2):
        with anyio.fail_after(10):
            async with opened(tmp_path) as log:
                report = await log.verify()
                with pytest.raises(ServerError) as caught:
                    await log.ready()
        assert (report.intact, report.count) == (False, 0)
        assert f"it is {kind}, not a file" in str(report.problem)
        assert caught.value.code == "STORAGE_FULL"


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a folder"])
async def test_a_log_that_is_replaced_beside_a_running_server_is_not_intact(tmp_path: Path, kind: str) -> None:
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", outcome=201))
        replace_by(tmp_path / AUDIT_FILE, kind)
        with anyio.fail_after(5):
            report = await log.verify()
        assert f"it is {kind}, not a file" in str(report.problem)


async def test_a_link_to_the_file_itself_is_not_the_file(tmp_path: Path) -> None:
    await fill(tmp_path, 3)
    (tmp_path / AUDIT_FILE).rename(tmp_path / "elsewhere")
    (tmp_path / AUDIT_FILE).symlink_to("elsewhere")
    assert not (await verified(tmp_path)).intact


@pytest.mark.requirement("G7")
@pytest.mark.parametrize(
    ("change", "row"),
    [
        ("count = 5", 6),
        ("count = 9", 7),
        (f"hash = '{'f' * 64}'", 6),
        ("""pending = '{"what":"forged"}', count = 4""", 6),
    ],
)
async def test_a_main_database_that_disagrees_with_the_log_is_found(tmp_path: Path, change: str, row: int) -> None:
    await fill(tmp_path)
    execute(tmp_path / MAIN_FILE, f"UPDATE audit_head SET {change}")
    for _ in range(2):
        report = await verified(tmp_path)
        assert (report.intact, report.row) == (False, row), report


async def test_a_log_whose_main_database_was_lost_is_accepted_with_a_note(tmp_path: Path) -> None:
    await fill(tmp_path)
    for path in tmp_path.glob(f"{MAIN_FILE}*"):
        path.unlink()
    assert await verified(tmp_path) == AuditReport(intact=True, count=7)
    assert (rows(tmp_path)[6]["what"], rows(tmp_path)[6]["detail"]) == ("audit.anchored", "6 rows")


async def test_rows_in_a_log_that_was_empty_are_found(tmp_path: Path) -> None:
    await fill(tmp_path, 0)
    forger = Forger(tmp_path / AUDIT_FILE)
    forger.add(1)
    forger.save()
    assert (await verified(tmp_path)).row == 1


# ------------------------------------------------------------------------------------------------------------ crashes
def killed(folder: Path, moment: str) -> None:
    """Write two acts in another process, which is killed at the given point."""
    ended = subprocess.run([sys.executable, "-c", WRITER, str(folder), moment], check=False)
    assert ended.returncode == -signal.SIGKILL


MOMENTS = ("before the rows", "before the commit", "after the rows")


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_kill_between_the_two_databases_loses_no_act_and_is_not_a_forgery(tmp_path: Path, moment: str) -> None:
    await fill(tmp_path)
    for number in (1, 2):
        killed(tmp_path, moment)
        assert await verified(tmp_path) == AuditReport(intact=True, count=6 + 2 * number)
        assert await verified(tmp_path) == AuditReport(intact=True, count=6 + 2 * number)
    assert [row["target"] for row in rows(tmp_path)[6:]] == ["last-1", "last-2"] * 2


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("tail", ["cut", "zeros", "gone"])
async def test_a_power_loss_during_a_commit_loses_no_act_and_is_not_a_forgery(tmp_path: Path, tail: str) -> None:
    """The rows were announced in the main database, but the WAL was not completely written."""
    await fill(tmp_path)
    killed(tmp_path, "after the rows")
    wal = tmp_path / f"{AUDIT_FILE}-wal"
    size = wal.stat().st_size
    match tail:
        case "cut":
            os.truncate(wal, size - 100)
        case "zeros":
            os.truncate(wal, size - 100)
            os.truncate(wal, size)
        case _:
            wal.unlink()
    assert await verified(tmp_path) == AuditReport(intact=True, count=8)
    assert [row["target"] for row in rows(tmp_path)[6:]] == ["last-1", "last-2"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_crash_does_not_hide_forged_rows(tmp_path: Path, moment: str) -> None:
    await fill(tmp_path)
    killed(tmp_path, moment)
    forger = Forger(tmp_path / AUDIT_FILE)
    forger.add(1)
    forger.save()
    report = await verified(tmp_path)
    assert (report.intact, report.row) == (False, 7), report
    assert [row["target"] for row in rows(tmp_path) if row.get("target", "").startswith("last")][-2:] == [
        "last-1",
        "last-2",
    ]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_crash_does_not_hide_removed_rows(tmp_path: Path, moment: str) -> None:
    await fill(tmp_path)
    killed(tmp_path, moment)
    forger = Forger(tmp_path / AUDIT_FILE)
    del forger.rows[5:]
    forger.save()
    report = await verified(tmp_path)
    assert (report.intact, report.row) == (False, 6), report
    assert [row.get("target") for row in rows(tmp_path)[-2:]] == ["last-1", "last-2"]


def killed_writer(folder: Path) -> int:
    """Write acts in another process until it is killed. Returns how many of them were answered."""
    command = [sys.executable, "-c", WRITER, str(folder), "any time"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        return 20 + len(writer.stdout.read().splitlines())


async def test_a_kill_at_any_moment_loses_no_answered_act(tmp_path: Path) -> None:
    answered = sum(killed_writer(tmp_path) for _ in range(5))
    report = await verified(tmp_path)
    assert report.intact, report
    assert report.count >= answered


# --------------------------------------------------------------------------------------------------------- a full disk
@pytest.mark.parametrize("failure", ["full", "read-only"])
async def test_a_log_that_cannot_be_written_refuses_new_acts_and_writes_rows_of_completed_ones_later(
    tmp_path: Path, failure: str
) -> None:
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", target="before", outcome=201))
        assert log._connection is not None
        (pages,) = log._connection.execute("PRAGMA page_count").fetchone()
        begin, end = {
            "full": (f"PRAGMA max_page_count = {pages}", "PRAGMA max_page_count = 1000000"),
            "read-only": ("PRAGMA query_only = ON", "PRAGMA query_only = OFF"),
        }[failure]
        log._connection.execute(begin)
        await log.ready()
        acts = [Act(what="skills.install", target=f"{n}", detail="x" * 300, outcome=201) for n in range(50)]
        async with anyio.create_task_group() as tasks:
            for act in acts:
                tasks.start_soon(log.append, act)
        log.note_refusal(Act(what="skills.install", outcome=401))
        with pytest.raises(ServerError) as caught:
            await log.ready()
        assert caught.value.code == "STORAGE_FULL"
        assert await log.verify() == AuditReport(intact=True, count=1), "no row is written partially"
        log._connection.execute(end)
        await log.ready()
        await log.append(Act(what="skills.install", target="after", outcome=201))
    assert [row["target"] for row in rows(tmp_path)] == ["before", *(act.target for act in acts), "after", ""]
    assert rows(tmp_path)[-1]["omitted"] == 1
    assert (await verified(tmp_path)).intact


async def test_rows_that_could_not_be_written_are_added_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", target="before", outcome=201))
        assert log._connection is not None
        log._connection.execute("PRAGMA query_only = ON")
        await log.append(Act(what="skills.install", target="while full", outcome=201))
    assert await verified(tmp_path) == AuditReport(intact=True, count=2)
    assert [row["target"] for row in rows(tmp_path)] == ["before", "while full"]


async def test_an_act_is_refused_before_it_begins_if_its_row_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.ready()
        stats = os.statvfs(tmp_path)
        full = os.statvfs_result([*stats[:3], 1, 1, *stats[5:]])
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(ServerError) as caught:
            await log.ready()
        assert (caught.value.code, caught.value.status) == ("STORAGE_FULL", 507)
        assert "nothing was changed" in caught.value.message
        assert "No space left on device" in caught.value.message
        monkeypatch.undo()
        await log.ready()


async def test_rows_of_completed_acts_are_written_once_the_main_database_is_no_longer_full(tmp_path: Path) -> None:
    database = Database(tmp_path / MAIN_FILE)
    log = AuditLog(tmp_path / AUDIT_FILE, database)
    await log.open()
    (pages,) = database._writer.execute("PRAGMA page_count").fetchone()
    database._writer.execute(f"PRAGMA max_page_count = {pages}")
    acts = [Act(what="skills.install", target=f"{n}" * 300, detail="x" * 300, outcome=201) for n in range(50)]
    async with anyio.create_task_group() as tasks:
        for act in acts:
            tasks.start_soon(log.append, act)
    with pytest.raises(ServerError) as caught:
        await log.ready()
    assert caught.value.code == "STORAGE_FULL"
    assert not rows(tmp_path), "no row is written that was not announced"
    database._writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
    await log.ready()
    assert await log.verify() == AuditReport(intact=True, count=50)
    await log.close()
    database.close()


async def test_a_restored_file_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_FILE
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", outcome=201))
        path.rename(tmp_path / "kept")
        path.mkdir()
        with pytest.raises(ServerError) as caught:
            await log.ready()
        assert caught.value.code == "STORAGE_FULL"
        path.rmdir()
        (tmp_path / "kept").rename(path)
        await log.ready()
        assert await log.verify() == AuditReport(intact=True, count=1)


# ---------------------------------------------------------------------------------------------------- earlier versions
async def test_logs_of_an_earlier_version_are_not_changed_and_their_hashes_are_the_first_rows(tmp_path: Path) -> None:
    earlier = {"audit.1.jsonl": b'{"seq":1}\n', "audit.jsonl": b'{"seq":2}\n'}
    for name, content in earlier.items():
        (tmp_path / name).write_bytes(content)
    await fill(tmp_path, 1)
    assert await verified(tmp_path) == AuditReport(intact=True, count=3)
    notes = [(row["what"], row["target"], row.get("contentHash")) for row in rows(tmp_path)[:2]]
    assert notes == [("audit.earlier", name, hashlib.sha256(content).hexdigest()) for name, content in earlier.items()]
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == earlier
