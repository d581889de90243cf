"""`/v1`: chat completions and models, compatible with OpenAI's clients.

Plain ASGI instead of FastAPI, for less overhead between the client and the model.
"""

import asyncio
import json
import logging
import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge.agent.request import BadRequestError, ChatRequest, read_request
from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.errors import UpstreamError, openai_error
from apexbridge.surfaces.http.chat.reply import Reply
from apexbridge.surfaces.http.transport.disconnect import when_left
from apexbridge.surfaces.http.transport.request_id import request_id

CHAT_PATH = "/v1/chat/completions"
_JSON = b"application/json"
logger = logging.getLogger(__name__)


def routes(bridge: Bridge) -> list[BaseRoute]:
    """The routes below `/v1`."""
    return [
        Route(CHAT_PATH, ChatEndpoint(bridge), methods=["POST"]),
        Route("/v1/models", ModelsEndpoint(bridge), methods=["GET"]),
        Route("/v1/models/{id:path}", ModelsEndpoint(bridge), methods=["GET"]),
    ]


class ChatDoor:
    """Handles chat requests before the router, which would try every other route first."""

    def __init__(self, app: ASGIApp, *, bridge: Bridge) -> None:
        self._app = app
        self._chat = ChatEndpoint(bridge)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_chat = scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST"
        await (self._chat if is_chat else self._app)(scope, receive, send)


class ChatEndpoint:
    """Answers chat requests, as one completion or as a stream."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. It is cancelled if the client disconnects."""
        reply = Reply(send, request_id(scope))
        try:
            _check_type(scope)
            request = read_request(_parsed(await _body(receive)), caller=_caller(scope), request_id=reply.request_id)
        except BadRequestError as error:
            await reply.refuse(error)
            return
        except _GoneError:
            return
        work = asyncio.current_task()
        is_left = False

        def stop() -> None:
            nonlocal is_left
            if work is not None and not reply.is_complete:
                is_left = True
                work.cancel()

        try:
            with when_left(scope, receive, stop):
                await self._answer(request, reply)
        except asyncio.CancelledError:
            if not is_left:  # cancelled for another reason than a disconnect
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
            await reply.fail(UpstreamError.of_ours(error.status, error.message, error.code.lower()))
        except Exception:
            logger.exception("the chat request %s failed", reply.request_id)
            told = openai_error("Something went wrong here; the log has more.", kind="server_error", code=None)
            await reply.fail(UpstreamError(500, json.dumps(told).encode()))


class ModelsEndpoint:
    """Lists models, or shows one by its id."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send, request_id(scope))
        models = await self._bridge.chat.models()
        wanted = scope.get("path_params", {}).get("id")
        if wanted is None:
            await reply.send_json(200, {"object": "list", "data": models})
            return
        model = next((model for model in models if model["id"] == wanted), None)
        if model is None:
            message = f"The model '{str(wanted)[:200]}' does not exist"
            await reply.refuse(
                BadRequestError(message, param="model", openai_code="model_not_found", code="NOT_FOUND", status=404)
            )
            return
        await reply.send_json(200, model)


class _GoneError(Exception):
    """The client disconnected before its request was complete."""


def _check_type(scope: Scope) -> None:
    """Refuse content types other than JSON. They are what a form on another site's page can send."""
    given = next((value for name, value in scope["headers"] if name == b"content-type"), _JSON)
    kind = given.partition(b";")[0].strip().lower()
    if kind != _JSON and not kind.endswith(b"+json"):
        raise BadRequestError(
            "Send the request with the header 'Content-Type: application/json'.",
            openai_code="unsupported_media_type",
            code="UNSUPPORTED_MEDIA_TYPE",
            status=415,
        )


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


def _parsed(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadRequestError("We could not parse the JSON body of your request.") from error


def _no_number(word: str) -> Any:
    """Refuse `NaN` and `Infinity`: Python reads them, but they are not JSON, and an upstream would refuse them."""
    raise ValueError(word)


def _finite(text: str) -> float:
    """Refuse numbers that are too large for a float."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def _caller(scope: Scope) -> str:
    state: Mapping[str, Any] = scope.get("state") or {}
    return str(state.get("caller", ""))
