"""The OpenAPI document: FastAPI's routes, the plain ASGI routes below `/v1`, and the scope that each route needs."""

import asyncio
import json
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from apexbridge.agent.budget import StopCause
from apexbridge.agent.request import MAX_CLIENT_TOOLS, MAX_TOOLS, ApprovalMode
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.scopes import required_scope
from apexbridge.wire import WireModel

Json = dict[str, Any]
DOCUMENT_PATH = "/openapi.json"
_COMPONENTS = "#/components/schemas/"
_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key. Create one with: apex keys create"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}
_REQUEST_ID: Json = {"x-request-id": {"description": "The client's id, or a new one.", "schema": {"type": "string"}}}


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
            served.append(await asyncio.to_thread(lambda: json.dumps(app.openapi()).encode()))
        return Response(served[0], media_type="application/json")

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI's documentation recommends
    app.router.routes.insert(0, Route(DOCUMENT_PATH, document, include_in_schema=False))


def _complete(document: Json, *, keys_required: bool) -> None:
    shapes = (ChatRequest, ChatCompletion, ChatCompletionChunk, ChatModel, ChatModelList, OpenAIError)
    _, schemas = models_json_schema([(shape, "validation") for shape in shapes], ref_template=_COMPONENTS + "{model}")
    components: Json = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **schemas["$defs"]}
    components["securitySchemes"] = _SCHEMES
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
    schemes: list[Json] = [{name: [scope]} for name in _SCHEMES]
    return schemes if keys_required else [*schemes, {}]


def _chat_paths() -> Json:
    errors: Json = {
        "4XX": _answer("The request was refused; see `error.code`.", OpenAIError),
        "5XX": _answer("This server or the upstream failed.", OpenAIError),
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
                **_about("list_models", "List the available models."),
                "responses": {"200": _answer("All models.", ChatModelList), **errors},
            }
        },
        "/v1/models/{id}": {
            "get": {
                **_about("show_model", "Show one model."),
                "parameters": [id],
                "responses": {"200": _answer("The model.", ChatModel), **errors},
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


# ------------------------------------------------------------------------------------------------------------- shapes
# OpenAI's vocabulary below `/v1`, for this document alone: the fields that this server reads or writes. Requests and
# responses stay plain JSON, because other fields are passed on unchanged.

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class OpenShape(BaseModel):
    """May have more fields, which are passed on unchanged."""

    model_config = ConfigDict(extra="allow")


class ChatMessage(OpenShape):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = Field(default=None, description="Text, or content parts.")
    tool_calls: list[dict[str, Any]] | None = Field(default=None, description="Calls of an assistant message.")
    tool_call_id: str | None = Field(default=None, description="The call that a `tool` message answers.")


class BridgeOptions(BaseModel):
    """Options for this server. They are not sent to the upstream."""

    model_config = ConfigDict(extra="forbid")

    tools: bool = Field(default=True, description="Offer the model the tools of this server.")
    skills: list[str] = Field(default_factory=list, description="Skills to offer as tools from the start.")
    functions: bool = Field(default=False, description="Offer each skill that is found as its own tool.")
    approvals: ApprovalMode = Field(default="deny", description="What happens to calls that need approval.")
    activity: bool = Field(default=False, description="Report each tool call in the stream.")
    debug: bool = Field(default=False, description="Return the trajectory.")
    workspace: str | None = Field(default=None, description="The workspace with the conversation's files.")


class ChatRequest(OpenShape):
    """A conversation. Fields that are not listed here are sent to the upstream unchanged."""

    model: str | None = Field(default=None, description="Optional if the server has a default.")
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = Field(default=None, description="Return the answer in chunks.")
    stream_options: dict[str, Any] | None = Field(default=None, description="`include_usage`; only with `stream`.")
    tools: list[dict[str, Any]] | None = Field(
        default=None,
        max_length=MAX_CLIENT_TOOLS,
        description=f"The client's own tools, at most {MAX_TOOLS} without `defer_loading`; the client runs them.",
    )
    tool_choice: Any = Field(default=None, description="`none` also disables this server's tools.")
    response_format: dict[str, Any] | None = Field(default=None, description="Format of the last turn.")
    n: int | None = Field(default=None, ge=1, description="Above 1 only without this server's tools.")
    x_bridge: BridgeOptions | None = None


class BridgeReport(WireModel):
    """How an answer was produced; absent if it was passed through unchanged."""

    turns: int = Field(description="Requests to the model.")
    calls: int = Field(description="Tool calls of this server.")
    stop_cause: StopCause
    duration_ms: int
    workspace: str | None = Field(default=None, description="The workspace with the conversation's files.")
    files: list[dict[str, Any]] = Field(
        default_factory=list, description="Files that the request made or changed: path, size, url."
    )
    trajectory: list[dict[str, Any]] = Field(default_factory=list, description="With `debug`: all steps in order.")


class ChatChoice(OpenShape):
    index: int
    message: ChatMessage
    finish_reason: FinishReason | str | None


class CompletionUsage(OpenShape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(OpenShape):
    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage | None = Field(default=None, description="If the upstream reports it.")
    x_bridge: BridgeReport | None = None


class ChatChunkChoice(OpenShape):
    index: int
    delta: dict[str, Any] = Field(description="`role` once, then `content`, or `tool_calls` of the client's tools.")
    finish_reason: FinishReason | str | None = Field(default=None, description="Once, in the last chunk with a choice.")


class BridgeProgress(BaseModel):
    """In the chunks of a stream with `activity`."""

    activity: dict[str, Any] = Field(description="The latest tool call.")


class ChatCompletionChunk(OpenShape):
    """The data of one event. The last event is `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    x_bridge: BridgeReport | BridgeProgress | None = None


class ChatModel(OpenShape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ChatModelList(OpenShape):
    object: Literal["list"]
    data: list[ChatModel]


class OpenAIErrorDetail(OpenShape):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class OpenAIError(OpenShape):
    """An error below `/v1`. Upstream errors are passed on with their status and message."""

    error: OpenAIErrorDetail
