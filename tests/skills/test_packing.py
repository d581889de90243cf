"""Archives of folders: the same files give the same bytes, with or without a top folder."""

import io
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from apexbridge.skills.package.packing import pack_folder

FILES = {
    "SKILL.md": b"---\nname: sums\ndescription: Adds numbers.\n---\nAdd.\n",
    "scripts/add.py": b"print(1 + 1)\n" * 200,
    "scripts/lib/deep.py": b"",
    "scripts.txt": b"sorted before the folder",
    "references/notes.md": "Grüße\n".encode(),
}


def _write(folder: Path, paths: Iterable[str], *, mtime: int, mode: int) -> Path:
    for path in paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(FILES[path])
        target.chmod(mode | (0o100 if path.endswith("add.py") else 0))
        os.utime(target, (mtime, mtime))
    return folder


def _packed(folder: Path, *, is_flat: bool, keep_everything: bool = True) -> bytes:
    target = io.BytesIO()
    pack_folder(folder, target, name="sums", keep_everything=keep_everything, is_flat=is_flat)
    return target.getvalue()


@pytest.mark.parametrize("is_flat", [True, False])
def test_the_same_files_give_the_same_bytes_with_any_dates_modes_and_order(tmp_path: Path, is_flat: bool) -> None:
    one = _write(tmp_path / "one", FILES, mtime=1_000_000_000, mode=0o600)
    other = _write(tmp_path / "other", reversed(FILES), mtime=1_500_000_000, mode=0o664)
    assert _packed(one, is_flat=is_flat) == _packed(other, is_flat=is_flat)


def test_a_changed_byte_and_a_changed_executable_bit_change_the_archive(tmp_path: Path) -> None:
    folder = _write(tmp_path / "one", FILES, mtime=1_000_000_000, mode=0o600)
    before = _packed(folder, is_flat=True)
    (folder / "scripts/add.py").chmod(0o600)
    no_longer_executable = _packed(folder, is_flat=True)
    (folder / "scripts/lib/deep.py").write_bytes(b"\n")
    assert len({before, no_longer_executable, _packed(folder, is_flat=True)}) == 3


def test_a_flat_archive_has_the_skill_file_at_its_root(tmp_path: Path) -> None:
    folder = _write(tmp_path / "one", FILES, mtime=1_000_000_000, mode=0o644)
    with zipfile.ZipFile(io.BytesIO(_packed(folder, is_flat=True))) as archive:
        assert sorted(archive.namelist()) == sorted(FILES)
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with zipfile.ZipFile(io.BytesIO(_packed(folder, is_flat=False))) as archive:
        assert sorted(archive.namelist()) == sorted(f"sums/{path}" for path in FILES)


def test_a_repository_with_links_gives_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    archives = []
    for name, order in (("one", ["a", "b", "c"]), ("other", ["c", "b", "a"])):
        folder = tmp_path / name
        _write(folder / "skills" / "sums", FILES, mtime=1_000_000_000, mode=0o644)
        (folder / ".claude-plugin").mkdir()
        (folder / ".claude-plugin" / "plugin.json").write_text('{"name": "sums"}')
        for link in order:
            (folder / link).symlink_to("skills", target_is_directory=True)
        archives.append(_packed(folder, is_flat=False, keep_everything=False))
    assert archives[0] == archives[1]
