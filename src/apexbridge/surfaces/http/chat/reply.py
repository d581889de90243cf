"""Sends the response to a chat request: one completion, a stream, or an error."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Send

from apexbridge.agent.chat_events import Event
from apexbridge.agent.request import BadRequestError, ChatRequest
from apexbridge.llm.errors import UpstreamError, openai_error
from apexbridge.surfaces.http.chat.completions import Completion, CompletionStream

Json = dict[str, Any]
KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": keep-alive\n\n"
_JSON = (b"content-type", b"application/json")
_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply:
    """The response to one chat request."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.is_complete = False
        """Whether the end was sent. A disconnect after that has nothing to cancel."""
        self._is_streaming = False
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sign: asyncio.Task[None] | None = None

    async def whole(self, request: ChatRequest, events: AsyncGenerator[Event, None]) -> None:
        """Send one completion."""
        completion = Completion(request)
        async for event in events:
            completion.take(event)
        await self._send_bytes(200, completion.told(), [])

    async def stream(self, request: ChatRequest, events: AsyncGenerator[Event, None]) -> None:
        """Send chunks. The response starts with the first event, so that errors before it keep their status."""
        rendered = CompletionStream(request)
        try:
            async for event in events:
                piece = rendered.render(event)
                if not self._is_streaming:
                    self._is_streaming = True
                    await self._start(200, _STREAM)
                    self._look_later(KEEP_ALIVE_SECONDS)
                if piece:
                    await self._send_piece(piece)
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def refuse(self, error: BadRequestError) -> None:
        """Send the error of a request that cannot be answered."""
        body = openai_error(error.message, kind="invalid_request_error", code=error.openai_code, param=error.param)
        await self.send_json(error.status, body)

    async def fail(self, error: UpstreamError) -> None:
        """Send the upstream's error: with its status, or inside the stream if that has started."""
        if self._is_streaming:
            piece = b"data: " + json.dumps({"error": error.error}).encode() + b"\n\n"
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": piece, "more_body": False})
            return
        headers = [(key.encode("latin-1"), value.encode("latin-1", "replace")) for key, value in error.headers.items()]
        body = error.body if error.is_shaped else json.dumps({"error": error.error}).encode()
        await self._send_bytes(error.status, body, [pair for pair in headers if pair[0] != b"x-request-id"])

    async def send_json(self, status: int, told: Json) -> None:
        await self._send_bytes(status, json.dumps(told, ensure_ascii=False).encode("utf-8", "replace"), [])

    async def _send_bytes(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        await self._start(status, [_JSON, (b"content-length", str(len(body)).encode()), *headers])
        self.is_complete = True
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        own = [*headers, (b"x-request-id", self.request_id.encode("latin-1", "replace"))]
        await self._send({"type": "http.response.start", "status": status, "headers": own})

    async def _send_piece(self, piece: bytes) -> None:
        self._last = self._loop.time()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    def _look_later(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Send a keep-alive comment if nothing else was sent for KEEP_ALIVE_SECONDS."""
        quiet = self._loop.time() - self._last
        if quiet >= KEEP_ALIVE_SECONDS:
            quiet = 0.0
            self._sign = asyncio.ensure_future(self._send_sign())
        self._look_later(KEEP_ALIVE_SECONDS - quiet)

    async def _send_sign(self) -> None:
        if not self.is_complete:  # the response may have ended in the meantime
            await self._send_piece(KEEP_ALIVE)
