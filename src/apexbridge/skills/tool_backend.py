"""What the built-in tools `read-skill`, `run-skill` and `run-code` need from the skills."""

from collections.abc import Collection, Sequence

from apexbridge.errors import InvalidInputError
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import DirectSkillResult, SkillDetail
from apexbridge.skills.runs.code_runs import CodeRuns
from apexbridge.skills.runs.run_progress import result_of
from apexbridge.skills.runs.skill_layers import DetectedPackage
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.tool_factory import tool_result
from apexbridge.tools.builtin.code_tool import RunCodeInput
from apexbridge.tools.builtin.skill_tools import Instructions, RunSkillInput
from apexbridge.tools.builtin.skill_tools import signature as told_arguments
from apexbridge.tools.naming import MCP_CATEGORY
from apexbridge.tools.tool import ToolContext, ToolResult


class SkillToolBackend:
    """Provides instructions, files and runs of skills, and runs of code, to the built-in tools."""

    def __init__(self, skills: SkillManager, code: CodeRuns) -> None:
        self._skills = skills
        self._code = code
        self.open_file = skills.open_named_file
        self.may_run_code = code.may_run

    async def instructions(self, name: str, *, with_packages: bool = False) -> Instructions:
        """Read a skill's instructions, on request with the packages and programs that its code uses.

        Raises:
            SkillNotFoundError: there is no skill with this name.
            DirectModeDisabledError: the skill is in direct mode, which the operator has disabled.
        """
        detail = await self._skills.get_skill(name)
        if detail.mode == "direct":
            self._skills.runner.check_direct_mode(name)
        used = (await self._skills.dependencies_of(name, detect=True)).detected if with_packages else None
        return Instructions(
            name=detail.name,
            mode=detail.mode,
            content=detail.content,
            files=[file.path for file in detail.files],
            scripts=[_with_arguments(detail, path) for path in detail.scripts],
            dangerous=detail.dangerous,
            allowed_tools=detail.allowed_tools,
            available=_names(used, ("installed", "bundle")),
            missing=_names(used, ("declared", "missing")),
        )

    async def run(self, call: RunSkillInput, context: ToolContext) -> ToolResult:
        """Run the skill, or one of its scripts, with the conversation and approval of the tool call.

        A tool of an MCP server that a search has found is called by its name in the same way.
        """
        tool = context.registry.find(call.name)
        if tool is not None and tool.metadata.category == MCP_CATEGORY:
            if call.script or call.args or call.files:
                raise InvalidInputError(f"{tool.id} is a tool of an MCP server: it takes `input` alone.", tool=tool.id)
            return await context.registry.execute(
                tool.id,
                call.input,
                conversation=context.conversation,
                approval=context.approval,
                progress=context.progress,
            )
        started = await self._skills.runner.call(
            SkillCall(
                skill=call.name,
                input=call.input,
                script=call.script,
                args=call.args,
                files=call.files,
                conversation=context.conversation,
                approval=context.approval,
                call_id=context.call_id,
                on_run=context.on_run,
            )
        )
        if isinstance(started, DirectSkillResult):
            return tool_result(started)
        return tool_result(await result_of(started, context.progress))

    async def run_code(self, input: RunCodeInput, context: ToolContext) -> ToolResult:
        """Run code with the files and skills of the conversation."""
        result = await self._code.run(
            input.language,
            input.code,
            timeout_ms=input.timeout,
            conversation=context.conversation,
            progress=context.progress,
            on_run=context.on_run,
        )
        return tool_result(result, with_stderr=True)


def _names(used: Sequence[DetectedPackage] | None, states: Collection[str]) -> list[str]:
    """The names of packages and programs in one of these states, each once."""
    return list(
        dict.fromkeys(
            one.name if one.kind == "program" else one.package or one.name for one in used or () if one.status in states
        )
    )


def _with_arguments(detail: SkillDetail, path: str) -> str:
    """The path of a script, followed by its arguments if they are known."""
    schema = detail.script_parameters.get(path)
    return f"{path} ({told_arguments(schema)})" if schema and told_arguments(schema) else path
