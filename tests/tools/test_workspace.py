"""The folder of each caller, and read-only access to files of runs."""

import os
from pathlib import Path

import pytest

from apexbridge.errors import ApexBridgeError, InvalidInputError, PermissionDeniedError, RequestError
from apexbridge.tools.builtin.files.workspace import Workspace
from tests.tools.file_workspace import FileWorkspace

pytestmark = pytest.mark.anyio
RUN = "0123456789abcdef" * 2


@pytest.fixture
def workspace(tmp_path: Path) -> FileWorkspace:
    return FileWorkspace(tmp_path)


@pytest.mark.requirement("A6")
async def test_each_key_has_its_own_folder(workspace: FileWorkspace) -> None:
    await workspace.write("note", "of one", caller="one")
    await workspace.write("note", "of two", caller="two")
    await workspace.write("note", "of nobody")
    assert (await workspace.read("note", caller="one"))["content"] == "of one"
    assert (await workspace.read("note"))["content"] == "of nobody"
    assert await workspace.list(caller="two", recursive=True) == ["note"]
    assert await workspace.list(caller="three", recursive=True) == []
    assert (await workspace.read("keys/one/note"))["content"] == "of one"
    (workspace.folder / "keys" / "one" / "over").symlink_to("../two/note")
    for path in ["over", "../two/note", "keys/two/note"]:
        with pytest.raises(ApexBridgeError):
            await workspace.read(path, caller="one")


@pytest.mark.parametrize("caller", ["..", ".", "a/b", "../two", "a\0", "x" * 65, "-rf", "é", " "])
async def test_a_caller_with_an_invalid_id_has_no_folder(workspace: FileWorkspace, caller: str) -> None:
    for call in (workspace.read("a", caller), workspace.write("a", "x", caller), workspace.list(caller)):
        with pytest.raises(PermissionDeniedError):
            await call
    assert await workspace.list() == []


@pytest.mark.requirement("A6")
@pytest.mark.parametrize("caller", ["", "one"])
async def test_files_of_a_run_can_be_read_and_not_written(workspace: FileWorkspace, caller: str) -> None:
    files = workspace.runs / RUN / "files"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "chart.txt").write_text("chart")
    (files / "stderr").write_text("an artifact")
    (workspace.runs / RUN / "stdout").write_text("said")
    (workspace.runs / RUN / "stderr").write_text("not seen")
    (workspace.runs / RUN / "record").write_text("private")
    (files / "out").symlink_to("../record")
    texts = [
        (await workspace.read(f"runs/{RUN}/{path}", caller))["content"]
        for path in ("deep/chart.txt", "stdout", "stderr")
    ]
    assert texts == ["chart", "said", "an artifact"]
    expected = [f"runs/{RUN}/{path}" for path in ("deep", "deep/chart.txt", "out", "stderr", "stdout")]
    assert await workspace.list(caller, path=f"runs/{RUN}", recursive=True) == expected
    assert await workspace.list(caller, path=f"runs/{RUN}", pattern="std*") == expected[3:]
    assert await workspace.list(caller, path=f"runs/{RUN}/deep") == [f"runs/{RUN}/deep/chart.txt"]
    for path in ["record", "out", "../record", "deep", "files/stderr", "deep/stdout"]:
        with pytest.raises(ApexBridgeError):
            await workspace.read(f"runs/{RUN}/{path}", caller)
    for path in ["runs", "runs/x", f"runs/{RUN}/stdout", f"./runs/./{RUN}/new"]:
        for append in (False, True):
            with pytest.raises(PermissionDeniedError, match="runs/ is what runs left; it cannot be written to"):
                await workspace.write(path, "x", caller, append=append)


async def test_a_run_is_named_by_its_id(workspace: FileWorkspace) -> None:
    (workspace.runs / "elsewhere" / "files").mkdir(parents=True)
    for path in ["runs", "runs/elsewhere", "runs/elsewhere/x", f"runs/{RUN.upper()}/x", f"runs/{RUN}0/x"]:
        with pytest.raises(InvalidInputError, match="names no run"):
            await workspace.read(path)
        with pytest.raises(InvalidInputError, match="names no run"):
            await workspace.list(path=path)
    with pytest.raises(RequestError) as caught:
        await workspace.read(f"runs/{RUN}/x")
    assert caught.value.code == "FILE_NOT_FOUND"
    assert await workspace.list(path=f"runs/{RUN}") == []


async def test_a_stream_that_is_not_a_regular_file_is_not_listed_or_read(workspace: FileWorkspace) -> None:
    (workspace.runs / RUN).mkdir(parents=True)
    os.mkfifo(workspace.runs / RUN / "stdout")
    (workspace.runs / RUN / "stderr").symlink_to("/etc/passwd")
    assert await workspace.list(path=f"runs/{RUN}") == []
    for name in ("stdout", "stderr"):
        with pytest.raises(PermissionDeniedError):
            await workspace.read(f"runs/{RUN}/{name}")


async def test_runs_of_other_callers_are_not_found(tmp_path: Path) -> None:
    (tmp_path / RUN / "files").mkdir(parents=True)
    (tmp_path / RUN / "files" / "a").write_text("a")
    workspace = Workspace(tmp_path / "w", lambda identity, caller: tmp_path / identity if caller == "one" else None)
    with workspace.view("one").open_file(f"runs/{RUN}/a") as file:
        assert file.read() == b"a"
    with pytest.raises(RequestError):
        workspace.view("two").open_file(f"runs/{RUN}/a")


async def test_a_real_folder_named_runs_is_not_shown(workspace: FileWorkspace) -> None:
    (workspace.folder / "runs").mkdir()
    (workspace.folder / "runs" / "x").touch()
    (workspace.folder / "runs.txt").touch()
    assert await workspace.list(recursive=True) == ["runs.txt"]
