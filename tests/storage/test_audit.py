"""The audit log: a chain that shows whatever was done to it, over a real file and a real database."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.errors import ServerError
from apexbridge.storage.audit import AUDIT_FILE, REFUSALS_A_MINUTE, Act, AuditLog
from apexbridge.storage.chain import AuditReport
from apexbridge.storage.database import Database

pytestmark = pytest.mark.anyio
WRITER = """
import asyncio, sys
from pathlib import Path
from apexbridge.storage.audit import Act, AuditLog
from apexbridge.storage.database import Database

async def main():
    folder = Path(sys.argv[1])
    log = AuditLog(folder / "audit.jsonl", Database(folder / "apex.sqlite3"))
    await log.open()
    number = 0
    while True:
        await log.append(Act(what="skills.install", target=f"skill-{number}", outcome=201))
        number += 1
        print(number, flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[AuditLog]:
    database = Database(folder / "apex.sqlite3")
    try:
        log = AuditLog(folder / AUDIT_FILE, database)
        await log.open()
        yield log
        await log.close()
    finally:
        database.close()


async def fill(folder: Path, count: int = 6) -> list[bytes]:
    async with opened(folder) as log:
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
}


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("way", WAYS)
async def test_whatever_was_done_to_the_log_is_noticed_and_stays_so(tmp_path: Path, way: str) -> None:
    damage, line = WAYS[way]
    before = await fill(tmp_path)
    (tmp_path / AUDIT_FILE).write_bytes(b"".join(damage(before)))
    if way == "zeros at the end":  # nobody can tell it from a crash: it is told in the log, and nothing is lost
        assert await verdict(tmp_path) == AuditReport(intact=True, count=7, torn=1)
        return
    first = await verdict(tmp_path)
    assert (first.intact, first.line) == (False, line), first
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
        assert (await log.verify()).line == 1
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


async def test_a_torn_last_line_is_told_and_the_log_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = await fill(tmp_path)
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(b'{"seq":7,"time":"20')
    async with opened(tmp_path) as log:
        assert "cut off" in caplog.text
        await log.append(Act(what="skills.install", outcome=201))
        assert await log.verify() == AuditReport(intact=True, count=len(before) + 2, torn=1)
    assert [json.loads(line)["what"] for line in lines(tmp_path)[-2:]] == ["audit.torn", "skills.install"]


async def test_lines_that_the_database_did_not_come_to_know_are_taken_on(tmp_path: Path) -> None:
    await fill(tmp_path)
    for path in tmp_path.glob("apex.sqlite3*"):
        path.unlink()
    assert await verdict(tmp_path) == AuditReport(intact=True, count=6)
    text = (tmp_path / AUDIT_FILE).read_bytes()
    (tmp_path / AUDIT_FILE).write_bytes(text[:-1])
    for path in tmp_path.glob("apex.sqlite3*"):
        path.unlink()
    assert await verdict(tmp_path) == AuditReport(intact=True, count=6), "only the line end was missing"


def killed_writer(folder: Path) -> int:
    """Write acts as fast as they go until SIGKILL; gives how many were acknowledged."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        return 20 + len(writer.stdout.read().splitlines())


async def test_kill_at_any_moment_loses_no_acknowledged_act(tmp_path: Path) -> None:
    acknowledged = sum(killed_writer(tmp_path) for _ in range(5))
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
