"""Archives that must be accepted and archives that must be refused, each with its code."""

import io
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.errors import SkillError
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.package.archive import inspect, read_entry
from tests.making import (
    MEGABYTE,
    deflated,
    entry,
    good_entries,
    raw_zip,
    skill_markdown,
    skill_zip,
    walk,
    zip_of,
)

pytestmark = pytest.mark.anyio
SKILL = "git-commit/"


def good_with(*more: dict[str, Any], **overrides: Any) -> bytes:
    return raw_zip([*good_entries(), *more], **overrides)


def with_file_type(kind: int, name: str = "git-commit/x") -> bytes:
    return good_with(entry(name, b"/etc/passwd", mode=kind | 0o777))


def overlapping() -> bytes:
    whole = good_with(entry("git-commit/k", b"A" * 1000))
    return good_with(
        entry("git-commit/k", b"A" * 1000), entry("git-commit/j", b"A" * 1000, offset=whole.index(b"git-commit/k") - 30)
    )


UNSAFE_NAMES = {
    "dotdot": "../evil.txt",
    "dotdot inside": "git-commit/a/../../../evil.txt",
    "absolute": "/tmp/evil.txt",
    "drive": "C:/evil.txt",
    "drive relative": "git-commit/C:evil",
    "unc": "//server/share/evil",
    "backslash": "git-commit\\..\\evil.txt",
    "dot component": "git-commit/./x",
    "empty component": "git-commit//x",
    "reserved": "git-commit/CON.txt",
    "reserved lower": "git-commit/aux",
    "reserved port": "git-commit/COM1.md",
    "reserved console": "git-commit/CONIN$",
    "reserved with a space": "git-commit/con .txt",
    "control": "git-commit/a\x1b[31m.txt",
    "newline": "git-commit/a\nb",
    "nul": "git-commit/a\0b",
    "bidi": "git-commit/a\u202egpj.exe",
    "zero width": "git-commit/a\u200bb",
    "line separator": "git-commit/a\u2028b",
    "trailing dot": "git-commit/a.",
    "trailing space": "git-commit/a ",
    "leading space": "git-commit/ a",
    "alternate stream": "git-commit/a.txt:evil",
    "wildcard": "git-commit/a*b",
    "long component": "git-commit/" + "a" * 201,
    "long path": "git-commit/" + "/".join(["abcdefghijklmnop"] * 14) + "/abcdefgh",
    "deep": "git-commit/" + "d/" * 16 + "x",
    "empty": "",
    "only slash": "/",
    "two slashes at the end": "git-commit/x//",
}

