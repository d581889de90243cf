"""Limits per connection: size and time of a request's head, speed of its body, and speed of the response."""

import asyncio
from asyncio.events import TimerHandle
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from apexbridge.errors import RequestError
from apexbridge.surfaces.http.transport.api_dialects import is_anthropic
from apexbridge.surfaces.http.transport.disconnect import DISCONNECT_EXTENSION
from apexbridge.surfaces.http.transport.error_responses import error_body
from apexbridge.surfaces.http.transport.requests import fresh_id

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
BODY_BYTES = 4 * 1024
"""Minimum per `body_seconds` until the body is complete: a slow client occupies a connection like a silent one."""
FRAME_BYTES = 8
"""Allowed overhead per byte of a body: single-byte chunks need five."""
WRITE_BYTES = 16 * 1024
"""What a client must read of a response per `write_seconds`, unless nothing is left to send."""
MAX_PIPELINED = 16
"""Requests on one connection that wait for an earlier response."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's connection with limits. Without them it waits forever for a head and accepts one of any size.

    uvicorn already refuses a Content-Length together with a Transfer-Encoding, and repeated or folded headers.
    """

    head_seconds = 10.0
    """From the first byte of a request, or from the connection, to the end of the head."""
    body_seconds = 15.0
    write_seconds = 30.0

    def __init__(self, *args: Any, max_connections: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._max_connections = max_connections
        self._timer: TimerHandle | None = None
        self._deadline: float | None = None
        """When data must have arrived. One timer checks it: a timer for each part of each request would be slow."""
        self._is_in_body = False
        self._has_received = False
        self._received = 0
        self._head_bytes = 0
        self._head_count = 0
        self._body_bytes = 0
        self._body_bytes_before = 0
        self._problem: RequestError | None = None
        self._meter: _Meter
        self._write_deadline: float | None = None
        self._sent_before = 0
        self._on_disconnect: set[Callable[[], None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._meter = _Meter(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._meter))
        self._set_deadline(self.head_seconds)
        self._schedule_check(min(self.head_seconds, self.write_seconds))
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        for stop in tuple(self._on_disconnect):
            stop()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._set_deadline(self.head_seconds)
        self._has_received = True
        self._received += len(data)
        super().data_received(data)
        if self._received - self._body_bytes > MAX_HEAD_BYTES + FRAME_BYTES * self._body_bytes:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        self._received = self._head_bytes = self._head_count = self._body_bytes = self._body_bytes_before = 0
        self._is_in_body = False
        super().on_message_begin()
        self.scope.setdefault("extensions", {})[DISCONNECT_EXTENSION] = {"callbacks": self._on_disconnect}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer after a chunked body.

        Trailers are counted and dropped. As headers they would bypass a proxy that checks or sets headers.
        """
        self._head_bytes += len(name) + len(value)
        self._head_count += 1
        if self._head_count > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            self._problem = _too_large()
            raise self._problem
        if not self._is_in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_body = True
        self._set_deadline(self.body_seconds)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._problem = RequestError(
                f"More than {MAX_PIPELINED} requests on this connection wait for an earlier answer.",
                code="RATE_LIMITED",
            )
            raise self._problem
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the time limit: the time to compute a response is not limited here."""
        self._is_in_body = False
        self._deadline = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._problem is None:
            super().send_400_response(msg)
        else:
            self._refuse(self._problem)

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds

    def _schedule_check(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        if self._is_answer_stuck():
            # close() would wait for the client to read the rest.
            self.transport.abort()
            return
        if self.transport.is_closing():
            # Until connection_lost: the rest must be sent in time.
            self._schedule_check(min(self.head_seconds, self.write_seconds))
            return
        left = self._deadline - self.loop.time() if self._deadline is not None else self.head_seconds
        if left <= 0:
            self._handle_late_request()
            left = self.head_seconds
        self._schedule_check(min(left, self.head_seconds, self.write_seconds))

    def _is_answer_stuck(self) -> bool:
        """Whether the client has read too little of the response within `write_seconds`."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._write_deadline = None
            return False
        now, sent = self.loop.time(), self._meter.written - unsent
        if self._write_deadline is not None:
            if now < self._write_deadline:
                return False
            if sent - self._sent_before < WRITE_BYTES:
                return True
        self._write_deadline, self._sent_before = now + self.write_seconds, sent
        return False

    def _handle_late_request(self) -> None:
        """Refuse a late request, unless enough of its body arrived or the client did not cause the delay."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._is_in_body:
            is_waiting = self.flow.read_paused or (is_answering and self.cycle.waiting_for_100_continue)
            if is_waiting or self._body_bytes - self._body_bytes_before >= BODY_BYTES:
                self._body_bytes_before = self._body_bytes
                self._set_deadline(self.body_seconds)
                return
        elif is_answering:  # a pipelined request has started; that must not cut off this response
            self._set_deadline(self.head_seconds)
            return
        self._refuse(RequestError("The request did not arrive in time; send it again.", code="REQUEST_TIMEOUT"))

    def _refuse(self, error: RequestError) -> None:
        """Send the error, unless a response has started, and close the connection."""
        if self.transport.is_closing():
            return
        has_begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not has_begun and self._has_received:
            path = getattr(self, "url", b"").decode("latin-1")
            is_theirs = is_anthropic({"path": path, "headers": getattr(self, "headers", ())})
            body = error_body(error, path, anthropic_id=fresh_id("req_") if is_theirs else None)
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class _Meter:
    """A transport that counts written bytes: the size of the buffer alone does not show progress.

    It also sends the head of a response together with the start of its body, if that follows in the same step of the
    event loop. This saves a system call for most responses.
    """

    __slots__ = ("_head", "_loop", "_transport", "_write", "written")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._loop = loop
        self._head = b""
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1."):
            self._head = data
            self._loop.call_soon(self._send_head)
            return
        self._write(data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head and not self._transport.is_closing():
            self._write(self._head)
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _too_large() -> RequestError:
    return RequestError(
        f"The head of the request is too large: at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES // 1024} KB.",
        code="HEADERS_TOO_LARGE",
    )
