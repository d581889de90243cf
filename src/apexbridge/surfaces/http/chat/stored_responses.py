"""`/v1/responses/…`: stored responses, and what else OpenAI's clients ask for. `POST /v1/responses` is chat."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query, Response
from pydantic import BaseModel

from apexbridge.agent.request import QUOTED_CHARACTERS, BadRequestError
from apexbridge.bridge import Bridge
from apexbridge.errors import RequestError
from apexbridge.storage.response_store import StoredResponse
from apexbridge.surfaces.http.chat.responses import REASONING_FIELD, ResponsesApi
from apexbridge.surfaces.http.chat.wire_format import dumped
from apexbridge.surfaces.http.deps import Caller, ServedBridge

router = APIRouter(tags=["responses"])
Identity = Annotated[str, Path(alias="id", description="The response's id.")]
Json = dict[str, Any]
MAX_LIMIT = 100


class ResponseItemList(BaseModel):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    body: Annotated[dict[str, Any], Body()], bridge: ServedBridge, caller: Caller
) -> InputTokens:
    """Estimate the tokens of a request to `/v1/responses`, with this server's tools and its system prompt."""
    request = await ResponsesApi(bridge.responses).chat_request(body, caller=caller)
    return InputTokens(input_tokens=await bridge.chat.count_tokens(request))


@router.post("/v1/responses/compact")
async def compact_response() -> None:
    """Not offered: always 404."""
    raise RequestError(
        "This server does not compact conversations. Send a shorter one, or a summary of it.", code="NOT_FOUND"
    )


@router.get("/v1/responses/{id}", response_model=dict[str, Any])
async def show_response(
    identity: Identity,
    bridge: ServedBridge,
    caller: Caller,
    include: Annotated[list[str] | None, Query(alias="include[]", description="As `include` of a request.")] = None,
    stream: Annotated[
        bool, Query(description="Not possible: only responses in the background can be resumed.")
    ] = False,
) -> Response:
    """Show a stored response. Only the key that made it can see it."""
    stored = await _stored(bridge, identity, caller)
    if stream:
        raise BadRequestError("A stored response cannot be streamed.", param="stream")
    output = [_shown(item, has_field=REASONING_FIELD in (include or ())) for item in stored.output]
    return _json({**stored.response, "output": output})


@router.delete("/v1/responses/{id}")
async def delete_response(identity: Identity, bridge: ServedBridge, caller: Caller) -> DeletedResponse:
    """Delete a stored response. Conversations that continued it cannot be continued any more."""
    if not await bridge.responses.delete(identity, caller=caller):
        raise _not_found(identity)
    return DeletedResponse(id=identity)


@router.get("/v1/responses/{id}/input_items", response_model=ResponseItemList)
async def list_input_items(
    identity: Identity,
    bridge: ServedBridge,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most this many.")] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="`asc` is the order of the request.")] = "desc",
    after: Annotated[str | None, Query(description="Only items after the one with this id.")] = None,
) -> Response:
    """List the items of the request that a response answered, without those of earlier responses."""
    items = list((await _stored(bridge, identity, caller)).input)
    if order == "desc":
        items.reverse()
    start = next((index + 1 for index, item in enumerate(items) if item["id"] == after), 0) if after else 0
    shown = items[start : start + limit]
    return _json(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(items) > start + limit,
        }
    )


@router.post("/v1/responses/{id}/cancel")
async def cancel_response(identity: Identity, bridge: ServedBridge, caller: Caller) -> None:
    """Not possible: there are no responses in the background. Closing the connection cancels a request."""
    await _stored(bridge, identity, caller)
    raise BadRequestError("Only responses in the background can be cancelled; close the connection instead.")


async def _stored(bridge: Bridge, identity: str, caller: str) -> StoredResponse:
    stored = await bridge.responses.get(identity, caller=caller)
    if stored is None:
        raise _not_found(identity)
    return stored


def _not_found(identity: str) -> RequestError:
    return RequestError(
        f"Response with id '{identity[:QUOTED_CHARACTERS]}' not found. Responses with store: false are not stored, "
        "and others expire.",
        code="RESPONSE_NOT_FOUND",
    )


def _json(data: Json) -> Response:
    """Stored text may contain lone surrogates, which pydantic cannot encode."""
    return Response(dumped(data), media_type="application/json")


def _shown(item: Json, *, has_field: bool) -> Json:
    if has_field or item["type"] != "reasoning":
        return item
    return {key: value for key, value in item.items() if key != "encrypted_content"}