REFUSED: dict[str, tuple[bytes, str]] = {
    **{f"path {name}": (good_with(entry(path, b"evil")), "UNSAFE_PATH") for name, path in UNSAFE_NAMES.items()},
    "symlink": (with_file_type(stat.S_IFLNK), "UNSAFE_ENTRY"),
    "symlink without unix system": (
        good_with(entry("git-commit/l", b"x", mode=stat.S_IFLNK, system=0)),
        "UNSAFE_ENTRY",
    ),
    "SKILL.md is a symlink": (raw_zip([entry("a/SKILL.md", b"/etc/passwd", mode=stat.S_IFLNK)]), "UNSAFE_ENTRY"),
    "fifo": (with_file_type(stat.S_IFIFO), "UNSAFE_ENTRY"),
    "device": (with_file_type(stat.S_IFCHR), "UNSAFE_ENTRY"),
    "block device": (with_file_type(stat.S_IFBLK), "UNSAFE_ENTRY"),
    "socket": (with_file_type(stat.S_IFSOCK), "UNSAFE_ENTRY"),
    "folder mode on a file name": (good_with(entry("git-commit/x", mode=stat.S_IFDIR | 0o755)), "UNSAFE_ENTRY"),
    "folder with content": (good_with(entry("git-commit/x/", b"data")), "UNSAFE_ENTRY"),
    "same name twice": (good_with(entry("git-commit/SKILL.md", b"x")), "UNSAFE_ENTRY"),
    "same name but for case": (good_with(entry("git-commit/skill.MD", b"x")), "UNSAFE_ENTRY"),
    "same folder but for case": (good_with(entry("git-commit/Scripts/x", b"x")), "UNSAFE_ENTRY"),
    "same name but for normalisation": (
        good_with(entry("git-commit/\u00e9", b"x"), entry("git-commit/e\u0301", b"y")),
        "UNSAFE_ENTRY",
    ),
    "same name but for folding": (good_with(entry("git-commit/ß", b"x"), entry("git-commit/SS", b"y")), "UNSAFE_ENTRY"),
    "file where a folder is needed": (
        good_with(entry("git-commit/x", b"x"), entry("git-commit/x/y", b"y")),
        "UNSAFE_ENTRY",
    ),
    "encrypted": (good_with(entry("git-commit/x", b"x", flags=0x801)), "INVALID_ZIP"),
    "strongly encrypted": (good_with(entry("git-commit/x", b"x", flags=0x840)), "INVALID_ZIP"),
    "patched data": (good_with(entry("git-commit/x", b"x", flags=0x820)), "INVALID_ZIP"),
    "unknown method": (good_with(entry("git-commit/x", b"x", method=97)), "INVALID_ZIP"),
    "bzip2": (good_with(entry("git-commit/x", b"x", method=12)), "INVALID_ZIP"),
    "name marked utf-8 that is not": (good_with(entry(b"git-commit/\xff\xfe", b"x")), "INVALID_ZIP"),
    "ratio": (good_with(entry("git-commit/z", b"\0" * (2 * MEGABYTE))), "ARCHIVE_TOO_LARGE"),
    "file too large": (
        good_with(entry("git-commit/z", method=0, size=26 * MEGABYTE, packed=26 * MEGABYTE)),
        "ARCHIVE_TOO_LARGE",
    ),
    "all too large": (
        good_with(*[entry(f"git-commit/{n}", b"", size=24 * MEGABYTE, packed=MEGABYTE) for n in range(5)]),
        "ARCHIVE_TOO_LARGE",
    ),
    "too many files": (good_with(*[entry(f"git-commit/{n}", method=0) for n in range(2000)]), "ARCHIVE_TOO_LARGE"),
    "too many entries": (raw_zip([entry(f"docs/{n}", method=0) for n in range(10_001)]), "ARCHIVE_TOO_LARGE"),
    "directory too large": (
        raw_zip([entry("a" * 60_000, b"") for _ in range(60)], count=1),
        "ARCHIVE_TOO_LARGE",
    ),
    "SKILL.md too large": (skill_zip(markdown=skill_markdown(body="word " * 250_000)), "ARCHIVE_TOO_LARGE"),
    "size that lies low": (
        good_with(entry("git-commit/liar", payload=deflated(b"\0" * 64 * MEGABYTE), size=10, crc=0)),
        "INVALID_ZIP",
    ),
    "size that lies high": (good_with(entry("git-commit/x", b"abc", size=5, local_sizes=(0, 0, 0))), "INVALID_ZIP"),
    "stored with two sizes": (good_with(entry("git-commit/x", b"abc", method=0, size=2)), "INVALID_ZIP"),
    "shorter than declared": (good_with(entry("git-commit/x", payload=deflated(b"abc"), size=4, crc=1)), "INVALID_ZIP"),
    "bytes after the compressed data": (
        good_with(entry("git-commit/x", b"abc", payload=deflated(b"abc") + b"hidden")),
        "INVALID_ZIP",
    ),
    "wrong checksum": (good_with(entry("git-commit/x", b"abc", crc=1)), "INVALID_ZIP"),
    "not deflate at all": (good_with(entry("git-commit/x", b"abc", payload=b"\xff\xff\xff")), "INVALID_ZIP"),
    "overlap": (overlapping(), "INVALID_ZIP"),
    "entry beyond the directory": (
        good_with(entry("git-commit/x", packed=10_000, local_sizes=(0, 10_000, 0))),
        "INVALID_ZIP",
    ),
    "header offset outside": (good_with(entry("git-commit/x", offset=1_000_000)), "INVALID_ZIP"),
    "header offset at no header": (good_with(entry("git-commit/x", offset=5)), "INVALID_ZIP"),
    "names disagree": (good_with(entry("git-commit/x", b"x", local_name=b"git-commit/y")), "INVALID_ZIP"),
    "flags disagree": (good_with(entry("git-commit/x", b"x", local_flags=0x801)), "INVALID_ZIP"),
    "sizes disagree": (good_with(entry("git-commit/x", b"abc", local_sizes=(0, 1, 2))), "INVALID_ZIP"),
    "zip64": (good_with(entry("git-commit/x", b"abc", size=0xFFFFFFFF)), "INVALID_ZIP"),
    "truncated": (good_with()[:200], "INVALID_ZIP"),
    "without its last byte": (good_with()[:-1], "INVALID_ZIP"),
    "not a zip": (b"Rar!\x1a\x07\x01\0" + b"x" * 200, "INVALID_ZIP"),
    "empty upload": (b"", "INVALID_ZIP"),
    "four bytes": (b"PK\3\4", "INVALID_ZIP"),
    "data before": (raw_zip(good_entries(), prefix=b"#!/bin/sh\n"), "INVALID_ZIP"),
    "data before, hidden behind a signature": (raw_zip(good_entries(), prefix=b"PK\3\4evil"), "INVALID_ZIP"),
    "data after": (raw_zip(good_entries(), suffix=b"<script>"), "INVALID_ZIP"),
    "long comment": (raw_zip(good_entries(), comment=b"c" * 513), "INVALID_ZIP"),
    "archive inside the comment": (raw_zip(good_entries(), comment=b"PK\5\6" + b"\0" * 18), "INVALID_ZIP"),
    "count that lies": (raw_zip(good_entries(), count=60_000), "INVALID_ZIP"),
    "count one short": (raw_zip(good_entries(), count=1), "INVALID_ZIP"),
    "several disks": (raw_zip(good_entries(), disk=1), "INVALID_ZIP"),
    "entry of another disk": (good_with(entry("git-commit/x", b"x", disk=1)), "INVALID_ZIP"),
    "directory elsewhere": (raw_zip(good_entries(), directory_offset=0), "INVALID_ZIP"),
    "directory cut": (raw_zip(good_entries(), gap=b"xx", directory_size=20), "INVALID_ZIP"),
    "no entries": (raw_zip([]), "INVALID_SKILL_STRUCTURE"),
    "only junk": (zip_of({"__MACOSX/._x": "x", ".DS_Store": "x"}), "INVALID_SKILL_STRUCTURE"),
    "flat": (zip_of({"SKILL.md": skill_markdown(), "scripts/execute.js": ""}), "INVALID_SKILL_STRUCTURE"),
    "no SKILL.md": (zip_of({"git-commit/README.md": "x"}), "INVALID_SKILL_STRUCTURE"),
    "two skills": (
        zip_of({"a/SKILL.md": skill_markdown("a"), "b/SKILL.md": skill_markdown("b")}),
        "INVALID_SKILL_STRUCTURE",
    ),
    "other name": (zip_of({"git-commit/SKILL.md": skill_markdown("other")}), "INVALID_SKILL_STRUCTURE"),
    "no frontmatter": (zip_of({"git-commit/SKILL.md": "# Title\n\nWords."}), "INVALID_SKILL_STRUCTURE"),
    "broken YAML": (zip_of({"git-commit/SKILL.md": "---\nname: [\n---\n"}), "INVALID_SKILL_STRUCTURE"),
    "yaml bomb": (
        zip_of({"git-commit/SKILL.md": "---\na: &a [x,x]\nb: &b [*a,*a]\nname: git-commit\ndescription: d\n---\n"}),
        "INVALID_SKILL_STRUCTURE",
    ),
    "empty SKILL.md": (zip_of({"git-commit/SKILL.md": ""}), "INVALID_SKILL_STRUCTURE"),
    "bad UTF-8": (zip_of({"git-commit/SKILL.md": skill_markdown().encode() + b"\xff"}), "INVALID_SKILL_STRUCTURE"),
    "reserved name": (skill_zip("search"), "INVALID_SKILL_STRUCTURE"),
}


