"""The file tools as models and programs call them, over real files."""

import codecs
import os
import tracemalloc
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.errors import InvalidInputError, PermissionDeniedError, RequestError
from apexbridge.tools.builtin.file_tools import MAX_BYTES
from apexbridge.tools.builtin.files.text_files import (
    MAX_LINE_CHARACTERS,
    MAX_SKIPPED_LINES,
    MAX_TEXT_BYTES,
    SHOWN_BYTES,
)
from apexbridge.tools.executor import OUTPUT_BYTES
from tests.tools.desk import Desk

pytestmark = pytest.mark.anyio
KB, GB = 1024, 1024**3


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# -------------------------------------------------------------------------------------------------------- file-read
@pytest.mark.requirement("A2")
async def test_a_file_is_read(desk: Desk) -> None:
    text = "# Title\r\n你好\n" * 100
    (desk.folder / "README.md").write_bytes(text.encode())
    result = await desk.call("file-read", path="README.md")
    assert result.data == {
        "success": True,
        "content": text,
        "size": len(text.encode()),
        "truncated": False,
        "encoding": "utf-8",
        "lines": 200,
    }
    assert result.output == text


@pytest.mark.parametrize("size", [3, 70 * KB])
async def test_lines_are_skipped_and_limited(desk: Desk, size: int) -> None:
    lines = [f"{number} {'x' * (size // 10)}\n" for number in range(10)]
    (desk.folder / "ten").write_text("".join(lines).removesuffix("\n"))
    part = await desk.read("ten", offset=2, limit=3)
    assert part["content"] == "".join(lines[2:5])
    assert (part["truncated"], part["nextOffset"]) == (True, 5)
    assert "lines" not in part
    rest = await desk.read("ten", offset=9)
    assert (rest["content"], rest["truncated"], rest["lines"]) == (lines[9].removesuffix("\n"), False, 10)
    beyond = await desk.read("ten", offset=1000)
    assert (beyond["content"], beyond["truncated"], beyond["lines"]) == ("", False, 10)


@pytest.mark.parametrize(("content", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\n\n", 2), ("\n", 1), ("a\nb", 2)])
async def test_lines_are_counted_alike_from_any_offset(desk: Desk, content: str, lines: int) -> None:
    (desk.folder / "file").write_text(content)
    for offset in range(4):
        assert (await desk.read("file", offset=offset))["lines"] == lines


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030", "latin-1"])
@pytest.mark.parametrize("end", ["\r\n", " "], ids=["lines", "one line"])
async def test_a_long_file_comes_in_parts_that_make_the_whole(desk: Desk, encoding: str, end: str) -> None:
    letters = "ÿé" if encoding == "latin-1" else "汉字𝄞ਊ"
    text = "".join(f"{number} {letters * (number % 40)}{end}" for number in range(12_000))
    (desk.folder / "long").write_bytes(text.encode(encoding))
    parts, offset = [], 0
    while True:
        part = await desk.read("long", offset=offset, encoding=encoding)
        assert len(part["content"].encode()) <= MAX_TEXT_BYTES
        parts.append(part["content"])
        if not part["truncated"]:
            break
        assert part["nextOffset"] > offset
        offset = part["nextOffset"]
    assert len(parts) > 1
    assert "".join(parts) == text


async def test_a_line_too_long_counts_as_several(desk: Desk) -> None:
    text = "é" * (2 * MAX_LINE_CHARACTERS + 1) + "\nlast\n"
    (desk.folder / "line").write_text(text)
    parts = [(await desk.read("line", offset=offset, limit=1))["content"] for offset in range(4)]
    assert [len(part) for part in parts] == [MAX_LINE_CHARACTERS, MAX_LINE_CHARACTERS, 2, 5]
    assert "".join(parts) == text
    assert (await desk.read("line"))["lines"] == 4


async def test_an_offset_beyond_the_end_reads_nothing(desk: Desk) -> None:
    (desk.folder / "text").write_text("a\nb")
    part = await desk.read("text", offset=10**30)
    assert (part["content"], part["lines"]) == ("", 2)
    (desk.folder / "long").write_text("\n" * (MAX_SKIPPED_LINES + 1))
    assert (await desk.read("long", offset=MAX_SKIPPED_LINES))["content"] == "\n"
    with pytest.raises(InvalidInputError):
        await desk.read("long", offset=MAX_SKIPPED_LINES + 1)


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("汉字\n".encode(), "utf-8", "汉字\n"),
        (codecs.BOM_UTF8 + b"a\n", "utf-8-sig", "a\n"),
        (codecs.BOM_UTF16_LE + "a汉\n".encode("utf-16-le"), "utf-16", "a汉\n"),
        (codecs.BOM_UTF16_BE + "a汉\n".encode("utf-16-be"), "utf-16", "a汉\n"),
        (codecs.BOM_UTF16_LE + b"a\0\x00\xd8b\0", "utf-16", "a\ufffdb"),
        (codecs.BOM_UTF8 + b"a\xff", "utf-8-sig", "a\ufffd"),
        ("汉字编码\n".encode("gb18030"), "gb18030", "汉字编码\n"),
        ("café\n".encode("latin-1"), "latin-1", "café\n"),
        (b"\x1b[31mred\x1b[0m\tx\x0c\r\n", "utf-8", "\x1b[31mred\x1b[0m\tx\x0c\r\n"),
    ],
)
async def test_an_encoding_is_found_and_named(desk: Desk, data: bytes, encoding: str, text: str) -> None:
    (desk.folder / "file").write_bytes(data)
    part = await desk.read("file")
    assert (part["content"], part["encoding"]) == (text, encoding)


