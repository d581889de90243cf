"""The reader of backups trusts no byte of them."""

import gzip
import io
import random
import tarfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.backup.archive import BackupError, Item, check, extract, pack
from apexbridge.backup.contents import BackupHeader
from apexbridge.backup.staging import items_of
from apexbridge.errors import ServerError
from tests.backup.archives import HEADER, archive, declared, member, opened

FOLDER = tarfile.DIRTYPE
SKILLS = member("skills", type=FOLDER)
DECLARED_SKILLS = declared("skills", None)


def header() -> BackupHeader:
    return BackupHeader(
        format=1,
        id="0" * 32,
        version="1.2",
        schema_version=3,
        created_at=datetime.now(UTC),
        skills=1,
        bytes=1,
        has_secrets=False,
    )


def packed(folder: Path, scratch: Path) -> bytes:
    return b"".join(pack(header(), items_of(folder, "skills"), scratch))


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    odd = ["plain", "dep/th/of/many/folders/file", "空格 和 spaces", "l" * 200, "\udcff-not-text", "empty/"]
    for name in odd:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(name.encode("utf-8", "surrogateescape") * 1000)
    (folder / "plain").chmod(0o755)
    (folder / "nothing").touch()
    (folder / "link").symlink_to("plain")
    data = packed(folder, tmp_path)
    checked = check(opened(data))
    assert (checked.header.version, checked.header.schema_version) == ("1.2", 3)
    (tmp_path / "out").mkdir()
    extract(opened(data), tmp_path / "out", checked)
    (folder / "link").unlink()  # links are never part of a backup
    for path in sorted(folder.rglob("*")):
        copy = tmp_path / "out/skills" / path.relative_to(folder)
        assert copy.is_dir() == path.is_dir()
        assert copy.stat().st_mtime_ns == path.stat().st_mtime_ns
        if path.is_file():
            assert (copy.read_bytes(), copy.stat().st_mode) == (path.read_bytes(), path.stat().st_mode & ~0o022)
    assert len(list((tmp_path / "out").rglob("*"))) == len(list(folder.rglob("*"))) + 1


def test_any_system_can_extract_a_backup(tmp_path: Path) -> None:
    (tmp_path / "skills/a").mkdir(parents=True)
    (tmp_path / "skills/a/SKILL.md").write_text("text")
    with tarfile.open(fileobj=opened(packed(tmp_path / "skills", tmp_path))) as tar:
        names = ["backup.json", "skills", "skills/a", "skills/a/SKILL.md", "manifest.jsonl"]
        assert tar.getnames() == names


def test_a_file_that_becomes_shorter_while_it_is_read_fails_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(random.Random(1).randbytes(8 * 1024 * 1024))
    chunks = pack(header(), [Item("skills", tmp_path, is_folder=True), Item("skills/x", path)], tmp_path)
    next(chunks)  # a part of the file
    path.write_bytes(b"")
    with pytest.raises(ServerError) as refused:
        list(chunks)
    assert refused.value.code == "BUSY"


def one(name: str, data: bytes = b"x", *, type: bytes = tarfile.REGTYPE, **fields: Any) -> bytes:
    return archive([SKILLS, member(name, data, type=type, **fields)], [DECLARED_SKILLS, declared(name, data)])