@pytest.mark.requirement("D2")
@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_archive_has_its_code_and_changes_no_files(
    skills: SkillManager, data_dir: Path, case: str
) -> None:
    await skills.install_skill(skill_zip("installed-before", {"scripts/execute.sh": "echo"}))
    before = walk(data_dir)
    data, code = REFUSED[case]
    with pytest.raises(SkillError) as caught:
        await skills.install_skill(data)
    assert caught.value.code == code
    assert caught.value.message
    assert walk(data_dir) == before
    report = await skills.validate_skill(data)
    assert not report.valid
    assert report.errors
    assert walk(data_dir) == before


GOOD: dict[str, tuple[bytes, set[str]]] = {
    "plain": (raw_zip(good_entries()), {"SKILL.md", "scripts/execute.js"}),
    "wrapped": (zip_of({"some/folder/git-commit/SKILL.md": skill_markdown(), "README": "x"}), {"SKILL.md"}),
    "utf-8 names": (good_with(entry("git-commit/资料/说明.md", b"x")), {"资料/说明.md"}),
    "utf-8 names without the flag": (good_with(entry("git-commit/é.md".encode(), b"x", flags=0)), {"é.md"}),
    "gb18030 names": (good_with(entry("git-commit/说明.md".encode("gb18030"), b"x", flags=0)), {"说明.md"}),
    "folders as entries": (
        good_with(entry("git-commit/assets/", mode=stat.S_IFDIR | 0o755, method=0)),
        {"SKILL.md", "scripts/execute.js"},
    ),
    "folder twice": (
        good_with(entry("git-commit/a/", method=0), entry("git-commit/a/", method=0), entry("git-commit/a/b", b"")),
        {"a/b"},
    ),
    "made on windows": (
        raw_zip([dict(item, system=0, mode=0) for item in good_entries()]),
        {"SKILL.md", "scripts/execute.js"},
    ),
    "streamed, with descriptors": (raw_zip([dict(item, flags=0x808) for item in good_entries()]), {"SKILL.md"}),
    "space reserved for zip64": (
        raw_zip([dict(item, extra=b"\1\0\x10\0" + b"\0" * 16) for item in good_entries()]),
        {"SKILL.md"},
    ),
    "comment of git archive": (raw_zip(good_entries(), comment=b"0" * 40), {"SKILL.md"}),
    "longest comment": (raw_zip(good_entries(), comment=b"c" * 512), {"SKILL.md"}),
    "junk": (
        good_with(
            entry("__MACOSX/git-commit/._SKILL.md", b"x"),
            entry("git-commit/.DS_Store", b"x"),
            entry("git-commit/Thumbs.db", b"x"),
            entry("git-commit/a/._b", b"x"),
        ),
        {"SKILL.md", "scripts/execute.js"},
    ),
    "archive stored inside, near the end": (
        good_with(entry("git-commit/inner.zip", zip_of({"x": "y"}), method=0)),
        {"inner.zip"},
    ),
    "comment with letters of an archive": (raw_zip(good_entries(), comment=b"made by PKZIP"), {"SKILL.md"}),
    "archive inside": (good_with(entry("git-commit/inner.zip", zip_of({"../../evil": "x"}))), {"inner.zip"}),
    "deepest path": (good_with(entry("git-commit/" + "d/" * 14 + "x", b"")), {"d/" * 14 + "x"}),
    "most entries": (good_with(*[entry(f"git-commit/{n}", method=0) for n in range(1998)]), {"0", "1997"}),
    "ratio below a megabyte": (good_with(entry("git-commit/z", b"\0" * MEGABYTE)), {"z"}),
    "SKILL.md within": (
        zip_of({"git-commit/SKILL.md": skill_markdown(), "git-commit/templates/x/SKILL.md": "no"}),
        {"templates/x/SKILL.md"},
    ),
}


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("case", GOOD)
async def test_an_unusual_but_valid_archive_is_installed(skills: SkillManager, data_dir: Path, case: str) -> None:
    data, files = GOOD[case]
    receipt = await skills.install_skill(data)
    assert receipt.name == "git-commit"
    folder = data_dir / "skills/git-commit"
    tree = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    assert files <= tree.keys()
    assert not any("DS_Store" in path or "._" in path or "MACOSX" in path or "Thumbs" in path for path in tree)
    assert all(path.is_file() and not path.is_symlink() for path in tree.values())
    assert list((data_dir / "staging").iterdir()) == []


async def test_file_modes_are_normalised_and_keep_the_execute_bit(skills: SkillManager, data_dir: Path) -> None:
    odd = entry("git-commit/suid", b"x", mode=0o104777)
    await skills.install_skill(good_with(odd, entry("git-commit/open", b"x", mode=0o100666)))
    folder = data_dir / "skills/git-commit"
    modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in folder.rglob("*")}
    assert modes["suid"] == "0o755"
    assert modes["open"] == "0o644"
    assert modes["execute.js"] == "0o755"
    assert modes["SKILL.md"] == "0o644"
    assert modes["scripts"] == "0o755"


async def test_a_marker_in_the_archive_is_replaced(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(good_with(entry("git-commit/.vectorized", b"shipped")))
    assert "shipped" not in (data_dir / "skills/git-commit/.vectorized").read_text()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_archive_raises_only_skill_errors(data: st.DataObject) -> None:
    whole = bytearray(raw_zip(good_entries(), comment=b"c"))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    file = io.BytesIO(bytes(whole[:cut]) if data.draw(st.booleans()) else bytes(whole))
    with suppress(SkillError):
        for found in inspect(file):
            assert sum(len(chunk) for chunk in read_entry(file, found)) == found.size