async def test_an_encoding_can_be_asked_for(desk: Desk) -> None:
    (desk.folder / "file").write_bytes("naïve".encode("latin-1"))
    assert (await desk.read("file", encoding="ISO_8859-1"))["content"] == "naïve"
    (desk.folder / "wide").write_bytes("a\nb\n".encode("utf-16-be"))
    assert (await desk.read("wide", encoding="utf-16-be", offset=1))["content"] == "b\n"
    (desk.folder / "marked").write_bytes("a".encode("utf-8-sig"))
    assert (await desk.read("marked", encoding="utf8"))["content"] == "a"
    for encoding in ["utf-8", "ascii", "rot13", "base64", "../x", "zlib"]:
        with pytest.raises(InvalidInputError):
            await desk.read("file", encoding=encoding)


@pytest.mark.parametrize(
    "data",
    [b"\x7fELF\x02\0\0", b"\x01\x02\x03\x04", b"a" * 8192 + b"\0", bytes(range(1, 256)) * 9, b"\xff\xfe\0\0a\0\0\0"],
)
async def test_a_binary_file_is_told_as_one(desk: Desk, data: bytes) -> None:
    (desk.folder / "image").write_bytes(data)
    with pytest.raises(InvalidInputError, match=f"image is a binary file of {len(data)} bytes"):
        await desk.read("image")


async def test_a_file_of_ten_gigabytes_takes_no_memory_to_speak_of(desk: Desk) -> None:
    text = "line of text\n" * 100_000
    with (desk.folder / "huge").open("w") as file:
        file.write(text)
        file.truncate(10 * GB)
    tracemalloc.start()
    try:
        part = await desk.read("huge")
        last = await desk.read("huge", offset=99_990, limit=10)
        with pytest.raises(InvalidInputError, match="binary"):
            await desk.read("huge", offset=200_000)
        assert tracemalloc.get_traced_memory()[1] < 16 * KB * KB
    finally:
        tracemalloc.stop()
    assert (part["size"], part["truncated"]) == (10 * GB, True)
    assert text.startswith(part["content"])
    assert (last["content"], last["nextOffset"]) == ("line of text\n" * 10, 100_000)


