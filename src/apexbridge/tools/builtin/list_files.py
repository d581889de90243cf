"""The tool `list-files`: lists a folder of the workspace."""

from typing import Any

from pydantic import Field

from apexbridge.errors import PermissionDeniedError
from apexbridge.tools.builtin.files.globs import Glob
from apexbridge.tools.builtin.files.listing import Entry
from apexbridge.tools.builtin.files.paths import shown
from apexbridge.tools.builtin.files.workspace import Workspace
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from apexbridge.wire import WireInput

DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
MAX_PATTERN_CHARACTERS = 256


class ListFilesInput(WireInput):
    """What to list."""

    path: str = Field(default=".", description="A folder of the workspace, or runs/ID.")
    pattern: str | None = Field(
        default=None, max_length=MAX_PATTERN_CHARACTERS, description="Glob below path: *.md, **/*.py"
    )
    recursive: bool = False
    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)


def list_files(workspace: Workspace) -> Tool:
    """Create the tool for a workspace."""

    def execute(args: ListFilesInput, caller: str) -> ToolResult:
        pattern, deep = _understood(args)
        path = args.path if args.path == "/" else args.path.removesuffix("/") or "."
        found, is_cut = workspace.list_folder(path, caller=caller, glob=Glob(pattern) if pattern else None, deep=deep)
        files, is_cut = found[: args.limit], is_cut or len(found) > args.limit
        data = {"success": True, "files": [_for_programs(entry) for entry in files], "truncated": is_cut}
        return ToolResult(output=_for_model(files, is_cut), data=data)

    async def execute_in_thread(args: ListFilesInput, context: ToolContext) -> ToolResult:
        return await workspace.in_thread(lambda: execute(args, context.caller), caller=context.caller)

    return Tool.define(
        "list-files",
        description="List files and folders.",
        parameters=ListFilesInput,
        execute=execute_in_thread,
        metadata={"category": "builtin"},
    )


def _understood(args: ListFilesInput) -> tuple[str | None, bool]:
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


def _for_programs(entry: Entry) -> dict[str, Any]:
    modified = entry.modified.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"path": entry.path, "type": entry.type, "size": entry.size, "modified": modified}


def _for_model(files: list[Entry], is_cut: bool) -> str:
    lines = [
        f"{shown(entry.path)} ({entry.size} bytes)" if entry.type == "file" else f"{shown(entry.path)} ({entry.type})"
        for entry in files
    ]
    if is_cut:
        lines.append("[There is more: narrow it down with path or pattern.]")
    return "\n".join(lines) or "[Nothing there.]"
