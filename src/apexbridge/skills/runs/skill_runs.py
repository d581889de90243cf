"""The one way to run a skill: from the HTTP API, as the tool `skill:NAME`, or through `run-skill`."""

import functools
import logging
import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apexbridge._tasks import in_thread
from apexbridge.errors import (
    DirectModeDisabledError,
    InvalidInputError,
    SkillDisabledError,
    SkillError,
    SkillNotFoundError,
    SkillPermissionError,
    ToolNotFoundError,
)
from apexbridge.sandbox.models import ExecutionResult, Job
from apexbridge.skills import Mode
from apexbridge.skills.models import DirectSkillResult
from apexbridge.skills.package.fingerprint import scan_folder
from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.package.named_files import NamedFile, NoSuchNameError, find_script
from apexbridge.skills.package.skill import effective_mode, runnable_scripts
from apexbridge.skills.runs.direct import render
from apexbridge.skills.runs.grants import SkillFolder, SkillGrants
from apexbridge.skills.runs.input_files import HeldFiles
from apexbridge.skills.runs.skill_layers import SkillLayers
from apexbridge.skills.runs.tracker import Run, RunTracker
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.storage.call_statistics import CallStatisticsStore
from apexbridge.tools.calls import CallRecord
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.executor import Admission, ToolExecutor
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.tool import OnRun, ignore_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillCall:
    """A call, as the caller requested it."""

    skill: str
    input: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode | None = None
    """None: sandbox if the call names a script or arguments, else the skill's own mode."""
    script: str | None = None
    args: Sequence[str] = ()
    files: Sequence[str] = ()
    timeout: int | None = None
    """Milliseconds."""
    conversation: Conversation = field(default_factory=Conversation)
    approval: str | None = None
    call_id: str | None = None
    """Id of the tool call; None if the skill is not called as a tool."""
    on_run: OnRun = ignore_run
    """Called when the run exists."""

    @property
    def caller(self) -> str:
        return self.conversation.caller

    def is_plain(self, row: Row) -> bool:
        """Whether the call runs the entry script with an input object, which the skill's schema describes."""
        by_arguments = bool(self.args) and not self.input
        return self.script in (None, row.entry) and row.entry is not None and not by_arguments


