"""`/v1/responses`: OpenAI's Responses API over the same chat loop."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from apexbridge.agent.request import QUOTED_CHARACTERS, BadRequestError, ChatRequest, read_request
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.storage.response_store import ChainError, ResponseStore, StoredItems, StoredResponse
from apexbridge.surfaces.http.chat.response_ids import fresh_response_id, item_id, response_of
from apexbridge.surfaces.http.chat.response_input import messages_of, read_input
from apexbridge.surfaces.http.chat.response_output import Response, ResponseResult, ResponseStream, error_fields
from apexbridge.surfaces.http.chat.response_tools import ClientTools, echoed_tools, read_choice, read_tools
from apexbridge.surfaces.http.chat.wire_format import dumped
from apexbridge.surfaces.http.transport.requests import caller_of

Json = dict[str, Any]
REASONING_FIELD = "reasoning.encrypted_content"
"""In `include`: reasoning items come with what a later request needs of them."""
_TYPES: dict[str, tuple[type, str]] = {
    "instructions": (str, "a string"),
    "previous_response_id": (str, "a string"),
    "store": (bool, "true or false"),
    "background": (bool, "true or false"),
    "include": (list, "an array"),
    "text": (dict, "an object"),
    "reasoning": (dict, "an object"),
    "metadata": (dict, "an object"),
    "safety_identifier": (str, "a string"),
    "prompt_cache_key": (str, "a string"),
}
_SENT = ("model", "stream", "temperature", "top_p", "presence_penalty", "frequency_penalty", "user")
"""Fields that a chat request has too."""
_NUMBERS = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_logprobs": 0}
_REPEATED = ("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key")
_NOT_HERE = {
    "background": "Responses in the background are not possible here.",
    "conversation": "This server has no conversations; continue a response with 'previous_response_id'.",
    "prompt": "This server has no stored prompts; send 'instructions' and 'input'.",
}


class ResponsesApi:
    path = "/v1/responses"
    request_id_header = b"x-request-id"
    keep_alive = b": keep-alive\n\n"

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def open(self, body: Any, *, scope: Scope, request_id: str) -> "ResponseExchange":
        caller = caller_of(scope)
        asked = read_body(body)
        context = await self._context(asked, caller)
        request = read_request(asked.chat_body(context), caller=caller, request_id=request_id, may_pass_through=False)
        return ResponseExchange(self._store, asked, request, used=[stored.id for stored in context.used])

    async def chat_request(self, body: Any, *, caller: str) -> ChatRequest:
        """A request as the chat loop gets it. Raises BadRequestError."""
        asked = read_body(body)
        context = await self._context(asked, caller)
        return read_request(asked.chat_body(context), caller=caller, may_pass_through=False)

    def error_body(self, error: UpstreamError, request_id: str) -> bytes:
        return dumped({"error": {**error.error, **error_fields(error)}})

    async def _context(self, asked: "AskedResponse", caller: str) -> "Context":
        """The conversation that a request continues, with the items that it refers to."""
        earlier = await self._earlier(asked.previous, caller) if asked.previous is not None else []
        items = [item for stored in earlier for item in stored.items] + asked.input
        referenced = await self._referenced(items, caller)
        used = {stored.id: stored for stored in [*earlier, *referenced]}
        known = {
            item["id"]: item for stored in used.values() for item in stored.items if item["type"] != "item_reference"
        }
        return Context(items=[_resolved(item, known) for item in items], used=list(used.values()))

    async def _earlier(self, previous: str, caller: str) -> list[StoredItems]:
        try:
            return await self._store.chain(previous, caller=caller)
        except ChainError as error:
            if error.missing is None:
                raise BadRequestError(
                    f"The conversation of {previous[:QUOTED_CHARACTERS]} is too long to be continued.",
                    param="previous_response_id",
                    openai_code="context_length_exceeded",
                ) from error
            raise BadRequestError(
                f"Previous response with id '{error.missing[:QUOTED_CHARACTERS]}' not found. Responses with "
                "store: false are not stored, and others expire.",
                param="previous_response_id",
                openai_code="previous_response_not_found",
            ) from error

    async def _referenced(self, items: Sequence[Json], caller: str) -> list[StoredItems]:
        ids = [_referred(item) for item in items if item["type"] == "item_reference"]
        responses = dict.fromkeys(response for id in ids if (response := response_of(id)) is not None)
        if not responses:
            return []
        try:
            return await self._store.referenced(list(responses), caller=caller)
        except ChainError as error:
            raise BadRequestError("'input' refers to too many items.", param="input") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    items: Sequence[Json]
    """Of the whole conversation."""
    used: Sequence[StoredItems]
    """Stored responses that are part of it, the newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedResponse:
    """A request, validated as far as it differs from a chat request."""

    body: Json
    input: list[Json]
    tools: ClientTools

    @property
    def previous(self) -> str | None:
        return self.body.get("previous_response_id")

    @property
    def is_stored(self) -> bool:
        return self.body.get("store") is not False

    @property
    def shows_reasoning_field(self) -> bool:
        return REASONING_FIELD in (self.body.get("include") or ())

    def chat_body(self, context: Context) -> Json:
        """The chat request. Raises BadRequestError."""
        body = self.body
        messages = messages_of(context.items, self.tools, instructions=body.get("instructions"))
        if not messages:
            raise BadRequestError("'input' must be text or a non-empty array of items.", param="input")
        chat: Json = {key: body[key] for key in _SENT if body.get(key) is not None}
        chat["messages"] = messages
        choice = read_choice(body.get("tool_choice"), self.tools)
        options = body.get("x_bridge")
        if not choice.allows_server_tools and isinstance(options, dict | None):
            options = {**(options or {}), "tools": False}
        workspace = next((stored.workspace for stored in reversed(context.used) if stored.workspace), None)
        if workspace is not None and isinstance(options, dict | None):
            options = {"workspace": workspace, **(options or {})}
        if options is not None:
            chat["x_bridge"] = options
        functions = [
            function
            for function in self.tools.functions
            if choice.allowed is None or function["function"]["name"] in choice.allowed
        ]
        has_tools = bool(functions) or not (isinstance(options, dict) and options.get("tools") is False)
        if functions:
            chat["tools"] = functions
        if choice.choice is not None and has_tools:
            chat["tool_choice"] = choice.choice
        if isinstance(body.get("parallel_tool_calls"), bool) and has_tools:
            chat["parallel_tool_calls"] = body["parallel_tool_calls"]
        if body.get("max_output_tokens") is not None:
            chat["max_tokens"] = body["max_output_tokens"]
        if (effort := (body.get("reasoning") or {}).get("effort")) is not None:
            chat["reasoning_effort"] = effort
        if (form := _response_format(body.get("text"))) is not None:
            chat["response_format"] = form
        return chat

    def repeated(self, *, is_stored: bool) -> Json:
        """Fields of the response object that repeat the request. Strict clients need all of them."""
        body = self.body
        reasoning, text = body.get("reasoning"), body.get("text") or {}
        numbers = {key: value if _is_number(value := body.get(key)) else default for key, default in _NUMBERS.items()}
        return {
            "previous_response_id": self.previous,
            "instructions": body.get("instructions"),
            "tools": echoed_tools(body.get("tools")),
            "tool_choice": body.get("tool_choice") or "auto",
            "truncation": "auto" if body.get("truncation") == "auto" else "disabled",
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "text": {**text, "format": _repeated_format(text.get("format"))},
            **numbers,
            "reasoning": {"effort": None, "summary": None, **reasoning} if reasoning is not None else None,
            **{key: body.get(key) for key in _REPEATED},
            "store": is_stored,
            "background": False,
            "service_tier": "default",
            "metadata": body.get("metadata") or {},
        }


