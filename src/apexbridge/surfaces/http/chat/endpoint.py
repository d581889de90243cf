"""`/v1`: chat in each wire format, and models.

Plain ASGI instead of FastAPI, for less overhead between the client and the model.
"""

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge.agent.chat_events import Event
from apexbridge.agent.pass_through import ForwardedRequest, ForwardedStart
from apexbridge.agent.request import BadRequestError
from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.upstream_errors import UpstreamError, openai_error
from apexbridge.surfaces.http.chat.completions import CompletionsApi
from apexbridge.surfaces.http.chat.forwarding import ForwardedStream, forwarded_request
from apexbridge.surfaces.http.chat.messages import COUNT_PATH, MessagesApi, anthropic_model, anthropic_models
from apexbridge.surfaces.http.chat.responses import ResponsesApi
from apexbridge.surfaces.http.chat.wire_format import ChatApi, Exchange, Failing
from apexbridge.surfaces.http.transport.api_dialects import is_anthropic
from apexbridge.surfaces.http.transport.disconnect import on_disconnect
from apexbridge.surfaces.http.transport.error_responses import error_body, error_status
from apexbridge.surfaces.http.transport.requests import request_id

Header = tuple[bytes, bytes]
KEEP_ALIVE_SECONDS = 10.0
_JSON = b"application/json"
_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
logger = logging.getLogger(__name__)


def routes(bridge: Bridge) -> list[Route]:
    return [
        *(Route(api.path, ChatEndpoint(bridge, api), methods=["POST"]) for api in _apis(bridge)),
        Route(COUNT_PATH, CountTokensEndpoint(bridge), methods=["POST"]),
        Route("/v1/models", ModelsEndpoint(bridge), methods=["GET"]),
        Route("/v1/models/{id:path}", ModelsEndpoint(bridge), methods=["GET"]),
    ]


def _apis(bridge: Bridge) -> list[ChatApi]:
    """Every wire format of chat."""
    return [CompletionsApi(), _messages(bridge), ResponsesApi(bridge.responses)]


def _messages(bridge: Bridge) -> MessagesApi:
    return MessagesApi(bridge.skills.versions, bridge.settings.workspace_days)


