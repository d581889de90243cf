"""Figures of use over HTTP."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from apexbridge.monitoring.insights import (
    CallInsights,
    Period,
    SearchInsights,
    SkillInsights,
    SkillOrder,
    TokenInsights,
)
from apexbridge.retrieval.confusable import ConfusableReport
from apexbridge.storage.call_days import KEEP_DAYS
from apexbridge.surfaces.http.deps import DEFAULT_LIMIT, Caller, PageLimit, PageNumber, ServedBridge

DEFAULT_DAYS = 30
MAX_NAME_CHARACTERS = 300
router = APIRouter(prefix="/api/insights", tags=["insights"])
Days = Annotated[int, Query(ge=1, le=KEEP_DAYS, description="The number of days up to today.")]
By = Annotated[Period, Query(description="One point for each day, or each week.")]


@router.get("/calls")
async def call_insights(
    bridge: ServedBridge,
    by: By = "day",
    days: Days = DEFAULT_DAYS,
    skill: Annotated[str | None, Query(max_length=MAX_NAME_CHARACTERS, description="Only calls of this skill.")] = None,
) -> CallInsights:
    """Count the calls of skills by day or week, with failures and durations."""
    return await bridge.insights.calls(by=by, days=days, skill=skill)


@router.get("/skills")
async def skill_insights(
    bridge: ServedBridge,
    days: Days = DEFAULT_DAYS,
    sort: Annotated[SkillOrder, Query(description="calls, failures, slowest, or unused.")] = "calls",
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> SkillInsights:
    """Compare the calls of the skills: the most used, failing, slowest, or unused first."""
    return await bridge.insights.skills(days=days, order=sort, limit=limit, offset=(page - 1) * limit)


@router.get("/confusable")
async def confusable_insights(
    bridge: ServedBridge, caller: Caller, page: PageNumber = 1, limit: PageLimit = DEFAULT_LIMIT
) -> ConfusableReport:
    """List pairs of skills and tools that search may confuse, the most similar first."""
    await bridge.prepare_search()
    return await bridge.retrieval.confusable(page=page, limit=limit, caller=caller)


@router.get("/searches")
async def search_insights(
    bridge: ServedBridge,
    days: Days = DEFAULT_DAYS,
    found: Annotated[Literal["none", "all"], Query(description="none: only searches without results.")] = "all",
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> SearchInsights:
    """List what was searched for, the most frequent first."""
    return await bridge.insights.searches(
        days=days, without_results=found == "none", limit=limit, offset=(page - 1) * limit
    )


@router.get("/tokens")
async def token_insights(bridge: ServedBridge, by: By = "day", days: Days = DEFAULT_DAYS) -> TokenInsights:
    """Count the tokens of chat requests by day or week, and by model."""
    return await bridge.insights.tokens(by=by, days=days)
