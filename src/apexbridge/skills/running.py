"""Running skills: calls of them, and what an operator allows and installs for their runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.execution import Call, SkillExecution
from apexbridge.skills.grants import GrantView
from apexbridge.skills.locks import Gate
from apexbridge.skills.models import DirectSkillResult, Mode
from apexbridge.skills.needs import NeedsView, SkillNeeds
from apexbridge.skills.ports import StartedRun
from apexbridge.skills.views import SkillViews


class SkillRunning(SkillViews):
    """The running half of the `SkillManager`."""

    _execution: SkillExecution
    _gate: Gate
    needs: SkillNeeds

    # -------------------------------------------------------------------------------------------------- running
    async def execute_skill(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,
        mode: Mode | None = None,
        *,
        script: str | None = None,
        args: Sequence[str] = (),
        files: Sequence[str] = (),
        timeout: int | None = None,
    ) -> ExecutionResult | DirectSkillResult:
        """Run a skill in the sandbox, or return its instructions in direct mode.

        Raises:
            SkillNotFoundError: with code ENOENT.
            DirectModeDisabledError: the skill is a direct one and the operator switched that off.
        """
        call = Call(input=input or {}, mode=mode, script=script, args=args, files=files, timeout=timeout)
        started = await self.start_skill(name, call)
        return started if isinstance(started, DirectSkillResult) else await started.result()

    async def start_skill(self, name: str, call: Call | None = None) -> StartedRun | DirectSkillResult:
        """As `execute_skill`, without waiting for the end of a run."""
        call = call or Call()
        await self._gate.enter()  # until the run is over, its skill stays where it is
        try:
            row = await self._live(name, code="ENOENT")
            if call.mode_for(row, self._config) == "direct":
                rendered = await self._execution.execute_direct(row, self._folder(row), self._config, call.input)
                self._gate.leave()
                return rendered
            started = await self._execution.start(row, self._folder(row), self._config, call)
        except BaseException:
            self._gate.leave()
            raise
        started.when_over(self._gate.leave)
        return started

    async def execute_skill_direct(self, name: str, input: Mapping[str, Any] | None = None) -> DirectSkillResult:
        """A skill's instructions, whatever its mode."""
        row = await self._live(name, code="ENOENT")
        return await self._execution.execute_direct(row, self._folder(row), self._config, input or {})

    # ---------------------------------------------------------------------------------- grants and dependencies
    async def grant(self, name: str, permission: str) -> GrantView:
        """Allow a skill something that it asks for, for as long as its content stays the same."""
        row = await self._live(name)
        return await self.grants.grant(row, self._folder(row), permission)

    async def revoke(self, name: str, permission: str) -> None:
        """Take a permission back."""
        await self.grants.revoke(await self._live(name), permission)

    async def grants_of(self, name: str) -> list[GrantView]:
        """What a skill asks for and what it was given."""
        return await self.grants.views(await self._live(name))

    async def dependencies_of(self, name: str) -> NeedsView:
        """What a skill declares to need, and whether it is installed."""
        row = await self._live(name)
        return await self.needs.view(row, self._folder(row))

    async def install_dependencies(self, name: str, progress: Callable[[str], None] | None = None) -> NeedsView:
        """Install what a skill declares; a run never does."""
        row = await self._live(name)
        return await self.needs.install(row, self._folder(row), progress)
