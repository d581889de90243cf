"""Requests that pass through to an upstream that speaks their API: which headers go there, and how a stream fails."""

from typing import Any

from starlette.types import Scope

from apexbridge._json import loads_or
from apexbridge.agent.pass_through import ForwardedRequest
from apexbridge.agent.strategy import ReActStrategy
from apexbridge.llm.client import ANTHROPIC_VERSION
from apexbridge.llm.response import EventLines
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.surfaces.http.chat.response_output import failure_events
from apexbridge.surfaces.http.chat.wire_format import sse_event
from apexbridge.surfaces.http.transport.api_dialects import API_PREFIX, MESSAGES_PATH, anthropic_error
from apexbridge.surfaces.http.transport.requests import caller_of, fresh_id

Json = dict[str, Any]
MAX_UNSENT_BYTES = 64 * 1024
PASSED_HEADERS = frozenset({b"anthropic-version", b"anthropic-beta", b"openai-beta"})
BETA_QUERY = "beta=true"
"""What Anthropic's SDKs add to the path."""


def forwarded_request(
    chat: ReActStrategy, body: Any, data: bytes, *, scope: Scope, request_id: str
) -> ForwardedRequest | None:
    """The request for an upstream that speaks the API itself; None if the chat loop answers. Raises BadRequestError."""
    path = scope["path"].removeprefix(API_PREFIX)
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in PASSED_HEADERS:
            key, text = name.decode(), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
    if scope["path"].startswith(MESSAGES_PATH):
        headers.setdefault("anthropic-version", ANTHROPIC_VERSION)
    query = BETA_QUERY if scope.get("query_string") == BETA_QUERY.encode() else ""
    caller = caller_of(scope)
    return chat.forwarded(path, body, data, headers=headers, query=query, caller=caller, request_id=request_id)


class ForwardedStream:
    """A stream that passes. If it breaks, events of its API say so: clients take a mere end for success."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._unsent: list[bytes] = []
        """The beginning of a line: after half an event, clients could not read the error."""
        self._unsent_bytes = 0
        self._first = b""
        self._last = b""

    def passed(self, data: bytes) -> bytes:
        """The lines that are complete now. The beginning of a very long one passes as well."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if self._unsent_bytes + len(data) - end > MAX_UNSENT_BYTES:
            end = len(data)
        if not end:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            return b""
        lines = b"".join([*self._unsent, data[:end]])
        self._unsent, self._unsent_bytes = [data[end:]], len(data) - end
        if b"data:" in lines:
            self._first, self._last = self._first or lines, lines
        return lines

    def end(self) -> bytes:
        """A last line without its end."""
        return b"".join(self._unsent)

    def fail(self, error: UpstreamError) -> bytes:
        message = str(error.error.get("message") or "")
        if self._path == MESSAGES_PATH:
            event = anthropic_error(message, status=error.status, request_id="")
            del event["request_id"]
            return b"\n\n" + sse_event(event)
        started = next((event["response"] for event in _events(self._first) if "response" in event), None)
        numbers = [event.get("sequence_number") for event in _events(self._last)]
        last = next((number for number in reversed(numbers) if isinstance(number, int)), -1)
        response = (
            started if isinstance(started, dict) else {"id": fresh_id("resp_"), "object": "response", "output": []}
        )
        return b"\n\n" + failure_events(error, response, last + 1)


def _events(data: bytes) -> list[Json]:
    """The events of a part of an upstream's stream that can be read."""
    try:
        # An empty line ends an event; it may have come in the next part.
        read = [loads_or(event.decode("utf-8", "replace"), None) for event in EventLines().feed(data + b"\n\n")]
    except UpstreamError:  # a line that is too long
        return []
    return [event for event in read if isinstance(event, dict)]
