"""`/v1`: chat completions and models, compatible with OpenAI's clients.

Plain ASGI instead of FastAPI, for less overhead between the client and the model.
"""

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge.agent.chat_events import Event
from apexbridge.agent.request import BadRequestError, ChatRequest, read_request
from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.upstream_errors import UpstreamError, openai_error
from apexbridge.surfaces.http.chat.completions import Completion, CompletionStream
from apexbridge.surfaces.http.transport.disconnect import on_disconnect
from apexbridge.surfaces.http.transport.error_responses import error_body, error_status
from apexbridge.surfaces.http.transport.requests import caller_of, request_id

CHAT_PATH = "/v1/chat/completions"
KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": keep-alive\n\n"
_JSON = b"application/json"
_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
logger = logging.getLogger(__name__)


def routes(bridge: Bridge) -> list[BaseRoute]:
    return [
        Route(CHAT_PATH, ChatEndpoint(bridge), methods=["POST"]),
        Route("/v1/models", ModelsEndpoint(bridge), methods=["GET"]),
        Route("/v1/models/{id:path}", ModelsEndpoint(bridge), methods=["GET"]),
    ]


class Reply:
    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.is_complete = False
        """Whether the end was sent. A disconnect after that has nothing to cancel."""
        self._is_streaming = False
        self._loop = asyncio.get_running_loop()
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    async def whole(self, request: ChatRequest, events: AsyncGenerator[Event, None]) -> None:
        completion = Completion(request)
        async for event in events:
            completion.add(event)
        await self._send_bytes(200, completion.to_json(), [])

    async def stream(self, request: ChatRequest, events: AsyncGenerator[Event, None]) -> None:
        """Send chunks. The response starts with the first event, so that errors before it keep their status."""
        rendered = CompletionStream(request)
        try:
            async for event in events:
                chunk = rendered.render(event)
                if not self._is_streaming:
                    self._is_streaming = True
                    await self._start(200, _STREAM)
                    self._schedule_keep_alive(KEEP_ALIVE_SECONDS)
                if chunk:
                    await self._send_chunk(chunk)
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def refuse(self, error: BadRequestError) -> None:
        body = openai_error(error.message, kind="invalid_request_error", code=error.openai_code, param=error.param)
        await self.send_json(error.status, body)

    async def fail(self, error: UpstreamError) -> None:
        """Send the upstream's error: with its status, or inside the stream if that has started."""
        if self._is_streaming:
            event = b"data: " + json.dumps({"error": error.error}).encode() + b"\n\n"
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
            return
        headers = [(key.encode("latin-1"), value.encode("latin-1", "replace")) for key, value in error.headers.items()]
        body = error.body if error.is_shaped else json.dumps({"error": error.error}).encode()
        await self._send_bytes(error.status, body, [pair for pair in headers if pair[0] != b"x-request-id"])

    async def send_json(self, status: int, data: Any) -> None:
        await self._send_bytes(status, json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"), [])

    async def _send_bytes(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        await self._start(status, [(b"content-type", _JSON), (b"content-length", str(len(body)).encode()), *headers])
        self.is_complete = True
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        own = [*headers, (b"x-request-id", self.request_id.encode("latin-1", "replace"))]
        await self._send({"type": "http.response.start", "status": status, "headers": own})

    async def _send_chunk(self, chunk: bytes) -> None:
        self._last_sent = self._loop.time()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _schedule_keep_alive(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        """Send a keep-alive comment if nothing else was sent for KEEP_ALIVE_SECONDS."""
        idle = self._loop.time() - self._last_sent
        if idle >= KEEP_ALIVE_SECONDS:
            idle = 0.0
            self._keep_alive = asyncio.ensure_future(self._send_keep_alive())
        self._schedule_keep_alive(KEEP_ALIVE_SECONDS - idle)

    async def _send_keep_alive(self) -> None:
        if not self.is_complete:  # the response may have ended in the meantime
            await self._send_chunk(KEEP_ALIVE)


class ChatDispatch:
    """Passes chat requests by the router and FastAPI's own middleware, which cost a tenth of a short answer's CPU."""

    def __init__(self, app: ASGIApp, *, bridge: Bridge) -> None:
        self._app = app
        self._chat = ChatEndpoint(bridge)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_chat = scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST"
        await (self._chat if is_chat else self._app)(scope, receive, send)


class ChatEndpoint:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. It is cancelled if the client disconnects."""
        reply = Reply(send, request_id(scope))
        try:
            _check_type(scope)
            body = _parsed(await _body(receive))
            request = read_request(body, caller=caller_of(scope), request_id=reply.request_id)
        except BadRequestError as error:
            await reply.refuse(error)
            return
        except ClientDisconnect:
            return
        task = asyncio.current_task()
        is_disconnected = False

        def stop() -> None:
            nonlocal is_disconnected
            if task is not None and not reply.is_complete:
                is_disconnected = True
                task.cancel()

        try:
            with on_disconnect(scope, receive, stop):
                await self._answer(request, reply)
        except asyncio.CancelledError:
            if not is_disconnected:
                raise

    async def _answer(self, request: ChatRequest, reply: Reply) -> None:
        try:
            async with aclosing(self._bridge.chat.run(request)) as events:
                await (reply.stream if request.is_stream else reply.whole)(request, events)
        except BadRequestError as error:
            await reply.refuse(error)
        except UpstreamError as error:
            await reply.fail(error)
        except ApexBridgeError as error:
            await reply.fail(UpstreamError(error_status(error, CHAT_PATH), error_body(error, CHAT_PATH)))
        except Exception:
            logger.exception("the chat request %s failed", reply.request_id)
            body = openai_error("Internal error; the server's log has the details.", kind="server_error", code=None)
            await reply.fail(UpstreamError(500, json.dumps(body).encode()))


class ModelsEndpoint:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send, request_id(scope))
        models = await self._bridge.chat.models()
        id = scope.get("path_params", {}).get("id")
        if id is None:
            await reply.send_json(200, {"object": "list", "data": models})
            return
        model = next((model for model in models if model["id"] == id), None)
        if model is None:
            message = f"The model '{str(id)[:200]}' does not exist"
            await reply.refuse(
                BadRequestError(message, param="model", openai_code="model_not_found", code="NOT_FOUND", status=404)
            )
        else:
            await reply.send_json(200, model)


async def _body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _check_type(scope: Scope) -> None:
    """Refuse content types other than JSON. They are what a form on another site's page can send."""
    content_type = next((value for name, value in scope["headers"] if name == b"content-type"), _JSON)
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != _JSON and not kind.endswith(b"+json"):
        raise BadRequestError(
            "Send the request with the header 'Content-Type: application/json'.",
            openai_code="unsupported_media_type",
            code="UNSUPPORTED_MEDIA_TYPE",
            status=415,
        )


def _parsed(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadRequestError("We could not parse the JSON body of your request.") from error


def _refuse_constant(word: str) -> Any:
    """Refuse `NaN` and `Infinity`: Python reads them, but they are not JSON, and an upstream would refuse them."""
    raise ValueError(word)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
