"""The tool `file-write`: writes a text file of the workspace, or appends to it."""

from typing import Any

from pydantic import Field

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.files.encodings import DEFAULT, encoding_named
from apexbridge.tools.builtin.files.paths import read_path, shown
from apexbridge.tools.builtin.files.workspace import Workspace
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from apexbridge.wire import WireInput

MAX_BYTES = 10 * 1024 * 1024


class FileWriteInput(WireInput):
    """What to write."""

    path: str = Field(description="Relative to the workspace.")
    content: str
    encoding: str = DEFAULT
    append: bool = Field(default=False, description="Add to the end.")
    backup: bool = Field(default=False, description="Keep the old file as PATH.bak.")


def file_write(workspace: Workspace) -> Tool:
    """Create the tool for a workspace."""

    def execute(args: FileWriteInput, caller: str) -> ToolResult:
        mark, content = _encoded(args)
        if args.append:
            written, saved = workspace.append_to_file(args.path, content, mark=mark, caller=caller, backup=args.backup)
        else:
            saved = workspace.write_file(args.path, mark + content, caller=caller, backup=args.backup)
            written = len(mark) + len(content)
        path = read_path(args.path).text
        data: dict[str, Any] = {"success": True, "path": path, "bytes": written}
        done = f"{'Added' if args.append else 'Wrote'} {written} bytes to {shown(path)}."
        if saved is not None:
            data["backup"] = saved
            done += f" The old file is {shown(saved)}."
        return ToolResult(output=done, data=data)

    async def execute_in_thread(args: FileWriteInput, context: ToolContext) -> ToolResult:
        # Not abandoned if the caller disconnects: the write completes, so that no partial change remains.
        return await workspace.in_thread(lambda: execute(args, context.caller), caller=context.caller)

    return Tool.define(
        "file-write",
        description="Write a text file, replacing what was there.",
        parameters=FileWriteInput,
        execute=execute_in_thread,
        metadata={"category": "builtin"},
    )


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
