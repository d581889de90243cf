"""The tool `file-read`: reads a text file of the workspace, or some of its lines."""

import os

from pydantic import Field

from apexbridge.tools.builtin.files.paths import shown
from apexbridge.tools.builtin.files.stretches import Wanted, read_stretch, told_to_model, told_to_programs
from apexbridge.tools.builtin.files.workspace import Workspace
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from apexbridge.wire import WireInput

INLINE_BYTES = 64 * 1024
"""Files up to this size are read without a thread, which is faster."""


class FileReadInput(WireInput):
    """What to read."""

    path: str = Field(description="Relative to the workspace, or runs/ID/PATH.")
    offset: int = Field(default=0, ge=0, description="Lines to skip.")
    limit: int | None = Field(default=None, ge=1, description="Lines to read.")
    encoding: str | None = None


def file_read(workspace: Workspace) -> Tool:
    """Create the tool for a workspace."""

    async def execute(args: FileReadInput, context: ToolContext) -> ToolResult:
        wanted = Wanted(name=shown(args.path), offset=args.offset, limit=args.limit, encoding=args.encoding)
        with workspace.open_file(args.path, caller=context.caller) as file:
            if os.fstat(file.fileno()).st_size <= INLINE_BYTES:
                stretch = read_stretch(file, wanted)
            else:
                stretch = await workspace.in_thread(lambda: read_stretch(file, wanted), caller=context.caller)
        return ToolResult(output=told_to_model(stretch), data=told_to_programs(stretch))

    return Tool.define(
        "file-read",
        description="Read a text file; where it is truncated, go on at nextOffset.",
        parameters=FileReadInput,
        execute=execute,
        metadata={"category": "builtin"},
    )
