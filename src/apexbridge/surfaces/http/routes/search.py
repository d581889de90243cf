"""Search over HTTP, its usage memory, and changes of descriptions."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field

from apexbridge.bridge import Bridge
from apexbridge.errors import SkillNotFoundError
from apexbridge.retrieval.matches import SearchAnswer, SearchMode
from apexbridge.skills.models import NAME_PATTERN, Receipt
from apexbridge.surfaces.http.deps import Caller, ServedBridge
from apexbridge.wire import WireInput, WireModel

MAX_REQUESTS = 20

router = APIRouter(prefix="/api/skills", tags=["search"])


class SearchInput(WireInput):
    """What is looked for."""

    query: str = Field(description="What somebody wants done, in their own words.")
    limit: int | None = Field(default=None, description="At most this many; 1 to 100.")
    threshold: float | None = Field(default=None, description="Nothing below this confidence; 0 to 1.")
    tags: list[str] = Field(default_factory=list, description="Only skills with one of these tags.", max_length=100)
    mode: SearchMode = Field(default="hybrid", description="vector compares meaning alone, and fails where it cannot.")


class RememberInput(WireInput):
    """A request that a skill answered well."""

    request: str
    name: str = Field(description="The skill.")


class ForgetInput(WireInput):
    """What to forget."""

    name: str | None = Field(default=None, description="A skill; without it, everything that was learnt.")


class Remembered(WireModel):
    """Whether anything was learnt."""

    remembered: bool


class Forgotten(WireModel):
    """How many requests were forgotten."""

    forgotten: int


class RankChange(WireModel):
    """The place of a skill for a request, 1 being the first."""

    request: str
    before: int | None
    after: int | None


class EditReceipt(Receipt):
    """What an edit did."""

    ranks: list[RankChange] | None = Field(default=None, description="For the requests that were given.")


async def _check_there(bridge: Bridge, name: str) -> None:
    if not NAME_PATTERN.match(name) or await bridge.skills.store.catalog.live(name) is None:
        raise SkillNotFoundError(name)


@router.post("/search")
async def search_skills(bridge: ServedBridge, caller: Caller, wanted: SearchInput) -> SearchAnswer:
    """The skills that fit a request, best first, each with its confidence and the reasons."""
    await bridge.prepare_search()
    return await bridge.retrieval.search(
        wanted.query, limit=wanted.limit, threshold=wanted.threshold, tags=wanted.tags, mode=wanted.mode, caller=caller
    )


@router.post("/remember")
async def remember(bridge: ServedBridge, caller: Caller, lesson: RememberInput) -> Remembered:
    """Confirm that a skill answered a request, so that it is found the sooner next time."""
    await bridge.prepare_search()
    await _check_there(bridge, lesson.name)
    taught = await bridge.retrieval.remember(lesson.request, lesson.name, succeeded=True, caller=caller)
    return Remembered(remembered=taught)


@router.post("/forget")
async def forget(bridge: ServedBridge, lesson: ForgetInput | None = None) -> Forgotten:
    """Forget what past requests taught about a skill, or about all."""
    name = lesson.name if lesson else None
    await bridge.prepare_search()
    if name is not None:
        await _check_there(bridge, name)
    return Forgotten(forgotten=await bridge.retrieval.forget(name))


@router.put("/{name}/description", response_model_exclude_none=True)
async def set_description(
    name: Annotated[str, Path(description="The skill's name.")],
    bridge: ServedBridge,
    body: Annotated[dict[str, Any], Body(examples=[{"description": "Writes commit messages."}])],
    request: Annotated[
        list[str] | None,
        Query(description="Show the skill's place for this request before and after.", max_length=MAX_REQUESTS),
    ] = None,
) -> EditReceipt:
    """Change the description; no other field can be changed."""
    asked = request or []
    if asked:
        await bridge.prepare_search()
    before = [await bridge.retrieval.rank_of(name, text) for text in asked]
    receipt = await bridge.skills.update_skill_description(name, body)
    after = [await bridge.retrieval.rank_of(name, text) for text in asked]
    ranks = [
        RankChange(request=text, before=old, after=new) for text, old, new in zip(asked, before, after, strict=True)
    ]
    return EditReceipt(name=receipt.name, message=receipt.message, ranks=ranks or None)
