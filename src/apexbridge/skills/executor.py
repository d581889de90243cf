"""SkillsSandboxExecutor: running skills by name, for Python users who want nothing else."""

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
    """Runs skills inside the walls and tells how they did."""

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
        approval: str | None = None,
    ) -> ExecutionResult:
        """Run a skill's script, whatever the skill's mode; what the script does wrong is in the result.

        Raises:
            SkillNotFoundError: with code ENOENT.
            SkillPermissionError: the script cannot be read.
        """
        result = await self._skills.execute_skill(
            name, input, "sandbox", script=script, args=args, files=files, timeout=timeout, approval=approval
        )
        assert isinstance(result, ExecutionResult)  # noqa: S101  # the mode was asked for
        return result

    async def execute_direct(self, name: str, input: Mapping[str, Any] | None = None) -> DirectSkillResult:
        """A skill's instructions with the input filled in."""
        return await self._skills.execute_skill_direct(name, input)

    async def validate_input(self, name: str, input: Mapping[str, Any]) -> InputVerdict:
        """Say whether an input fits the skill's parameters; nothing is run."""
        await self._skills.get_skill(name)
        _, problems = self._skills.tools.get(skill_tool_id(name)).parameters.read(input)
        return InputVerdict(valid=not problems, errors=problems)

    async def set_timeout(self, milliseconds: int) -> None:
        """Change how long a run may take where neither skill nor call says so, until the next start.

        Raises:
            InvalidInputError: it is not above 0, or above the operator's cap.
        """
        await self._skills.update_config({"sandbox_timeout": milliseconds})

    async def get_stats(self, name: str) -> CallStatistics:
        """How often a skill was called and how it went."""
        return await self._skills.skill_statistics(name)

    async def doctor(self) -> Diagnosis:
        """Prove what this host enforces."""
        return await diagnose(self._sandbox.settings)
