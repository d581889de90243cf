"""Backups of a server that is used meanwhile, and what a restored data directory has."""

import asyncio
import functools
import json
import os
import random
import sqlite3
import tarfile
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from apexbridge._tasks import in_thread
from apexbridge.backup.archive import BackupError
from apexbridge.backup.restore import check_backup, restore_backup
from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError, ServerError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage import database as database_module
from apexbridge.storage.audit import Act
from apexbridge.storage.database import _migrations
from apexbridge.storage.directory import owned
from tests.backup.archives import repacked
from tests.conftest import client_of
from tests.making import skill_zip, walk
from tests.waiting import until

pytestmark = pytest.mark.anyio
Json = dict[str, Any]

SIGNER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"


def quiet(done: int, total: int) -> None:
    """No progress."""


def restore(file: Path, target: Path, *, force: bool = False) -> Any:
    return restore_backup(file, target, force=force, checking=quiet, copying=quiet)


async def save(bridge: Bridge, file: Path, *, secrets: bool = False) -> Path:
    async with bridge.backups.prepared(secrets=secrets) as backup:
        with file.open("wb") as opened:
            while (chunk := await in_thread(next, backup.chunks, None)) is not None:
                opened.write(chunk)
    return file


def opened(folder: Path, embedder: Embedder) -> Any:
    return Bridge.open(Settings(data_dir=folder), watch=False, embedder=embedder)


async def fill(bridge: Bridge) -> None:
    for text in ("one", "two", "three"):
        await bridge.skills.install_skill(
            skill_zip("notes", {"text.md": text}, description=f"Keeps the notes of meetings, {text}."), overwrite=True
        )
    await bridge.skills.install_skill(skill_zip("gone", description="Removes what nobody needs any more."))
    await bridge.skills.uninstall_skill("gone")
    await bridge.keys.create("laptop", ["read"])
    bridge.skills.signers.add("me", SIGNER_KEY)
    bridge.skills.grants.secrets.set("TOKEN", "s3cret-value")
    await bridge.audit.append(Act(what="test", outcome=200))
    await bridge.retrieval.find_relevant_skills("notes")
    assert await bridge.retrieval.remember("what did we decide on Monday", "notes", succeeded=True)
    await bridge.open_workspace("mine", "").change(lambda top: (top / "a.txt").write_text("kept") and None)  # type: ignore[union-attr]


async def test_a_restored_directory_has_everything(bridge: Bridge, tmp_path: Path, embedder: Embedder) -> None:
    await fill(bridge)
    file = await save(bridge, tmp_path / "x.backup")
    await bridge.skills.uninstall_skill("notes")  # after the backup
    restored = await in_thread(restore, file, tmp_path / "new")
    assert restored.header.skills == 1
    async with opened(tmp_path / "new", embedder) as new:
        assert [skill.name for skill in await new.skills.list_skills()] == ["notes"]
        assert [item.name for item in await new.skills.removed_skills()] == ["gone"]
        versions = await new.skills.versions.listed("notes")
        assert [version.version for version in versions.versions] == [3, 2, 1]
        await new.skills.versions.rollback("notes", 1)
        assert "one" in (await new.skills.get_skill("notes")).description
        assert [key.name for key in new.keys.list()] == ["laptop"]
        assert new.skills.grants.secrets.names() == []
        assert [signer.name for signer in new.skills.signers.all()] == ["me"]
        report = await new.audit.verify()
        assert (report.intact, report.restored_at is not None) == (True, True)
        ((pair, _),) = await new.retrieval.past_use()
        assert pair.skill == "notes"
        assert (await new.retrieval.find_relevant_skills("what did we decide on Monday"))[0].name == "notes"
        with await new.workspaces.open_file("mine", "a.txt") as opened_file:
            assert opened_file.read() == b"kept"
        await new.skills.restore_skill("gone")


async def test_secrets_are_left_out_unless_they_are_asked_for(bridge: Bridge, tmp_path: Path) -> None:
    await fill(bridge)
    for is_asked in (False, True):
        file = await save(bridge, tmp_path / "x.backup", secrets=is_asked)
        with tarfile.open(file) as tar:
            contents = b"".join(found.read() for one in tar if (found := tar.extractfile(one)))
        assert (b"s3cret-value" in contents) is is_asked
        assert check_backup(file, quiet).header.has_secrets is is_asked
    assert (await in_thread(restore, file, tmp_path / "new")).header.has_secrets
    assert "s3cret-value" in (tmp_path / "new/secrets.json").read_text()


