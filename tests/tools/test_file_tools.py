"""The file tools, called through a registry, over real files."""

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
from tests.tools.file_workspace import FileWorkspace

pytestmark = pytest.mark.anyio
KB, GB = 1024, 1024**3


@pytest.fixture
def workspace(tmp_path: Path) -> FileWorkspace:
    return FileWorkspace(tmp_path)


# -------------------------------------------------------------------------------------------------------- file-read
@pytest.mark.requirement("A2")
async def test_a_file_is_read(workspace: FileWorkspace) -> None:
    text = "# Title\r\n你好\n" * 100
    (workspace.folder / "README.md").write_bytes(text.encode())
    result = await workspace.call("file-read", path="README.md")
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
async def test_lines_are_skipped_and_limited(workspace: FileWorkspace, size: int) -> None:
    lines = [f"{number} {'x' * (size // 10)}\n" for number in range(10)]
    (workspace.folder / "ten").write_text("".join(lines).removesuffix("\n"))
    chunk = await workspace.read("ten", offset=2, limit=3)
    assert chunk["content"] == "".join(lines[2:5])
    assert (chunk["truncated"], chunk["nextOffset"]) == (True, 5)
    assert "lines" not in chunk
    tail = await workspace.read("ten", offset=9)
    assert (tail["content"], tail["truncated"], tail["lines"]) == (lines[9].removesuffix("\n"), False, 10)
    beyond = await workspace.read("ten", offset=1000)
    assert (beyond["content"], beyond["truncated"], beyond["lines"]) == ("", False, 10)


