"""The events of the server over HTTP, so that no client has to poll."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from apexbridge.errors import RequestError
from apexbridge.monitoring.event_feed import EventFeed
from apexbridge.surfaces.http.deps import Caller, ServedBridge
from apexbridge.surfaces.http.transport.error_responses import answer_error
from apexbridge.surfaces.http.transport.responses import EVENT_STREAM_HEADERS

router = APIRouter(tags=["system"])


class _EventStream(StreamingResponse):
    """Counts against its caller's limit of streams while it is open."""

    def __init__(self, chunks: AsyncIterator[bytes], feed: EventFeed, caller: str) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=EVENT_STREAM_HEADERS)
        self._feed = feed
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._feed.stream_of(self._caller):
                await super().__call__(scope, receive, send)
        except RequestError as error:  # of `stream_of`: the stream itself raises none
            await answer_error(error, scope, receive, send)


@router.get("/api/events", response_class=StreamingResponse)
async def follow_events(
    bridge: ServedBridge,
    caller: Caller,
    last_event_id: Annotated[str | None, Header(description="Resume after this event.")] = None,
) -> StreamingResponse:
    """Stream what changes on the server as server-sent events: runs, approvals, skills, MCP servers, keys, checks."""
    return _EventStream(bridge.events.follow(caller, last_event_id), bridge.events.feed, caller)
