"""Running skills: calls of them, and what an operator allows and installs for their runs."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apexbridge.errors import ApexBridgeError, ServerError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.catalog import Row
from apexbridge.skills.execution import Call, SkillExecution, refuse_disabled
from apexbridge.skills.grants import GrantView
from apexbridge.skills.locks import Gate
from apexbridge.skills.models import DirectSkillResult, Mode
from apexbridge.skills.needs import NeedsView, SkillNeeds
from apexbridge.skills.ports import SkillToolSource, StartedRun
from apexbridge.skills.views import SkillViews
from apexbridge.tools.confirmation import Confirmation
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.history import CallRecord
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import ToolContext


class SkillRunning(SkillViews):
    """The running half of the `SkillManager`."""

    _execution: SkillExecution
    _gate: Gate
    confirmation: Confirmation
    tools: ToolRegistry
    """Where every skill is a tool."""
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
        approval: str | None = None,
    ) -> ExecutionResult | DirectSkillResult:
        """Run a skill in the sandbox, or return its instructions in direct mode.

        Raises:
            SkillNotFoundError: with code ENOENT.
            InvalidInputError: the input does not fit the skill's schema.
            SkillError: CONFIRMATION_REQUIRED; a dangerous skill runs with an `approval` only.
            DirectModeDisabledError: the skill is a direct one and the operator switched that off.
        """
        call = Call(input=input or {}, mode=mode, script=script, args=args, files=files, timeout=timeout)
        started = await self.start_skill(name, call, approval=approval)
        return started if isinstance(started, DirectSkillResult) else await started.result()

    async def start_skill(
        self,
        name: str,
        call: Call | None = None,
        *,
        conversation: Conversation | None = None,
        approval: str | None = None,
    ) -> StartedRun | DirectSkillResult:
        """As `execute_skill`, without waiting for the end of a run."""
        call = call or Call()
        await self._gate.enter()  # until the run is over, its skill stays where it is
        try:
            row = await self._live(name, code="ENOENT")
            refuse_disabled(row)
            mode = call.mode_for(row, self._config)
            admitted = await self.tools.executor.admit(
                skill_tool_id(name),
                call.input,
                conversation=conversation,
                approval=approval,
                extra=call.besides_input,
                validate=mode == "sandbox" and call.is_plain(row),
                dangerous=mode == "sandbox" and row.dangerous,
            )
            identity = uuid.uuid4().hex
            record = self.tools.executor.open(admitted, identity)
            try:
                started = await self._begin(row, call, mode, identity, admitted.conversation.caller)
            except ApexBridgeError:
                await self.confirmation.give_back(admitted.approval)
                raise
        except BaseException:
            self._gate.leave()
            raise
        record.run()
        if isinstance(started, DirectSkillResult):
            self._gate.leave()
            record.complete(started.content)
        else:
            started.when_over(lambda result: self._is_over(record, result))
        return started

    async def call_as_tool(
        self, source: SkillToolSource, input: Mapping[str, Any], context: ToolContext
    ) -> ExecutionResult | DirectSkillResult:
        """What a call of a skill's tool does; it was admitted already."""
        async with self._gate.working():
            row = await self._live(source.metadata.name, code="ENOENT")
            if row.content_hash != source.content_hash and row.dangerous:
                raise ServerError(f"{row.name} was changed a moment ago; call it again.", code="BUSY")
            started = await self._begin(row, Call(input=input), source.mode, context.call_id, context.caller)
            return started if isinstance(started, DirectSkillResult) else await started.result()

    async def _begin(
        self, row: Row, call: Call, mode: Mode, identity: str, caller: str
    ) -> StartedRun | DirectSkillResult:
        if mode == "direct":
            return await self._execution.execute_direct(row, self._folder(row), self._config, call.input)
        return await self._execution.start(row, self._folder(row), self._config, call, id=identity, caller=caller)

    def _is_over(self, record: CallRecord, result: ExecutionResult | None) -> None:
        self._gate.leave()
        if result is not None and result.success:
            record.complete(result.stdout)
        else:
            record.fail((result.error if result else None) or "The run could not be started")

    async def execute_skill_direct(self, name: str, input: Mapping[str, Any] | None = None) -> DirectSkillResult:
        """A skill's instructions, whatever its mode."""
        row = await self._live(name, code="ENOENT")
        refuse_disabled(row)
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