async def test_what_can_be_made_again_is_left_out(bridge: Bridge, data_dir: Path, tmp_path: Path) -> None:
    await fill(bridge)
    await bridge.retrieval._index.writer.flush()
    (data_dir / "skills/notes/pipe").unlink(missing_ok=True)
    os.mkfifo(data_dir / "skills/notes/pipe")
    (data_dir / "skills/notes/link").symlink_to("/etc/passwd")
    checked = check_backup(await save(bridge, tmp_path / "x.backup"), quiet)
    tops = {path.split("/")[0] for path in checked.entries}
    assert tops == {
        *("apex.sqlite3", "audit.sqlite3", "past-requests.jsonl", "signers.json"),
        *("skills", "versions", "trash", "workspaces"),
    }
    assert checked.header.left_out == ("skills/notes/link", "skills/notes/pipe")
    assert not list((data_dir / "staging").iterdir())


async def test_only_one_backup_is_made_at_a_time(bridge: Bridge) -> None:
    async with bridge.backups.prepared(secrets=False):
        with pytest.raises(ServerError) as refused:
            async with bridge.backups.prepared(secrets=False):
                raise AssertionError
        assert refused.value.code == "BUSY"
    async with bridge.backups.prepared(secrets=False):
        pass


async def test_a_backup_over_http_is_audited_and_needs_a_body(bridge: Bridge, tmp_path: Path) -> None:
    await fill(bridge)
    async with client_of(bridge) as client:
        answer = await client.post("/api/backup", json={})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/gzip")
        assert int(answer.headers["x-backup-bytes"]) > 0
        (tmp_path / "x.backup").write_bytes(answer.content)
        assert check_backup(tmp_path / "x.backup", quiet).header.skills == 1
        (row,), _ = await bridge.audit.page(page=1, limit=1)
        assert (row["what"], row["outcome"], row["detail"]) == ("backup.create", 200, "without secrets")
        refused = await client.post("/api/backup", json={"path": "/etc/x"})
        assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")


# ------------------------------------------------------------------------------------------------------ restoring
@pytest.fixture
async def file(bridge: Bridge, tmp_path: Path) -> Path:
    await fill(bridge)
    return await save(bridge, tmp_path / "x.backup")


