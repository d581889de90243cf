"""The tool `read-skill`: reads a skill's instructions, or one of its files."""

from typing import Any

import anyio.to_thread
from pydantic import Field

from apexbridge.tools.allowance import Allowance
from apexbridge.tools.builtin.files.paths import shown
from apexbridge.tools.builtin.files.stretches import Wanted, read_stretch, told_to_model, told_to_programs
from apexbridge.tools.builtin.ports import Instructions, Skills
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput

SHOWN_FILES = 50


class ReadSkillInput(WireInput):
    """Which skill, and which of its files."""

    name: str = Field(description="The skill's name.")
    path: str | None = Field(default=None, description="One of its files; without it, the instructions.")
    offset: int = Field(default=0, ge=0, description="Lines to skip.")


def read_skill(skills: Skills) -> Tool:
    """Create the tool for these skills."""

    @Tool.define(
        "read-skill",
        description="Read a skill's instructions, or one of its files.",
        parameters=ReadSkillInput,
        metadata=ToolMetadata(category="builtin", tags=("skills",)),
    )
    async def tool(input: ReadSkillInput, context: ToolContext) -> ToolResult:
        if input.path is not None:
            return await _file(skills, input.name, input.path, input.offset)
        found = await skills.instructions(input.name)
        known = [tool.id for tool in context.registry.list()]
        allowance = Allowance.of(found.name, found.allowed_tools, known=known)
        context.conversation.allowance = allowance  # active until the next skill is read, or the request ends
        return _told(found, allowance)

    return tool


def _told(found: Instructions, allowance: Allowance | None) -> ToolResult:
    files = [path for path in found.files if path.lower() != "skill.md"]
    parts = [found.content.strip()]
    if found.scripts:
        parts.append("Scripts, for run_skill(name, script, args or input):\n" + "\n".join(found.scripts))
    if files:
        more = f"\n… and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        parts.append("Files, for load_skill(name, path):\n" + "\n".join(files[:SHOWN_FILES]) + more)
    if allowance is not None:
        parts.append(f"While you follow these instructions, only these tools may be called: {allowance.told}.")
    data: dict[str, Any] = {
        "success": True,
        "name": found.name,
        "mode": found.mode,
        "content": found.content,
        "files": list(found.files),
        "scripts": list(found.scripts),
        "allowedTools": list(found.allowed_tools),
    }
    return ToolResult(output="\n\n".join(parts), data=data, notices=allowance.warnings if allowance else ())


async def _file(skills: Skills, name: str, path: str, offset: int) -> ToolResult:
    with await skills.open_file(name, path) as file:
        stretch = await anyio.to_thread.run_sync(read_stretch, file, Wanted(name=shown(path), offset=offset))
    data = {"success": True, "name": name, "path": path, **told_to_programs(stretch)}
    return ToolResult(output=told_to_model(stretch), data=data)
