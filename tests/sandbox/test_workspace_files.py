"""Files of a run's workspace: what is copied in, and which files are collected afterwards."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from apexbridge.sandbox import workspace_files
from apexbridge.sandbox.workspace_files import MAX_DEPTH, Changes, collect_changes, copy_in, list_tree, write_code
from apexbridge.workspaces.generations import apply_changes
from tests.making import walk
from tests.sandbox.properties import unhurried


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    for name in ("output", "tmp"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture
def opened(workspace: Path) -> Iterator[int]:
    descriptor = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def collected(opened: int, target: Path, *secrets: str) -> tuple[dict[str, int], list[str]]:
    changes = collect_changes(opened, {}, secrets, target=target)
    return {file.artifact: file.size for file in changes.files}, changes.warnings


@pytest.mark.requirement("B14")
def test_files_and_folders_are_collected_unchanged(workspace: Path, opened: int, tmp_path: Path) -> None:
    for path, content in {"b.txt": "bb", "a/deep/c.bin": "\x00\xff", "a/空 .txt": "", "-rf": "x"}.items():
        (workspace / "output" / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / "output" / path).write_text(content, "latin-1")
    (workspace / "elsewhere.txt").write_text("not in output")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert found == {"-rf": 1, "a/deep/c.bin": 2, "a/空 .txt": 0, "b.txt": 2, "elsewhere.txt": 13}
    assert warnings == []
    assert (tmp_path / "artifacts/a/deep/c.bin").read_bytes() == b"\x00\xff"
    assert sorted(path for path in walk(tmp_path / "artifacts") if "." in path or path == "-rf") == sorted(found)


@pytest.mark.requirement("B14")
def test_without_output_nothing_is_created(workspace: Path, opened: int, tmp_path: Path) -> None:
    assert collected(opened, tmp_path / "artifacts") == ({}, [])
    (workspace / "output").rmdir()
    assert collected(opened, tmp_path / "artifacts") == ({}, [])
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.requirement("B14")
def test_links_pipes_and_sockets_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    output = workspace / "output"
    (tmp_path / "secret").write_text("of the host")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inner").write_text("of the host")
    (output / "link").symlink_to(tmp_path / "secret")
    (output / "folder").symlink_to(tmp_path / "folder")
    (output / "loop").symlink_to("loop")
    os.mkfifo(output / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = Path.cwd()
        os.chdir(output)
        unix.bind("socket")
        os.chdir(here)
    (output / "plain").write_text("mine")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert found == {"plain": 4}
    assert len(warnings) == 5
    assert list(walk(tmp_path / "artifacts")) == ["plain"]


@pytest.mark.requirement("B14")
def test_devices_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    made = 1
    try:
        os.mknod(workspace / "output/zero", 0o020666, os.makedev(1, 5))
    except PermissionError:  # only root can create a device
        made = 0
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (found, len(warnings)) == ({}, made)


@pytest.mark.requirement("B14")
def test_an_output_folder_that_is_a_link_is_not_followed(workspace: Path, opened: int, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("of the host")
    (workspace / "output").rmdir()
    (workspace / "output").symlink_to(tmp_path / "private")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (found, len(warnings)) == ({}, 1)


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("name", [b"bad\xffname", b"line\nbreak", b"bell\x07", "right\u202eleft".encode(), b"tab\t"])
def test_files_with_unprintable_names_are_not_collected(
    workspace: Path, opened: int, tmp_path: Path, name: bytes
) -> None:
    odd = os.fsdecode(name)
    (workspace / "output" / odd).write_bytes(b"x")
    (workspace / "output" / f"folder {odd}").mkdir()
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (found, len(warnings)) == ({}, 2)
    assert not [text for text in warnings if not text.isprintable()]


@pytest.mark.requirement("B14")
def test_the_number_of_collected_files_is_limited(
    workspace: Path, opened: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_files, "MAX_FILES", 20)
    for number in range(25):
        (workspace / "output" / str(number)).touch()
    changes = collect_changes(opened, {}, target=tmp_path / "artifacts")
    assert (len(changes.files), len(changes.warnings), changes.is_complete) == (20, 1, False)


@pytest.mark.requirement("B14")
def test_the_size_of_collected_files_is_limited(
    workspace: Path, opened: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_files, "MAX_BYTES", 1000)
    for name, size in {"a": 600, "b": 500, "c": 400, "d": 1}.items():
        (workspace / "output" / name).write_bytes(b"x" * size)
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert found == {"a": 600, "c": 400}
    assert len(warnings) == 2


@pytest.mark.requirement("B14")
def test_files_that_are_too_deep_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    deep = workspace / "output" / "/".join(["d"] * MAX_DEPTH)
    (deep / "below").mkdir(parents=True)
    (deep / "last").touch()
    (deep / "below/lost").touch()
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert list(found) == ["/".join(["d"] * MAX_DEPTH) + "/last"]
    assert len(warnings) == 1


@pytest.mark.requirement("B20")
def test_a_file_that_contains_a_secret_is_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    (workspace / "output/leak").write_text("key: s3cr3t-value")
    (workspace / "output/fine").write_text("key: ***")
    (workspace / "output/s3cr3t-value").mkdir()
    (workspace / "output/s3cr3t-value/named").touch()
    found, warnings = collected(opened, tmp_path / "artifacts", "s3cr3t-value")
    assert list(found) == ["fine"]
    assert len(warnings) == 2
    assert not [text for text in warnings if "s3cr3t" in text]


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


def can_be_kept(name: str) -> bool:
    return name not in (".", "..") and not name.startswith((".code.", ".~lock."))


@given(st.dictionaries(names.filter(can_be_kept), st.binary(max_size=50), max_size=5))
@example({"__pycache__": b"", ".cache": b"", "tmp": b""})
@settings(unhurried, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_listed_file_is_stored_under_its_name(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "output").mkdir()
    for name, data in made.items():
        (root / "output" / name).write_bytes(data)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        found, warnings = collected(descriptor, root / "artifacts")
    finally:
        os.close(descriptor)
    assert len(found) + len(warnings) == len(made)
    assert {path: (root / "artifacts" / path).read_bytes() for path in found} == {path: made[path] for path in found}


# ------------------------------------------------------------------------------------------- a workspace that lasts
@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A lasting workspace on the server's disk."""
    top = tmp_path / "lasting"
    for path, content in {"data.csv": "a,b", "sub/deep/x.txt": "x", "output/old.pdf": "old", "run.sh": "echo"}.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(content)
    (top / "run.sh").chmod(0o700)
    (top / "empty").mkdir()
    return top


