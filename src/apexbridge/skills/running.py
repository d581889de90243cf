"""Runs skills, and manages the grants and dependencies for their runs."""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread

from apexbridge.errors import InvalidInputError, SkillError, SkillNotFoundError, ToolNotFoundError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.models import DirectSkillResult, Mode
from apexbridge.skills.ports import SkillToolSource, StartedRun
from apexbridge.skills.runs.execution import Call, SkillExecution, refuse_disabled
from apexbridge.skills.runs.grants import GrantView, Place
from apexbridge.skills.runs.inputs import HeldFiles
from apexbridge.skills.runs.layers import NeedsView, SkillNeeds
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.locks import Gate
from apexbridge.skills.tools.factory import own_input
from apexbridge.skills.views import SkillViews
from apexbridge.tools.approvals import Admission
from apexbridge.tools.approvals import Approvals as Confirmation
from apexbridge.tools.calls import CallRecord
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.executor import Admitted
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import ToolContext


class SkillRunning(SkillViews):
    """The part of `SkillManager` that runs skills."""

    _execution: SkillExecution
    _gate: Gate
    confirmation: Confirmation
    _tool_source: Callable[[Row], SkillToolSource]
    tools: ToolRegistry
    """The registry in which every skill is a tool."""
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
            SkillNotFoundError: ENOENT.
            InvalidInputError: the input does not match the skill's schema.
            SkillError: CONFIRMATION_REQUIRED, the skill is dangerous and needs an `approval`.
            DirectModeDisabledError: the call is in direct mode, which the operator disabled.
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
        """Like `execute_skill`, but does not wait for the run to end."""
        with ExitStack() as stack:  # owned by the run once it is started
            stack.enter_context(await self._gate.enter())  # the skill roots cannot change until the run ends
            row, place = await self._standing(name)
            refuse_disabled(row)
            call = _own_call(call or Call(), self._tool_source(row))
            mode = call.mode_for(row, self._config)
            is_dangerous = mode == "sandbox" and row.dangerous
            held = None
            if is_dangerous and call.files and self.tools.executor.asks(conversation):
                caller = conversation.caller if conversation else ""
                try:
                    held = stack.enter_context(await self._execution.hold(call.files, caller=caller))
                except InvalidInputError:
                    if approval is None:
                        raise
                    # Unreadable files cannot be the approved ones: without digests the approval never matches.
            try:
                admitted = await self.tools.executor.admit(
                    skill_tool_id(name),
                    call.input,
                    conversation=conversation,
                    approval=approval,
                    extra={**call.besides_input, **({"files": held.described} if held else {})},
                    validate=mode == "sandbox" and call.is_plain(row),
                    dangerous=is_dangerous,
                )
            except ToolNotFoundError as error:
                raise SkillNotFoundError(name, code="ENOENT") from error
            async with _released_on_failure(admitted.admission):
                begun = _Beginning(
                    call=call,
                    mode=mode,
                    caller=admitted.conversation.caller,
                    content=admitted.tool.metadata.content_hash,
                    is_approved=admitted.admission is not None,
                    held=held,
                )
                started = await self._begin(row, place, begun)
            self._follow(admitted, started, stack.pop_all())
            return started

    async def call_as_tool(
        self, source: SkillToolSource, input: Mapping[str, Any], context: ToolContext
    ) -> ExecutionResult | DirectSkillResult:
        """Execute a call of a skill's tool that is already admitted."""
        async with self._gate.working():
            async with _released_on_failure(context.admission):
                row, place = await self._standing(source.metadata.name)
                begun = _Beginning(
                    call=Call(input=input),
                    mode=source.mode,
                    caller=context.caller,
                    content=source.content_hash,
                    is_approved=context.admission is not None,
                )
                started = await self._begin(row, place, begun)
            return started if isinstance(started, DirectSkillResult) else await started.result()

    async def _standing(self, name: str) -> tuple[Row, Place]:
        """A skill's row and folder, both of the same version."""
        try:
            async with self._reading(name) as row:
                return row, await anyio.to_thread.run_sync(Place.of, self._folder(row))
        except SkillNotFoundError as error:
            raise SkillNotFoundError(name, code="ENOENT") from error

    async def _begin(self, row: Row, place: Place, begun: "_Beginning") -> StartedRun | DirectSkillResult:
        """Start the admitted call.

        Raises:
            SkillError: BUSY, the skill was replaced after the admission.
        """
        if row.content_hash != begun.content:
            raise SkillError(f"{row.name} was changed a moment ago; call it again.", skill=row.name, code="BUSY")
        if begun.mode == "direct":
            return await self._execution.execute_direct(row, place.folder, self._config, begun.call.input)
        return await self._execution.start(
            row,
            place,
            self._config,
            begun.call,
            caller=begun.caller,
            confirmed=begun.content if begun.is_approved else None,
            held=begun.held,
        )

    def _follow(self, admitted: Admitted, started: StartedRun | DirectSkillResult, held: ExitStack) -> None:
        """Record the call and its end, and keep its resources open until then."""
        with ExitStack() as stack:
            stack.push(held)
            if not isinstance(started, DirectSkillResult):
                stack.callback(started.cancel)  # a run without a record is cancelled
            id = uuid.uuid4().hex if isinstance(started, DirectSkillResult) else started.id
            record = self.tools.executor.open(admitted, id)
            record.run()
            if isinstance(started, DirectSkillResult):
                record.complete(started.content)
            else:
                started.when_over(lambda result: _end(record, result, held))
                stack.pop_all()

    async def execute_skill_direct(self, name: str, input: Mapping[str, Any] | None = None) -> DirectSkillResult:
        """A skill's instructions, regardless of its mode."""
        row = await self._live(name, code="ENOENT")
        refuse_disabled(row)
        return await self._execution.execute_direct(row, self._folder(row), self._config, input or {})

    # ---------------------------------------------------------------------------------- grants and dependencies
    async def grant(self, name: str, permission: str) -> GrantView:
        """Grant a requested permission to a skill. The grant is void once the skill's content changes."""
        row = await self._live(name)
        return await self.grants.grant(row, self._folder(row), permission)

    async def revoke(self, name: str, permission: str) -> None:
        """Revoke a granted permission."""
        await self.grants.revoke(await self._live(name), permission)

    async def grants_of(self, name: str) -> list[GrantView]:
        """The requested and granted permissions of a skill."""
        return await self.grants.views(await self._live(name))

    async def dependencies_of(self, name: str) -> NeedsView:
        """The declared dependencies of a skill, and whether they are installed."""
        row = await self._live(name)
        return await self.needs.view(row, self._folder(row))

    async def install_dependencies(self, name: str, progress: Callable[[str], None] | None = None) -> NeedsView:
        """Install the declared dependencies of a skill. Runs never install anything."""
        row = await self._live(name)
        return await self.needs.install(row, self._folder(row), progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """An admitted call."""

    call: Call
    mode: Mode
    caller: str
    content: str
    """Content hash of the admitted skill."""
    is_approved: bool
    """Whether a person approved exactly this call."""
    held: HeldFiles | None = None
    """Copies of the approved files."""


@asynccontextmanager
async def _released_on_failure(admission: Admission | None) -> AsyncIterator[None]:
    """Release the approval if the block fails: only a started call uses it up."""
    try:
        yield
    except BaseException:
        if admission is not None:
            await admission.release()
        raise
    if admission is not None:
        admission.settle()


def _end(record: CallRecord, result: ExecutionResult | None, held: ExitStack) -> None:
    held.close()
    if result is not None and result.success:
        record.complete(result.stdout)
    else:
        record.fail((result.error if result else None) or "The run could not be started")


def _own_call(call: Call, source: SkillToolSource) -> Call:
    """The call with a normalized script path, and without the skill's identifier in its input."""
    script = call.script.removeprefix("./") if call.script is not None else None
    return replace(call, script=script, input=own_input(source, call.input))
