"""Search over HTTP, its usage memory, and changes of descriptions."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import Field

from apexbridge.bridge import Bridge
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.matches import RankPreview, SearchAnswer, SearchMode
from apexbridge.retrieval.past_requests import PastPreview
from apexbridge.skills import SERVED_NAME_PATTERN
from apexbridge.skills.models import Receipt
from apexbridge.surfaces.http.deps import Caller, ServedBridge, SkillName
from apexbridge.wire import WireInput, WireModel

MAX_REQUESTS = 20

router = APIRouter(prefix="/api/skills", tags=["search"])


class SearchInput(WireInput):
    query: str = Field(description="The task, in natural language.")
    limit: int | None = Field(default=None, description="Maximum number of results, 1 to 100.")
    threshold: float | None = Field(default=None, description="Minimum confidence, 0 to 1.")
    tags: list[str] = Field(
        default_factory=list,
        description="Only with one of these tags; a tool has the name of its server.",
        max_length=100,
    )
    kind: Kind | None = Field(default=None, description="Only skills, or only tools of MCP servers; default: both.")
    mode: SearchMode = Field(default="hybrid", description="`vector` compares meaning only, and fails if it cannot.")
    record: bool = Field(default=True, description="False leaves it out of the insights, for a search while typing.")


class RememberInput(WireInput):
    """A request that a skill answered well."""

    request: str
    name: str = Field(description="The skill.")


class ForgetInput(WireInput):
    name: str | None = Field(default=None, description="A skill; default: all skills.")


class Remembered(WireModel):
    remembered: bool


class Forgotten(WireModel):
    forgotten: int


class RankChange(WireModel):
    """The rank of a skill for a request, starting with 1."""

    request: str
    before: int | None
    after: int | None


class EditReceipt(Receipt):
    ranks: list[RankChange] | None = Field(default=None, description="For each `request` parameter.")


class PreviewInput(WireInput):
    description: str
    requests: list[str] = Field(
        default_factory=list,
        max_length=MAX_REQUESTS,
        description="What somebody would ask; default: the past requests that search knows.",
    )


class DescriptionPreview(WireModel):
    ranks: list[RankPreview]
    past: PastPreview | None = Field(
        description="Without requests, the past ones; null with requests, or if meaning cannot be compared now."
    )


async def _check_exists(bridge: Bridge, name: str) -> None:
    if not SERVED_NAME_PATTERN.match(name) or await bridge.skills.store.catalog.live(name) is None:
        raise await bridge.skills.store.not_found(name)


@router.post("/search")
async def search_skills(bridge: ServedBridge, caller: Caller, body: SearchInput) -> SearchAnswer:
    """Find skills and tools of MCP servers for a request, best first, each with its confidence and the reasons."""
    await bridge.prepare_search()
    return await bridge.retrieval.search(
        body.query,
        limit=body.limit,
        threshold=body.threshold,
        tags=body.tags,
        mode=body.mode,
        caller=caller,
        kind=body.kind,
        record=body.record,
    )


@router.post("/remember")
async def remember(bridge: ServedBridge, caller: Caller, lesson: RememberInput) -> Remembered:
    """Confirm that a skill fits a request, so that it ranks higher next time."""
    await bridge.prepare_search()
    await _check_exists(bridge, lesson.name)
    remembered = await bridge.retrieval.remember(lesson.request, lesson.name, succeeded=True, caller=caller)
    return Remembered(remembered=remembered)


@router.post("/forget")
async def forget(bridge: ServedBridge, lesson: ForgetInput | None = None) -> Forgotten:
    """Delete what search learned from past requests about a skill, or about all."""
    name = lesson.name if lesson else None
    await bridge.prepare_search()
    if name is not None:
        await _check_exists(bridge, name)
    return Forgotten(forgotten=await bridge.retrieval.forget(name))


@router.put("/{name}/description", response_model_exclude_none=True)
async def set_description(
    name: SkillName,
    bridge: ServedBridge,
    caller: Caller,
    body: Annotated[dict[str, Any], Body(examples=[{"description": "Writes commit messages."}])],
    request: Annotated[
        list[str] | None,
        Query(description="Return the skill's rank for this request before and after.", max_length=MAX_REQUESTS),
    ] = None,
) -> EditReceipt:
    """Change the description; other fields cannot be changed."""
    requests = request or []
    if requests:
        await bridge.prepare_search()
    before = [await bridge.retrieval.rank_of(name, text) for text in requests]
    receipt = await bridge.skills.update_skill_description(name, body, caller=caller)
    after = [await bridge.retrieval.rank_of(name, text) for text in requests]
    ranks = [
        RankChange(request=text, before=old, after=new) for text, old, new in zip(requests, before, after, strict=True)
    ]
    return EditReceipt(name=receipt.name, message=receipt.message, ranks=ranks or None)


@router.post("/{name}/description/preview")
async def preview_description(
    name: SkillName, bridge: ServedBridge, caller: Caller, body: PreviewInput
) -> DescriptionPreview:
    """Show what another description would win and lose in search. Nothing is changed."""
    document = await bridge.skills.described(name, body.description)
    await bridge.prepare_search()
    if body.requests:
        ranks = await bridge.retrieval.preview(document, body.requests, caller=caller)
        return DescriptionPreview(ranks=ranks, past=None)
    owner = bridge.keys.reach(caller)
    texts: list[str] = []
    if owner is None:  # they are those of all callers
        texts = [*await bridge.insights.recorded_requests(), *await bridge.chats.recent_requests()]
    past = await bridge.retrieval.preview_past(document, owner=owner, texts=texts, caller=caller)
    return DescriptionPreview(ranks=[], past=past)
