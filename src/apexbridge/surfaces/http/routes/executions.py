"""Runs over HTTP: list, show, follow, cancel and delete them, download their files, and upload files for them."""

import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from apexbridge.errors import RequestError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.runs.events import RunEvent
from apexbridge.skills.runs.input_files import Upload, safe_name
from apexbridge.skills.runs.run_views import RunDetail, RunPage
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.storage.run_store import RunFilter, RunState
from apexbridge.surfaces.http.deps import DEFAULT_LIMIT, Caller, Owner, PageLimit, PageNumber, ServedBridge
from apexbridge.surfaces.http.transport.responses import (
    EVENT_STREAM_HEADERS,
    LARGE_CHARACTERS,
    Placeholders,
    detail_response,
    download_part,
    json_response,
    long_output,
    outlined,
    without_output,
)
from apexbridge.surfaces.http.transport.uploads import receive_upload
from apexbridge.tools.conversation import OriginKind
from apexbridge.wire import WireModel

MAX_DIGITS = 12
"""Of an event number. No run has more events than that."""
router = APIRouter(tags=["executions"])
Identity = Annotated[str, Path(alias="id", description="The run's id.")]
WithOutput = Annotated[
    bool, Query(description="False: `stdout` and `stderr` of the result are empty, for clients that read the events.")
]


class Accepted(WireModel):
    """A run that continues without the client."""

    id: str


class RunDeleted(WireModel):
    """A run that was deleted with its files."""

    success: bool = True
    id: str


@router.get("/api/executions")
async def list_executions(
    bridge: ServedBridge,
    owner: Owner,
    skill: Annotated[str | None, Query(description="Only runs of this skill.")] = None,
    state: Annotated[RunState | None, Query(description="pending, running, completed or error.")] = None,
    status: Annotated[str | None, Query(description="success, error or timeout.")] = None,
    caller: Annotated[str | None, Query(description="Only runs of this API key; empty for those without one.")] = None,
    origin: Annotated[OriginKind | None, Query(description="api, tool, chat or mcp.")] = None,
    since: Annotated[datetime | None, Query(description="Only runs created then or later; UTC without zone.")] = None,
    until: Annotated[datetime | None, Query(description="Only runs created before; UTC without zone.")] = None,
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> RunPage:
    """List the runs of the request's key, or all runs for an admin key, the newest first."""
    if owner is not None and caller not in (None, owner):
        raise RequestError("Runs of other keys can be listed only with the scope admin.", code="FORBIDDEN")
    run_filter = RunFilter(
        skill=skill,
        state=state,
        status=status,
        caller=caller if owner is None else owner,
        origin=origin,
        since=_milliseconds(since),
        until=_milliseconds(until),
    )
    return await bridge.runs.page(run_filter, page=page, limit=limit)


@router.get("/api/executions/{id}", response_model=None, responses={200: {"model": RunDetail}})
async def show_execution(identity: Identity, bridge: ServedBridge, owner: Owner, output: WithOutput = True) -> Response:
    """Show one run; `result` is set when it has ended."""
    detail, texts = await bridge.runs.outline(identity, owner=owner)
    if not output and detail.result is not None:
        return json_response(detail.model_copy(update={"result": without_output(detail.result)}))
    return detail_response(detail, detail.result, texts)


@router.get("/api/executions/{id}/events", response_class=StreamingResponse)
async def follow_execution(
    identity: Identity,
    bridge: ServedBridge,
    owner: Owner,
    follow: Annotated[bool, Query(description="Wait for further events until the run ends.")] = True,
    output: WithOutput = True,
    last_event_id: Annotated[str | None, Header(description="Start after this event.")] = None,
) -> StreamingResponse:
    """Stream the run as server-sent events: `state`, `stdout`, `stderr`, and `result` at the end."""
    last = last_event_id or ""
    after = int(last) if last.isascii() and last.isdigit() and len(last) <= MAX_DIGITS else 0
    events = bridge.runs.events(identity, after, owner=owner, waits=follow)
    first = await anext(events, None)  # so that a missing run is a 404 and not an empty stream
    stream = _stream(bridge.runs, first, events, with_output=output)
    return StreamingResponse(stream, media_type="text/event-stream", headers=EVENT_STREAM_HEADERS)


@router.get("/api/executions/{id}/files/{path:path}", response_class=StreamingResponse)
async def download_artifact(
    identity: Identity, path: str, request: Request, bridge: ServedBridge, owner: Owner
) -> Response:
    """Download a file of the run, or a range of it."""
    file = await bridge.runs.open_file(identity, path, owner=owner)
    return download_part(request, file, path.rsplit("/", 1)[-1])


@router.post("/api/executions/{id}/cancel", status_code=202)
async def cancel_execution(identity: Identity, bridge: ServedBridge, owner: Owner) -> Accepted:
    """Cancel a run."""
    await bridge.runs.cancel(identity, owner=owner)
    return Accepted(id=identity)


@router.delete("/api/executions/{id}")
async def delete_execution(identity: Identity, bridge: ServedBridge, owner: Owner) -> RunDeleted:
    """Delete a run and its files; an active run is cancelled first."""
    await bridge.runs.delete(identity, owner=owner)
    return RunDeleted(id=identity)


@router.post("/api/uploads", status_code=201)
async def upload_file(
    request: Request,
    bridge: ServedBridge,
    caller: Caller,
    workspace: Annotated[str | None, Query(description="Put the file into this workspace.")] = None,
) -> Upload:
    """Upload a file for `files` of a later run, or into a workspace; only the same key can use it."""
    async with receive_upload(request, bridge.skills.staging, any_type=True) as upload:
        if (target := upload.fields.get("workspace") or workspace) is not None:
            name = safe_name(upload.filename or "upload")
            await bridge.workspaces.add_file(target, name, upload.file, caller=caller)
            upload.file.seek(0, 2)
            return Upload(id=name, name=name, size=upload.file.tell(), workspace=target)
        return await bridge.runs.uploads.add(upload.file, upload.filename, caller=caller)


def _milliseconds(moment: datetime | None) -> int | None:
    """A time of a request, in milliseconds since 1970; in UTC if it has no zone."""
    if moment is None:
        return None
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return math.ceil(aware.timestamp() * 1000)


async def _stream(
    runs: RunTracker, first: RunEvent | None, events: AsyncIterator[RunEvent], *, with_output: bool
) -> AsyncIterator[bytes]:
    """The events in wire format. Their data is JSON, so that line ends in it do not end an event."""
    event = first
    while event is not None:
        head = f"id: {event.number}\nevent: {event.kind}\ndata: "
        if isinstance(event.data, str) and len(event.data) <= LARGE_CHARACTERS:
            yield f"{head}{json.dumps(event.data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
        else:
            placeholders = Placeholders()
            if isinstance(event.data, ExecutionResult) and not with_output:
                document = without_output(event.data).model_dump_json()
            elif isinstance(event.data, ExecutionResult):
                document = outlined(event.data, long_output(runs, event.data), placeholders).model_dump_json()
            else:
                document = f'"{placeholders.put(event.data)}"'
            async for chunk in placeholders.fill(f"{head}{document}\n\n"):
                yield chunk
        event = await anext(events, None)
