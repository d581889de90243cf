"""A workspace with the three file tools, called through a registry."""

from pathlib import Path
from typing import Any

from apexbridge.tools.builtin.file_tools import file_read, file_write, list_files
from apexbridge.tools.builtin.files.workspace import Workspace
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import ToolResult


class FileWorkspace:
    """A workspace with the three file tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "workspace"
        self.runs = folder / "runs"
        self.folder.mkdir()
        workspace = Workspace(self.folder, lambda identity, caller: self.runs / identity)
        self.registry = ToolRegistry()
        for tool in (file_read(workspace), file_write(workspace), list_files(workspace)):
            self.registry.register(tool)

    async def call(self, id: str, caller: str = "", **input: Any) -> ToolResult:
        return await self.registry.execute(id, input, conversation=Conversation(caller=caller))

    async def read(self, path: str, caller: str = "", **input: Any) -> dict[str, Any]:
        data: dict[str, Any] = (await self.call("file-read", caller, path=path, **input)).data
        return data

    async def write(self, path: str, content: str, caller: str = "", **input: Any) -> dict[str, Any]:
        data: dict[str, Any] = (await self.call("file-write", caller, path=path, content=content, **input)).data
        return data

    async def list(self, caller: str = "", **input: Any) -> list[str]:
        return [file["path"] for file in (await self.call("list-files", caller, **input)).data["files"]]