class Reply:
    """Sends the answer of one request in the format of its API."""

    def __init__(self, api: ChatApi, send: Send, request_id: str) -> None:
        self._api = api
        self._send = send
        self.request_id = request_id
        self.is_complete = False
        """Whether the end was sent. A disconnect after that has nothing to cancel."""
        self._stream: Failing | None = None
        """The stream that has started."""
        self._is_forwarded = False
        """Whether an upstream's answer is sent as it is."""
        self._loop = asyncio.get_running_loop()
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    async def whole(self, exchange: Exchange, events: AsyncGenerator[Event, None]) -> None:
        answer = exchange.whole()
        async for event in events:
            answer.add(event)
        body = answer.to_json()
        await exchange.before_end()
        await self.send_bytes(200, body)

    async def stream(self, exchange: Exchange, events: AsyncGenerator[Event, None]) -> None:
        """Send events. The response starts with the first one, so that errors before it keep their status."""
        stream = exchange.stream()
        try:
            async for event in events:
                chunk = stream.render(event)
                if self._stream is None:
                    self._stream = stream
                    await self._start(200, _STREAM)
                    self._schedule_keep_alive(KEEP_ALIVE_SECONDS)
                if chunk:
                    await self._send_chunk(chunk)
            await exchange.before_end()
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": stream.end(), "more_body": False})
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def forward(self, parts: AsyncGenerator[ForwardedStart | bytes, None]) -> None:
        """Send an upstream's answer as it is."""
        self._is_forwarded = True
        start = await anext(parts)
        if not isinstance(start, ForwardedStart):
            raise AssertionError("an answer has a beginning")
        kind = [(b"content-type", start.content_type.encode("latin-1", "replace"))]
        if not start.is_stream:
            chunks = [part async for part in parts if isinstance(part, bytes)]
            await self.send_bytes(start.status, b"".join(chunks), [*kind, *_passed(start.headers)], kind=None)
            return
        self._stream = stream = ForwardedStream(self._api.path)
        await self._start(start.status, [*kind, *_STREAM[1:], *_passed(start.headers)])
        async for part in parts:
            if isinstance(part, bytes) and (chunk := stream.passed(part)):
                await self._send_chunk(chunk)
        self.is_complete = True
        await self._send({"type": "http.response.body", "body": stream.end(), "more_body": False})

    async def refuse(self, error: BadRequestError) -> None:
        body = openai_error(error.message, kind="invalid_request_error", code=error.openai_code, param=error.param)
        await self.fail(UpstreamError(error.status, _json(body)))

    async def fail(self, error: UpstreamError) -> None:
        """Send an error: with its status, or inside the stream if that has started."""
        if self._stream is not None:
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": self._stream.fail(error), "more_body": False})
            return
        is_same = self._is_forwarded and error.is_shaped and not error.is_ours
        body = error.body if is_same else self._api.error_body(error, self.request_id)
        await self.send_bytes(error.status, body, _passed(error.headers))

    async def send_json(self, status: int, data: Any) -> None:
        await self.send_bytes(status, _json(data))

    async def send_bytes(
        self, status: int, body: bytes, headers: Sequence[Header] = (), *, kind: bytes | None = _JSON
    ) -> None:
        """Send an answer at once. `kind`: its content type, unless the headers have it."""
        own: list[Header] = [(b"content-length", str(len(body)).encode())]
        await self._start(status, [*([(b"content-type", kind)] if kind else []), *own, *headers])
        self.is_complete = True
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        own = [*headers, (self._api.request_id_header, self.request_id.encode("latin-1", "replace"))]
        await self._send({"type": "http.response.start", "status": status, "headers": own})

    async def _send_chunk(self, chunk: bytes) -> None:
        self._last_sent = self._loop.time()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _schedule_keep_alive(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        """Send a keep-alive if nothing else was sent for KEEP_ALIVE_SECONDS."""
        idle = self._loop.time() - self._last_sent
        if idle >= KEEP_ALIVE_SECONDS:
            idle = 0.0
            self._keep_alive = asyncio.ensure_future(self._send_keep_alive())
        self._schedule_keep_alive(KEEP_ALIVE_SECONDS - idle)

    async def _send_keep_alive(self) -> None:
        if not self.is_complete:  # the response may have ended in the meantime
            await self._send_chunk(self._api.keep_alive)


class ChatDispatch:
    """Passes chat requests by the router and FastAPI's own middleware, which cost a tenth of a short answer's CPU."""

    def __init__(self, app: ASGIApp, *, bridge: Bridge) -> None:
        self._app = app
        self._endpoints = {api.path: ChatEndpoint(bridge, api) for api in _apis(bridge)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._endpoints.get(scope["path"]) if is_post else None
        await (endpoint or self._app)(scope, receive, send)


class ChatEndpoint:
    def __init__(self, bridge: Bridge, api: ChatApi) -> None:
        self._bridge = bridge
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. It is cancelled if the client disconnects."""
        reply = Reply(self._api, send, request_id(scope))
        try:
            _check_type(scope)
            data = await _body(receive)
            body = _parsed(data)
            forwarded = forwarded_request(self._bridge.chat, body, data, scope=scope, request_id=reply.request_id)
            exchange = None
            if forwarded is None:
                exchange = await self._api.open(body, scope=scope, request_id=reply.request_id)
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
                if forwarded is not None:
                    await self._answer(self._pass(forwarded, reply), reply)
                elif exchange is not None:
                    await self._answer(self._run(exchange, reply), reply)
        except asyncio.CancelledError:
            if not is_disconnected:
                raise

    async def _run(self, exchange: Exchange, reply: Reply) -> None:
        request = exchange.request
        async with aclosing(self._bridge.chat.run(request)) as events:
            await (reply.stream if request.is_stream else reply.whole)(exchange, events)

    async def _pass(self, forwarded: ForwardedRequest, reply: Reply) -> None:
        async with aclosing(self._bridge.chat.forward(forwarded)) as parts:
            await reply.forward(parts)

    async def _answer(self, work: Coroutine[Any, Any, None], reply: Reply) -> None:
        """Send an answer, or its error."""
        try:
            await work
        except BadRequestError as error:
            await reply.refuse(error)
        except UpstreamError as error:
            await reply.fail(error)
        except ApexBridgeError as error:
            await reply.fail(UpstreamError(error_status(error, self._api.path), error_body(error, self._api.path)))
        except Exception:
            logger.exception("the chat request %s failed", reply.request_id)
            body = openai_error("Internal error; the server's log has the details.", kind="server_error", code=None)
            await reply.fail(UpstreamError(500, json.dumps(body).encode()))


class CountTokensEndpoint:
    """Anthropic's count of the tokens of a request, which is an estimate here."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._api = _messages(bridge)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(self._api, send, request_id(scope))
        try:
            _check_type(scope)
            data = await _body(receive)
            body = _parsed(data)
            forwarded = forwarded_request(self._bridge.chat, body, data, scope=scope, request_id=reply.request_id)
            if forwarded is not None:
                async with aclosing(self._bridge.chat.forward(forwarded)) as parts:
                    await reply.forward(parts)
                return
            request = await self._api.open_count(body, scope=scope, request_id=reply.request_id)
            await reply.send_json(200, {"input_tokens": await self._bridge.chat.count_tokens(request)})
        except BadRequestError as error:
            await reply.refuse(error)
        except UpstreamError as error:
            await reply.fail(error)
        except ClientDisconnect:
            return


class ModelsEndpoint:
    """The models in the form of the client's API."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_anthropics = is_anthropic(scope)
        reply = Reply(_messages(self._bridge) if is_anthropics else CompletionsApi(), send, request_id(scope))
        models = await self._bridge.chat.models()
        id = scope.get("path_params", {}).get("id")
        try:
            if id is None:
                listed = anthropic_models(models, scope) if is_anthropics else {"object": "list", "data": models}
                await reply.send_json(200, listed)
                return
            model = next((model for model in models if model["id"] == id), None)
            if model is None:
                message = f"The model '{str(id)[:200]}' does not exist"
                raise BadRequestError(
                    message, param="model", openai_code="model_not_found", code="NOT_FOUND", status=404
                )
            await reply.send_json(200, anthropic_model(model) if is_anthropics else model)
        except BadRequestError as error:
            await reply.refuse(error)


def _passed(headers: Mapping[str, str]) -> list[Header]:
    """An upstream's headers. Its id of the request is not ours."""
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers.items()
        if name != "x-request-id"
    ]


def _json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


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
    if any(name == b"content-encoding" and value.strip().lower() != b"identity" for name, value in scope["headers"]):
        raise BadRequestError(
            "Send the request without compression (without the header 'Content-Encoding').",
            openai_code="unsupported_media_type",
            code="UNSUPPORTED_MEDIA_TYPE",
            status=415,
        )
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