class SkillRuns:
    """Admits calls of skills, starts their runs, and renders instructions."""

    def __init__(
        self,
        store: SkillStore,
        executor: ToolExecutor,
        *,
        tracker: RunTracker | None,
        grants: SkillGrants,
        layers: SkillLayers,
        statistics: CallStatisticsStore,
        max_timeout_ms: int,
    ) -> None:
        self._store = store
        self._executor = executor
        self._tracker = tracker
        self._grants = grants
        self._layers = layers
        self._statistics = statistics
        self._max_timeout_ms = max_timeout_ms

    async def call(self, call: SkillCall) -> Run | DirectSkillResult:
        """Start a run of a skill, or return its instructions in direct mode.

        Raises:
            SkillNotFoundError: ENOENT.
            SkillDisabledError, DirectModeDisabledError: the operator disabled the skill, or direct mode.
            InvalidInputError: the input does not match the skill's schema, or a script or a file is missing.
            SkillError: CONFIRMATION_REQUIRED, the skill is dangerous and needs an `approval`; BUSY, the skill was
                replaced during the call.
            ServerError: QUEUE_FULL, STORAGE_FULL, SANDBOX_UNAVAILABLE.
        """
        # `RunTracker.start` takes these over and closes them when the run ends. On any earlier exit they close here.
        with ExitStack() as resources:
            resources.enter_context(await self._store.gate.enter())  # the roots cannot change until the run ends
            row, folder = await self._find(call.skill)
            call = _normalized(call, row)
            mode = call.mode or self._mode(row, call)
            script: NamedFile | None = None
            if mode == "sandbox" and call.script is not None:
                script = await in_thread(_named_script, row, folder.path, call.script)
                call = replace(call, script=script.name)  # an approval shows and is bound to what will run
            held = await self._hold(call, row, mode, resources)
            admission = await self._admit(call, row, mode, held)
            async with admission.begin():
                id = uuid.uuid4().hex
                record = self._executor.record(admission, call.call_id or id)
                record.mark_running()
                try:
                    if row.content_hash != admission.tool.metadata.content_hash:  # replaced since it was found
                        raise _busy(row.name)
                    if mode == "direct":
                        result = await self._render(row, folder.path, call.input, caller=call.caller)
                        record.complete(result.content)
                        return result
                    run = await self._start(id, call, row, folder, script, admission, held, resources)
                except BaseException as error:
                    record.fail(str(error) or "cancelled")
                    raise
                run.when_over(functools.partial(_end, record))
                call.on_run(run.id)
                return run

    async def result(self, call: SkillCall) -> ExecutionResult | DirectSkillResult:
        """Call a skill and wait for the result of its run. If the caller is cancelled, the run is cancelled too."""
        started = await self.call(call)
        return started if isinstance(started, DirectSkillResult) else await started.result()

    async def render(self, name: str, input: Mapping[str, Any]) -> DirectSkillResult:
        """A skill's instructions, regardless of its mode."""
        row = await self._store.live(name, code="ENOENT")
        _check_enabled(row)
        return await self._render(row, self._store.folder(row), input)

    def check_direct_mode(self, name: str) -> None:
        """Check that direct mode is enabled. Raises DirectModeDisabledError: it is disabled."""
        if not self._store.config.enable_direct_mode:
            raise DirectModeDisabledError(
                "Direct mode is switched off; only sandboxed skills can be called.", skill=name, mode="direct"
            )

    # ----------------------------------------------------------------------------------------------- admission
    async def _find(self, name: str) -> tuple[Row, SkillFolder]:
        """An enabled skill and its folder, both of the same version."""
        try:
            async with self._store.reading(name) as row:
                folder = await in_thread(SkillFolder.of, self._store.folder(row))
        except SkillNotFoundError as error:
            near = error.details.get("suggestions", ())
            raise SkillNotFoundError(name, code="ENOENT", near=near) from error
        _check_enabled(row)
        return row, folder

    def _mode(self, row: Row, call: SkillCall) -> Mode:
        if call.script is not None or call.args:
            return "sandbox"
        return effective_mode(row.declared_mode, row.entry, self._store.config.default_mode)

    async def _hold(self, call: SkillCall, row: Row, mode: Mode, resources: ExitStack) -> HeldFiles | None:
        """Copy the files of a call that needs approval, so that the run uses exactly what is approved."""
        needs_approval = mode == "sandbox" and row.dangerous and self._executor.needs_approval(call.conversation)
        if not needs_approval or not call.files or self._tracker is None:
            return None
        try:
            return resources.enter_context(await self._tracker.inputs.hold(call.files, conversation=call.conversation))
        except InvalidInputError:
            if call.approval is None:
                raise
            return None  # unreadable files cannot be the approved ones: without digests the approval never matches

    async def _admit(self, call: SkillCall, row: Row, mode: Mode, held: HeldFiles | None) -> Admission:
        files = held.described if held else list(call.files)
        try:
            return await self._executor.admit(
                skill_tool_id(row.name),
                call.input,
                conversation=call.conversation,
                approval=call.approval,
                extra={"script": call.script, "timeout": call.timeout, "args": list(call.args), "files": files},
                validate=mode == "sandbox" and call.is_plain(row),
                dangerous=mode == "sandbox" and row.dangerous,
            )
        except ToolNotFoundError as error:
            raise SkillNotFoundError(row.name, code="ENOENT") from error

    # --------------------------------------------------------------------------------------------- the two modes
    async def _start(
        self,
        id: str,
        call: SkillCall,
        row: Row,
        folder: SkillFolder,
        script: NamedFile | None,
        admission: Admission,
        held: HeldFiles | None,
        resources: ExitStack,
    ) -> Run:
        if script is None:
            entry = row.entry
            script = NamedFile(path=await in_thread(_only_script, row, folder.path) if entry is None else entry)
        if self._tracker is None:
            raise SkillError(
                "No sandbox is available, so scripts are not run; the skill's instructions can be read.",
                skill=row.name,
                code="SANDBOX_UNAVAILABLE",
                mode="sandbox",
            )
        approved = row.content_hash if admission.approval else None
        grants = functools.partial(self._grants.for_run, row, folder, approved=approved)
        await grants()  # fail now if a granted value is missing; computed again when the run leaves the queue
        layers, warnings = await self._layers.for_run(row, folder.path)
        await self._tracker.check_quota(call.caller)
        if held is not None:
            files = held.opened
        else:
            files = await self._tracker.inputs.open(call.files, conversation=call.conversation, resources=resources)
        timeout = call.timeout or row.metadata.timeout_ms or self._store.config.sandbox_timeout
        job = Job(
            skill=row.name,
            folder=folder.path,
            script=script.path,
            module=script.module,
            input=call.input,
            args=tuple(call.args) or _argv(row, script.path, call.input),
            is_entry=script.path == row.entry,
            files=files.inputs,
            timeout_ms=min(timeout, self._max_timeout_ms),
            layers=layers,
            workspace=call.conversation.workspace,
            warnings=(*([script.notice] if script.notice else []), *files.warnings, *warnings),
        )
        return await self._tracker.start(
            id,
            job,
            caller=call.caller,
            content_hash=row.content_hash,
            files=call.files,
            grants=grants,
            resources=resources,
            origin=call.conversation.origin,
        )

    async def _render(self, row: Row, folder: Path, input: Mapping[str, Any], *, caller: str = "") -> DirectSkillResult:
        self.check_direct_mode(row.name)
        begun = time.monotonic()
        try:
            markdown = await in_thread((folder / row.filename).read_bytes)
        except FileNotFoundError as error:
            raise SkillNotFoundError(row.name, code="ENOENT") from error
        except OSError as error:
            raise SkillPermissionError(
                f"{row.filename} cannot be read", skill=row.name, cause=error.strerror
            ) from error
        body = parse_leniently(markdown.decode("utf-8", "replace")).body
        result = render(name=row.name, body=body, source_path=f"{row.folder}/{row.filename}", input=input)
        duration_ms = round((time.monotonic() - begun) * 1000)
        try:
            await self._statistics.record(row.name, success=True, duration_ms=duration_ms)
        except sqlite3.Error:  # the call succeeds even if it cannot be counted
            logger.warning("a call of %s could not be counted", row.name, exc_info=True)
        if self._tracker is not None:
            self._tracker.note_direct_call(row.name, caller)
        return result


