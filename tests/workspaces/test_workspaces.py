"""Workspaces: who may use them, quotas, expiry, changes that happen completely or not at all."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError, ServerError
from apexbridge.sandbox.workspace_files import Changes, CollectedFile, list_tree
from apexbridge.storage.database import Database
from apexbridge.storage.workspace_store import WorkspaceStore
from apexbridge.workspaces.config import WorkspaceLimits
from apexbridge.workspaces.workspaces import Workspace, Workspaces

pytestmark = pytest.mark.anyio
KB = 1024


@asynccontextmanager
async def opened(folder: Path, **limits: int) -> AsyncIterator[Workspaces]:
    folder.mkdir(exist_ok=True)
    database = Database(folder / "test.sqlite3")
    try:
        workspaces = Workspaces(folder / "workspaces", WorkspaceStore(database), limits=WorkspaceLimits(**limits))
        await workspaces.load()
        yield workspaces
    finally:
        database.close()


async def write(workspace: Workspace, **files: str) -> None:
    def work(top: Path) -> None:
        for name, text in files.items():
            (top / name).unlink(missing_ok=True)
            (top / name).write_text(text)

    await workspace.change(work)


async def read(workspace: Workspace) -> dict[str, str]:
    async with workspace.reading() as top:
        return {entry.path: (top / entry.path).read_text() for entry in list_tree(top) if not entry.is_folder}


async def test_files_stay_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        assert not workspace.exists
        await write(workspace, a="1", b="2")
        await workspace.add_skill("pdf")
        assert workspace.changed == {"a": 1, "b": 1}
    async with opened(tmp_path) as workspaces:
        assert await read(workspaces.open("w")) == {"a": "1", "b": "2"}
        assert list(workspaces.open("w").skills) == ["pdf"]
        assert workspaces.get("w").bytes == 2


async def test_a_workspace_belongs_to_one_key(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        await write(workspaces.open("w", caller="one"), a="1")
        with pytest.raises(RequestError) as caught:
            workspaces.open("w", caller="two")
        assert caught.value.code == "FORBIDDEN"
        for attempt in (workspaces.files("w", owner="two"), workspaces.open_file("w", "a", owner="two")):
            with pytest.raises(RequestError) as caught:
                await attempt
            assert caught.value.code == "WORKSPACE_NOT_FOUND"
        with pytest.raises(RequestError):
            await workspaces.delete("w", owner="two")
        assert workspaces.list(owner="two") == []


async def test_two_keys_that_create_the_same_id_at_once_do_not_share_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        one, two = workspaces.open("w", caller="one"), workspaces.open("w", caller="two")
        await write(one, a="1")
        with pytest.raises(RequestError):
            await write(two, b="2")
        assert await read(one) == {"a": "1"}


async def test_a_reader_sees_one_state_while_others_change_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        await write(workspace, a="1", b="1")
        async with workspace.reading() as top:
            await write(workspace, a="2", b="2")
            assert [(top / name).read_text() for name in "ab"] == ["1", "1"]
        assert not top.exists()
        assert await read(workspace) == {"a": "2", "b": "2"}


async def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        await write(workspace, a="1")

        def fail(top: Path) -> None:
            (top / "a").unlink()
            (top / "b").write_text("2")
            raise InvalidInputError("no")

        with pytest.raises(InvalidInputError):
            await workspace.change(fail)
        assert await read(workspace) == {"a": "1"}
        assert len(list((tmp_path / "workspaces/w").iterdir())) == 2


@pytest.mark.parametrize("limits", [{"quota_bytes": 10 * KB}, {"max_files": 3}])
async def test_the_quota_is_for_all_workspaces_of_a_key_together(tmp_path: Path, limits: dict[str, int]) -> None:
    async with opened(tmp_path, **limits) as workspaces:
        first, second = workspaces.open("1", caller="k"), workspaces.open("2", caller="k")
        await write(first, a="x" * 6 * KB, b="x")
        with pytest.raises(ServerError) as caught:
            await write(second, a="x" * 3 * KB, b="x" * 3 * KB)
        assert caught.value.code == "STORAGE_FULL"
        assert await read(second) == {}
        await write(workspaces.open("3", caller="other"), a="x" * 6 * KB, b="x")
        await write(first, a="", b="")
        await workspaces.delete("1")
        await write(second, a="x" * 3 * KB, b="x" * 3 * KB)


async def test_a_full_workspace_can_be_emptied(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        await write(workspaces.open("w"), a="x" * 100, b="x" * 100)
    async with opened(tmp_path, quota_bytes=50) as workspaces:
        await workspaces.delete_file("w", "a")
        assert [entry.path for entry in await workspaces.files("w")] == ["b"]


async def test_unused_workspaces_expire(tmp_path: Path) -> None:
    async with opened(tmp_path, days=7) as workspaces:
        for name, days in (("old", 8), ("new", 6)):
            await write(workspaces.open(name), a="1")
            entry = workspaces._entries[name]
            entry.row = replace(entry.row, used_at=now_ms() - days * MS_PER_DAY)
        await workspaces.sweep()
        assert [row.id for row in workspaces.list()] == ["new"]
        assert [path.name for path in (tmp_path / "workspaces").iterdir()] == ["new"]


async def test_use_renews_a_workspace(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        await write(workspace, a="1")
        entry = workspaces._entries["w"]
        entry.row = replace(entry.row, used_at=now_ms() - 6 * MS_PER_DAY)
        await read(workspace)
        assert workspaces.get("w").used_at > now_ms() - MS_PER_DAY


# ---------------------------------------------------------------------------------------------------- changes of a run
def collected(tmp_path: Path, **files: str) -> list[CollectedFile]:
    (tmp_path / "artifacts").mkdir(exist_ok=True)
    found = []
    for path, text in files.items():
        (tmp_path / "artifacts" / path).write_text(text)
        found.append(CollectedFile(path, path, len(text), is_executable=False))
    return found


async def test_the_changes_of_two_runs_at_once_are_both_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        await write(workspace, a="1", gone="x")
        await workspace.keep(Changes(files=collected(tmp_path, b="2"), removed=["gone"]), tmp_path / "artifacts")
        await workspace.keep(Changes(files=collected(tmp_path, a="3")), tmp_path / "artifacts")
        assert await read(workspace) == {"a": "3", "b": "2"}


async def test_a_name_that_is_taken_is_refused_with_a_word(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")

        def make(top: Path) -> None:
            (top / "folder").mkdir()
            (top / "folder/x").write_text("1")
            (top / "file").write_text("1")

        await workspace.change(make)
        files = [replace(collected(tmp_path, a="2")[0], path=path) for path in ("folder", "file/below", "other")]
        applied = await workspace.keep(Changes(files=files, folders=["file"]), tmp_path / "artifacts")
        assert [file.path for file in applied.files] == ["other"]
        assert applied.warnings == [
            "file was not kept: a file has this name",
            "folder was not kept: a folder has this name",
            "file/below was not kept: file is a file",
        ]
        assert await read(workspace) == {"folder/x": "1", "file": "1", "other": "2"}


async def test_a_run_that_exceeds_the_quota_leaves_the_workspace_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path, quota_bytes=10) as workspaces:
        workspace = workspaces.open("w")
        await write(workspace, a="1")
        applied = await workspace.keep(
            Changes(files=collected(tmp_path, b="2", c="x" * 20), removed=["a"]), tmp_path / "artifacts"
        )
        assert "stay as they were" in applied.warnings[0]
        assert applied.files == ()
        assert await read(workspace) == {"a": "1"}


async def test_of_two_keys_that_create_the_same_workspace_at_once_one_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        for number in range(20):
            both = [workspaces.open(f"w{number}", caller=caller) for caller in ("a", "b")]
            answers = await asyncio.gather(*(write(one, f=one.owner) for one in both), return_exceptions=True)
            (winner,) = [one for one, answer in zip(both, answers, strict=True) if answer is None]
            (refused,) = [answer for answer in answers if answer is not None]
            assert isinstance(refused, RequestError)
            assert refused.code == "FORBIDDEN"
            assert await read(winner) == {"f": winner.owner}
    async with opened(tmp_path) as workspaces:
        for row in workspaces.list():
            assert await read(workspaces.open(row.id, caller=row.owner)) == {"f": row.owner}


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_a_workspace_can_be_created_while_one_of_its_name_is_deleted(tmp_path: Path, owner: str) -> None:
    async with opened(tmp_path) as workspaces:
        for _ in range(10):
            await write(workspaces.open("w", caller="a"), **{f"f{number}": "1" for number in range(50)})
            other = Workspace(workspaces, "w", owner)
            _, refused = await asyncio.gather(workspaces.delete("w"), write(other, new="2"), return_exceptions=True)
            if refused is None:
                assert await read(other) == {"new": "2"}
                await workspaces.delete("w")
            else:
                assert isinstance(refused, RequestError)
                assert (refused.code, owner) == ("FORBIDDEN", "b")


async def test_a_new_workspace_whose_first_write_is_refused_does_not_exist(tmp_path: Path) -> None:
    async with opened(tmp_path, quota_bytes=10) as workspaces:
        with pytest.raises(ServerError):
            await write(workspaces.open("w"), a="x" * 20)
        assert workspaces.list() == []
    async with opened(tmp_path) as workspaces:
        assert workspaces.list() == []


async def test_a_run_keeps_its_result_if_another_key_took_the_id_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w", caller="a")
        await write(workspaces.open("w", caller="b"), theirs="1")
        applied = await workspace.keep(Changes(files=collected(tmp_path, mine="2")), tmp_path / "artifacts")
        assert applied.files == ()
        assert "another API key" in applied.warnings[0]


async def test_a_mistyped_id_gets_a_suggestion_of_the_callers_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        await write(workspaces.open("report-2026", caller="a"), f="1")
        await write(workspaces.open("report-2025", caller="b"), f="1")
        with pytest.raises(RequestError, match=r"No workspace report-202\. Did you mean \"report-2026\"\?"):
            workspaces.get("report-202", owner="a")


async def test_a_deleted_workspace_does_not_come_back_with_the_end_of_a_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        await write(workspace, a="1")
        async with workspace.reading():
            await workspaces.delete("w")
        applied = await workspace.keep(Changes(files=collected(tmp_path, b="2")), tmp_path / "artifacts")
        assert "deleted" in applied.warnings[0]
        assert workspaces.list() == []


async def test_the_quota_counts_folders(tmp_path: Path) -> None:
    async with opened(tmp_path, max_files=5) as workspaces:
        await workspaces.open("w").change(lambda top: (top / "a/b").mkdir(parents=True))
        assert (workspaces.get("w").files, workspaces.get("w").folders) == (0, 2)
        await write(workspaces.open("other"), file="1")
        with pytest.raises(ServerError) as caught:
            await write(workspaces.open("other"), file="1", more="2")
        assert caught.value.code == "STORAGE_FULL"
    async with opened(tmp_path, max_files=5) as workspaces:
        assert [(row.id, row.files, row.folders) for row in workspaces.list()] == [("other", 1, 0), ("w", 0, 2)]


async def test_workspaces_without_files_count_as_folders(tmp_path: Path) -> None:
    async with opened(tmp_path, max_files=3) as workspaces:
        for number in range(3):
            await workspaces.open(str(number), caller="k").add_skill("pdf")
        for refused in (workspaces.open("3", caller="k").add_skill("pdf"), write(workspaces.open("3", caller="k"))):
            with pytest.raises(ServerError) as caught:
                await refused
            assert caught.value.code == "STORAGE_FULL"
        assert len(workspaces.list()) == 3
        await workspaces.open("0", caller="k").add_skill("docx")
        await workspaces.open("other", caller="o").add_skill("pdf")
        await workspaces.delete("0")
        await workspaces.open("3", caller="k").add_skill("pdf")
    async with opened(tmp_path, max_files=3) as workspaces:
        with pytest.raises(ServerError):
            await workspaces.open("4", caller="k").add_skill("pdf")
        (_, files, _) = await workspaces.usage("k")
        assert (files.used, files.limit) == (3, 3)


async def test_folders_without_files_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        workspace = workspaces.open("w")
        await workspace.keep(Changes(folders=["empty", "empty/inner"]), tmp_path)
        assert [entry.path for entry in await workspaces.files("w")] == ["empty", "empty/inner"]
        await workspace.keep(Changes(removed=["empty/inner"]), tmp_path)
        assert [entry.path for entry in await workspaces.files("w")] == ["empty"]


async def test_an_uploaded_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    async with opened(tmp_path) as workspaces:
        await workspaces.open("w").keep(Changes(folders=["data"]), tmp_path)
        with pytest.raises(InvalidInputError):
            await workspaces.add_file("w", "data", BytesIO(b"x"), caller="")
        await workspaces.add_file("w", "x", BytesIO(b"1"), caller="")
        await workspaces.add_file("w", "x", BytesIO(b"2"), caller="")
        assert (await read(workspaces.open("w")))["x"] == "2"


@pytest.mark.parametrize("id", ["", "..", "a/b", ".hidden", "a\n", "é", "x" * 65])
async def test_ids_are_plain_names(tmp_path: Path, id: str) -> None:
    async with opened(tmp_path) as workspaces:
        with pytest.raises(ApexBridgeError):
            workspaces.open(id)


# ------------------------------------------------------------------------------------------------------------- crashes
CHANGER = """
import asyncio, sys
from pathlib import Path
from apexbridge.storage.database import Database
from apexbridge.storage.workspace_store import WorkspaceStore
from apexbridge.workspaces.workspaces import Workspaces

