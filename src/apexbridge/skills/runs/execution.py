"""Calls of skills: selects mode and script, starts runs, renders instructions."""

import logging
import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from apexbridge.errors import (
    DirectModeDisabledError,
    InvalidInputError,
    SkillDisabledError,
    SkillNotFoundError,
    SkillPermissionError,
)
from apexbridge.skills.config import SkillManagerConfig, SkillsSettings
from apexbridge.skills.models import DirectSkillResult, Mode, effective_mode
from apexbridge.skills.package.entrypoint import runnable_scripts
from apexbridge.skills.package.fingerprint import look
from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.ports import RunRequest, SkillRunner, StartedRun
from apexbridge.skills.runs.direct import render
from apexbridge.skills.runs.grants import Place, SkillGrants
from apexbridge.skills.runs.inputs import HeldFiles
from apexbridge.skills.runs.layers import SkillNeeds
from apexbridge.skills.store.catalog import Row
from apexbridge.storage.statistics import CallStatisticsStore

SHOWN_SCRIPTS = 10
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call, as the caller requested it."""

    input: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode | None = None
    script: str | None = None
    args: Sequence[str] = ()
    files: Sequence[str] = ()
    timeout: int | None = None
    """Milliseconds."""

    def mode_for(self, row: Row, config: SkillManagerConfig) -> Mode:
        """The requested mode; else sandbox if the call has a script or arguments; else the skill's mode."""
        if self.mode is not None:
            return self.mode
        if self.script is not None or self.args:
            return "sandbox"
        return effective_mode(row.declared_mode, row.entry, config.default_mode)

    def is_plain(self, row: Row) -> bool:
        """Whether the call runs the entry script with an input object, which the skill's schema describes."""
        by_arguments = bool(self.args) and not self.input
        return self.script in (None, row.entry) and row.entry is not None and not by_arguments

    @property
    def besides_input(self) -> dict[str, Any]:
        """The other fields that determine what the call does."""
        return {
            "script": self.script,
            "timeout": self.timeout,
            "args": list(self.args),
            "files": list(self.files),
        }


class SkillExecution:
    """Starts sandbox runs and renders instructions."""

    def __init__(
        self,
        *,
        runner: SkillRunner,
        statistics: CallStatisticsStore,
        grants: SkillGrants,
        needs: SkillNeeds,
        settings: SkillsSettings,
    ) -> None:
        self._runner = runner
        self._grants = grants
        self._needs = needs
        self._statistics = statistics
        self._settings = settings

    async def hold(self, files: Sequence[str], *, caller: str) -> HeldFiles:
        """Copy a call's files, so that the run uses exactly what was approved."""
        return await self._runner.hold(files, caller=caller)

    async def start(
        self,
        row: Row,
        place: Place,
        config: SkillManagerConfig,
        call: Call,
        *,
        caller: str,
        confirmed: str | None,
        held: HeldFiles | None = None,
    ) -> StartedRun:
        """Start a run of the skill, or of one of its scripts.

        `confirmed` is the hash of the approved content, if approval was required; other content is not run. `held` are
        the call's files, if they were approved; the caller closes them when the run is over.
        """
        target = row.entry
        if call.script is not None or target is None:
            target = await anyio.to_thread.run_sync(_script, row, place.folder, call.script)
        # Fail now if a granted value is missing. The run's grants are computed again when its turn comes.
        await self._grants.for_run(row, place, confirmed=confirmed)
        layers, warnings = await self._needs.for_run(row, place.folder)
        wanted = call.timeout or row.metadata.timeout_ms or config.sandbox_timeout
        request = RunRequest(
            id=uuid.uuid4().hex,
            skill=row.name,
            folder=place.folder,
            script=target,
            content_hash=row.content_hash,
            input=call.input,
            args=tuple(call.args) or _argv(row, target, call.input),
            files=tuple(call.files),
            held=held,
            caller=caller,
            timeout_ms=min(wanted, self._settings.max_sandbox_timeout_ms),
            is_entry=target == row.entry,
            grants=lambda: self._grants.for_run(row, place, confirmed=confirmed),
            layers=layers,
            warnings=tuple(warnings),
        )
        return await self._runner.start(request)

    async def execute_direct(
        self, row: Row, folder: Path, config: SkillManagerConfig, input: Mapping[str, Any]
    ) -> DirectSkillResult:
        """Render the instructions."""
        refuse_direct(row.name, config)
        begun = time.monotonic()
        try:
            markdown = await anyio.to_thread.run_sync((folder / row.filename).read_bytes)
        except FileNotFoundError as error:
            raise SkillNotFoundError(row.name, code="ENOENT") from error
        except OSError as error:
            raise SkillPermissionError(
                f"{row.filename} cannot be read", skill=row.name, cause=error.strerror
            ) from error
        body = parse_leniently(markdown.decode("utf-8", "replace")).body
        result = render(name=row.name, body=body, source_path=f"{row.folder}/{row.filename}", input=input)
        took = round((time.monotonic() - begun) * 1000)
        await self._count(row.name, success=True, duration_ms=took)
        return result

    async def _count(self, name: str, *, success: bool, duration_ms: int) -> None:
        """Count the call. If the counter cannot be written, the call still succeeds."""
        try:
            await self._statistics.record(name, success=success, duration_ms=duration_ms)
        except sqlite3.Error:
            logger.warning("a call of %s could not be counted", name, exc_info=True)


def _argv(row: Row, target: str, input: Mapping[str, Any]) -> tuple[str, ...]:
    """Convert the input to the arguments that the script declares in its source.

    An entry script also receives the whole input as JSON, so fields that it does not declare are left out here.
    """
    known = row.arguments.get(target)
    if known is None:
        return ()
    names = {argument.name for argument in (*known.options, *known.positionals)}
    try:
        return tuple(known.argv({key: value for key, value in input.items() if target != row.entry or key in names}))
    except ValueError as error:
        raise InvalidInputError(f"The input does not fit {target}: {error}", skillName=row.name) from error


def refuse_direct(name: str, config: SkillManagerConfig) -> None:
    """Check that direct mode is enabled.

    Raises:
        DirectModeDisabledError: it is disabled.
    """
    if not config.enable_direct_mode:
        raise DirectModeDisabledError(
            "Direct mode is switched off; only sandboxed skills answer.", skill=name, mode="direct"
        )


def refuse_disabled(row: Row) -> None:
    """Check that the skill is enabled.

    Raises:
        SkillDisabledError: it is disabled.
    """
    if not row.enabled:
        raise SkillDisabledError(f"{row.name} is disabled; enable it first.", skill=row.name)


def _script(row: Row, folder: Path, wanted: str | None) -> str:
    """The script to run: the named one, or the only one of a skill without an entry script."""
    available = [file.path for file in look(folder).files]
    if wanted is not None:
        wanted = wanted.removeprefix("./")
        if wanted == row.entry or wanted in runnable_scripts(available):
            return wanted
        known = runnable_scripts(available)
        told = f"; it has {', '.join(known[:SHOWN_SCRIPTS])}" if known else ""
        raise InvalidInputError(f"{row.name} has no script {wanted[:200]}{told}", skillName=row.name, scripts=known)
    scripts = runnable_scripts(available)
    if len(scripts) == 1:
        return scripts[0]
    what = "several scripts; name one of them" if scripts else "no script to run; use direct mode"
    raise InvalidInputError(f"{row.name} has {what}", skillName=row.name, scripts=scripts)
