"""Differences between two versions: lines, binary files, limits, forged checksums and hostile contents."""

import io
import zipfile

import pytest

from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import FileDiff
from apexbridge.skills.store import version_diff
from apexbridge.skills.store.version_diff import diff_archives
from tests.making import skill_zip, zip_of


def diff(old: dict[str, str | bytes] | None, new: dict[str, str | bytes]) -> list[FileDiff]:
    def archive(files: dict[str, str | bytes]) -> io.BytesIO:
        return io.BytesIO(zip_of({f"top/{path}": content for path, content in files.items()}))

    return diff_archives(None if old is None else archive(old), archive(new))[0]


def one(old: str | bytes, new: str | bytes) -> FileDiff:
    (found,) = diff({"f": old}, {"f": new})
    return found


def test_added_removed_and_changed_files_are_found() -> None:
    found = diff({"a": "1\n", "b": "2\n", "same": "x"}, {"b": "3\n", "c": "4\n", "same": "x"})
    assert [(file.path, file.change, file.diff) for file in found] == [
        ("a", "removed", "@@ -1,2 +0,0 @@\n-1\n-\n"),
        ("b", "changed", "@@ -1,2 +1,2 @@\n-2\n+3\n \n"),
        ("c", "added", "@@ -0,0 +1,2 @@\n+4\n+\n"),
    ]
    assert not any(file.truncated or file.binary for file in found)
    assert [file.change for file in diff(None, {"a": "1"})] == ["added"]


def test_only_lines_near_a_change_are_shown() -> None:
    lines = [str(number) for number in range(100)]
    changed = [*lines[:50], "new", *lines[51:]]
    assert one("\n".join(lines), "\n".join(changed)).diff == (
        "@@ -48,7 +48,7 @@\n 47\n 48\n 49\n-50\n+new\n 51\n 52\n 53\n"
    )
    two = [*lines[:20], "x", *lines[20:80], "y", *lines[80:]]
    text = one("\n".join(lines), "\n".join(two)).diff
    assert text is not None
    assert text.count("@@ -") == 2
    assert "+x" in text
    assert "+y" in text


def test_an_equal_line_is_not_counted_twice() -> None:
    assert one("a\na", "a\na\na").diff == "@@ -1,2 +1,3 @@\n a\n a\n+a\n"


@pytest.mark.parametrize("data", [b"\x00\x01", b"\xff\xfe\xfd", b"text\x00text"])
def test_a_binary_file_has_no_lines(data: bytes) -> None:
    found = one("text", data)
    assert (found.binary, found.diff, found.truncated) == (True, None, False)


def test_a_large_file_is_named_without_its_lines() -> None:
    found = one("x" * 300_000, "y" * 300_000)
    assert (found.binary, found.diff, found.truncated) == (False, None, True)


def test_all_lines_together_are_limited() -> None:
    found = diff(None, {f"f{number}": f"{number}\n" + "x" * 100_000 for number in range(5)})
    assert sum(len(file.diff or "") for file in found) <= version_diff.MAX_DIFF_BYTES
    assert [file.truncated for file in found] == [False, False, True, True, True]


def test_the_number_of_files_is_limited() -> None:
    files: dict[str, str | bytes] = {f"f{number:04}": "x" for number in range(version_diff.MAX_FILES + 1)}
    found, is_cut = diff_archives(None, io.BytesIO(zip_of({f"top/{path}": data for path, data in files.items()})))
    assert (len(found), is_cut) == (version_diff.MAX_FILES, True)


def test_many_differing_lines_are_shown_without_being_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_diff, "MAX_LINE_PAIRS", 3)
    assert one("0\na\nb\n9", "0\nb\na\n9").diff == "@@ -1,4 +1,4 @@\n 0\n-a\n-b\n+b\n+a\n 9\n"


def test_equal_checksums_do_not_hide_a_change() -> None:
    def archive(content: bytes) -> io.BytesIO:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as opened:
            opened.writestr("top/f", content)
        return buffer

    # Two texts of the same length and CRC-32.
    first, second = b"plumless", b"buckeroo"
    found, _ = diff_archives(archive(first), archive(second))
    assert [file.change for file in found] == ["changed"]
    assert zipfile.crc32(first) == zipfile.crc32(second)  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_versions_of_a_skill_are_compared(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip(files={"a.txt": "one\n", "gone.txt": "x\n"}))
    await skills.install_skill(skill_zip(files={"a.txt": "two\n"}), overwrite=True)
    await skills.install_skill(skill_zip(files={"a.txt": "three\n"}), overwrite=True)
    last = await skills.versions.diff("git-commit", 3)
    assert (last.version, last.against, [file.path for file in last.files]) == (3, 2, ["a.txt"])
    assert last.files[0].diff == "@@ -1,2 +1,2 @@\n-two\n+three\n \n"
    whole = await skills.versions.diff("git-commit", 3, 1)
    assert [(file.path, file.change) for file in whole.files] == [("a.txt", "changed"), ("gone.txt", "removed")]
    first = await skills.versions.diff("git-commit", 1)
    assert (first.against, {file.change for file in first.files}) == (None, {"added"})
    assert (await skills.versions.diff("git-commit", 2, 2)).files == []