PAX = b"30 path=../../../etc/passwd1\n\n"
HOSTILE = {
    "an absolute path": one("/etc/passwd"),
    "a path upwards": one("skills/../../x"),
    "a dot": one("skills/./x"),
    "an empty name": one("skills//x"),
    "a path upwards in an extended header": archive([member("x", PAX, type=tarfile.XHDTYPE), member("y", b"x")]),
    "a NUL": archive([member("x", b"24 path=skills/a\0b/cdef\n", type=tarfile.XHDTYPE), member("y", b"x")]),
    "a deep path": one("skills/" + "/".join("a" * 300)),
    "a long name": one("skills/" + "a" * 256),
    "a link": one("skills/x", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": one("skills/x", b"", type=tarfile.LNKTYPE, linkname="skills/y"),
    "a device": one("skills/x", b"", type=tarfile.CHRTYPE),
    "a pipe": one("skills/x", b"", type=tarfile.FIFOTYPE),
    "a sparse file": one("skills/x", b"", type=tarfile.GNUTYPE_SPARSE),
    "a long name of GNU": one("skills/x", b"y" * 300, type=tarfile.GNUTYPE_LONGNAME),
    "a global header": one("skills/x", b"12 path=abc\n", type=tarfile.XGLTYPE),
    "an endless extended header": archive([member("x", type=tarfile.XHDTYPE, size=1 << 40)]),
    "a broken extended header": archive([member("x", b"99 path=skills/x\n", type=tarfile.XHDTYPE), member("y", b"x")]),
    "a size that is not a number": archive([member("x", b"11 size=-1\n", type=tarfile.XHDTYPE), member("y", b"x")]),
    "an entry that does not belong here": archive([member("x", b"x")], [declared("x", b"x")]),
    "a server's lock": archive([member(".lock", b"")], [declared(".lock", b"")]),
    "a folder instead of a database": archive([member("apex.sqlite3", type=FOLDER)], [declared("apex.sqlite3", None)]),
    "a file instead of a folder": archive([member("skills", b"x")], [declared("skills", b"x")]),
    "a file in a file": archive(
        [SKILLS, member("skills/x", b"x"), member("skills/x/y", b"y")],
        [DECLARED_SKILLS, declared("skills/x", b"x"), declared("skills/x/y", b"y")],
    ),
    "a file without its folder": archive([member("skills/x", b"x")], [declared("skills/x", b"x")]),
    "a duplicate": archive(
        [SKILLS, member("skills/x", b"x"), member("skills/x", b"y")],
        [DECLARED_SKILLS, declared("skills/x", b"x")],
    ),
    "an undeclared entry": archive([SKILLS, member("skills/x", b"x")], [DECLARED_SKILLS]),
    "a missing entry": archive([SKILLS], [DECLARED_SKILLS, declared("skills/x", b"x")]),
    "another content": archive([SKILLS, member("skills/x", b"x")], [DECLARED_SKILLS, declared("skills/x", b"y")]),
    "another size": archive([SKILLS, member("skills/x", b"x")], [DECLARED_SKILLS, declared("skills/x", b"x", size=2)]),
    "a folder that is declared as a file": archive([SKILLS], [declared("skills", b"")]),
    "a mode that is not a number": archive([SKILLS], [declared("skills", None, mode="rwx")]),
    "a time that is not one": archive([SKILLS], [declared("skills", None, mtime=1 << 80)]),
    "a manifest of something else": archive(manifest=b'{"path": []}\n'),
    "a manifest that is not JSON": archive(manifest=b"\xff\n"),
    "nested JSON": archive(manifest=b"[" * 60_000 + b"\n"),
    "a manifest that is cut off": archive(manifest=b'{"path": "x"}'),
    "an endless line": archive(manifest=b"x" * 1_000_000),
    "an entry after the manifest": archive(after=member("skills", type=FOLDER)),
    "data after the end": archive(end=bytes(1024) + b"x" * 512),
    "no end": archive(end=b""),
    "half an end": archive(end=bytes(512)),
    "no manifest": gzip.compress(member("backup.json", b"{}") + bytes(1024)),
    "an empty archive": gzip.compress(bytes(1024)),
    "another first entry": gzip.compress(SKILLS + bytes(1024)),
    "a header that is not JSON": archive(header=b"hello"),
    "a header of something else": archive(header=b"[]"),
    "a header without a format": archive(header=b'{"version": "1"}'),
    "a header with an odd format": archive(header={"format": "one"}),
    "an endless header": archive(header=b" " * 5_000_000),
    "not a tar archive": gzip.compress(b"hello" * 1000),
    "not compressed": b"hello",
    "nothing": b"",
    "text after it": archive() + b"hello",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_or_damaged_backup_is_refused(what: str) -> None:
    with pytest.raises(BackupError) as refused:
        check(opened(HOSTILE[what]))
    assert refused.value.code == "BACKUP_INVALID"
    assert refused.value.message.isprintable()


def test_a_minimal_backup_is_accepted() -> None:
    data = archive([SKILLS, member("skills/x", b"x")], [DECLARED_SKILLS, declared("skills/x", b"x")])
    assert set(check(opened(data)).entries) == {"skills", "skills/x"}


def test_a_newer_format_is_refused_with_its_version() -> None:
    with pytest.raises(BackupError, match=r"9\.9") as refused:
        check(opened(archive(header={**HEADER, "format": 2, "version": "9.9", "more": True})))
    assert refused.value.code == "NEWER_VERSION"


def test_a_bomb_is_read_without_being_stored() -> None:
    size = 64 * 1024 * 1024
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as file:
        head = archive()
        file.write(gzip.decompress(head)[: -1024 - 1024])  # without manifest and end
        file.write(SKILLS)
        file.write(member("skills/x", size=size))
        for _ in range(size // 1_048_576):
            file.write(bytes(1_048_576))
    with pytest.raises(BackupError):
        check(bomb)


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/x").write_text("text")
    data = packed(tmp_path / "skills", tmp_path)
    content = gzip.decompress(data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x55
        with suppress(BackupError):
            check(opened(bytes(changed)))
            assert gzip.decompress(bytes(changed)) == content, position  # such as the time in the header of gzip


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/x").write_text("text")
    data = packed(tmp_path / "skills", tmp_path)
    for end in range(len(data)):
        with pytest.raises(BackupError):
            check(opened(data[:end]))


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_no_tar_archive_crashes_the_reader(noise: bytes, start: int) -> None:
    tar = bytearray(gzip.decompress(archive([SKILLS], [DECLARED_SKILLS])))
    tar[start : start + len(noise)] = noise
    with suppress(BackupError):
        check(opened(gzip.compress(bytes(tar), 1)))


def test_a_backup_that_changes_while_it_is_restored_is_refused(tmp_path: Path) -> None:
    first = archive([SKILLS, member("skills/x", b"x")], [DECLARED_SKILLS, declared("skills/x", b"x")])
    second = archive([SKILLS, member("skills/x", b"y")], [DECLARED_SKILLS, declared("skills/x", b"y")])
    with pytest.raises(BackupError, match="changed"):
        extract(opened(second), tmp_path, check(opened(first)))


def test_modes_of_a_backup_grant_nothing_to_others(tmp_path: Path) -> None:
    entries = {"skills": 0o777, "skills/x": 0o6777, "runs": 0o777, "runs/y": 0o4755}
    members = [
        member(name, b"" if "/" not in name else b"x", type=FOLDER if "/" not in name else b"0") for name in entries
    ]
    lines = [declared(name, None if "/" not in name else b"x", mode=f"{mode:o}") for name, mode in entries.items()]
    data = archive(members, lines)
    (tmp_path / "out").mkdir()
    extract(opened(data), tmp_path / "out", check(opened(data)))
    modes = {name: (tmp_path / "out" / name).stat().st_mode & 0o7777 for name in entries}
    assert modes == {"skills": 0o755, "skills/x": 0o755, "runs": 0o700, "runs/y": 0o700}
