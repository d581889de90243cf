"""The backend of the built-in tools that read and run skills."""

from typing import BinaryIO

from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import DirectSkillResult, SkillDetail
from apexbridge.skills.runs.execution import Call, refuse_direct
from apexbridge.skills.tools.factory import told
from apexbridge.tools.builtin.skill_tools import Instructions
from apexbridge.tools.builtin.skill_tools import RunSkillInput as SkillCall
from apexbridge.tools.builtin.skill_tools import signature as told_arguments
from apexbridge.tools.tool import ToolContext, ToolResult


class SkillDesk:
    """Provides instructions, files and runs of skills to the built-in tools."""

    def __init__(self, skills: SkillManager) -> None:
        self._skills = skills

    async def instructions(self, name: str) -> Instructions:
        """Read a skill's instructions.

        Raises:
            SkillNotFoundError: there is no skill with this name.
            DirectModeDisabledError: the skill is in direct mode, which the operator has disabled.
        """
        detail = await self._skills.get_skill(name)
        if detail.mode == "direct":
            refuse_direct(name, self._skills.get_config())
        return Instructions(
            name=detail.name,
            mode=detail.mode,
            content=detail.content,
            files=[file.path for file in detail.files],
            scripts=[_told_script(detail, path) for path in detail.scripts],
            allowed_tools=detail.allowed_tools,
        )

    async def open_file(self, name: str, path: str) -> BinaryIO:
        """Open one of the skill's files.

        Raises:
            SkillError: FILE_NOT_FOUND.
        """
        return await self._skills.open_skill_file(name, path)

    async def run(self, name: str, call: SkillCall, context: ToolContext) -> ToolResult:
        """Run the skill, or one of its scripts, with the conversation and approval of the tool call."""
        wanted = Call(input=call.input, script=call.script, args=call.args, files=call.files)
        started = await self._skills.start_skill(
            name, wanted, conversation=context.conversation, approval=context.approval
        )
        return told(started if isinstance(started, DirectSkillResult) else await started.result())


def _told_script(detail: SkillDetail, path: str) -> str:
    """The path of a script, followed by its arguments if they are known."""
    schema = detail.script_parameters.get(path)
    return f"{path} ({told_arguments(schema)})" if schema and told_arguments(schema) else path