def changes_of(opened: int, tree: Path, tmp_path: Path) -> Changes:
    """Copy the tree in, and collect what has changed."""
    return collect_changes(opened, copy_in(tree, list_tree(tree), opened), target=tmp_path / "artifacts")


def test_the_files_of_a_lasting_workspace_are_copied_with_their_names_times_and_modes(
    workspace: Path, opened: int, tree: Path
) -> None:
    os.utime(tree / "data.csv", ns=(10**18, 10**18))
    copy_in(tree, list_tree(tree), opened)
    assert (workspace / "sub/deep/x.txt").read_text() == "x"
    assert (workspace / "output/old.pdf").read_text() == "old"
    assert (workspace / "empty").is_dir()
    assert (workspace / "data.csv").stat().st_mtime_ns == 10**18
    assert [path.name for path in workspace.iterdir() if os.access(path, os.X_OK) and path.is_file()] == ["run.sh"]


def test_untouched_files_are_not_changes(opened: int, tree: Path, tmp_path: Path) -> None:
    changes = changes_of(opened, tree, tmp_path)
    assert (list(changes.files), list(changes.removed), changes.warnings) == ([], [], [])
    assert not (tmp_path / "artifacts").exists()


def test_new_changed_moved_and_removed_files_are_found(
    workspace: Path, opened: int, tree: Path, tmp_path: Path
) -> None:
    before = copy_in(tree, list_tree(tree), opened)
    (workspace / "new.txt").write_text("new")
    (workspace / "sub/deep/x.txt").rename(workspace / "moved.txt")
    (workspace / "output/old.pdf").write_text("changed")
    (workspace / "empty").rmdir()
    (workspace / "made/inner").mkdir(parents=True)
    changes = collect_changes(opened, before, target=tmp_path / "artifacts")
    found = {file.path: file.artifact for file in changes.files}
    assert found == {"moved.txt": "moved.txt", "new.txt": "new.txt", "output/old.pdf": "old.pdf"}
    assert sorted(changes.removed) == ["empty", "sub/deep/x.txt"]
    assert {"made", "made/inner", "sub/deep"} <= set(changes.folders)


def test_a_change_that_keeps_size_and_time_is_found(workspace: Path, opened: int, tree: Path, tmp_path: Path) -> None:
    before = copy_in(tree, list_tree(tree), opened)
    old = (workspace / "data.csv").stat()
    (workspace / "data.csv").write_text("x,y")
    os.utime(workspace / "data.csv", ns=(old.st_atime_ns, old.st_mtime_ns))
    changes = collect_changes(opened, before, target=tmp_path / "artifacts")
    assert [file.path for file in changes.files] == ["data.csv"]


def test_a_file_that_became_a_link_is_refused_and_not_removed(
    workspace: Path, opened: int, tree: Path, tmp_path: Path
) -> None:
    before = copy_in(tree, list_tree(tree), opened)
    (workspace / "data.csv").unlink()
    (workspace / "data.csv").symlink_to("/etc/passwd")
    changes = collect_changes(opened, before, target=tmp_path / "artifacts")
    assert (list(changes.files), list(changes.removed)) == ([], [])
    assert changes.warnings == ["data.csv was skipped: it is a link, a socket or a device"]