async def test_a_model_is_shown_the_beginning_and_how_to_go_on(desk: Desk) -> None:
    text = "".join(f"line {number} é\n" for number in range(10_000))
    (desk.folder / "long").write_text(text)
    shown, offset = "", 0
    while True:
        result = await desk.call("file-read", path="long", offset=offset)
        assert len(result.output.encode()) <= OUTPUT_BYTES
        content, _, note = result.output.rpartition("\n[There is more")
        if not note.startswith(","):
            break
        shown += content
        offset = int(note.partition("offset ")[2].partition(".")[0])
    assert shown + result.output == text
    (desk.folder / "line").write_text("é" * 100_000)
    result = await desk.call("file-read", path="line")
    assert f"offset {SHOWN_BYTES // 2 // MAX_LINE_CHARACTERS}." in result.output
    assert result.data["truncated"] is False
    assert "Nothing there" in (await desk.call("file-read", path="line", offset=100)).output


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret", "a/../../secret", "link", "folder/secret", "environ", "zero"]
)
async def test_no_tool_leaves_the_workspace(desk: Desk, path: str) -> None:
    secret = desk.folder.parent / "secret"
    secret.write_text("secret")
    (desk.folder / "link").symlink_to(secret)
    (desk.folder / "folder").symlink_to("..")
    (desk.folder / "environ").symlink_to("/proc/self/environ")
    (desk.folder / "zero").symlink_to("/dev/zero")
    for call in (desk.read(path), desk.write(path, "x"), desk.write(path, "x", append=True)):
        with pytest.raises(PermissionDeniedError) as caught:
            await call
        assert str(desk.folder.parent) not in str(caught.value.to_json())
    assert secret.read_text() == "secret"
    for path in ["/", "..", "folder"]:
        with pytest.raises(PermissionDeniedError):
            await desk.list(path=path)
    for pattern in ["/etc/*", "../*", "**/../*"]:
        with pytest.raises(PermissionDeniedError):
            await desk.list(pattern=pattern)


async def test_unfit_input_is_refused_before_anything_is_opened(desk: Desk) -> None:
    unfit: list[dict[str, Any]] = [
        {},
        {"path": 1},
        {"path": "a", "offset": -1},
        {"path": "a", "limit": 0},
        {"path": "a", "limit": "words"},
    ]
    for input in unfit:
        with pytest.raises(InvalidInputError):
            await desk.registry.execute("file-read", input)
    with pytest.raises(RequestError) as caught:
        await desk.read("missing")
    assert caught.value.code == "FILE_NOT_FOUND"
    os.mkfifo(desk.folder / "pipe")
    with anyio.fail_after(60), pytest.raises(PermissionDeniedError, match="pipe"):
        await desk.read("pipe")


# ------------------------------------------------------------------------------------------------------- file-write
@pytest.mark.requirement("A5")
async def test_a_file_is_written(desk: Desk) -> None:
    result = await desk.call("file-write", path="./new/folder/a.txt", content="汉\r\n")
    assert result.data == {"success": True, "path": "new/folder/a.txt", "bytes": 5}
    assert (desk.folder / "new/folder/a.txt").read_bytes() == "汉\r\n".encode()
    assert "5 bytes" in result.output
    again = await desk.write("new/folder/a.txt", "b", backup=True)
    assert again == {"success": True, "path": "new/folder/a.txt", "bytes": 1, "backup": "new/folder/a.txt.bak"}
    assert await desk.write("new/folder/a.txt", "c", append=True) == {
        "success": True,
        "path": "new/folder/a.txt",
        "bytes": 1,
    }
    assert (await desk.read("new/folder/a.txt"))["content"] == "bc"
    assert (await desk.read("new/folder/a.txt.bak"))["content"] == "汉\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
async def test_what_is_written_in_an_encoding_is_read_back(desk: Desk, encoding: str) -> None:
    text = "汉字𝄞 é\n"
    first = await desk.write("file", text, encoding=encoding)
    await desk.write("file", text, encoding=encoding, append=True)
    await desk.write("begun", text, encoding=encoding, append=True)
    assert (desk.folder / "begun").stat().st_size == first["bytes"]
    assert (await desk.read("begun"))["content"] == text
    part = await desk.read("file")
    assert (part["content"], part["encoding"]) == (text * 2, encoding)


