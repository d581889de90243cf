"""The tools `file-read`, `file-write` and `list-files`, for the workspace."""

import os
from typing import Any

from pydantic import Field

from apexbridge.errors import InvalidInputError, PermissionDeniedError
from apexbridge.tools.builtin.files.listing import Entry, Glob
from apexbridge.tools.builtin.files.paths import shown
from apexbridge.tools.builtin.files.text_files import DEFAULT_ENCODING, LineRange, encoding_named, read_lines
from apexbridge.tools.builtin.files.workspace import FileView, Workspace
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from apexbridge.wire import WireInput

INLINE_BYTES = 64 * 1024
"""Files up to this size are read without a thread, which is faster."""
MAX_BYTES = 10 * 1024 * 1024
DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
MAX_PATTERN_CHARACTERS = 256


# ------------------------------------------------------------------------------------------------------------ file-read
class FileReadInput(WireInput):
    path: str = Field(description="Relative to the workspace, or runs/ID/PATH.")
    offset: int = Field(default=0, ge=0, description="Lines to skip.")
    limit: int | None = Field(default=None, ge=1, description="Lines to read.")
    encoding: str | None = None


def file_read(workspace: Workspace) -> Tool:
    @Tool.define(
        "file-read",
        description="Read a text file; where it is truncated, go on at nextOffset.",
        parameters=FileReadInput,
        metadata={"category": "builtin"},
    )
    async def tool(args: FileReadInput, context: ToolContext) -> ToolResult:
        line_range = LineRange(name=shown(args.path), offset=args.offset, limit=args.limit, encoding=args.encoding)
        async with workspace.reading(context.conversation) as files:
            file = files.open_file(args.path)
        with file:
            if os.fstat(file.fileno()).st_size <= INLINE_BYTES:
                lines = read_lines(file, line_range)
            else:
                lines = await workspace.in_thread(lambda: read_lines(file, line_range), caller=context.caller)
        return ToolResult(output=lines.text, data=lines.data)

    return tool


# ----------------------------------------------------------------------------------------------------------- file-write
class FileWriteInput(WireInput):
    path: str = Field(description="Relative to the workspace.")
    content: str
    encoding: str = DEFAULT_ENCODING
    append: bool = Field(default=False, description="Add to the end.")
    backup: bool = Field(default=False, description="Keep the old file as PATH.bak.")


def file_write(workspace: Workspace) -> Tool:
    @Tool.define(
        "file-write",
        description="Write a text file, replacing what was there.",
        parameters=FileWriteInput,
        metadata={"category": "builtin"},
    )
    async def tool(args: FileWriteInput, context: ToolContext) -> ToolResult:
        # Not abandoned if the caller disconnects: the write completes, so that no partial change remains.
        return await workspace.write(context.conversation, args.path, lambda files: _write(files, args))

    return tool


def _write(files: FileView, args: FileWriteInput) -> ToolResult:
    mark, content = _encoded(args)
    if args.append:
        written, saved = files.append_to_file(args.path, content, mark=mark, backup=args.backup)
    else:
        saved = files.write_file(args.path, mark + content, backup=args.backup)
        written = len(mark) + len(content)
    path = files.relative(args.path).text
    data: dict[str, Any] = {"success": True, "path": path, "bytes": written}
    message = f"{'Added' if args.append else 'Wrote'} {written} bytes to {shown(path)}."
    if saved is not None:
        data["backup"] = saved
        message += f" The old file is {shown(saved)}."
    return ToolResult(output=message, data=data)


def _encoded(args: FileWriteInput) -> tuple[bytes, bytes]:
    encoding = encoding_named(args.encoding)
    try:
        content = args.content.encode(encoding.codec)
    except UnicodeEncodeError as error:
        character = f"U+{ord(args.content[error.start]):04X}"
        raise InvalidInputError(f"{character} cannot be written in {encoding.name}; use utf-8") from error
    if len(encoding.mark) + len(content) > MAX_BYTES:
        limit = MAX_BYTES // 1024 // 1024
        raise InvalidInputError(f"{len(content)} bytes are more than {limit} MB; write them in parts, with append")
    return encoding.mark, content


# ----------------------------------------------------------------------------------------------------------- list-files
class ListFilesInput(WireInput):
    path: str = Field(default=".", description="A folder of the workspace, or runs/ID.")
    pattern: str | None = Field(
        default=None, max_length=MAX_PATTERN_CHARACTERS, description="Glob below path: *.md, **/*.py"
    )
    recursive: bool = False
    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)


def list_files(workspace: Workspace) -> Tool:
    @Tool.define(
        "list-files",
        description="List files and folders.",
        parameters=ListFilesInput,
        metadata={"category": "builtin"},
    )
    async def tool(args: ListFilesInput, context: ToolContext) -> ToolResult:
        async with workspace.reading(context.conversation) as files:
            return await workspace.in_thread(lambda: _list(files, args), caller=context.caller)

    return tool


def _list(files: FileView, args: ListFilesInput) -> ToolResult:
    pattern, deep = _pattern(args)
    path = args.path if args.path == "/" else args.path.removesuffix("/") or "."
    found, is_cut = files.list_folder(path, glob=Glob(pattern) if pattern else None, deep=deep)
    shown_entries, is_cut = found[: args.limit], is_cut or len(found) > args.limit
    lines = [f"{shown(entry.path)} ({_kind(entry)})" for entry in shown_entries]
    if is_cut:
        lines.append("[There is more: narrow it down with path or pattern.]")
    data = {"success": True, "files": [_entry_data(entry) for entry in shown_entries], "truncated": is_cut}
    return ToolResult(output="\n".join(lines) or "[Nothing there.]", data=data)


def _pattern(args: ListFilesInput) -> tuple[str | None, bool]:
    """The pattern for paths below the folder, and whether to descend into subfolders.

    A pattern without a slash matches names at every depth that is listed; one with a slash defines the depth.
    """
    pattern = args.pattern.removeprefix("./") if args.pattern else None
    if not pattern:
        return None, args.recursive
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise PermissionDeniedError(f"{shown(pattern)} leads out; a pattern is relative to path, without ..")
    if "/" in pattern or pattern == "**":
        return pattern, True
    return (f"**/{pattern}", True) if args.recursive else (pattern, False)


def _kind(entry: Entry) -> str:
    kind = f"{entry.size} bytes" if entry.type == "file" else entry.type
    return f"{kind}; can be read, but is not in the workspace of runs" if entry.is_beneath else kind


def _entry_data(entry: Entry) -> dict[str, Any]:
    modified = entry.modified.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"path": entry.path, "type": entry.type, "size": entry.size, "modified": modified}
