"""The folder of each caller, and read-only access to files of runs."""

import os
from pathlib import Path

import pytest

from apexbridge.errors import ApexBridgeError, InvalidInputError, PermissionDeniedError, RequestError
from apexbridge.sandbox.workspace_files import CODE_NAME, MAX_DEPTH
from apexbridge.tools.builtin.files.workspace import CODE_PREFIX, MAX_FOLDERS, Workspace
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
    for path in [f"runs/{RUN}", f"runs/{RUN}/stdout", f"./runs/./{RUN}/new"]:
        for append in (False, True):
            with pytest.raises(PermissionDeniedError, match="is what a run left; it cannot be written to"):
                await workspace.write(path, "x", caller, append=append)


async def test_a_run_is_named_by_its_id(workspace: FileWorkspace) -> None:
    (workspace.runs / "elsewhere" / "files").mkdir(parents=True)
    for path in ["runs", "runs/elsewhere", "runs/elsewhere/x", f"runs/{RUN.upper()}/x", f"runs/{RUN}0/x"]:
        for call in (workspace.read(path), workspace.list(path=path)):
            with pytest.raises(RequestError, match="runs/ID/PATH, where ID has 32 digits") as caught:
                await call
            assert caught.value.code == "FILE_NOT_FOUND"
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


@pytest.mark.parametrize("caller", ["", "one"])
async def test_a_folder_named_runs_is_like_any_other_except_for_the_ids_of_runs(
    workspace: FileWorkspace, caller: str
) -> None:
    await workspace.write("runs/exp1/log.txt", "logged", caller)
    await workspace.write("runs/notes", "a", caller)
    await workspace.write("runs/notes", "b", caller, append=True)
    top = workspace.folder / "keys" / caller if caller else workspace.folder
    (top / "runs" / RUN).mkdir()
    (top / "runs" / RUN / "hidden by the run").touch()
    assert (await workspace.read("runs/exp1/log.txt", caller))["content"] == "logged"
    assert (await workspace.read("runs/notes", caller))["content"] == "ab"
    assert "runs" in await workspace.list(caller)
    assert await workspace.list(caller, path="runs") == ["runs/exp1", "runs/notes"]
    expected = ["runs/exp1", "runs/exp1/log.txt", "runs/notes"]
    assert await workspace.list(caller, path="runs", recursive=True) == expected
    assert [path for path in await workspace.list(caller, recursive=True) if path.startswith("runs/")] == expected
    with pytest.raises(RequestError):
        await workspace.read(f"runs/{RUN}/hidden by the run", caller)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\nb", "has a control character or a line separator in it: U\\+000A"),
        ("a\x1b[31m", "U\\+001B"),
        ("a\x85b", "U\\+0085"),
        ("a\u2028b", "U\\+2028"),
        ("a\u2029b", "U\\+2029"),
        ("folder\t/a", "U\\+0009"),
        ("a" * 256, "255 bytes"),
        ("a/" * 40 + "b", "deeper than 32 folders"),
        ("a/" * 33 + "b", "deeper than 32 folders"),
        (".code.py", "reserved for the code of runs"),
        (".code.d/x", "reserved for the code of runs"),
    ],
)
async def test_a_name_that_runs_could_not_keep_is_refused(workspace: FileWorkspace, name: str, problem: str) -> None:
    for append in (False, True):
        with pytest.raises(InvalidInputError, match=problem):
            await workspace.write(name, "x", append=append)
    assert await workspace.list() == []


@pytest.mark.parametrize(
    "name", ["Screenshot 10.00.00\u202fAM.png", "a\u00a0b", "名前.txt", "e\u0301", "a/" * 32 + "b", "a" * 255]
)
async def test_printable_names_can_be_written(workspace: FileWorkspace, name: str) -> None:
    assert (await workspace.write(name, "x"))["path"] == name
    assert (await workspace.read(name))["content"] == "x"


def test_files_are_written_as_deep_as_runs_collect_them() -> None:
    assert (MAX_DEPTH, f"{CODE_NAME}.") == (MAX_FOLDERS, CODE_PREFIX)