class ResponseExchange:
    """One request and its response, which is stored unless the client or the operator does not want that."""

    def __init__(
        self, store: ResponseStore, asked: AskedResponse, request: ChatRequest, *, used: Sequence[str]
    ) -> None:
        """`used` are the stored responses that the conversation contains."""
        self.request = request
        self._store = store
        self._asked = asked
        self._used = used
        self._is_stored = asked.is_stored and store.is_storing
        self._result = ResponseResult(
            id=fresh_response_id(),
            created_at=int(time.time()),
            model=request.model,
            fields=asked.repeated(is_stored=self._is_stored),
        )
        self._stream = ResponseStream(
            request, self._result, asked.tools, shows_reasoning_field=asked.shows_reasoning_field
        )

    def whole(self) -> Response:
        return Response(self._stream)

    def stream(self) -> ResponseStream:
        return self._stream

    async def before_end(self) -> None:
        """Store the response: the client may continue it at once."""
        if not self._is_stored:
            return
        result = self._result
        stored = StoredResponse(
            id=result.id,
            caller=self.request.caller,
            created_at=result.created_at * 1000,
            previous=self._asked.previous,
            workspace=result.workspace,
            response=result.head(),
            input=[
                item if isinstance(item.get("id"), str) else {**item, "id": item_id(result.id, "in", index)}
                for index, item in enumerate(self._asked.input)
            ],
            output=self._stream.stored_output,
        )
        await self._store.add(stored, used=self._used)


def read_body(body: Any) -> AskedResponse:
    """Validate what differs from a chat request. Raises BadRequestError."""
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.")
    for name, (kind, expected) in _TYPES.items():
        if not isinstance(body.get(name), kind | None):
            raise BadRequestError(f"'{name}' must be {expected}.", param=name)
    for name in ("max_output_tokens", "max_tool_calls"):
        value = body.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            # As a field of chat completions, the upstream would refuse it under another name.
            raise BadRequestError(f"'{name}' must be a whole number from 1.", param=name)
    if not isinstance((body.get("reasoning") or {}).get("effort"), str | None):
        raise BadRequestError("'reasoning.effort' must be a string.", param="reasoning.effort")
    for name, message in _NOT_HERE.items():
        if body.get(name):
            raise BadRequestError(message, param=name, openai_code="unsupported_parameter")
    return AskedResponse(body=body, input=read_input(body.get("input")), tools=read_tools(body.get("tools")))


def _referred(item: Json) -> str:
    id = item.get("id")
    return id if isinstance(id, str) else ""


def _resolved(item: Json, known: dict[str, Json]) -> Json:
    if item["type"] != "item_reference":
        return item
    id = _referred(item)
    found = known.get(id)
    if found is None:
        raise BadRequestError(
            f"Item with id '{id[:QUOTED_CHARACTERS]}' not found. Items of responses with store: false are not "
            "stored, and others expire; send the item itself.",
            param="input",
            openai_code="item_not_found",
            status=404,
        )
    return found


def _response_format(text: Json | None) -> Json | None:
    """`text.format` as the `response_format` of a chat request."""
    form = (text or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise BadRequestError("'text.format' must be an object.", param="text.format")
    kind = form.get("type")
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        return None
    if not isinstance(form.get("schema"), dict):
        raise BadRequestError("'text.format.schema' must be an object.", param="text.format.schema")
    fields = {key: form[key] for key in ("name", "description", "schema", "strict") if form.get(key) is not None}
    return {"type": "json_schema", "json_schema": {"name": "answer", **fields}}


def _repeated_format(form: Any) -> Json:
    if not isinstance(form, dict):
        return {"type": "text"}
    return {"description": None, "strict": False, **form} if form.get("type") == "json_schema" else form


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