async def test_what_cannot_be_written_is_refused(desk: Desk) -> None:
    for input in [{"encoding": "latin-1"}, {"encoding": "rot13"}, {"encoding": "utf-32"}]:
        with pytest.raises(InvalidInputError):
            await desk.write("file", "汉", **input)
    with pytest.raises(InvalidInputError, match="10 MB"):
        await desk.write("file", "x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidInputError):
        await desk.registry.execute("file-write", {"path": "file", "content": "\ud800"})
    assert await desk.list() == []
    assert (await desk.write("file", "x" * MAX_BYTES))["bytes"] == MAX_BYTES


async def test_appends_at_once_all_arrive(desk: Desk) -> None:
    async def append(number: int) -> None:
        await desk.write("log", f"{number}\n", append=True)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(append, number)
    assert sorted(map(int, (desk.folder / "log").read_text().split())) == list(range(50))


# ------------------------------------------------------------------------------------------------------- list-files
@pytest.mark.requirement("A5")
async def test_files_are_listed(desk: Desk) -> None:
    for path in ["b.py", "src/a.py", "src/deep/c.py", "src/notes.md"]:
        await desk.write(path, "12345")
    os.utime(desk.folder / "b.py", (0, 0))
    (desk.folder / "link").symlink_to("b.py")
    result = await desk.call("list-files")
    assert result.data["success"] is True
    assert result.data["truncated"] is False
    assert result.data["files"][0] == {"path": "b.py", "type": "file", "size": 5, "modified": "1970-01-01T00:00:00Z"}
    assert [(file["path"], file["type"]) for file in result.data["files"][1:]] == [("link", "link"), ("src", "folder")]
    assert result.output.splitlines() == ["b.py (5 bytes)", "link (link)", "src (folder)"]
    assert await desk.list(path="src/") == ["src/a.py", "src/deep", "src/notes.md"]
    assert await desk.list(pattern="**/*.py") == ["b.py", "src/a.py", "src/deep/c.py"]
    assert await desk.list(pattern="*.py") == ["b.py"]
    assert await desk.list(pattern="*.py", recursive=True) == ["b.py", "src/a.py", "src/deep/c.py"]
    assert await desk.list(path="./src", pattern="*/c.py") == ["src/deep/c.py"]
    assert await desk.list(pattern="./src/*.md") == ["src/notes.md"]
    assert await desk.list(pattern="**") == await desk.list(recursive=True)
    assert len(await desk.list(recursive=True)) == 7
    assert await desk.list(path="") == await desk.list(pattern="") == ["b.py", "link", "src"]


async def test_a_listing_has_a_limit_and_says_so(desk: Desk) -> None:
    for number in range(250):
        (desk.folder / f"{number:03}").touch()
    result = await desk.call("list-files")
    assert (len(result.data["files"]), result.data["truncated"]) == (200, True)
    assert "more" in result.output.splitlines()[-1]
    assert (await desk.list(limit=3, pattern="2*")) == ["200", "201", "202"]
    result = await desk.call("list-files", limit=250)
    assert (len(result.data["files"]), result.data["truncated"]) == (250, False)
    unfit: list[dict[str, Any]] = [{"limit": 1001}, {"limit": 0}, {"pattern": "*" * 257}]
    for input in unfit:
        with pytest.raises(InvalidInputError):
            await desk.list(**input)


async def test_an_empty_workspace_and_a_missing_folder_differ(desk: Desk) -> None:
    desk.folder.rmdir()
    assert (await desk.call("list-files")).output == "[Nothing there.]"
    with pytest.raises(RequestError):
        await desk.list(path="missing")


async def test_the_tools_are_built_in_and_cost_a_model_little(desk: Desk) -> None:
    tools = desk.registry.list_by_category("builtin")
    assert [tool.id for tool in tools] == ["file-read", "file-write", "list-files"]
    for tool in tools:
        assert len(tool.description) + len(str(dict(tool.parameters.schema))) < 4 * 140
