"""Runs of skills: active runs, the records of ended ones, and their files."""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from apexbridge._fs import make_private_folder, write_private
from apexbridge._safe_open import open_file_beneath
from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._text import near_names
from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.disk import Disk, blocks, size_on_disk
from apexbridge.errors import ApexBridgeError, RequestError, ServerError, did_you_mean
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.models import ExecutionResult, Grants, Job
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.skills.runs.events import RunEvent, RunLog
from apexbridge.skills.runs.input_files import InputFiles, UploadStore
from apexbridge.skills.runs.run_views import (
    INLINE_CHARACTERS,
    STREAMS,
    LongOutput,
    RecordedText,
    RunDetail,
    RunPage,
    RunSummary,
    TextSource,
    ended,
    failed,
    fits,
    replay,
    summary_fields,
)
from apexbridge.skills.store.locks import NameLocks
from apexbridge.storage.call_statistics import CallStatisticsStore
from apexbridge.storage.directory import storage_faults
from apexbridge.storage.run_store import RunFilter, RunRow, RunStore
from apexbridge.tools.conversation import Origin

REMEMBERED_RUNS = 100
REMEMBERED_CHARACTERS = 16 * 1024 * 1024
"""Limit for the logs of ended runs kept for reconnecting listeners; older ones are replayed from the records."""
LARGE_BYTES = 64 * 1024
"""Longer streams are sent from their file in chunks."""
SHORT_CHARACTERS = 1024
"""Output of each stream stored in the record while disk space is low."""
SWEEP_SECONDS = 3600
CLOSE_SECONDS = 10
"""Limit for the end of a cancelled run when the server stops."""
SWEEP_RUNS = 500
RECENT_RUNS = 500
"""Runs whose ids are compared with a mistyped one."""
OpenKept = Callable[[str, str, str], Awaitable[BinaryIO]]
"""Opens a file of a workspace by its id, the path there, and the caller."""
logger = logging.getLogger(__name__)


class RunListener(Protocol):
    """Is notified of every run that is queued, begins, ends or is deleted, and of every call in direct mode."""

    def run_changed(self, row: RunRow, *, is_deleted: bool = False) -> None: ...

    def direct_called(self, skill: str, caller: str) -> None: ...


