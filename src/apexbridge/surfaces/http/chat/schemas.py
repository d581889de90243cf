"""OpenAI's vocabulary below `/v1`, for the API documentation: the fields that this server reads or writes.

Requests and responses stay plain JSON, because fields that are not named here are passed on unchanged.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from apexbridge.agent.budget import StopCause
from apexbridge.agent.request import MAX_CLIENT_TOOLS, MAX_TOOLS, ApprovalMode
from apexbridge.wire import WireModel

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class OpenShape(BaseModel):
    """Has whatever else OpenAI's clients and the model's server know of."""

    model_config = ConfigDict(extra="allow")


class ChatMessage(OpenShape):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = Field(default=None, description="Text, or parts.")
    tool_calls: list[dict[str, Any]] | None = Field(default=None, description="Calls that an assistant made.")
    tool_call_id: str | None = Field(default=None, description="The call that a message of the role `tool` answers.")


class BridgeOptions(BaseModel):
    """What a request asks of this server; it goes no further."""

    model_config = ConfigDict(extra="forbid")

    tools: bool = Field(default=True, description="Whether the model is offered the tools of this server.")
    skills: list[str] = Field(default_factory=list, description="Skills that are offered as tools at once.")
    functions: bool = Field(default=False, description="Whether skills that are found become tools of their own.")
    approvals: ApprovalMode = Field(default="deny", description="What happens to calls that need a confirmation.")
    activity: bool = Field(default=False, description="Whether a stream tells each tool call as it is done.")
    debug: bool = Field(default=False, description="Whether the answer has the trajectory.")


class ChatRequest(OpenShape):
    """A conversation to be answered; fields that are not named here reach the model's server."""

    model: str | None = Field(default=None, description="May be left out where the server has a default.")
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = Field(default=None, description="Whether the answer comes in chunks.")
    stream_options: dict[str, Any] | None = Field(default=None, description="`include_usage`; only with `stream`.")
    tools: list[dict[str, Any]] | None = Field(
        default=None,
        max_length=MAX_CLIENT_TOOLS,
        description=f"The client's own, at most {MAX_TOOLS} without `defer_loading`; the client makes their calls.",
    )
    tool_choice: Any = Field(default=None, description="`none` also keeps this server's tools away.")
    response_format: dict[str, Any] | None = Field(default=None, description="Of the last turn.")
    n: int | None = Field(default=None, ge=1, description="Above 1 only without this server's tools.")
    x_bridge: BridgeOptions | None = None


class BridgeReport(WireModel):
    """How an answer came about; not there where it was passed on as it is."""

    turns: int = Field(description="How often the model was asked.")
    calls: int = Field(description="Tool calls that this server made.")
    stop_cause: StopCause
    duration_ms: int
    trajectory: list[dict[str, Any]] = Field(default_factory=list, description="With `debug`: each step in order.")


class ChatChoice(OpenShape):
    """The answer."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason | str | None


class CompletionUsage(OpenShape):
    """Tokens, over all turns."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(OpenShape):
    """An answer in one piece."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage | None = Field(default=None, description="Where the model's server told it.")
    x_bridge: BridgeReport | None = None


class ChatChunkChoice(OpenShape):
    """A piece of the answer."""

    index: int
    delta: dict[str, Any] = Field(description="`role` once, pieces of `content`, `tool_calls` of the client's tools.")
    finish_reason: FinishReason | str | None = Field(default=None, description="Once, in the last chunk with a choice.")


class BridgeProgress(BaseModel):
    """In a chunk of a stream that was asked for with `activity`."""

    activity: dict[str, Any] = Field(description="The tool call that was done last.")


class ChatCompletionChunk(OpenShape):
    """What `data:` of an event holds; after the last comes `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    x_bridge: BridgeReport | BridgeProgress | None = None


class ChatModel(OpenShape):
    """A model that can be asked for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ChatModelList(OpenShape):
    """All of them."""

    object: Literal["list"]
    data: list[ChatModel]


class OpenAIErrorDetail(OpenShape):
    """What went wrong."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class OpenAIError(OpenShape):
    """What every refusal below `/v1` looks like; one of the model's server passes with its own status and words."""

    error: OpenAIErrorDetail
