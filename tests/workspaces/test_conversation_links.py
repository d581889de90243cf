"""Which workspace a conversation continues, found by the digest of its messages."""

import hashlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from apexbridge.storage import workspace_store
from apexbridge.storage.database import Database
from apexbridge.storage.workspace_store import WorkspaceStore
from apexbridge.workspaces import workspaces as module
from apexbridge.workspaces.workspaces import Workspace, Workspaces

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Workspaces, Database]]:
    database = Database(folder / "test.sqlite3")
    try:
        workspaces = Workspaces(folder / "workspaces", WorkspaceStore(database))
        await workspaces.load()
        yield workspaces, database
    finally:
        database.close()


async def made(workspaces: Workspaces, id: str, caller: str = "") -> Workspace:
    workspace = workspaces.open(id, caller=caller)
    await workspace.change(lambda top: (top / "a").touch())
    return workspace


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def found(workspaces: Workspaces, text: str, caller: str = "") -> str | None:
    workspace = workspaces.of_conversation(digest(text), caller=caller)
    return workspace.id if workspace else None


async def test_a_conversation_that_was_answered_once_is_found_also_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as (workspaces, _):
        await workspaces.link(digest("one"), await made(workspaces, "w"), caller="")
        assert (found(workspaces, "one"), found(workspaces, "two")) == ("w", None)
        assert found(workspaces, "one", caller="other") is None
    async with opened(tmp_path) as (workspaces, _):
        assert found(workspaces, "one") == "w"
        await workspaces.link(digest("one"), workspaces.open("w"), caller="")
        assert found(workspaces, "one") == "w"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("order", [("w", None), (None, "w"), ("w", "v"), ("w", "v", "w"), (None, None, "w")])
async def test_a_digest_of_two_conversations_is_never_found(
    tmp_path: Path, order: tuple[str | None, ...], is_restarted: bool
) -> None:
    for part in [(id,) for id in order] if is_restarted else [order]:
        async with opened(tmp_path) as (workspaces, _):
            for id in part:
                await workspaces.link(digest("x"), await made(workspaces, id) if id else None, caller="")
    async with opened(tmp_path) as (workspaces, database):
        assert found(workspaces, "x") is None
        assert await database.rows("SELECT * FROM workspace_links") == []


async def test_the_digest_of_a_deleted_workspace_leads_to_no_other_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (workspaces, _):
        await workspaces.link(digest("x"), await made(workspaces, "w"), caller="")
        await workspaces.delete("w")
        await workspaces.link(digest("x"), await made(workspaces, "v"), caller="")
        assert found(workspaces, "x") is None


async def test_the_oldest_links_are_forgotten_in_memory_and_in_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINKS", 3)
    async with opened(tmp_path) as (workspaces, database):
        workspace = await made(workspaces, "w")
        for number in range(10):
            await workspaces.link(digest(str(number)), workspace, caller="")
        assert [number for number in range(10) if found(workspaces, str(number))] == [7, 8, 9]
        assert await database.row("SELECT count(*) FROM workspace_links") == (3,)
        await workspaces.link(digest("0"), await made(workspaces, "v"), caller="")
        assert found(workspaces, "0") is None
    async with opened(tmp_path) as (workspaces, _):
        await workspaces.link(digest("new"), workspaces.open("w"), caller="")
        assert len([number for number in (7, 8, 9) if found(workspaces, str(number))]) == 2
        assert found(workspaces, "new") == "w"


async def test_many_answers_of_one_key_do_not_push_out_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINKS", 5)
    async with opened(tmp_path) as (workspaces, database):
        quiet, loud = workspaces.open("q", caller="quiet"), workspaces.open("l", caller="loud")
        for workspace in (quiet, loud):
            await workspace.change(lambda top: None)
        await workspaces.link(digest("first"), quiet, caller="quiet")
        for number in range(20):
            await workspaces.link(digest(str(number)), loud, caller="loud")
        assert workspaces.of_conversation(digest("first"), caller="quiet") is not None
        assert await database.row("SELECT count(*) FROM workspace_links") == (5,)
        monkeypatch.setattr(module, "MAX_LINKS_OF_A_KEY", 2)
        await workspaces.link(digest("last"), loud, caller="loud")
        (*_, answers) = await workspaces.usage("loud")
        assert (answers.used, answers.total) == (2, 3)


async def test_answers_without_files_need_no_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as (workspaces, database):
        for number in range(50):
            await workspaces.link(digest(str(number)), None, caller="")
        assert not workspaces.has_conversations
        assert await database.row("SELECT count(*) FROM workspace_links") == (0,)


async def test_links_are_forgotten_if_the_answered_conversations_are_unknown(tmp_path: Path) -> None:
    async with opened(tmp_path) as (workspaces, _):
        await workspaces.link(digest("x"), await made(workspaces, "w"), caller="")
    shutil.rmtree(tmp_path / "answered")
    async with opened(tmp_path) as (workspaces, database):
        assert found(workspaces, "x") is None
        assert await database.rows("SELECT * FROM workspace_links") == []


async def test_an_answer_that_cannot_be_noted_is_not_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "answered").write_text("a file instead of a folder")
    async with opened(tmp_path) as (workspaces, _):
        await workspaces.link(digest("x"), await made(workspaces, "w"), caller="")
        assert found(workspaces, "x") is None
    assert "could not be noted" in caplog.text


async def test_parts_are_remembered_as_long_as_their_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_store, "MAX_PARTS", 2)
    async with opened(tmp_path) as (workspaces, database):
        workspace = await made(workspaces, "w")
        for part in ("one", "two", "three", "two"):
            await workspaces.add_part(workspace, part, f"{part}.csv", 3)
        assert await workspaces.parts(workspace) == {"three": ("three.csv", 3), "two": ("two.csv", 3)}
        await workspaces.delete("w")
        await workspaces.add_part(workspace, "late", "late.csv", 3)
        assert await database.rows("SELECT * FROM workspace_parts") == []
