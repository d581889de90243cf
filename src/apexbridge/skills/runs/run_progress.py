"""Reports the progress of a run to its caller: its state, and the last line that it printed."""

import asyncio

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.runs.tracker import Run
from apexbridge.tools.tool import Progress, ignore_progress

MAX_LINE_CHARACTERS = 200


async def result_of(run: Run, progress: Progress) -> ExecutionResult:
    """Wait for a run to end and report on it meanwhile. If the caller is cancelled, the run is cancelled too."""
    if progress is ignore_progress:
        return await run.result()
    reporting = asyncio.ensure_future(_report(run, progress))
    try:
        return await run.result()
    finally:
        reporting.cancel()


async def _report(run: Run, progress: Progress) -> None:
    async for event in run.log.follow():
        if event.kind == "state":
            progress(str(event.data), None)
        elif event.kind in ("stdout", "stderr") and (line := _last_line(str(event.data))):
            progress(line, None)


def _last_line(text: str) -> str:
    lines = text.rstrip().rsplit("\n", 1)
    return lines[-1].strip()[:MAX_LINE_CHARACTERS]
