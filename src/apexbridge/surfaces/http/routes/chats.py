"""Records of chat requests over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from apexbridge.agent.records.chat_records import DEFAULT_DAYS, DEFAULT_LIMIT
from apexbridge.agent.records.chat_views import ChatDetail, ChatPage, ChatStatistics
from apexbridge.agent.records.recorder import RecordedCause
from apexbridge.storage.chat_store import ChatOutcome
from apexbridge.surfaces.http.deps import PageLimit, PageNumber, ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.transport.responses import json_response
from apexbridge.wire import WireModel

MAX_DAYS = 3650
MAX_FILTER_CHARACTERS = 300
router = APIRouter(tags=["chats"])
Identity = Annotated[str, Path(alias="id", description="The record's id, which is the request's id.")]


class ChatDeleted(WireModel):
    success: bool = True
    id: str


@router.get("/api/chats")
async def list_chats(
    bridge: ServedBridge,
    model: Annotated[
        str | None, Query(max_length=MAX_FILTER_CHARACTERS, description="Only requests to this model.")
    ] = None,
    caller: Annotated[
        str | None, Query(max_length=MAX_FILTER_CHARACTERS, description="Only requests with this API key's id.")
    ] = None,
    stop_cause: Annotated[RecordedCause | None, Query(alias="stopCause", description="Only with this end.")] = None,
    outcome: Annotated[ChatOutcome | None, Query(description="answered, failed or cancelled.")] = None,
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> ChatPage:
    """List the recorded chat requests, the newest first."""
    return await bridge.chats.list(
        model=model, caller=caller, stop_cause=stop_cause, outcome=outcome, page=page, limit=limit
    )


@router.get("/api/chats/stats")
async def chat_statistics(
    bridge: ServedBridge,
    days: Annotated[int, Query(ge=1, le=MAX_DAYS, description="The number of days to count.")] = DEFAULT_DAYS,
) -> ChatStatistics:
    """Count the requests of the last days, in total and by model."""
    return await bridge.chats.statistics(days=days)


@router.get("/api/chats/{id}", response_model=None, responses={200: {"model": ChatDetail}})
async def show_chat(identity: Identity, bridge: ServedBridge) -> Response:
    """Show the record of one request."""
    return json_response(await bridge.chats.get(identity))


@router.delete("/api/chats/{id}")
async def delete_chat(identity: Identity, request: Request, bridge: ServedBridge) -> ChatDeleted:
    """Delete the record of a request."""
    found = await bridge.chats.get(identity)
    note(request, detail=f"of {found.caller or 'no key'}, {found.started_at:%Y-%m-%dT%H:%M:%SZ}")
    await bridge.chats.delete(identity)
    return ChatDeleted(id=identity)
