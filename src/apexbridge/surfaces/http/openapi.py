"""The OpenAPI document: FastAPI's routes, the plain ASGI routes below `/v1`, and the scope that each route needs."""

import json
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from apexbridge.surfaces.http.chat.schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatModel,
    ChatModelList,
    ChatRequest,
    OpenAIError,
)
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.scopes import required_scope

Json = dict[str, Any]
DOCUMENT_PATH = "/openapi.json"
_COMPONENTS = "#/components/schemas/"
_SHAPES = (ChatRequest, ChatCompletion, ChatCompletionChunk, ChatModel, ChatModelList, OpenAIError)
_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key. Make one with: apex keys create"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}
_REQUEST_ID: Json = {"x-request-id": {"description": "As sent, or made here.", "schema": {"type": "string"}}}


def complete_document(app: FastAPI, access: Access) -> None:
    """Make the app describe all of its routes. The document is built on first use."""
    known = app.openapi
    served: list[bytes] = []

    def openapi() -> Json:
        if app.openapi_schema is None:
            _complete(known(), keys_required=access.keys_required)
        return known()

    async def document(_: Request) -> Response:
        """Build the document in a thread: it takes a large part of a second of CPU time."""
        if not served:
            served.append(await anyio.to_thread.run_sync(lambda: json.dumps(app.openapi()).encode()))
        return Response(served[0], media_type="application/json")

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI's documentation recommends
    app.router.routes.insert(0, Route(DOCUMENT_PATH, document, include_in_schema=False))


def _complete(document: Json, *, keys_required: bool) -> None:
    _, told = models_json_schema([(shape, "validation") for shape in _SHAPES], ref_template=_COMPONENTS + "{model}")
    parts: Json = document.setdefault("components", {})
    parts["schemas"] = {**parts.get("schemas", {}), **told["$defs"]}
    parts["securitySchemes"] = _SCHEMES
    document["paths"] |= _chat_paths()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                operation["security"] = _security(method.upper(), path, keys_required=keys_required)


def _security(method: str, path: str, *, keys_required: bool) -> list[Json]:
    """The security schemes with the scope that a key needs, and `{}` (none) if keys are optional."""
    scope = required_scope(method, path)
    if scope is None:
        return []
    ways: list[Json] = [{name: [scope]} for name in _SCHEMES]
    return ways if keys_required else [*ways, {}]


def _chat_paths() -> Json:
    errors: Json = {
        "4XX": _answer("Refused; `error.code` says why.", OpenAIError),
        "5XX": _answer("This server or the model's could not.", OpenAIError),
    }
    id: Json = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The model's id; it may contain `/`.",
        "schema": {"type": "string"},
    }
    whole = _answer("A completion, or with `stream` its chunks as server-sent events.", ChatCompletion)
    whole["content"]["text/event-stream"] = {
        "schema": {"type": "string", "description": "Events whose data is a ChatCompletionChunk, then `[DONE]`."},
        "x-event-schema": {"$ref": _COMPONENTS + ChatCompletionChunk.__name__},
    }
    return {
        "/v1/chat/completions": {
            "post": {
                **_about("create_chat_completion", "Answer a conversation, as OpenAI's API does."),
                "requestBody": {"required": True, "content": _content(ChatRequest)},
                "responses": {"200": whole, **errors},
            }
        },
        "/v1/models": {
            "get": {
                **_about("list_models", "The models that can be asked for."),
                "responses": {"200": _answer("All of them.", ChatModelList), **errors},
            }
        },
        "/v1/models/{id}": {
            "get": {
                **_about("show_model", "One model."),
                "parameters": [id],
                "responses": {"200": _answer("It.", ChatModel), **errors},
            }
        },
    }


def _about(name: str, description: str) -> Json:
    return {
        "tags": ["chat"],
        "operationId": name,
        "summary": name.replace("_", " ").capitalize(),
        "description": description,
    }


def _answer(description: str, shape: type[BaseModel]) -> Json:
    return {"description": description, "headers": _REQUEST_ID, "content": _content(shape)}


def _content(shape: type[BaseModel]) -> Json:
    return {"application/json": {"schema": {"$ref": _COMPONENTS + shape.__name__}}}