def test_temporary_files_caches_and_the_code_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    write_code(opened, ".code.py", "print(1)")
    for path in ("tmp/x", ".cache/font/list", ".config/app", "sub/__pycache__/m.pyc"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text("x")
    (workspace / "applied.txt").write_text("x")
    assert collected(opened, tmp_path / "artifacts") == ({"applied.txt": 1}, [])


def test_only_folders_at_the_top_are_a_programs_own(workspace: Path, opened: int, tmp_path: Path) -> None:
    for path in ("app/.config/app.ini", "app/tmp/x", ".npmrc", ".cache", "__pycache__"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text("x")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert sorted(found) == [".cache", ".npmrc", "__pycache__", "app/.config/app.ini", "app/tmp/x"]
    assert warnings == []


def test_what_lies_in_an_ignored_folder_does_not_count_as_removed(
    workspace: Path, opened: int, tree: Path, tmp_path: Path
) -> None:
    for path in ("tmp/x", ".config/app", "sub/__pycache__/m.pyc"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("x")
    assert list(changes_of(opened, tree, tmp_path).removed) == []


@pytest.mark.parametrize(
    "path",
    ["new\nline.txt", "/".join(["d"] * (MAX_DEPTH + 2)) + "/deep.txt", "/".join(["d" * 200] * 11) + "/long.txt"],
)
def test_a_file_that_cannot_be_collected_does_not_count_as_removed(
    workspace: Path, opened: int, tree: Path, tmp_path: Path, path: str
) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text("x")
    changes = changes_of(opened, tree, tmp_path)
    assert (list(changes.files), list(changes.removed), len(changes.warnings)) == ([], [], 1)


def test_known_files_in_the_folders_of_programs_are_kept_up_to_date(
    workspace: Path, opened: int, tree: Path, tmp_path: Path
) -> None:
    for path in ("tmp/changed", "tmp/gone", ".config/app"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("x")
    before = copy_in(tree, list_tree(tree), opened)
    (workspace / "tmp/changed").write_text("new")
    (workspace / "tmp/gone").unlink()
    (workspace / "tmp/added").write_text("temporary")
    changes = collect_changes(opened, before, target=tmp_path / "artifacts")
    assert [file.path for file in changes.files] == ["tmp/changed"]
    assert changes.removed == ["tmp/gone"]


@pytest.mark.parametrize("name", ["output", "tmp"])
def test_a_workspace_can_have_a_file_with_the_name_of_a_runs_folder(
    workspace: Path, opened: int, tmp_path: Path, name: str
) -> None:
    tree = tmp_path / "lasting"
    tree.mkdir()
    (tree / name).write_text("a file")
    before = copy_in(tree, list_tree(tree), opened)
    assert (workspace / name).read_text() == "a file"
    assert not collect_changes(opened, before, target=tmp_path / "artifacts").has_any


def test_a_folder_with_the_name_of_the_code_is_left_out(workspace: Path, opened: int, tmp_path: Path) -> None:
    tree = tmp_path / "lasting"
    (tree / ".code.py").mkdir(parents=True)
    (tree / ".code.py/x").write_text("x")
    write_code(opened, ".code.py", "print(1)")
    before = copy_in(tree, list_tree(tree), opened)
    assert (workspace / ".code.py").read_text() == "print(1)"
    assert not collect_changes(opened, before, target=tmp_path / "artifacts").has_any


def test_a_file_that_became_a_folder_and_the_reverse_are_replaced(
    workspace: Path, opened: int, tree: Path, tmp_path: Path
) -> None:
    before = copy_in(tree, list_tree(tree), opened)
    (workspace / "data.csv").unlink()
    (workspace / "data.csv").mkdir()
    (workspace / "data.csv/part").write_text("1")
    shutil.rmtree(workspace / "sub")
    (workspace / "sub").write_text("2")
    changes = collect_changes(opened, before, target=tmp_path / "artifacts")
    applied = apply_changes(tree, changes, tmp_path / "artifacts")
    assert [file.path for file in applied.files] == ["data.csv/part", "sub"]
    assert ((tree / "data.csv/part").read_text(), (tree / "sub").read_text()) == ("1", "2")


def test_names_with_spaces_of_all_kinds_are_kept(workspace: Path, opened: int, tmp_path: Path) -> None:
    names = ["two words", "no\u00a0break", "Screenshot 1.23.45\u202fPM.png", "wide\u3000space"]
    for name in names:
        (workspace / name).write_text("x")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (sorted(found), warnings) == (sorted(names), [])


def test_a_file_in_output_and_a_folder_beside_it_can_have_the_same_name(
    workspace: Path, opened: int, tmp_path: Path
) -> None:
    (workspace / "output/data").write_text("1")
    (workspace / "output/more").mkdir()
    (workspace / "output/more/x").write_text("2")
    (workspace / "data").mkdir()
    (workspace / "data/x").write_text("3")
    (workspace / "more").write_text("4")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (sorted(found), warnings) == (["data", "data-1/x", "more-1", "more/x"], [])


def test_a_file_in_output_and_one_beside_it_can_have_the_same_name(
    workspace: Path, opened: int, tmp_path: Path
) -> None:
    (workspace / "output/a.txt").write_text("in output")
    (workspace / "a.txt").write_text("beside")
    assert collected(opened, tmp_path / "artifacts")[0] == {"a.txt": 9, "a-1.txt": 6}
    assert (tmp_path / "artifacts/a-1.txt").read_text() == "beside"