@pytest.mark.parametrize(("content", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\n\n", 2), ("\n", 1), ("a\nb", 2)])
async def test_the_number_of_lines_is_the_same_from_any_offset(
    workspace: FileWorkspace, content: str, lines: int
) -> None:
    (workspace.folder / "file").write_text(content)
    for offset in range(4):
        assert (await workspace.read("file", offset=offset))["lines"] == lines


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030", "latin-1"])
@pytest.mark.parametrize("end", ["\r\n", " "], ids=["lines", "one line"])
async def test_a_long_file_is_read_completely_in_chunks(workspace: FileWorkspace, encoding: str, end: str) -> None:
    letters = "ÿé" if encoding == "latin-1" else "汉字𝄞ਊ"
    text = "".join(f"{number} {letters * (number % 40)}{end}" for number in range(12_000))
    (workspace.folder / "long").write_bytes(text.encode(encoding))
    chunks, offset = [], 0
    while True:
        chunk = await workspace.read("long", offset=offset, encoding=encoding)
        assert len(chunk["content"].encode()) <= MAX_TEXT_BYTES
        chunks.append(chunk["content"])
        if not chunk["truncated"]:
            break
        assert chunk["nextOffset"] > offset
        offset = chunk["nextOffset"]
    assert len(chunks) > 1
    assert "".join(chunks) == text


async def test_an_overlong_line_counts_as_several(workspace: FileWorkspace) -> None:
    text = "é" * (2 * MAX_LINE_CHARACTERS + 1) + "\nlast\n"
    (workspace.folder / "line").write_text(text)
    chunks = [(await workspace.read("line", offset=offset, limit=1))["content"] for offset in range(4)]
    assert [len(chunk) for chunk in chunks] == [MAX_LINE_CHARACTERS, MAX_LINE_CHARACTERS, 2, 5]
    assert "".join(chunks) == text
    assert (await workspace.read("line"))["lines"] == 4


async def test_an_offset_beyond_the_end_reads_nothing(workspace: FileWorkspace) -> None:
    (workspace.folder / "text").write_text("a\nb")
    chunk = await workspace.read("text", offset=10**30)
    assert (chunk["content"], chunk["lines"]) == ("", 2)
    (workspace.folder / "long").write_text("\n" * (MAX_SKIPPED_LINES + 1))
    assert (await workspace.read("long", offset=MAX_SKIPPED_LINES))["content"] == "\n"
    with pytest.raises(InvalidInputError):
        await workspace.read("long", offset=MAX_SKIPPED_LINES + 1)


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
async def test_an_encoding_is_detected_and_reported(
    workspace: FileWorkspace, data: bytes, encoding: str, text: str
) -> None:
    (workspace.folder / "file").write_bytes(data)
    chunk = await workspace.read("file")
    assert (chunk["content"], chunk["encoding"]) == (text, encoding)


async def test_an_encoding_can_be_requested(workspace: FileWorkspace) -> None:
    (workspace.folder / "file").write_bytes("naïve".encode("latin-1"))
    assert (await workspace.read("file", encoding="ISO_8859-1"))["content"] == "naïve"
    (workspace.folder / "wide").write_bytes("a\nb\n".encode("utf-16-be"))
    assert (await workspace.read("wide", encoding="utf-16-be", offset=1))["content"] == "b\n"
    (workspace.folder / "marked").write_bytes("a".encode("utf-8-sig"))
    assert (await workspace.read("marked", encoding="utf8"))["content"] == "a"
    for encoding in ["utf-8", "ascii", "rot13", "base64", "../x", "zlib"]:
        with pytest.raises(InvalidInputError):
            await workspace.read("file", encoding=encoding)


@pytest.mark.parametrize(
    "data",
    [b"\x7fELF\x02\0\0", b"\x01\x02\x03\x04", b"a" * 8192 + b"\0", bytes(range(1, 256)) * 9, b"\xff\xfe\0\0a\0\0\0"],
)
async def test_a_binary_file_is_refused(workspace: FileWorkspace, data: bytes) -> None:
    (workspace.folder / "image").write_bytes(data)
    with pytest.raises(InvalidInputError, match=f"image is a binary file of {len(data)} bytes"):
        await workspace.read("image")


async def test_a_file_of_ten_gigabytes_is_read_with_little_memory(workspace: FileWorkspace) -> None:
    text = "line of text\n" * 100_000
    with (workspace.folder / "huge").open("w") as file:
        file.write(text)
        file.truncate(10 * GB)
    tracemalloc.start()
    try:
        chunk = await workspace.read("huge")
        last = await workspace.read("huge", offset=99_990, limit=10)
        with pytest.raises(InvalidInputError, match="binary"):
            await workspace.read("huge", offset=200_000)
        assert tracemalloc.get_traced_memory()[1] < 16 * KB * KB
    finally:
        tracemalloc.stop()
    assert (chunk["size"], chunk["truncated"]) == (10 * GB, True)
    assert text.startswith(chunk["content"])
    assert (last["content"], last["nextOffset"]) == ("line of text\n" * 10, 100_000)


async def test_the_output_has_the_beginning_and_the_next_offset(workspace: FileWorkspace) -> None:
    text = "".join(f"line {number} é\n" for number in range(10_000))
    (workspace.folder / "long").write_text(text)
    shown, offset = "", 0
    while True:
        result = await workspace.call("file-read", path="long", offset=offset)
        assert len(result.output.encode()) <= OUTPUT_BYTES
        content, _, note = result.output.rpartition("\n[There is more")
        if not note.startswith(","):
            break
        shown += content
        offset = int(note.partition("offset ")[2].partition(".")[0])
    assert shown + result.output == text
    (workspace.folder / "line").write_text("é" * 100_000)
    result = await workspace.call("file-read", path="line")
    assert f"offset {SHOWN_BYTES // 2 // MAX_LINE_CHARACTERS}." in result.output
    assert result.data["truncated"] is False
    assert "Nothing there" in (await workspace.call("file-read", path="line", offset=100)).output


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret", "a/../../secret", "link", "folder/secret", "environ", "zero"]
)
async def test_no_tool_leaves_the_workspace(workspace: FileWorkspace, path: str) -> None:
    secret = workspace.folder.parent / "secret"
    secret.write_text("secret")
    (workspace.folder / "link").symlink_to(secret)
    (workspace.folder / "folder").symlink_to("..")
    (workspace.folder / "environ").symlink_to("/proc/self/environ")
    (workspace.folder / "zero").symlink_to("/dev/zero")
    for call in (workspace.read(path), workspace.write(path, "x"), workspace.write(path, "x", append=True)):
        with pytest.raises(PermissionDeniedError) as caught:
            await call
        assert str(workspace.folder.parent) not in str(caught.value.to_json())
    assert secret.read_text() == "secret"
    for path in ["/", "..", "folder"]:
        with pytest.raises(PermissionDeniedError):
            await workspace.list(path=path)
    for pattern in ["/etc/*", "../*", "**/../*"]:
        with pytest.raises(PermissionDeniedError):
            await workspace.list(pattern=pattern)


async def test_invalid_input_and_missing_or_special_files_are_refused(workspace: FileWorkspace) -> None:
    invalid: list[dict[str, Any]] = [
        {},
        {"path": 1},
        {"path": "a", "offset": -1},
        {"path": "a", "limit": 0},
        {"path": "a", "limit": "words"},
    ]
    for input in invalid:
        with pytest.raises(InvalidInputError):
            await workspace.registry.execute("file-read", input)
    with pytest.raises(RequestError) as caught:
        await workspace.read("missing")
    assert caught.value.code == "FILE_NOT_FOUND"
    os.mkfifo(workspace.folder / "pipe")
    with anyio.fail_after(60), pytest.raises(PermissionDeniedError, match="pipe"):
        await workspace.read("pipe")


# ------------------------------------------------------------------------------------------------------- file-write
@pytest.mark.requirement("A5")
async def test_a_file_is_written(workspace: FileWorkspace) -> None:
    result = await workspace.call("file-write", path="./new/folder/a.txt", content="汉\r\n")
    assert result.data == {"success": True, "path": "new/folder/a.txt", "bytes": 5}
    assert (workspace.folder / "new/folder/a.txt").read_bytes() == "汉\r\n".encode()
    assert "5 bytes" in result.output
    again = await workspace.write("new/folder/a.txt", "b", backup=True)
    assert again == {"success": True, "path": "new/folder/a.txt", "bytes": 1, "backup": "new/folder/a.txt.bak"}
    assert await workspace.write("new/folder/a.txt", "c", append=True) == {
        "success": True,
        "path": "new/folder/a.txt",
        "bytes": 1,
    }
    assert (await workspace.read("new/folder/a.txt"))["content"] == "bc"
    assert (await workspace.read("new/folder/a.txt.bak"))["content"] == "汉\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
async def test_text_written_in_an_encoding_is_read_back(workspace: FileWorkspace, encoding: str) -> None:
    text = "汉字𝄞 é\n"
    first = await workspace.write("file", text, encoding=encoding)
    await workspace.write("file", text, encoding=encoding, append=True)
    await workspace.write("begun", text, encoding=encoding, append=True)
    assert (workspace.folder / "begun").stat().st_size == first["bytes"]
    assert (await workspace.read("begun"))["content"] == text
    chunk = await workspace.read("file")
    assert (chunk["content"], chunk["encoding"]) == (text * 2, encoding)


async def test_content_that_cannot_be_written_is_refused(workspace: FileWorkspace) -> None:
    for input in [{"encoding": "latin-1"}, {"encoding": "rot13"}, {"encoding": "utf-32"}]:
        with pytest.raises(InvalidInputError):
            await workspace.write("file", "汉", **input)
    with pytest.raises(InvalidInputError, match="10 MB"):
        await workspace.write("file", "x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidInputError):
        await workspace.registry.execute("file-write", {"path": "file", "content": "\ud800"})
    assert await workspace.list() == []
    assert (await workspace.write("file", "x" * MAX_BYTES))["bytes"] == MAX_BYTES


async def test_concurrent_appends_all_arrive(workspace: FileWorkspace) -> None:
    async def append(number: int) -> None:
        await workspace.write("log", f"{number}\n", append=True)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(append, number)
    assert sorted(map(int, (workspace.folder / "log").read_text().split())) == list(range(50))


# ------------------------------------------------------------------------------------------------------- list-files
@pytest.mark.requirement("A5")
async def test_files_are_listed(workspace: FileWorkspace) -> None:
    for path in ["b.py", "src/a.py", "src/deep/c.py", "src/notes.md"]:
        await workspace.write(path, "12345")
    os.utime(workspace.folder / "b.py", (0, 0))
    (workspace.folder / "link").symlink_to("b.py")
    result = await workspace.call("list-files")
    assert result.data["success"] is True
    assert result.data["truncated"] is False
    assert result.data["files"][0] == {"path": "b.py", "type": "file", "size": 5, "modified": "1970-01-01T00:00:00Z"}
    assert [(file["path"], file["type"]) for file in result.data["files"][1:]] == [("link", "link"), ("src", "folder")]
    assert result.output.splitlines() == ["b.py (5 bytes)", "link (link)", "src (folder)"]
    assert await workspace.list(path="src/") == ["src/a.py", "src/deep", "src/notes.md"]
    assert await workspace.list(pattern="**/*.py") == ["b.py", "src/a.py", "src/deep/c.py"]
    assert await workspace.list(pattern="*.py") == ["b.py"]
    assert await workspace.list(pattern="*.py", recursive=True) == ["b.py", "src/a.py", "src/deep/c.py"]
    assert await workspace.list(path="./src", pattern="*/c.py") == ["src/deep/c.py"]
    assert await workspace.list(pattern="./src/*.md") == ["src/notes.md"]
    assert await workspace.list(pattern="**") == await workspace.list(recursive=True)
    assert len(await workspace.list(recursive=True)) == 7
    assert await workspace.list(path="") == await workspace.list(pattern="") == ["b.py", "link", "src"]


async def test_a_listing_is_limited_and_marked_as_truncated(workspace: FileWorkspace) -> None:
    for number in range(250):
        (workspace.folder / f"{number:03}").touch()
    result = await workspace.call("list-files")
    assert (len(result.data["files"]), result.data["truncated"]) == (200, True)
    assert "more" in result.output.splitlines()[-1]
    assert (await workspace.list(limit=3, pattern="2*")) == ["200", "201", "202"]
    result = await workspace.call("list-files", limit=250)
    assert (len(result.data["files"]), result.data["truncated"]) == (250, False)
    invalid: list[dict[str, Any]] = [{"limit": 1001}, {"limit": 0}, {"pattern": "*" * 257}]
    for input in invalid:
        with pytest.raises(InvalidInputError):
            await workspace.list(**input)


async def test_an_empty_workspace_and_a_missing_folder_differ(workspace: FileWorkspace) -> None:
    workspace.folder.rmdir()
    assert (await workspace.call("list-files")).output == "[Nothing there.]"
    with pytest.raises(RequestError):
        await workspace.list(path="missing")


async def test_the_tools_are_built_in_and_have_short_schemas(workspace: FileWorkspace) -> None:
    tools = workspace.registry.list_by_category("builtin")
    assert [tool.id for tool in tools] == ["file-read", "file-write", "list-files"]
    for tool in tools:
        assert len(tool.description) + len(str(dict(tool.parameters.schema))) < 4 * 140
