"""Views of a run: summary, details, long output, and events replayed from the record."""

import codecs
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from apexbridge._time import MAX_MS, from_ms, now_ms
from apexbridge.sandbox.models import ErrorCode, ExecutionResult
from apexbridge.skills.runs.events import RunLog
from apexbridge.storage.run_store import RunFilter, RunRow, RunState
from apexbridge.tools.conversation import OriginKind
from apexbridge.wire import WireModel

READ_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class RecordedText:
    """Text stored in a file, or a part of it."""

    path: Path
    start: int = 0
    stop: int = sys.maxsize
    """Positions in bytes. A character belongs to the part where its first byte is."""

    def chunks(self) -> Iterator[str]:
        """Chunks of the text in order; none if the run was deleted meanwhile."""
        try:
            file = self.path.open("rb")
        except OSError:
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with file:
            left = self.stop - self.start - len(_rest_of_character(file, self.start))
            while data := file.read(max(0, min(READ_BYTES, left))):
                left -= len(data)
                yield decoder.decode(data)
            yield decoder.decode(_rest_of_character(file, self.stop) if left == 0 else b"", final=True)

    def read(self) -> str:
        return "".join(self.chunks())

    def parts(self, size: int = READ_BYTES) -> Iterator["RecordedText"]:
        """Parts of about this size, in bytes, that are the text together."""
        try:
            total = self.path.stat().st_size
        except OSError:
            return
        for start in range(0, total, size):
            yield RecordedText(self.path, start, min(start + size, total))


def _rest_of_character(file: BinaryIO, position: int) -> bytes:
    """The bytes at a position that belong to a character which begins before it. They have been read then."""
    if position == 0:
        return b""
    file.seek(position)
    found = file.read(3)
    tail = found[: next((index for index, byte in enumerate(found) if byte & 0xC0 != 0x80), len(found))]
    file.seek(position + len(tail))
    return tail


TextSource = str | RecordedText
LongOutput = Mapping[str, TextSource]
"""The long streams of a run, by name: `stdout`, `stderr`."""


STREAMS = ("stdout", "stderr")
INLINE_CHARACTERS = 8 * 1024
"""Output up to this length is stored in the record; longer output in a file next to the artifacts, which can be read
separately. The limit is low enough that output too long for a model, in any writing system, is always in a file."""


class RunOrigin(WireModel):
    """What started a run."""

    kind: OriginKind | None = Field(
        description="api: a call of the skill; tool: of a tool; chat; mcp: an MCP client; null for old runs."
    )
    id: str | None = Field(description="The id of the chat's record, or of the conversation of tool calls.")


class RunSummary(WireModel):
    """A run, in a list."""

    id: str
    skill: str
    script: str
    content_hash: str
    caller: str
    """The id of the API key that it was started with; empty where it was none."""
    state: RunState
    status: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    input_digest: str
    duration_ms: int | None = Field(description="From its turn to its end; null before.")
    error_code: str | None = Field(description="Null if it succeeded or has not ended.")
    exit_code: int | None
    file_count: int
    origin: RunOrigin


class RunDetail(RunSummary):
    """A run with everything that is known of it."""

    input: dict[str, Any] | None = None
    """Only where the operator has inputs recorded."""
    result: ExecutionResult | None = None


class RunPage(WireModel):
    """A page of runs, the newest first."""

    executions: list[RunSummary]
    total: int
    page: int
    limit: int


def fits(row: RunRow, filter: RunFilter) -> bool:
    """Whether a run matches the filter."""
    return all(
        value is None or value == getattr(row, name)
        for name, value in (
            ("skill", filter.skill),
            ("state", filter.state),
            ("status", filter.status),
            ("caller", filter.caller),
            ("origin", filter.origin),
        )
    ) and (filter.since or 0) <= row.created_at < (MAX_MS if filter.until is None else filter.until)


def summary_fields(row: RunRow) -> dict[str, Any]:
    """The fields of a `RunSummary` from a row."""
    return {
        "id": row.id,
        "skill": row.skill,
        "script": row.script,
        "content_hash": row.content_hash,
        "caller": row.caller,
        "state": row.state,
        "status": row.status,
        "created_at": _moment(row.created_at),
        "started_at": _moment(row.started_at),
        "ended_at": _moment(row.ended_at),
        "input_digest": row.input_digest,
        "duration_ms": row.duration_ms,
        "error_code": row.error_code,
        "exit_code": row.exit_code,
        "file_count": row.file_count,
        "origin": {"kind": row.origin, "id": row.origin_id},
    }


def ended(row: RunRow, result: ExecutionResult) -> RunRow:
    """The row of a run that has ended now with this result, without the result itself."""
    return replace(
        row,
        state="completed" if result.success else "error",
        status=result.status,
        ended_at=now_ms(),
        duration_ms=result.duration,
        error_code=result.error_code,
        exit_code=result.exit_code,
        file_count=len(result.files),
    )


def replay(detail: RunDetail, texts: Mapping[str, RecordedText]) -> RunLog:
    """Rebuild the events of a run whose log is gone; `texts` are its long streams."""
    log = RunLog()
    for state in ("pending", "running"):
        log.add("state", state)
    if detail.result is not None:
        for name in STREAMS:
            whole = filter(None, [getattr(detail.result, name)])
            for part in texts[name].parts() if name in texts else whole:
                log.add("stdout" if name == "stdout" else "stderr", part)
        log.add("state", detail.state)
        log.add("result", detail.result)
    log.end()
    return log


def failed(identity: str, error: str, code: ErrorCode) -> ExecutionResult:
    """The result of a run that ended without one."""
    return ExecutionResult(
        id=identity, success=False, status="error", exit_code=None, duration=0, error=error, error_code=code
    )


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_ms(milliseconds)
