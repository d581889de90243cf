"""The OpenAPI document: FastAPI's routes, the plain ASGI routes below `/v1`, and the scope that each route needs."""

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from apexbridge.agent.budget import StopCause
from apexbridge.agent.request import MAX_CLIENT_TOOLS, MAX_TOOLS, ApprovalMode
from apexbridge.agent.tool_steps import CallKind, CallState
from apexbridge.monitoring.server_events import (
    ServerEventApproval,
    ServerEventCounts,
    ServerEventDirect,
    ServerEventHello,
    ServerEventMcp,
    ServerEventRun,
    ServerEventSkills,
)
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.matches import Why
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.storage.run_store import RunState
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.scopes import SESSION_PATH, is_enough_to_chat, required_scope
from apexbridge.wire import WireModel

Json = dict[str, Any]
DOCUMENT_PATH = "/openapi.json"
_COMPONENTS = "#/components/schemas/"
_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
_SCHEMES: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key. Create one with: apex keys create --name NAME",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}
_SERVER_EVENTS: dict[str, type[WireModel]] = {
    "hello": ServerEventHello,
    "run": ServerEventRun,
    "direct": ServerEventDirect,
    "approval": ServerEventApproval,
    "skills": ServerEventSkills,
    "counts": ServerEventCounts,
    "mcp": ServerEventMcp,
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
    shapes: tuple[type[BaseModel], ...] = (
        ChatRequest,
        ChatCompletion,
        ChatCompletionChunk,
        ChatModel,
        ChatModelList,
        ResponseRequest,
        ResponseObject,
        MessagesRequest,
        MessagesAnswer,
        TokensRequest,
        TokenCount,
        OpenAIError,
        AnthropicError,
        *_SERVER_EVENTS.values(),
    )
    described: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        *((shape, "validation") for shape in shapes),
        *((shape, "serialization") for shape in _EVENTS.values()),
    ]
    _, schemas = models_json_schema(described, ref_template=_COMPONENTS + "{model}")
    components: Json = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **schemas["$defs"]}
    components["securitySchemes"] = _SCHEMES
    document["paths"] |= _chat_paths() | _messages_paths()
    for path, event in _EVENTS.items():
        content = document["paths"][path]["get"]["responses"]["200"].setdefault("content", {})
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": f"Events with the fields of {event.__name__}; `data` is JSON."},
            "x-event-schema": {"$ref": _COMPONENTS + event.__name__},
        }
    events = document["paths"]["/api/events"]["get"]["responses"]["200"]
    events["content"] = {
        "text/event-stream": {
            "schema": {
                "type": "string",
                "description": "Events; `reset`, `keys` and `doctor` have an empty object as data.",
            },
            "x-event-schemas": {kind: {"$ref": _COMPONENTS + shape.__name__} for kind, shape in _SERVER_EVENTS.items()},
        }
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                operation["security"] = _security(method.upper(), path, keys_required=keys_required)


def _security(method: str, path: str, *, keys_required: bool) -> list[Json]:
    """The security schemes with each scope that is enough, and `{}` (none) if keys are optional. `admin` has all."""
    scope = required_scope(method, path)
    if path == SESSION_PATH:
        return [*({name: list[str]()} for name in _SCHEMES), {}]
    if scope is None:
        return []
    scopes = [scope, "chat"] if is_enough_to_chat(method, path) else [scope]
    schemes: list[Json] = [{name: [one]} for one in scopes for name in _SCHEMES]
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
    response = _answer("A response, or with `stream` its events as server-sent events.", ResponseObject)
    response["content"]["text/event-stream"] = {
        "schema": {"type": "string", "description": "Events of OpenAI's Responses API, then `[DONE]`."}
    }
    return {
        "/v1/responses": {
            "post": {
                **_about("create_response", "Answer a conversation, as OpenAI's Responses API does."),
                "requestBody": {"required": True, "content": _content(ResponseRequest)},
                "responses": {"200": response, **errors},
            }
        },
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


def _messages_paths() -> Json:
    errors: Json = {
        "4XX": _answer("The request was refused; see `error.type`.", AnthropicError),
        "5XX": _answer("This server or the upstream failed.", AnthropicError),
    }
    whole = _answer("A message, or with `stream` its events as server-sent events.", MessagesAnswer)
    whole["content"]["text/event-stream"] = {
        "schema": {"type": "string", "description": "Events of Anthropic's Messages API, up to `message_stop`."}
    }
    return {
        "/v1/messages": {
            "post": {
                **_about("create_message", "Answer a conversation, as Anthropic's Messages API does."),
                "requestBody": {"required": True, "content": _content(MessagesRequest)},
                "responses": {"200": whole, **errors},
            }
        },
        "/v1/messages/count_tokens": {
            "post": {
                **_about("count_message_tokens", "Estimate the tokens of a request."),
                "requestBody": {"required": True, "content": _content(TokensRequest)},
                "responses": {"200": _answer("The estimate.", TokenCount), **errors},
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


class ChatSearchHit(WireModel):
    """A result of a search in a chat."""

    kind: Kind
    name: str
    score: float
    why: Why


class ChatActivity(WireModel):
    """A tool call of this server that has ended."""

    kind: Literal["search", "tool"]
    name: str = Field(description="As the model called it.")
    tool: str | None = Field(description="The id of the tool; null if there is none with that name.")
    success: bool
    duration_ms: int
    execution_id: str | None = Field(default=None, description="Of a run; absent otherwise.")
    results: list[ChatSearchHit] | None = Field(default=None, description="Of a search; absent otherwise.")


class ChatToolCall(WireModel):
    """One state of a tool call of this server. Each state has a chunk of its own; `id` is the same in all of them."""

    id: str
    name: str = Field(description="As the model called it.")
    kind: CallKind
    arguments: str = Field(description="JSON text as the model wrote it, up to 64 KB.")
    arguments_truncated: bool
    state: CallState
    execution_id: str | None = Field(description="As soon as the run exists.")
    approval_id: str | None = Field(description="Of a call that waits or waited for approval.")
    success: bool | None = Field(description="Null before the end.")
    duration_ms: int | None = Field(description="Null before the end.")
    result: str | None = Field(description="The text for the model, up to 16 KB; null before the end.")
    result_truncated: bool
    results: list[ChatSearchHit] | None = Field(description="Of a search that has ended; null otherwise.")


class BridgeProgress(WireModel):
    """In the chunks of a stream with `activity`: one of the two."""

    activity: ChatActivity | None = Field(default=None, description="The latest tool call that has ended.")
    tool_call: ChatToolCall | None = Field(default=None, description="A tool call whose state has changed.")


class ChatCompletionChunk(OpenShape):
    """The data of one event. The last event is `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    x_bridge: BridgeReport | BridgeProgress | None = None


class ResponseRequest(OpenShape):
    """A conversation as items. Fields that are not listed here are ignored."""

    model: str | None = Field(default=None, description="Optional if the server has a default.")
    input: str | list[dict[str, Any]] | None = Field(default=None, description="A text, or items.")
    instructions: str | None = Field(default=None, description="The system prompt of this request alone.")
    previous_response_id: str | None = Field(default=None, description="The stored response to continue.")
    store: bool | None = Field(default=None, description="Whether the response can be continued by its id.")
    stream: bool | None = Field(default=None, description="Return the answer as events.")
    tools: list[dict[str, Any]] | None = Field(
        default=None, description="The client's own tools: function, custom, namespace. Other types are skipped."
    )
    tool_choice: Any = Field(default=None, description="auto, none, required, a tool, or `allowed_tools`.")
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = Field(default=None, description="`format` of the last turn.")
    reasoning: dict[str, Any] | None = Field(default=None, description="`effort`.")
    include: list[str] | None = Field(default=None, description="`reasoning.encrypted_content`.")
    max_output_tokens: int | None = Field(default=None, description="Of each turn of the model.")
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = Field(default=None, description="Repeated in the response.")
    x_bridge: BridgeOptions | None = None


class ResponseUsage(OpenShape):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class ResponseObject(OpenShape):
    """A response. Further fields repeat the request."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Seconds since 1970.")
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]] = Field(
        description="Items: message, reasoning, function_call, custom_tool_call, mcp_call, mcp_approval_request."
    )
    usage: ResponseUsage | None = Field(description="If the upstream reports it.")
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    previous_response_id: str | None
    store: bool = Field(description="Whether it can be continued by its id.")
    x_bridge: BridgeReport | None = None


class ChatModel(OpenShape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ChatModelList(OpenShape):
    object: Literal["list"]
    data: list[ChatModel]


class TokensRequest(OpenShape):
    """A conversation in Anthropic's format. Fields that are not listed here are ignored."""

    model: str | None = Field(default=None, description="Optional if the server has a default.")
    messages: list[dict[str, Any]] = Field(min_length=1, description="Roles user, assistant and system.")
    system: str | list[dict[str, Any]] | None = Field(default=None, description="Text, or text blocks.")
    tools: list[dict[str, Any]] | None = Field(
        default=None, description="The client's own tools. Tools that Anthropic runs are skipped."
    )
    tool_choice: dict[str, Any] | None = Field(default=None, description="auto, any, tool or none.")
    x_bridge: BridgeOptions | None = None


class MessagesRequest(TokensRequest):
    """A conversation in Anthropic's format. Fields that are not listed here are ignored."""

    max_tokens: int = Field(ge=1, description="Of each turn of the model.")
    stream: bool | None = Field(default=None, description="Return the answer as events.")
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    thinking: dict[str, Any] | None = Field(default=None, description="`budget_tokens` becomes `reasoning_effort`.")
    output_config: dict[str, Any] | None = Field(default=None, description="`format` of the last turn, and `effort`.")
    container: str | dict[str, Any] | None = Field(
        default=None, description="The workspace with the conversation's files, and `skills` to offer."
    )


class MessagesUsage(OpenShape):
    input_tokens: int = Field(description="Without those that the upstream had in its cache.")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessagesAnswer(OpenShape):
    """An answer in Anthropic's format."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]] = Field(
        description="Blocks: text, thinking, tool_use; for tools of this server mcp_tool_use and mcp_tool_result."
    )
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessagesUsage
    container: dict[str, Any] | None = Field(default=None, description="The workspace with the conversation's files.")
    x_bridge: BridgeReport | None = None


class TokenCount(OpenShape):
    input_tokens: int


class AnthropicErrorDetail(OpenShape):
    type: str
    message: str


class AnthropicError(OpenShape):
    """An error for clients of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class OpenAIErrorDetail(OpenShape):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class OpenAIError(OpenShape):
    """An error below `/v1`. Upstream errors are passed on with their status and message."""

    error: OpenAIErrorDetail


class RunStateEvent(BaseModel):
    """The run has a new state."""

    id: int
    event: Literal["state"]
    data: RunState


class RunStdoutEvent(BaseModel):
    """A piece of the standard output."""

    id: int
    event: Literal["stdout"]
    data: str


class RunStderrEvent(BaseModel):
    """A piece of the standard error output."""

    id: int
    event: Literal["stderr"]
    data: str


class RunResultEvent(BaseModel):
    """The last event of a run."""

    id: int
    event: Literal["result"]
    data: ExecutionResult


class RunEvent(
    RootModel[
        Annotated[
            RunStateEvent | RunStdoutEvent | RunStderrEvent | RunResultEvent,
            Field(discriminator="event"),
        ]
    ]
):
    """A server-sent event of a run. `id` counts from 1."""


_EVENTS: dict[str, type[BaseModel]] = {"/api/executions/{id}/events": RunEvent}
"""Streams of events, by path, with the shape of an event: its `id`, its name as `event`, and its `data`, parsed."""
