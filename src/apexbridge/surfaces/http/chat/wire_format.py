"""What a wire format of chat provides: how a request is read, and how events and errors are written.

All formats render the same events of the same loop.
"""

from typing import Any, Protocol

from starlette.types import Scope

from apexbridge._json import dumped as dumped  # re-exported
from apexbridge.agent.chat_events import Event
from apexbridge.agent.request import ChatRequest
from apexbridge.llm.upstream_errors import UpstreamError


class Whole(Protocol):
    """An answer that is sent at once."""

    def add(self, event: Event) -> None: ...
    def to_json(self) -> bytes: ...


class Failing(Protocol):
    """A stream that has started."""

    def fail(self, error: UpstreamError) -> bytes:
        """The bytes that end a stream that cannot go on."""


class Stream(Failing, Protocol):
    """An answer that is sent as server-sent events."""

    def render(self, event: Event) -> bytes:
        """The bytes for an event; may be empty."""

    def end(self) -> bytes:
        """The bytes after the last event."""


class Exchange(Protocol):
    """One request and its answer."""

    @property
    def request(self) -> ChatRequest: ...
    def whole(self) -> Whole: ...
    def stream(self) -> Stream: ...
    async def before_end(self) -> None:
        """Called after the last event, before the end of the answer is sent: the client may continue right after it."""


class ChatApi(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def request_id_header(self) -> bytes: ...
    @property
    def keep_alive(self) -> bytes:
        """Sent in a stream while there is nothing else to send."""

    async def open(self, body: Any, *, scope: Scope, request_id: str) -> Exchange:
        """Read a request. Raises BadRequestError."""

    def error_body(self, error: UpstreamError, request_id: str) -> bytes:
        """The body of an error answer. Its status is the error's."""


def sse_event(data: Any) -> bytes:
    """An event whose name is its type, as the other APIs send it."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), dumped(data))
