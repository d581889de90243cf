"""Who sees what: each caller a folder of its own, and what runs left, which nobody writes to."""

import os
from pathlib import Path

import pytest

from apexbridge.errors import ApexBridgeError, InvalidInputError, PermissionDeniedError, RequestError
from apexbridge.tools.builtin.files.workspace import Workspace
from tests.tools.desk import Desk

pytestmark = pytest.mark.anyio
RUN = "0123456789abcdef" * 2


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.requirement("A6")
async def test_each_key_has_a_folder_of_its_own(desk: Desk) -> None:
    await desk.write("note", "of one", caller="one")
    await desk.write("note", "of two", caller="two")
    await desk.write("note", "of nobody")
    assert (await desk.read("note", caller="one"))["content"] == "of one"
    assert (await desk.read("note"))["content"] == "of nobody"
    assert await desk.list(caller="two", recursive=True) == ["note"]
    assert await desk.list(caller="three", recursive=True) == []
    assert (await desk.read("keys/one/note"))["content"] == "of one"
    (desk.folder / "keys" / "one" / "over").symlink_to("../two/note")
    for path in ["over", "../two/note", "keys/two/note"]:
        with pytest.raises(ApexBridgeError):
            await desk.read(path, caller="one")


@pytest.mark.parametrize("caller", ["..", ".", "a/b", "../two", "a\0", "x" * 65, "-rf", "é", " "])
async def test_a_caller_whose_id_is_no_name_has_no_folder(desk: Desk, caller: str) -> None:
    for call in (desk.read("a", caller), desk.write("a", "x", caller), desk.list(caller)):
        with pytest.raises(PermissionDeniedError):
            await call
    assert await desk.list() == []


@pytest.mark.requirement("A6")
@pytest.mark.parametrize("caller", ["", "one"])
async def test_what_a_run_left_can_be_read_and_not_written(desk: Desk, caller: str) -> None:
    files = desk.runs / RUN / "files"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "chart.txt").write_text("chart")
    (files / "stderr").write_text("an artifact")
    (desk.runs / RUN / "stdout").write_text("said")
    (desk.runs / RUN / "stderr").write_text("not seen")
    (desk.runs / RUN / "record").write_text("private")
    (files / "out").symlink_to("../record")
    texts = [
        (await desk.read(f"runs/{RUN}/{path}", caller))["content"] for path in ("deep/chart.txt", "stdout", "stderr")
    ]
    assert texts == ["chart", "said", "an artifact"]
    expected = [f"runs/{RUN}/{path}" for path in ("deep", "deep/chart.txt", "out", "stderr", "stdout")]
    assert await desk.list(caller, path=f"runs/{RUN}", recursive=True) == expected
    assert await desk.list(caller, path=f"runs/{RUN}", pattern="std*") == expected[3:]
    assert await desk.list(caller, path=f"runs/{RUN}/deep") == [f"runs/{RUN}/deep/chart.txt"]
    for path in ["record", "out", "../record", "deep", "files/stderr", "deep/stdout"]:
        with pytest.raises(ApexBridgeError):
            await desk.read(f"runs/{RUN}/{path}", caller)
    for path in ["runs", "runs/x", f"runs/{RUN}/stdout", f"./runs/./{RUN}/new"]:
        for append in (False, True):
            with pytest.raises(PermissionDeniedError, match="runs/ is what runs left; it cannot be written to"):
                await desk.write(path, "x", caller, append=append)


async def test_a_run_is_named_by_its_id(desk: Desk) -> None:
    (desk.runs / "elsewhere" / "files").mkdir(parents=True)
    for path in ["runs", "runs/elsewhere", "runs/elsewhere/x", f"runs/{RUN.upper()}/x", f"runs/{RUN}0/x"]:
        with pytest.raises(InvalidInputError, match="names no run"):
            await desk.read(path)
        with pytest.raises(InvalidInputError, match="names no run"):
            await desk.list(path=path)
    with pytest.raises(RequestError) as caught:
        await desk.read(f"runs/{RUN}/x")
    assert caught.value.code == "FILE_NOT_FOUND"
    assert await desk.list(path=f"runs/{RUN}") == []


async def test_a_stream_that_is_no_file_is_none(desk: Desk) -> None:
    (desk.runs / RUN).mkdir(parents=True)
    os.mkfifo(desk.runs / RUN / "stdout")
    (desk.runs / RUN / "stderr").symlink_to("/etc/passwd")
    assert await desk.list(path=f"runs/{RUN}") == []
    for name in ("stdout", "stderr"):
        with pytest.raises(PermissionDeniedError):
            await desk.read(f"runs/{RUN}/{name}")


async def test_runs_that_are_not_for_the_caller_are_not_there(tmp_path: Path) -> None:
    (tmp_path / RUN / "files").mkdir(parents=True)
    (tmp_path / RUN / "files" / "a").write_text("a")
    workspace = Workspace(tmp_path / "w", lambda identity, caller: tmp_path / identity if caller == "one" else None)
    with workspace.open_file(f"runs/{RUN}/a", caller="one") as file:
        assert file.read() == b"a"
    with pytest.raises(RequestError):
        workspace.open_file(f"runs/{RUN}/a", caller="two")


async def test_a_real_folder_named_runs_is_not_shown(desk: Desk) -> None:
    (desk.folder / "runs").mkdir()
    (desk.folder / "runs" / "x").touch()
    (desk.folder / "runs.txt").touch()
    assert await desk.list(recursive=True) == ["runs.txt"]
