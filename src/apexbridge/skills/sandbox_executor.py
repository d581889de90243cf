"""SkillsSandboxExecutor: a small Python API that runs skills by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from apexbridge.sandbox.diagnosis import Diagnosis, diagnose
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import CallStatistics, DirectSkillResult
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.schema import InputProblem
from apexbridge.wire import WireModel


class InputVerdict(WireModel):
    """Whether an input fits a skill's parameters."""

    valid: bool
    errors: list[InputProblem]


class SkillsSandboxExecutor:
    """Runs skills in the sandbox and reports their statistics."""

    def __init__(self, skills: SkillManager, sandbox: Sandbox) -> None:
        self._skills = skills
        self._sandbox = sandbox

    async def execute(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,
        *,
        script: str | None = None,
        args: Sequence[str] = (),
        files: Sequence[str] = (),
        timeout: int | None = None,
        workspace: str | None = None,
        approval: str | None = None,
    ) -> ExecutionResult:
        """Run a skill's script, even if the skill's mode is direct. Failures of the script are in the result.

        Raises:
            SkillNotFoundError: ENOENT.
            SkillPermissionError: the script cannot be read.
        """
        result = await self._skills.execute_skill(
            name,
            input,
            "sandbox",
            script=script,
            args=args,
            files=files,
            timeout=timeout,
            workspace=workspace,
            approval=approval,
        )
        assert isinstance(result, ExecutionResult)  # noqa: S101  # follows from the mode
        return result

    async def execute_direct(self, name: str, input: Mapping[str, Any] | None = None) -> DirectSkillResult:
        """Render a skill's instructions with the input."""
        return await self._skills.execute_skill_direct(name, input)

    async def validate_input(self, name: str, input: Mapping[str, Any]) -> InputVerdict:
        """Check an input against the skill's parameters. Nothing is run."""
        await self._skills.get_skill(name)
        _, problems = self._skills.tools.get(skill_tool_id(name)).parameters.read(input)
        return InputVerdict(valid=not problems, errors=problems)

    async def set_timeout(self, milliseconds: int) -> None:
        """Change the timeout of runs for which neither skill nor call sets one, until the next start.

        Raises:
            InvalidInputError: it is not positive, or above the operator's cap.
        """
        await self._skills.update_config({"sandbox_timeout": milliseconds})

    async def get_stats(self, name: str) -> CallStatistics:
        """Call count, success rate and average duration of a skill."""
        return await self._skills.skill_statistics(name)

    async def doctor(self) -> Diagnosis:
        """Test what the sandbox enforces on this host."""
        return await diagnose(self._sandbox.settings)
