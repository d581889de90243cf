"""`/v1`: chat completions and models, as OpenAI's clients expect them.

Plain ASGI: a request passes here with as little as possible between the client and the model.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from apexbridge.agent.events import Event
from apexbridge.agent.request import BadRequestError, ChatRequest, read_request
from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.errors import UpstreamError, openai_error
from apexbridge.surfaces.http.completions import Completion, CompletionStream
from apexbridge.surfaces.http.limits import MAX_BODY_BYTES

Json = dict[str, Any]
KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": keep-alive\n\n"
_JSON = (b"content-type", b"application/json")
_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
logger = logging.getLogger(__name__)


def routes(bridge: Bridge) -> list[BaseRoute]:
    """What is answered below `/v1`."""
    return [
        Route("/v1/chat/completions", ChatEndpoint(bridge), methods=["POST"]),
        Route("/v1/models", ModelsEndpoint(bridge), methods=["GET"]),
        Route("/v1/models/{id:path}", ModelsEndpoint(bridge), methods=["GET"]),
    ]


class ChatEndpoint:
    """Answers chat requests, in one piece or in a stream."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; it ends with its client."""
        answer = _Answer(send, _request_id(scope))
        try:
            body = await _body(receive)
            request = read_request(_parsed(body), caller=_caller(scope), request_id=answer.request_id)
        except BadRequestError as error:
            await answer.refuse(error)
            return
        except _GoneError:
            return
        work = asyncio.ensure_future(self._answer(request, answer))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work

    async def _answer(self, request: ChatRequest, answer: "_Answer") -> None:
        try:
            async with aclosing(self._bridge.chat.run(request)) as events:
                await (answer.stream if request.is_stream else answer.whole)(request, events)
        except BadRequestError as error:
            await answer.refuse(error)
        except UpstreamError as error:
            await answer.fail(error)
        except ApexBridgeError as error:
            await answer.fail(UpstreamError.of_ours(error.status, error.message, error.code.lower()))
        except Exception:
            logger.exception("the chat request %s failed", answer.request_id)
            await answer.fail(
                UpstreamError(
                    500,
                    json.dumps(
                        openai_error("Something went wrong here; the log has more.", kind="server_error", code=None)
                    ).encode(),
                )
            )


class ModelsEndpoint:
    """Lists models."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All of them, or one by its id."""
        answer = _Answer(send, _request_id(scope))
        models = await self._bridge.chat.models()
        wanted = scope.get("path_params", {}).get("id")
        if wanted is None:
            await answer.send_json(200, {"object": "list", "data": models})
            return
        model = next((model for model in models if model["id"] == wanted), None)
        if model is None:
            message = f"The model '{str(wanted)[:200]}' does not exist"
            await answer.refuse(BadRequestError(message, param="model", code="model_not_found", status=404))
            return
        await answer.send_json(200, model)


class _Answer:
    """What goes back to the client."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self._is_streaming = False
        self._last = 0.0

    async def whole(self, request: ChatRequest, events: AsyncGenerator[Event, None]) -> None:
        """One completion."""
        completion = Completion(request)
        async for event in events:
            completion.take(event)
        await self._send_bytes(200, completion.told(), [])

    async def stream(self, request: ChatRequest, events: AsyncGenerator[Event, None]) -> None:
        """Chunks as they come; nothing before the upstream's first word, so that its errors keep their status."""
        rendered = CompletionStream(request)
        ticking: asyncio.Task[None] | None = None
        try:
            async for event in events:
                piece = rendered.render(event)
                if not self._is_streaming:
                    self._is_streaming = True
                    await self._start(200, list(_STREAM))
                    ticking = asyncio.ensure_future(self._keep_alive())
                if piece:
                    await self._send_piece(piece)
            await self._send_piece(b"data: [DONE]\n\n")
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if ticking is not None:
                ticking.cancel()

    async def refuse(self, error: BadRequestError) -> None:
        """The request cannot be answered."""
        told = openai_error(error.message, kind="invalid_request_error", code=error.code, param=error.param)
        await self.send_json(error.status, told)

    async def fail(self, error: UpstreamError) -> None:
        """The upstream's own words, as a status where there still is one to give, else in the stream."""
        if self._is_streaming:
            piece = b"data: " + json.dumps({"error": error.error}, ensure_ascii=False).encode() + b"\n\n"
            await self._send({"type": "http.response.body", "body": piece, "more_body": False})
            return
        headers = [(key.encode("latin-1"), value.encode("latin-1", "replace")) for key, value in error.headers.items()]
        body = error.body if _is_error_object(error.body) else json.dumps({"error": error.error}).encode()
        await self._send_bytes(error.status, body, [pair for pair in headers if pair[0] != b"x-request-id"])

    async def send_json(self, status: int, told: Json) -> None:
        """Any object."""
        await self._send_bytes(status, json.dumps(told, ensure_ascii=False).encode("utf-8", "replace"), [])

    async def _send_bytes(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        await self._start(status, [_JSON, (b"content-length", str(len(body)).encode()), *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        own = [*headers, (b"x-request-id", self.request_id.encode("latin-1", "replace"))]
        await self._send({"type": "http.response.start", "status": status, "headers": own})

    async def _send_piece(self, piece: bytes) -> None:
        self._last = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _keep_alive(self) -> None:
        """While nothing else is said, say that the connection is not dead."""
        loop = asyncio.get_running_loop()
        while True:
            quiet = loop.time() - self._last
            if quiet >= KEEP_ALIVE_SECONDS:
                await self._send_piece(KEEP_ALIVE)
                quiet = 0.0
            await asyncio.sleep(KEEP_ALIVE_SECONDS - quiet)


class _GoneError(Exception):
    """The client left before its request was complete."""


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise BadRequestError(
                f"The body is larger than {MAX_BODY_BYTES // 1024 // 1024} MB.", code="payload_too_large", status=413
            )
        if not message.get("more_body"):
            return b"".join(pieces)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("We could not parse the JSON body of your request.") from error


def _no_number(word: str) -> Any:
    """`NaN` and its kin are Python's, not JSON's, and an upstream would not take them."""
    raise ValueError(word)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(scope: Scope) -> str:
    given = _header(scope, b"x-request-id")
    return given if given and len(given) <= 128 and given.isprintable() else f"req_{uuid.uuid4().hex}"


def _caller(scope: Scope) -> str:
    state: Mapping[str, Any] = scope.get("state") or {}
    return str(state.get("caller", ""))


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _is_error_object(body: bytes) -> bool:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and isinstance(told.get("error"), dict)
