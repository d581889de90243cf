"""Runs over HTTP: list, show, follow, cancel and delete them, download their files, and upload files for them."""

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.runs.events import RunEvent
from apexbridge.skills.runs.input_files import Upload
from apexbridge.skills.runs.views import LongOutput, RecordedText, RunDetail, RunPage
from apexbridge.storage.runs import RunFilter, RunState
from apexbridge.surfaces.http.deps import Caller, Owner, ServedBridge
from apexbridge.surfaces.http.transport.downloads import download
from apexbridge.surfaces.http.transport.json_response import LARGE_CHARACTERS, detail_response, long_output, outlined
from apexbridge.surfaces.http.transport.json_stream import Placeholders
from apexbridge.surfaces.http.transport.uploads import receive_upload
from apexbridge.wire import WireModel

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
MAX_DIGITS = 12
"""Of an event number. No run has more events than that."""

ResultTexts = Callable[[ExecutionResult], LongOutput]
"""Returns the long streams of a result."""
router = APIRouter(tags=["executions"])
Identity = Annotated[str, Path(alias="id", description="The run's id.")]


class Accepted(WireModel):
    """A run that goes on by itself."""

    id: str


@router.get("/api/executions")
async def list_executions(
    bridge: ServedBridge,
    owner: Owner,
    skill: Annotated[str | None, Query(description="Only runs of this skill.")] = None,
    state: Annotated[RunState | None, Query(description="pending, running, completed or error.")] = None,
    status: Annotated[str | None, Query(description="success, error or timeout.")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
) -> RunPage:
    """Runs, the newest first: those of the key that asks, or all where it may administer."""
    wanted = RunFilter(skill=skill, state=state, status=status, caller=owner)
    return await bridge.runs.page(wanted, page=page, limit=limit)


@router.get("/api/executions/{id}", response_model=None, responses={200: {"model": RunDetail}})
async def show_execution(identity: Identity, bridge: ServedBridge, owner: Owner) -> Response:
    """Everything about one run; `result` is there when it has ended."""
    detail, texts = await bridge.runs.outline(identity, owner=owner)
    return detail_response(detail, detail.result, texts)


@router.get("/api/executions/{id}/events", response_class=StreamingResponse)
async def follow_execution(
    identity: Identity,
    bridge: ServedBridge,
    owner: Owner,
    last_event_id: Annotated[str | None, Header(description="Begin after this event.")] = None,
) -> StreamingResponse:
    """What happens, as server-sent events: `state`, `stdout`, `stderr`, and `result` at the end."""
    last = last_event_id or ""
    after = int(last) if last.isascii() and last.isdigit() and len(last) <= MAX_DIGITS else 0
    events = bridge.runs.events(identity, after, owner=owner)
    first = await anext(events, None)  # so that a missing run is a 404 and not an empty stream
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
    stream = _stream(first, events, partial(long_output, bridge.runs))
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


@router.get("/api/executions/{id}/files/{path:path}", response_class=StreamingResponse)
async def download_artifact(identity: Identity, path: str, bridge: ServedBridge, owner: Owner) -> StreamingResponse:
    """A file that the run left, as a download."""
    file = await bridge.runs.open_file(identity, path, owner=owner)
    return download(file, path.rsplit("/", 1)[-1], "application/octet-stream")


@router.post("/api/executions/{id}/cancel", status_code=202)
async def cancel_execution(identity: Identity, bridge: ServedBridge, owner: Owner) -> Accepted:
    """End a run; its record then says so."""
    await bridge.runs.cancel(identity, owner=owner)
    return Accepted(id=identity)


@router.delete("/api/executions/{id}")
async def delete_execution(identity: Identity, bridge: ServedBridge, owner: Owner) -> dict[str, Any]:
    """Forget a run with everything it left; one that goes on is ended first."""
    await bridge.runs.delete(identity, owner=owner)
    return {"success": True, "id": identity}


@router.post("/api/uploads", status_code=201)
async def upload_file(request: Request, bridge: ServedBridge, caller: Caller) -> Upload:
    """Send a file ahead, to be named in `files` of a run; only the same key can name it."""
    async with receive_upload(request, bridge.skills.staging, any_type=True) as upload:
        return await bridge.runs.uploads.add(upload.file, upload.filename, caller=caller)


async def _stream(
    first: RunEvent | None, events: AsyncIterator[RunEvent], result_texts: ResultTexts
) -> AsyncIterator[bytes]:
    if first is not None:
        async for piece in _sent(first, result_texts):
            yield piece
    async for event in events:
        async for piece in _sent(event, result_texts):
            yield piece


async def _sent(event: RunEvent, result_texts: ResultTexts) -> AsyncIterator[bytes]:
    """One event in wire format. Its data is JSON, so that line ends in it do not end the event."""
    head = f"id: {event.number}\nevent: {event.kind}\ndata: "
    if isinstance(event.data, ExecutionResult):
        document, placeholders = outlined(event.data, result_texts(event.data))
    elif isinstance(event.data, RecordedText) or len(event.data) > LARGE_CHARACTERS:
        placeholders = Placeholders()
        document = f'"{placeholders.put(event.data)}"'
    else:
        yield f"{head}{json.dumps(event.data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
        return
    async for piece in placeholders.pieces(f"{head}{document}\n\n"):
        yield piece
