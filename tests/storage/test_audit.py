"""The audit log: a chain that shows whatever was done to it, over a real file and a real database."""

import errno
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage.audit import AUDIT_FILE, REFUSALS_A_MINUTE, Act, AuditLog
from apexbridge.storage.chain import AuditReport
from apexbridge.storage.chainfile import MAX_FILE_BYTES
from apexbridge.storage.database import Database

pytestmark = pytest.mark.anyio
WRITER = """
import asyncio, sys
from pathlib import Path
from apexbridge.storage.audit import Act, AuditLog
from apexbridge.storage.database import Database

async def main():
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    log = AuditLog(folder / "audit.jsonl", Database(folder / "apex.sqlite3"), max_file_bytes=size)
    await log.open()
    number = 0
    while True:
        await log.append(Act(what="skills.install", target=f"skill-{number}", outcome=201))
        number += 1
        print(number, flush=True)

asyncio.run(main())
"""
CUT_SHORT = """
import asyncio, os, pathlib, signal, sys
from pathlib import Path
from apexbridge.storage.audit import Act, AuditLog
from apexbridge.storage.database import Database

def end(): os.kill(os.getpid(), signal.SIGKILL)

async def main():
    folder, moment, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    log = AuditLog(folder / "audit.jsonl", Database(folder / "apex.sqlite3"), max_file_bytes=size)
    await log.open()
    write, rename = os.write, Path.rename

    def cut(descriptor, data):
        write(descriptor, data[:{"before": 0, "half": len(data) // 2, "most": -1}.get(moment, len(data))])
        end()

    if moment == "put aside":
        Path.rename = lambda *names: (rename(*names), end())
    else:
        os.write = cut
    await asyncio.gather(*(log.append(Act(what="skills.install", target=f"last-{n}", outcome=201)) for n in (1, 2)))

asyncio.run(main())
"""


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[AuditLog]:
    database = Database(folder / "apex.sqlite3")
    try:
        log = AuditLog(folder / AUDIT_FILE, database, **options)
        await log.open()
        yield log
        await log.close()
    finally:
        database.close()


async def fill(folder: Path, count: int = 6, **options: int) -> list[bytes]:
    async with opened(folder, **options) as log:
        for number in range(count):
            await log.append(Act(what="skills.install", who="0123abcd", target=f"skill-{number}", outcome=201))
    return lines(folder)


async def verdict(folder: Path) -> AuditReport:
    async with opened(folder) as log:
        return await log.verify()


def lines(folder: Path) -> list[bytes]:
    return (folder / AUDIT_FILE).read_bytes().splitlines(keepends=True)


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(folder)]


def rewritten(line: bytes, **changes: Any) -> bytes:
    """A line that was changed by somebody who knows how its hash is made."""
    fields = {**json.loads(line), **changes}
    del fields["hash"]
    body = json.dumps(fields, separators=(",", ":")).encode()
    return body[:-1] + f',"hash":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode()


def all_anew(before: list[bytes]) -> list[bytes]:
    """The whole chain again, with one act gone that nobody should hear of."""
    chain, previous = [], "0" * 64
    for number, line in enumerate(before[:2] + before[3:], 1):
        chain.append(rewritten(line, seq=number, prev=previous))
        previous = json.loads(chain[-1])["hash"]
    return chain


def forged(before: list[bytes], count: int) -> list[bytes]:
    """Lines that follow from the last one as they should, by somebody who knows how the chain is made."""
    chain = [before[-1]]
    for _ in range(count):
        last = json.loads(chain[-1])
        chain.append(rewritten(chain[-1], seq=last["seq"] + 1, prev=last["hash"], target="forged"))
    return chain[1:]