class Run:
    """A queued or running run."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.log = RunLog()
        self._task: asyncio.Task[ExecutionResult] | None = None
        self._cancel: Callable[[], None] | None = None
        self.is_cancelled = False
        self.log.add("state", "pending")

    @property
    def id(self) -> str:
        return self.row.id

    def attach(self, task: "asyncio.Task[ExecutionResult]") -> None:
        """Set the task that executes the run."""
        self._task = task

    def begin(self, cancel: Callable[[], None]) -> None:
        """Mark the run as running; `cancel` stops its script."""
        self._cancel = cancel
        self.row = replace(self.row, state="running", started_at=now_ms())
        self.log.add("state", "running")
        if self.is_cancelled:
            cancel()

    def cancel(self) -> None:
        """Cancel the run, queued or running."""
        self.is_cancelled = True
        if self._cancel is not None:
            self._cancel()
        elif self._task is not None:
            # Not immediately: a task cancelled before its first step never runs the code that records its end.
            self._task.get_loop().call_soon(self._task.cancel)

    def when_over(self, call: Callable[[ExecutionResult | None], None]) -> None:
        """Add a callback for the end of the run. It receives the result, or None if the run failed without one."""
        assert self._task is not None  # noqa: S101  # set before the run is returned
        self._task.add_done_callback(
            lambda task: call(None if task.cancelled() or task.exception() is not None else task.result())
        )

    async def result(self) -> ExecutionResult:
        """Wait for the run to end. If the waiting task is cancelled, the run is cancelled too."""
        assert self._task is not None  # noqa: S101  # set before the run is returned
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._task.done():
                self.cancel()
                await run_to_completion(asyncio.wait([self._task]))
            raise


class RunTracker:
    """Starts, tracks and records runs."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        store: RunStore,
        statistics: CallStatisticsStore,
        folder: Path,
        inputs: InputFiles,
        uploads: UploadStore,
        open_kept: OpenKept,
        disk: Disk | None = None,
        record_input: bool = False,
        retention_days: int = 30,
        listener: RunListener | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._sandbox = sandbox
        self._store = store
        self._statistics = statistics
        self._folder = folder
        self.inputs = inputs
        self.uploads = uploads
        self._open_kept = open_kept
        self._disk = disk or Disk(folder)
        self._record_input = record_input
        self._retention_days = retention_days
        self._listener = listener
        self._tracer = tracer
        self._live: dict[str, Run] = {}
        self._ended: dict[str, Run] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._removals = NameLocks()
        """Held by run id during removal, so that its disk usage is released only once."""

    # ------------------------------------------------------------------------------------------------- starting
    async def check_quota(self, caller: str) -> None:
        """Check that the caller may store more. Raises ServerError: STORAGE_FULL."""
        if self._disk.is_measured(caller):
            self._disk.check(caller)
        else:
            await in_thread(self._disk.check, caller)

    async def start(
        self,
        id: str,
        job: Job,
        *,
        caller: str,
        content_hash: str,
        files: Sequence[str],
        grants: Callable[[], Awaitable[Grants]],
        resources: ExitStack,
        origin: Origin,
    ) -> Run:
        """Start a run. It is queued, and continues even if no caller waits for it.

        `files` are the names in the call. `grants` is called when the run leaves the queue. The run takes over the
        `resources` and closes them at its end.

        Raises:
            ServerError: SANDBOX_UNAVAILABLE or QUEUE_FULL.
            SkillPermissionError: the script cannot be read.
            InvalidInputError: the arguments or files are invalid.
        """
        await self._sandbox.check(job, caller=caller)
        self._sandbox.queue.reserve(caller)
        input = json.dumps(job.input, sort_keys=True, ensure_ascii=False)
        request = json.dumps([input, job.args, list(files)], ensure_ascii=False)
        row = RunRow(
            id=id,
            skill=job.skill,
            script=job.script,
            content_hash=content_hash,
            caller=caller,
            state="pending",
            created_at=now_ms(),
            input_digest=hashlib.sha256(request.encode("utf-8", "surrogatepass")).hexdigest(),
            origin=origin.kind,
            origin_id=origin.id,
            input=input if self._record_input and not self._disk.is_short else None,
        )
        run = Run(row)
        run.attach(asyncio.create_task(self._execute(run, job, grants, resources.pop_all())))
        self._live[run.id] = run
        self._notify(run.row)
        return run

    async def _execute(
        self, run: Run, job: Job, grants: Callable[[], Awaitable[Grants]], resources: ExitStack
    ) -> ExecutionResult:
        attributes = {"apexbridge.run.id": run.id, "apexbridge.skill": job.skill or None}
        with self._tracer.start(f"run {job.skill or 'code'}", attributes) as span, span.current():
            result = await self._executed(run, job, grants, resources)
            waited_ms = (run.row.started_at or run.row.created_at) - run.row.created_at
            span.add({"apexbridge.run.queue_seconds": waited_ms / 1000})
            if result.error_code is not None:
                span.fail(result.error_code)
            return result

    async def _executed(
        self, run: Run, job: Job, grants: Callable[[], Awaitable[Grants]], resources: ExitStack
    ) -> ExecutionResult:
        """Execute a run: wait in the queue, run the script, write the record and statistics, send the last event."""
        try:
            with resources:
                result = await self._sandbox.run(
                    job,
                    caller=run.row.caller,
                    is_reserved=True,
                    grants=grants,
                    run_id=run.id,
                    artifacts=self._folder / run.id / "files",
                    listener=run.log.add_output,
                    on_start=lambda cancel: self._begin(run, cancel),
                )
        except asyncio.CancelledError:
            if not run.is_cancelled:
                raise
            result = failed(run.id, "Execution cancelled", "CANCELLED")
        except Exception as error:  # raised for waiters, and recorded for listeners and later lookups
            reason = error.message if isinstance(error, ApexBridgeError) else "Something went wrong in the server"
            await self._end(run, failed(run.id, reason, "SPAWN_FAILED"))
            raise
        await self._end(run, result)
        return result

    def _begin(self, run: Run, cancel: Callable[[], None]) -> None:
        """Mark the run as running, and record that in the background, so that `recover` finds it after a crash."""
        run.begin(cancel)
        self._notify(run.row)
        task = asyncio.get_running_loop().create_task(self._note(run.row))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note(self, row: RunRow) -> None:
        try:
            await self._store.put(row)
        except Exception:
            logger.exception("the start of the run %s could not be recorded", row.id)

    async def _end(self, run: Run, result: ExecutionResult) -> None:
        row = ended(run.row, result)
        try:
            recorded = replace(row, result=await self._stored_result(run.row, result))
            await self._store.put(recorded)
            self._disk.add(recorded.caller, recorded.size)
            if run.row.started_at is not None and run.row.skill:
                await self._statistics.record(run.row.skill, success=result.success, duration_ms=result.duration)
        except Exception:  # return the result even if the record cannot be written
            logger.exception("the run %s of %s could not be recorded", run.id, run.row.skill)
        # After the record: listeners that see the last event can look the run up.
        run.row = row
        self._live.pop(run.id, None)
        self._remember(run)
        run.log.add("state", row.state)
        run.log.add("result", result)
        run.log.end()
        self._notify(row)

    def note_direct_call(self, skill: str, caller: str) -> None:
        """Notify the listener of a call in direct mode. It has no run."""
        if self._listener is not None:
            self._listener.direct_called(skill, caller)

    def _notify(self, row: RunRow, *, is_deleted: bool = False) -> None:
        if self._listener is not None:
            self._listener.run_changed(row, is_deleted=is_deleted)

    def _remember(self, run: Run) -> None:
        self._ended[run.id] = run
        while (
            len(self._ended) > REMEMBERED_RUNS
            or sum(ended.log.characters for ended in self._ended.values()) > REMEMBERED_CHARACTERS
        ):
            self._ended.pop(next(iter(self._ended)))

    async def _stored_result(self, row: RunRow, result: ExecutionResult) -> str:
        """The result as stored in the record. Long output is written to files if there is disk space."""
        inline = SHORT_CHARACTERS if self._disk.is_short else INLINE_CHARACTERS
        long = {name: text for name in STREAMS if len(text := getattr(result, name)) > inline}
        changes: dict[str, Any] = dict.fromkeys(long, "")
        if long or result.files:
            try:
                await in_thread(self._write_output, row, long)
            except (ServerError, OSError) as error:
                logger.warning("the output of the run %s was not kept: %s", row.id, error)
                changes = {name: text[:inline] for name, text in long.items()}
                changes["warnings"] = [*result.warnings, "most of the output was not kept: no space left for it"]
        return result.model_copy(update=changes).model_dump_json(exclude={"output"})

    def _write_output(self, row: RunRow, long: dict[str, str]) -> None:
        """Write long output next to the artifacts, and count both against the quota."""
        folder = self._folder / row.id
        try:
            with self._disk.claim(row.caller, self._folder) as claim:
                for name, text in long.items():
                    data = text.encode("utf-8", "replace")
                    claim.take(blocks(len(data)))
                    make_private_folder(folder)
                    write_private(folder / name, data)
        except (ServerError, OSError):
            for name in long:
                with suppress(OSError):
                    (folder / name).unlink()
            raise
        finally:
            self._disk.add(row.caller, size_on_disk(folder))

    # -------------------------------------------------------------------------------------------------- reading
    def counts(self, owner: str | None = None) -> tuple[int, int]:
        """How many runs are in progress and how many are queued, of all callers or of one."""
        states = [run.row.state for run in self._live.values() if _belongs(run.row, owner)]
        return states.count("running"), states.count("pending")

    async def page(self, filter: RunFilter, *, page: int, limit: int) -> RunPage:
        """Runs, newest first; active runs come before ended ones."""
        live = [run.row for run in reversed(self._live.values()) if fits(run.row, filter)]
        offset = (page - 1) * limit
        shown = live[offset : offset + limit]
        rows, total = await self._store.page(
            filter, besides=list(self._live), offset=max(0, offset - len(live)), limit=max(0, limit - len(shown))
        )
        return RunPage(
            executions=[RunSummary(**summary_fields(row)) for row in (*shown, *rows)],
            total=total + len(live),
            page=page,
            limit=limit,
        )

    # With `owner`, runs of other callers are treated as missing.
    async def get(self, id: str, *, owner: str | None = None) -> RunDetail:
        """Everything about one run. Raises RequestError: EXECUTION_NOT_FOUND."""
        detail, texts = await self.outline(id, owner=owner)
        if detail.result is None or not texts:
            return detail
        whole = {name: await in_thread(text.read) for name, text in texts.items()}
        result = detail.result.model_copy(update=whole)
        return detail.model_copy(update={"result": result})

    async def outline(self, id: str, *, owner: str | None = None) -> tuple[RunDetail, Mapping[str, RecordedText]]:
        """Everything about one run. Long streams are empty in the result and returned as files.

        Raises:
            RequestError: EXECUTION_NOT_FOUND.
        """
        if run := self._live_run(id, owner):
            return RunDetail(**summary_fields(run.row)), {}
        row = await self._row_of(id, owner)
        result, texts = await in_thread(self._result, row)
        return RunDetail(
            **summary_fields(row), input=json.loads(row.input) if row.input else None, result=result
        ), texts

    def long_output(self, id: str, streams: Mapping[str, str]) -> LongOutput:
        """The long streams of a run's result, as files if they were stored, so that the text can be freed."""
        folder = self._folder / id
        found: dict[str, TextSource] = {}
        for name, text in streams.items():
            path = folder / name
            if len(text) > LARGE_BYTES:
                found[name] = RecordedText(path) if path.is_file() else text
            elif not text and path.is_file():
                found[name] = RecordedText(path)
        return found

    async def events(
        self, id: str, after: int = 0, *, owner: str | None = None, waits: bool = True
    ) -> AsyncIterator[RunEvent]:
        """Yield the events of a run after that number, until it ends. Older runs are replayed from their record.

        Without `waits`, only the events so far. In a replay, `data` of a long stream is a `RecordedText`.
        """
        run = self._live.get(id) or self._ended.get(id)
        log = run.log if run and _belongs(run.row, owner) else replay(*await self.outline(id, owner=owner))
        async for event in log.follow(after, waits=waits):
            yield event

    async def open_file(self, id: str, path: str, *, owner: str | None = None) -> BinaryIO:
        """Open an artifact of a run; one that a workspace has kept, as it is there now.

        Raises:
            RequestError: EXECUTION_NOT_FOUND, or FILE_NOT_FOUND.
        """
        row = await self._row_of(id, owner)
        with suppress(OSError, ValueError):
            return await in_thread(open_file_beneath, self._folder / id / "files", path)
        result = json.loads(row.result or "{}")
        workspace, files = result.get("workspace"), result.get("files", ())
        if workspace is not None and any(file["path"] == path for file in files):
            with suppress(RequestError):
                return await self._open_kept(workspace, path, row.caller)
        gone = f". It was in the workspace {workspace}" if workspace is not None else ""
        raise RequestError(f"The run left no file {path[:200]}{gone}", code="FILE_NOT_FOUND")

    def _result(self, row: RunRow) -> tuple[ExecutionResult | None, dict[str, RecordedText]]:
        """The result with its short streams, and the files of the long ones."""
        if row.result is None:
            return None, {}
        stored = json.loads(row.result)
        texts: dict[str, RecordedText] = {}
        for name in STREAMS:
            path = self._folder / row.id / name
            if stored[name] or not path.is_file():
                continue
            if path.stat().st_size > LARGE_BYTES:
                texts[name] = RecordedText(path)
            else:
                stored[name] = RecordedText(path).read()
        return ExecutionResult.model_validate(stored).of_skill(row.skill), texts

    def _live_run(self, id: str, owner: str | None) -> Run | None:
        run = self._live.get(id)
        return run if run and _belongs(run.row, owner) else None

    async def _row_of(self, id: str, owner: str | None) -> RunRow:
        row = await self._store.get(id)
        if row is None or not _belongs(row, owner):
            recent, _ = await self._store.page(RunFilter(caller=owner), offset=0, limit=RECENT_RUNS)
            near = near_names(id, [other.id for other in recent])
            message = f"No execution {id[:64]}{did_you_mean(near)}"
            raise RequestError(message, code="EXECUTION_NOT_FOUND")
        return row

    # --------------------------------------------------------------------------------------------------- ending
    async def cancel(self, id: str, *, owner: str | None = None) -> None:
        """Cancel a run. If it has ended already, do nothing. Raises RequestError: EXECUTION_NOT_FOUND."""
        if run := self._live_run(id, owner):
            run.cancel()
        else:
            await self._row_of(id, owner)

    async def delete(self, id: str, *, owner: str | None = None) -> None:
        """Delete a run and its files; cancel it first if it is active. Raises RequestError: EXECUTION_NOT_FOUND."""
        if run := self._live_run(id, owner):
            run.cancel()
            await run.result()
        row = await self._row_of(id, owner)
        await self._forget(id)
        await self._store.erase()
        self._notify(row, is_deleted=True)

    async def _forget(self, id: str) -> None:
        self._ended.pop(id, None)
        async with self._removals.hold(id):
            row = await self._store.get(id)
            with storage_faults():
                freed = await in_thread(self._remove_files, id)
                is_deleted = await self._disk.ballast.give_way(lambda: self._store.delete(id))
            if row is not None and is_deleted:
                self._disk.release(row.caller, freed + row.size)

    def _remove_files(self, id: str) -> int:
        folder = self._folder / id
        size = size_on_disk(folder)
        remove_tree(str(folder))
        return size

    async def recover(self) -> None:
        """Mark runs that were active when the server stopped as killed."""
        for row in await self._store.unfinished():
            result = failed(row.id, "The server stopped during the run", "KILLED")
            await self._store.put(replace(ended(row, result), result=result.model_dump_json()))

    async def keep_tidy(self) -> None:
        """Sweep periodically until cancelled."""
        while True:
            try:
                await self.sweep()
            except Exception:
                logger.exception("old runs could not be removed; trying again later")
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Delete runs that are older than the retention time."""
        moment = now_ms() - self._retention_days * MS_PER_DAY
        is_any = False
        while old := await self._store.ended_before(moment, limit=SWEEP_RUNS):
            is_any = True
            for id in old:
                await self._forget(id)
        if is_any:
            await self._store.erase()

    def cancel_all(self) -> None:
        for run in self._live.values():
            run.cancel()

    async def close(self) -> None:
        """Cancel all active runs and wait for them."""
        running = list(self._live.values())
        self.cancel_all()
        for run in running:
            await asyncio.wait([asyncio.ensure_future(run.result())], timeout=CLOSE_SECONDS)


def _belongs(row: RunRow, owner: str | None) -> bool:
    return owner is None or row.caller == owner