async def test_a_directory_that_is_not_empty_is_not_touched(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(ServerError) as refused:
        await in_thread(restore, file, target)
    assert refused.value.code == "DATA_DIR_NOT_EMPTY"
    assert sorted(path.name for path in target.iterdir()) == [".lock", "mine.txt"]


async def test_force_moves_the_old_directory_aside_as_a_whole(file: Path, tmp_path: Path, embedder: Embedder) -> None:
    target = tmp_path / "target"
    async with opened(target, embedder) as old:
        await old.skills.install_skill(skill_zip("old", description="An older skill that was here before."))
    (target / "mine.txt").write_text("mine")
    restored = await in_thread(restore, file, target, force=True)
    assert restored.aside.parent == target
    assert (target / "mine.txt").read_text() == "mine"  # not ours
    async with opened(target, embedder) as new:
        assert [skill.name for skill in await new.skills.list_skills()] == ["notes"]
    async with opened(restored.aside, embedder) as old:
        assert [skill.name for skill in await old.skills.list_skills()] == ["old"]


async def test_a_directory_that_a_server_uses_is_not_touched(file: Path, bridge: Bridge, data_dir: Path) -> None:
    with pytest.raises(ServerError) as refused:
        await in_thread(restore, file, data_dir, force=True)
    assert refused.value.code == "DATA_DIR_IN_USE"
    assert [skill.name for skill in await bridge.skills.list_skills()] == ["notes"]


async def test_a_refused_backup_changes_nothing(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BackupError):
        await in_thread(restore, tmp_path / "cut", tmp_path / "target")
    assert not (tmp_path / "target").exists()


BAD: dict[str, Any] = {
    "a damaged database": lambda name, data: (
        data[:4096] + b"x" * 4096 + data[8192:] if name == "apex.sqlite3" else data
    ),
    "no database": lambda name, data: None if name == "apex.sqlite3" else data,
    "past requests of something else": lambda name, data: b"[]\n" if name == "past-requests.jsonl" else data,
    "past requests with odd fields": lambda name, data: (
        data.replace(b'"caller"', b'"colour"') if name == "past-requests.jsonl" else data
    ),
    "past requests without numbers": lambda name, data: (
        data.replace(b'"vector": "', b'"vector": "AADAfwAA') if name == "past-requests.jsonl" else data
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_backup_with_unusable_content_changes_nothing(file: Path, tmp_path: Path, what: str) -> None:
    bad = tmp_path / "bad.backup"
    bad.write_bytes(repacked(file, BAD[what]))
    with pytest.raises(BackupError) as refused:
        await in_thread(restore, bad, tmp_path / "target")
    assert refused.value.code == "BACKUP_INVALID"
    assert not (tmp_path / "target").exists()


def newer(name: str, data: bytes) -> bytes:
    if name == "backup.json":
        return json.dumps({**json.loads(data), "schemaVersion": 999, "version": "9.9"}).encode()
    return data


def newer_database(name: str, data: bytes) -> bytes:
    return data[:60] + (999).to_bytes(4) + data[64:] if name == "apex.sqlite3" else data


@pytest.mark.parametrize("change", [newer, newer_database])
async def test_a_backup_of_a_newer_version_is_refused(file: Path, tmp_path: Path, change: Any) -> None:
    (tmp_path / "newer").write_bytes(repacked(file, change))
    with pytest.raises(ServerError) as refused:
        await in_thread(restore, tmp_path / "newer", tmp_path / "target")
    assert refused.value.code == "NEWER_VERSION"
    assert not (tmp_path / "target").exists()


async def test_a_backup_of_an_older_version_is_migrated(
    file: Path, tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = _migrations()
    monkeypatch.setattr(database_module, "_migrations", lambda: [*known, (900, "CREATE TABLE newest (x);")])
    await in_thread(restore, file, tmp_path / "target")
    with closing(sqlite3.connect(tmp_path / "target/apex.sqlite3")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (900,)
        assert connection.execute("SELECT count(*) FROM newest").fetchone() == (0,)
    async with opened(tmp_path / "target", embedder) as new:
        assert [skill.name for skill in await new.skills.list_skills()] == ["notes"]


async def test_a_directory_of_a_newer_version_is_refused_and_not_changed(
    bridge: Bridge, data_dir: Path, tmp_path: Path, embedder: Embedder
) -> None:
    await fill(bridge)
    await in_thread(restore, await save(bridge, tmp_path / "x.backup"), tmp_path / "new")
    with closing(sqlite3.connect(tmp_path / "new/apex.sqlite3")) as connection:
        connection.execute("PRAGMA user_version = 999")
    before = walk(tmp_path / "new")
    with pytest.raises(ServerError) as refused:
        async with opened(tmp_path / "new", embedder):
            raise AssertionError
    assert refused.value.code == "NEWER_VERSION"
    assert walk(tmp_path / "new") == before


# ---------------------------------------------------------------------------------------------------- concurrency
async def test_a_backup_waits_for_a_commit_and_commits_wait_for_it(bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("one", description="The first of several skills here."))
    entered, leave = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async with bridge.skills.store.reading("one"):
            entered.set()
            await leave.wait()

    reading = asyncio.create_task(read())
    await entered.wait()
    order: list[str] = []

    async def freeze() -> None:
        async with bridge.skills.store.unchanged():
            order.append("unchanged")
            await asyncio.sleep(0)
            assert not installing.done()

    freezing = asyncio.create_task(freeze())
    await asyncio.sleep(0)
    installing = asyncio.create_task(
        bridge.skills.install_skill(skill_zip("two", description="The second of several skills here."))
    )
    installing.add_done_callback(lambda _: order.append("installed"))
    assert not freezing.done()
    leave.set()
    await asyncio.gather(reading, freezing, installing)
    assert order == ["unchanged", "installed"]


CLIENTS = 20


class Load:
    """A bridge that many clients change."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.changes = 0
        self.stopped = asyncio.Event()


@pytest.fixture
async def load(bridge: Bridge) -> AsyncIterator[Load]:
    """20 clients that install, overwrite, edit, uninstall and restore skills, and write to workspaces."""
    load = Load(bridge)

    async def work(number: int) -> None:
        chance, name, count = random.Random(number), f"s{number % 7}", 0
        while not load.stopped.is_set():
            count += 1
            mark = f"{number}-{count}"
            kind = chance.choice(["install", "install", "install", "edit", "uninstall", "restore", "file", "version"])
            with suppress(ApexBridgeError):
                if kind == "install":
                    await bridge.skills.install_skill(version_of(name, mark), overwrite=True, caller="")
                elif kind == "edit":
                    await bridge.skills.update_skill_description(name, f"Edited by hand to be {mark}.")
                elif kind == "uninstall":
                    await bridge.skills.uninstall_skill(name)
                elif kind == "restore":
                    await bridge.skills.restore_skill(name)
                elif kind == "version":
                    await bridge.skills.versions.rollback(name)
                else:
                    workspace = bridge.open_workspace(f"w{number % 5}", "")
                    assert workspace is not None
                    await workspace.change(functools.partial(write_all, mark))
                load.changes += 1

    tasks = [asyncio.create_task(work(number)) for number in range(CLIENTS)]
    try:
        yield load
    finally:
        load.stopped.set()
        await asyncio.gather(*tasks)


def version_of(name: str, mark: str) -> bytes:
    files = {f"part{number}.md": mark for number in range(5)}
    return skill_zip(name, files, description=f"Does the thing of mark {mark}.")


def write_all(mark: str, top: Path) -> None:
    for number in range(5):
        draft = top / f"draft{number}"
        draft.write_text(mark)
        draft.replace(top / f"part{number}.md")


async def check_restored(folder: Path, embedder: Embedder) -> int:
    """Each skill and workspace is one whole state, and the catalogue, as it was backed up, agrees with the disk."""
    with closing(sqlite3.connect(folder / "apex.sqlite3")) as connection:
        rows = connection.execute("SELECT name, folder, content_hash FROM skills WHERE state = 'live'").fetchall()
    skills = folder / "skills"
    folders = sorted(path.name for path in skills.iterdir()) if skills.is_dir() else []
    assert sorted(name for _, name, _ in rows) == folders
    for name in folders:
        assert len({path.read_text() for path in (skills / name).glob("part*.md")}) == 1, name
    for workspace in (folder / "workspaces").iterdir() if (folder / "workspaces").is_dir() else ():
        assert len({path.read_text() for path in (workspace / "current").glob("part*.md")}) == 1, workspace
    async with opened(folder, embedder) as restored:
        assert await restored.skills.problems() == []
        for name, _, content_hash in rows:
            assert restored.content_hash(name) == content_hash, name
            listed = (await restored.skills.versions.listed(name)).versions
            assert [version.content_hash for version in listed if version.default] == [content_hash]
            for version in listed:
                (await restored.skills.versions.open(name, version.version)).close()
        assert len(await restored.skills.list_skills()) == len(rows)
        assert (await restored.audit.verify()).intact
    return len(rows)


async def test_backups_under_load_restore_to_whole_states(load: Load, tmp_path: Path, embedder: Embedder) -> None:
    await check_backups(load, tmp_path, embedder, count=3)


@pytest.mark.slow
async def test_many_backups_under_load_restore_to_whole_states(load: Load, tmp_path: Path, embedder: Embedder) -> None:
    await check_backups(load, tmp_path, embedder, count=25)


async def check_backups(load: Load, tmp_path: Path, embedder: Embedder, *, count: int) -> None:
    files = []
    for number in range(count):
        expected = load.changes + CLIENTS
        await until(lambda: load.changes >= expected)  # noqa: B023  # called before the next round
        files.append(await save(load.bridge, tmp_path / f"{number}.backup"))
    load.stopped.set()
    found = 0
    for number, file in enumerate(files):
        await in_thread(restore, file, tmp_path / f"new{number}")
        found += await check_restored(tmp_path / f"new{number}", embedder)
    assert found >= count


async def test_a_directory_is_locked_while_it_is_restored(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    refused: list[str] = []

    def progress(done: int, total: int) -> None:
        try:
            with owned(target):
                raise AssertionError
        except ServerError as error:
            refused.append(error.code)

    await in_thread(restore_backup, file, target, force=False, checking=quiet, copying=progress)
    assert set(refused) == {"DATA_DIR_IN_USE"}