@pytest.mark.requirement("G7")
async def test_a_line_tells_who_did_what_to_what_and_how_it_went(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        act = Act(what="skills.grant", who="0123abcd", target="git-commit", detail="net:example.org:443", outcome=200)
        await log.append(act)
        await log.append(Act(what="skills.uninstall", target="日本", outcome=404, request_id="r-1", content_hash="ff"))
    first, second = told(tmp_path)
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
    assert (tmp_path / AUDIT_FILE).stat().st_mode & 0o777 == 0o600
    assert await verdict(tmp_path) == AuditReport(intact=True, count=2)


async def test_a_log_without_a_line_is_whole(tmp_path: Path) -> None:
    assert await verdict(tmp_path) == AuditReport(intact=True, count=0)


Damage = Callable[[list[bytes]], list[bytes]]
WAYS: dict[str, tuple[Damage, int]] = {
    "a word changed": (lambda old: [*old[:2], old[2].replace(b"skill-2", b"skill-X"), *old[3:]], 3),
    "a line changed with its hash": (lambda old: [*old[:2], rewritten(old[2], target="other"), *old[3:]], 4),
    "a line gone": (lambda old: [*old[:2], *old[3:]], 3),
    "the first line gone": (lambda old: old[1:], 1),
    "two lines swapped": (lambda old: [*old[:2], old[3], old[2], *old[4:]], 3),
    "a line twice": (lambda old: [*old[:3], old[2], *old[3:]], 4),
    "a line put in": (lambda old: [*old[:3], b'{"what":"nothing"}\n', *old[3:]], 4),
    "a blank put in": (lambda old: [*old[:2], old[2].replace(b'"who":', b'"who": '), *old[3:]], 3),
    "the last line gone": (lambda old: old[:-1], 6),
    "half of the last line gone": (lambda old: [*old[:-1], old[-1][:40]], 6),
    "everything gone": (lambda old: [], 1),
    "the whole chain written anew": (all_anew, 6),
    "zeros at the end": (lambda old: [*old, b"\0" * 100], 7),
    "a line added": (lambda old: [*old, *forged(old, 1)], 7),
    "three lines added": (lambda old: [*old, *forged(old, 3)], 7),
    "a line added without its end": (lambda old: [*old, forged(old, 1)[0][:-1]], 7),
    "half a line added": (lambda old: [*old, forged(old, 1)[0][:60]], 7),
    "a line added that does not follow": (lambda old: [*old, rewritten(old[-1], seq=9)], 7),
    "a note added that tells of nothing": (
        lambda old: [*old, rewritten(old[-1], seq=99, what="audit.foreign", lines=-5)],
        7,
    ),
}


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("way", WAYS)
async def test_whatever_was_done_to_the_log_is_noticed_and_stays_so(tmp_path: Path, way: str) -> None:
    damage, line = WAYS[way]
    before = await fill(tmp_path)
    (tmp_path / AUDIT_FILE).write_bytes(b"".join(damage(before)))
    for _ in range(2):
        first = await verdict(tmp_path)
        assert (first.intact, first.file, first.line) == (False, AUDIT_FILE, line), first
        assert first.problem
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", outcome=201))
        assert (await log.verify()).line == line, "acts that come later do not hide it"


async def test_damage_done_while_the_log_is_open_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_FILE
    async with opened(tmp_path) as log:
        for number in range(4):
            await log.append(Act(what="skills.install", target=str(number), outcome=201))
        whole = path.read_bytes()
        path.write_bytes(b"".join(lines(tmp_path)[:3]))
        assert (await log.verify()).line == 4
        path.write_bytes(whole)
        assert (await log.verify()).intact
        last = json.loads(lines(tmp_path)[-1])
        path.write_bytes(whole + rewritten(lines(tmp_path)[-1], seq=5, prev=last["hash"]))
        added = await log.verify()
        assert (added.intact, added.line) == (False, 5)
        path.unlink()
        gone = await log.verify()
        assert (gone.line, "the file itself is gone" in str(gone.problem)) == (1, True)
        await log.append(Act(what="skills.install", outcome=201))
        assert path.exists(), "the log goes on where it belongs, not in a file that nobody can see"
        assert (await log.verify()).line == 1


@pytest.mark.requirement("G7")
async def test_a_thousand_acts_at_once_stay_one_chain(tmp_path: Path) -> None:
    async with opened(tmp_path) as log, anyio.create_task_group() as tasks:
        for number in range(1000):
            tasks.start_soon(log.append, Act(what="skills.install", target=str(number), outcome=201))
    assert [line["seq"] for line in told(tmp_path)] == list(range(1, 1001))
    assert {line["target"] for line in told(tmp_path)} == {str(number) for number in range(1000)}
    assert await verdict(tmp_path) == AuditReport(intact=True, count=1000)


@pytest.mark.requirement("G7")
async def test_lines_that_somebody_added_are_told_with_their_numbers_and_can_be_taken_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = await fill(tmp_path)
    added = forged(before, 2)
    (tmp_path / AUDIT_FILE).write_bytes(b"".join([*before, *added]))
    async with opened(tmp_path) as log:
        assert "did not write" in caplog.text
        await log.append(Act(what="skills.install", target="later", outcome=201))
        report = await log.verify()
    assert (report.line, report.count) == (7, 8)
    assert report.problem == "not written by this server: 2 lines from here on; line 9 tells when that was noticed"
    note = told(tmp_path)[8]
    assert (note["what"], note["lines"], note["seq"]) == ("audit.foreign", 2, 7)
    assert note["target"] == hashlib.sha256(b"".join(added)).hexdigest()
    (tmp_path / AUDIT_FILE).write_bytes(b"".join([*before, *lines(tmp_path)[8:]]))
    async with opened(tmp_path) as log:  # what is written next does not know of it, but the chain is whole again
        assert (await log.verify()).count == 8


async def test_lines_that_are_added_beside_a_running_server_are_told_by_the_next_act(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", outcome=201))
        added = forged(lines(tmp_path), 1)
        with (tmp_path / AUDIT_FILE).open("ab") as file:
            file.write(added[0])
        assert (await log.verify()).problem == "not written by this server: 1 line from here on"
        await log.append(Act(what="skills.uninstall", outcome=200))
        assert (await log.verify()).line == 2
    assert [line["what"] for line in told(tmp_path)[2:]] == ["audit.foreign", "skills.uninstall"]


def cut_short(folder: Path, moment: str, size: int = MAX_FILE_BYTES) -> None:
    """Write two acts in a process of its own that is killed in the midst of it."""
    ended = subprocess.run([sys.executable, "-c", CUT_SHORT, str(folder), moment, str(size)], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.requirement("G7")
@pytest.mark.parametrize(("moment", "recovered"), [("before", 1), ("half", 1), ("most", 1), ("whole", 0)])
async def test_a_kill_between_the_database_and_the_file_is_no_forgery(
    tmp_path: Path, moment: str, recovered: int
) -> None:
    await fill(tmp_path)
    for round in (1, 2):
        cut_short(tmp_path, moment)
        assert await verdict(tmp_path) == AuditReport(
            intact=True, count=6 + round * (2 + recovered), recovered=round * recovered
        )
        assert await verdict(tmp_path) == await verdict(tmp_path), "it is told once"
    targets = [line.get("target") for line in told(tmp_path)[6:] if line["what"] == "skills.install"]
    assert targets == ["last-1", "last-2"] * 2, "what was announced is not lost"


async def test_what_a_machine_that_went_down_left_at_the_end_is_told_and_the_log_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path)
    cut_short(tmp_path, "before")
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(b"\0" * 100)  # a file that had grown on the disk before its content was there
    async with opened(tmp_path) as log:
        assert "cut off" in caplog.text
        assert await log.verify() == AuditReport(intact=True, count=9, torn=1)
    assert [json.loads(line)["what"] for line in lines(tmp_path)[7:]] == ["audit.torn", *["skills.install"] * 2]


async def test_a_crash_is_no_cover_for_lines_of_others(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    cut_short(tmp_path, "before")
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(forged(before, 1)[0])
    report = await verdict(tmp_path)
    assert (report.intact, report.line) == (False, 7)
    assert [line.get("target") for line in told(tmp_path)[8:]] == ["last-1", "last-2"], "ours are not lost for it"


async def test_lines_of_others_behind_the_last_that_a_killed_server_wrote_are_told_apart_from_its_own(
    tmp_path: Path,
) -> None:
    await fill(tmp_path)
    cut_short(tmp_path, "whole")
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(forged(lines(tmp_path), 1)[0])
    report = await verdict(tmp_path)
    assert (report.intact, report.line) == (False, 9)
    assert [line["what"] for line in told(tmp_path)[9:]] == ["audit.foreign"]


async def test_a_crash_is_no_cover_for_lines_that_were_taken_away(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    cut_short(tmp_path, "before")
    (tmp_path / AUDIT_FILE).write_bytes(b"".join(before)[:-50])
    report = await verdict(tmp_path)
    assert (report.intact, report.line) == (False, 6)
    assert [json.loads(line)["target"] for line in lines(tmp_path)[6:]] == ["last-1", "last-2"]


async def test_lines_that_the_database_does_not_know_are_taken_on_and_the_log_tells(tmp_path: Path) -> None:
    await fill(tmp_path)
    for path in tmp_path.glob("apex.sqlite3*"):
        path.unlink()
    assert await verdict(tmp_path) == AuditReport(intact=True, count=7)
    assert (told(tmp_path)[6]["what"], told(tmp_path)[6]["detail"]) == ("audit.anchored", "6 lines")
    text = (tmp_path / AUDIT_FILE).read_bytes()
    (tmp_path / AUDIT_FILE).write_bytes(text[:-1])
    for path in tmp_path.glob("apex.sqlite3*"):
        path.unlink()
    assert await verdict(tmp_path) == AuditReport(intact=True, count=8), "only the line end was missing"


# ----------------------------------------------------------------------------------------------- several files
SMALL = 1500
"""Bytes after which a file is put aside; some five lines."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("audit*"))


@pytest.mark.requirement("G7")
async def test_a_full_file_is_put_aside_and_the_chain_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        await fill(tmp_path, 10, max_file_bytes=SMALL)
    assert len(names(tmp_path)) > 3
    assert names(tmp_path)[:3] == ["audit.1.jsonl", "audit.2.jsonl", "audit.3.jsonl"]
    kept = (tmp_path / "audit.1.jsonl").read_bytes()
    assert SMALL <= len(kept) < SMALL + 1000
    assert await verdict(tmp_path) == AuditReport(intact=True, count=20)
    await fill(tmp_path, 3, max_file_bytes=SMALL)
    assert (tmp_path / "audit.1.jsonl").read_bytes() == kept
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.glob("audit*"))
    for path in tmp_path.glob("apex.sqlite3*"):
        path.unlink()
    assert await verdict(tmp_path) == AuditReport(intact=True, count=24), "without the database, from the files"


@pytest.mark.parametrize(
    ("way", "file", "line"),
    [
        ("changed", "audit.2.jsonl", 2),
        ("cut", "audit.3.jsonl", 1),
        ("first gone", "audit.2.jsonl", 1),
        ("middle gone", "audit.3.jsonl", 1),
        ("last gone", AUDIT_FILE, 1),
        ("current gone", AUDIT_FILE, 1),
    ],
)
async def test_damage_to_any_of_the_files_is_named(tmp_path: Path, way: str, file: str, line: int) -> None:
    await fill(tmp_path, 20, max_file_bytes=SMALL)
    aside = [name for name in names(tmp_path) if name != AUDIT_FILE]
    assert len(aside) == 3
    second = tmp_path / "audit.2.jsonl"
    match way:
        case "changed":
            changed = second.read_bytes().splitlines(keepends=True)
            second.write_bytes(b"".join([changed[0], changed[1].replace(b"skill-", b"skull-"), *changed[2:]]))
        case "cut":
            second.write_bytes(b"".join(second.read_bytes().splitlines(keepends=True)[:-1]))
        case "first gone":
            (tmp_path / aside[0]).unlink()
        case "middle gone":
            second.unlink()
        case "last gone":
            (tmp_path / aside[-1]).unlink()
        case _:
            (tmp_path / AUDIT_FILE).unlink()
    report = await verdict(tmp_path)
    assert (report.intact, report.file, report.line) == (False, file, line), report
    if way in ("first gone", "middle gone"):
        assert "is gone; " in str(report.problem)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@pytest.mark.parametrize("name", ["audit.2.jsonl", AUDIT_FILE])
async def test_what_is_no_file_is_a_file_that_is_gone_and_nobody_waits_for_it(
    tmp_path: Path, name: str, kind: str
) -> None:
    await fill(tmp_path, 20, max_file_bytes=SMALL)
    async with opened(tmp_path) as log:
        (tmp_path / name).rename(tmp_path / "elsewhere")
        match kind:
            case "pipe":
                os.mkfifo(tmp_path / name)
            case "link":
                (tmp_path / name).symlink_to("elsewhere")
            case _:
                (tmp_path / name).mkdir()
        with anyio.fail_after(5):
            report = await log.verify()
        assert "is gone; " in str(report.problem)


def replace_by(path: Path, kind: str) -> None:
    """Put something else in the place of the log."""
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
async def test_a_log_that_was_replaced_while_nobody_looked_is_not_intact(tmp_path: Path, kind: str, count: int) -> None:
    await fill(tmp_path, count)
    replace_by(tmp_path / AUDIT_FILE, kind)
    for _ in range(2):
        with anyio.fail_after(10):
            report = await verdict(tmp_path)
        assert (report.intact, report.count, report.file) == (False, 0, AUDIT_FILE)
        assert f"it is {kind}, not a file" in str(report.problem)
        assert count == 0 or f"missing: {count} lines" in str(report.problem)


async def test_a_log_that_is_another_file_by_a_second_name_is_not_intact(tmp_path: Path) -> None:
    await fill(tmp_path, 3)
    (tmp_path / "other").write_text("something else\n")
    (tmp_path / AUDIT_FILE).unlink()
    (tmp_path / AUDIT_FILE).hardlink_to(tmp_path / "other")
    assert not (await verdict(tmp_path)).intact


async def test_a_file_with_a_number_out_of_all_reason_is_walked_at_once(tmp_path: Path) -> None:
    await fill(tmp_path, 20, max_file_bytes=SMALL)
    (tmp_path / "audit.3.jsonl").rename(tmp_path / "audit.99999999999999999999.jsonl")
    assert await verdict(tmp_path) == AuditReport(intact=True, count=20), "no line is missing"
    (tmp_path / "audit.1.jsonl").unlink()
    report = await verdict(tmp_path)
    assert (report.file, str(report.problem)[:22]) == ("audit.2.jsonl", "audit.1.jsonl is gone;")


@pytest.mark.parametrize("moment", ["before", "half", "put aside"])
async def test_a_kill_while_a_file_is_put_aside_loses_nothing(tmp_path: Path, moment: str) -> None:
    before = await fill(tmp_path, 6, max_file_bytes=SMALL)
    assert len(b"".join(before)) >= SMALL, "the next act needs a new file"
    cut_short(tmp_path, moment, SMALL)
    assert names(tmp_path)[0] == "audit.1.jsonl"
    report = await verdict(tmp_path)
    assert report == AuditReport(intact=True, count=6 if moment == "put aside" else 9, recovered=report.recovered)


def killed_writer(folder: Path, size: int) -> int:
    """Write acts as fast as they go until SIGKILL; gives how many were acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(size)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        return 20 + len(writer.stdout.read().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("size", [MAX_FILE_BYTES, SMALL])
async def test_kill_at_any_moment_loses_no_acknowledged_act(tmp_path: Path, size: int) -> None:
    acknowledged = sum(killed_writer(tmp_path, size) for _ in range(5))
    report = await verdict(tmp_path)
    assert report.intact
    assert report.count >= acknowledged


async def test_a_key_never_gets_into_the_log_and_nothing_is_too_long_for_it(tmp_path: Path) -> None:
    key = f"apex_0123abcd_{'s' * 43}"
    async with opened(tmp_path) as log:
        await log.append(Act(what="x", target=f"a{key}b", detail=key, request_id=key, outcome=404))
        await log.append(Act(what="x" * 5000, target="\ud800" * 5000, outcome=404))
    text = (tmp_path / AUDIT_FILE).read_text()
    assert "sss" not in text
    assert text.count("apex_0123abcd_***") == 3
    assert all(len(line) < 4096 for line in lines(tmp_path))
    assert (await verdict(tmp_path)).intact


async def test_a_flood_of_refused_attempts_is_counted_and_does_not_fill_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        for _ in range(5000):
            log.note_refusal(Act(what="skills.install", outcome=401))
        await log.append(Act(what="skills.install", outcome=201))
    written = told(tmp_path)
    assert REFUSALS_A_MINUTE <= len(written) <= REFUSALS_A_MINUTE + 10
    assert sum(line.get("omitted", 0) for line in written) + len(written) - 2 == 5000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
async def test_a_full_disk_refuses_acts_and_keeps_the_line_of_one_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with opened(tmp_path) as log:
        await log.append(Act(what="skills.install", target="before", outcome=201))
        write, is_full = os.write, True

        def half(descriptor: int, data: Any) -> int:
            if is_full and os.fstat(descriptor).st_ino == (tmp_path / AUDIT_FILE).stat().st_ino:
                write(descriptor, bytes(data[:10]))
                raise OSError(number, os.strerror(number))
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", half)
        await log.ready()
        await log.append(Act(what="skills.install", target="while full", outcome=201))
        log.note_refusal(Act(what="skills.install", outcome=401))
        with pytest.raises(ServerError) as caught:
            await log.ready()
        assert caught.value.code == "STORAGE_FULL"
        assert (await log.verify()).intact, "what was written by halves was taken back"
        is_full = False
        await log.ready()
        await log.append(Act(what="skills.install", target="after", outcome=201))
    assert [line["target"] for line in told(tmp_path)] == ["before", "while full", "after", ""]
    assert told(tmp_path)[-1]["omitted"] == 1
    assert (await verdict(tmp_path)).intact


async def test_an_act_is_refused_before_it_begins_where_its_line_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.ready()
        room = os.statvfs(tmp_path)
        full = os.statvfs_result([*room[:3], 1, 1, *room[5:]])
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(ServerError) as caught:
            await log.ready()
        assert (caught.value.code, caught.value.status) == ("STORAGE_FULL", 507)
        assert "nothing was changed" in caught.value.message
        assert "No space left on device" in caught.value.message
        monkeypatch.undo()
        await log.ready()


async def test_a_full_database_keeps_the_line_of_an_act_that_was_done(tmp_path: Path) -> None:
    database = Database(tmp_path / "apex.sqlite3")
    log = AuditLog(tmp_path / AUDIT_FILE, database)
    await log.open()
    limit = "PRAGMA max_page_count"
    (pages,) = database._writer.execute("PRAGMA page_count").fetchone()
    database._writer.execute(f"{limit} = {pages}")
    acts = [Act(what="skills.install", target=f"{n}" * 300, detail="x" * 300, outcome=201) for n in range(50)]
    async with anyio.create_task_group() as tasks:
        for act in acts:
            tasks.start_soon(log.append, act)
    with pytest.raises(ServerError) as caught:
        await log.ready()
    assert caught.value.code == "STORAGE_FULL"
    assert not lines(tmp_path), "nothing is written that was not announced"
    database._writer.execute(f"{limit} = {pages + 1000}")
    await log.ready()
    assert await log.verify() == AuditReport(intact=True, count=50)
    await log.close()
    database.close()


async def test_two_at_once_never_write(tmp_path: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    async with Bridge.open(settings, watch=False, embedder=embedder) as first:
        await first.audit.append(Act(what="skills.install", outcome=201))
        before = (settings.data_dir / AUDIT_FILE).read_bytes()
        with pytest.raises(ServerError) as caught:
            async with Bridge.open(settings, watch=False, embedder=embedder):
                raise AssertionError("opened twice")
        assert caught.value.code == "DATA_DIR_IN_USE"
        assert (settings.data_dir / AUDIT_FILE).read_bytes() == before


async def test_an_act_is_refused_though_the_one_before_it_is_still_being_settled(tmp_path: Path) -> None:
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
