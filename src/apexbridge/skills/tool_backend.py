"""What the built-in tools `read-skill` and `run-skill` need from the skills."""

from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import SkillDetail
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.tool_factory import tool_result
from apexbridge.tools.builtin.skill_tools import Instructions, RunSkillInput
from apexbridge.tools.builtin.skill_tools import signature as told_arguments
from apexbridge.tools.tool import ToolContext, ToolResult


class SkillToolBackend:
    """Provides instructions, files and runs of skills to the built-in tools."""

    def __init__(self, skills: SkillManager) -> None:
        self._skills = skills
        self.open_file = skills.open_skill_file

    async def instructions(self, name: str) -> Instructions:
        """Read a skill's instructions.

        Raises:
            SkillNotFoundError: there is no skill with this name.
            DirectModeDisabledError: the skill is in direct mode, which the operator has disabled.
        """
        detail = await self._skills.get_skill(name)
        if detail.mode == "direct":
            self._skills.runner.check_direct_mode(name)
        return Instructions(
            name=detail.name,
            mode=detail.mode,
            content=detail.content,
            files=[file.path for file in detail.files],
            scripts=[_with_arguments(detail, path) for path in detail.scripts],
            allowed_tools=detail.allowed_tools,
        )

    async def run(self, call: RunSkillInput, context: ToolContext) -> ToolResult:
        """Run the skill, or one of its scripts, with the conversation and approval of the tool call."""
        return tool_result(
            await self._skills.runner.result(
                SkillCall(
                    skill=call.name,
                    input=call.input,
                    script=call.script,
                    args=call.args,
                    files=call.files,
                    conversation=context.conversation,
                    approval=context.approval,
                    call_id=context.call_id,
                )
            )
        )


def _with_arguments(detail: SkillDetail, path: str) -> str:
    """The path of a script, followed by its arguments if they are known."""
    schema = detail.script_parameters.get(path)
    return f"{path} ({told_arguments(schema)})" if schema and told_arguments(schema) else path