def _busy(name: str) -> SkillError:
    return SkillError(f"{name} was changed a moment ago; call it again.", skill=name, code="BUSY")


def _check_enabled(row: Row) -> None:
    if not row.enabled:
        raise SkillDisabledError(f"{row.name} is disabled; enable it first.", skill=row.name)


def _normalized(call: SkillCall, row: Row) -> SkillCall:
    """The call without the skill's own name in its input, unless the skill declares `name`."""
    schema = row.parameters or {}
    declares_name = "name" in (schema.get("properties") or ()) or "name" in (schema.get("required") or ())
    input = dict(call.input)
    if not declares_name and input.get("name") == row.name:
        del input["name"]
    return replace(call, input=input)


def _end(record: CallRecord, result: ExecutionResult | None) -> None:
    if result is not None and result.success:
        record.complete(result.stdout)
    else:
        record.fail((result.error if result else None) or "The run could not be started")


def _named_script(row: Row, folder: Path, written: str) -> NamedFile:
    """The script that a call names."""
    if written == row.entry:
        return NamedFile(path=written)
    paths = [file.path for file in scan_folder(folder).files]
    try:
        return find_script(row.name, written, paths)
    except NoSuchNameError as error:
        raise InvalidInputError(
            str(error), skillName=row.name, scripts=runnable_scripts(paths), suggestions=error.suggestions
        ) from error


def _only_script(row: Row, folder: Path) -> str:
    """The only script of a skill without an entry script."""
    scripts = runnable_scripts(file.path for file in scan_folder(folder).files)
    if len(scripts) == 1:
        return scripts[0]
    what = "several scripts; name one of them" if scripts else "no script to run; use direct mode"
    raise InvalidInputError(f"{row.name} has {what}", skillName=row.name, scripts=scripts)


def _argv(row: Row, script: str, input: Mapping[str, Any]) -> tuple[str, ...]:
    """Convert the input to the arguments that the script declares in its source.

    An entry script also receives the whole input as JSON, so fields that it does not declare are left out here.
    """
    known = row.arguments.get(script)
    if known is None:
        return ()
    names = {argument.name for argument in (*known.options, *known.positionals)}
    try:
        return tuple(known.argv({key: value for key, value in input.items() if script != row.entry or key in names}))
    except ValueError as error:
        raise InvalidInputError(f"The input does not fit {script}: {error}", skillName=row.name) from error