async def main(folder):
    workspaces = Workspaces(folder / "workspaces", WorkspaceStore(Database(folder / "test.sqlite3")))
    await workspaces.load()
    workspace, number = workspaces.open("w"), 0
    while True:
        number += 1
        def work(top):
            for name in range(20):
                (top / str(name)).unlink(missing_ok=True)
                (top / str(name)).write_text(str(number))
        await workspace.change(work)
        print(number, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def last_change_before_a_kill(folder: Path, attempt: int) -> int:
    """Change a workspace in another process and kill that; returns the number of the last change it reported."""
    with subprocess.Popen([sys.executable, "-c", CHANGER, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        numbers = [int(process.stdout.readline()) for _ in range(2 + attempt)]
        time.sleep(attempt / 4000)  # another moment of a change each time
        process.kill()
        return max([*numbers, *map(int, process.stdout.read().split())])


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
async def test_a_server_killed_at_any_moment_leaves_one_whole_state(tmp_path: Path, attempt: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    last = await asyncio.to_thread(last_change_before_a_kill, folder, attempt)
    async with opened(folder) as workspaces:
        found = await read(workspaces.open("w"))
        assert len(found) == 20
        assert len(set(found.values())) == 1
        assert int(found["0"]) in (last, last + 1)
        assert len(list((folder / "workspaces/w").iterdir())) == 2
