"""Figures of use: calls of skills, searches, tokens."""

from collections.abc import Awaitable, Callable, Collection
from datetime import date, datetime, timedelta
from typing import Literal

from pydantic import Field

from apexbridge._time import MS_PER_DAY, from_ms
from apexbridge.storage.call_days import KEEP_DAYS, CallDays, CallFigures, today
from apexbridge.storage.chat_store import ChatStore
from apexbridge.storage.search_store import MAX_QUERY_CHARACTERS, SearchRecords
from apexbridge.wire import WireModel

Period = Literal["day", "week"]
SkillOrder = Literal["calls", "failures", "slowest", "unused"]
MAX_RECORDED_REQUESTS = 100
_EPOCH = date(1970, 1, 1)
_FIRST_MONDAY = 4
"""1970-01-05, in days since 1970."""


class CallPoint(WireModel):
    """The calls of a day, or of a week that begins on this day, a Monday."""

    date: date
    calls: int
    failed: int
    p50_ms: int | None = Field(description="Half of the calls took at most this long; null without calls.")
    p95_ms: int | None = Field(description="95 % of the calls took at most this long.")


class CallInsights(WireModel):
    by: Period
    since: date = Field(description="The first day.")
    points: list[CallPoint] = Field(description="Every day or week up to today, the oldest first.")


class SkillFigures(WireModel):
    """The calls of one skill within the range."""

    name: str
    installed: bool = Field(description="False if the skill was removed.")
    calls: int
    failed: int
    success_rate: float | None = Field(description="0 to 1; null without calls.")
    p50_ms: int | None
    p95_ms: int | None
    last_used_at: datetime | None = Field(description="Also if it is before the range; null if never.")


class SkillInsights(WireModel):
    skills: list[SkillFigures]
    total: int = Field(description="Skills of all pages.")
    never_used: int = Field(description="Installed skills that were never called since calls are counted by day.")


class SearchFigures(WireModel):
    """A text that was searched for."""

    query: str = Field(description="Its first 200 characters.")
    count: int
    last_at: datetime
    results: int = Field(description="Results of the last search.")


class SearchInsights(WireModel):
    searches: list[SearchFigures]
    total: int = Field(description="Searches before the limit is applied.")
    recorded: bool = Field(description="Whether searches are recorded.")


class TokenPoint(WireModel):
    """The chat requests of a day, or of a week that begins on this day."""

    date: date
    prompt_tokens: int
    completion_tokens: int
    requests: int


class ModelTokens(WireModel):
    """The chat requests to one model."""

    model: str
    prompt_tokens: int
    completion_tokens: int
    requests: int


class TokenInsights(WireModel):
    points: list[TokenPoint] = Field(description="Every day or week up to today, the oldest first.")
    models: list[ModelTokens] = Field(description="The most used first, at most 100.")


class Insights:
    def __init__(
        self,
        calls: CallDays,
        searches: SearchRecords,
        chats: ChatStore,
        *,
        installed: Callable[[], Awaitable[Collection[str]]],
        records_searches: bool,
    ) -> None:
        self._calls = calls
        self._searches = searches
        self._chats = chats
        self._installed = installed
        self._records_searches = records_searches

    async def calls(self, *, by: Period, days: int, skill: str | None) -> CallInsights:
        since, step = _range(by, days)
        found = await self._calls.by_day(since, days_per_point=step, skill=skill)
        points = []
        for day in range(since, today() + 1, step):
            figures = found.get(day, CallFigures())
            points.append(
                CallPoint(
                    date=_date(day),
                    calls=figures.calls,
                    failed=figures.failed,
                    p50_ms=figures.p50,
                    p95_ms=figures.p95,
                )
            )
        return CallInsights(by=by, since=_date(since), points=points)

    async def skills(self, *, days: int, order: SkillOrder, limit: int, offset: int = 0) -> SkillInsights:
        found = await self._calls.by_skill(today() - days + 1)
        last = await self._calls.last_uses()
        installed = set(await self._installed())
        if order == "unused":
            chosen = {name: CallFigures() for name in installed if name not in found}
            names = sorted(chosen, key=lambda name: (last.get(name, 0), name))
        else:
            chosen = {name: own for name, own in found.items() if order != "failures" or own.failed}
            rank: dict[str, Callable[[CallFigures], int]] = {
                "calls": lambda own: own.calls,
                "failures": lambda own: own.failed,
                "slowest": lambda own: own.p95 or 0,
            }
            names = sorted(chosen, key=lambda name: (-rank[order](chosen[name]), name))
        return SkillInsights(
            skills=[
                _skill(name, chosen[name], last_at=last.get(name), is_installed=name in installed)
                for name in names[offset : offset + limit]
            ],
            total=len(names),
            never_used=sum(name not in last for name in installed),
        )

    async def searches(self, *, days: int, without_results: bool, limit: int, offset: int = 0) -> SearchInsights:
        rows, total = await self._searches.list(days=days, without_results=without_results, limit=limit, offset=offset)
        searches = [
            SearchFigures(query=row.query, count=row.count, last_at=from_ms(row.last_at), results=row.results)
            for row in rows
        ]
        return SearchInsights(searches=searches, total=total, recorded=self._records_searches)

    async def recorded_requests(self) -> list[str]:
        """Texts that were searched for, the most frequent first, as far as they were recorded as a whole."""
        rows, _ = await self._searches.list(days=KEEP_DAYS, without_results=False, limit=MAX_RECORDED_REQUESTS)
        return [row.query for row in rows if len(row.query) < MAX_QUERY_CHARACTERS]

    async def tokens(self, *, by: Period, days: int) -> TokenInsights:
        since, step = _range(by, days)
        found = await self._chats.sums_by_day(since * MS_PER_DAY, days_per_point=step)
        _, models = await self._chats.sums(since * MS_PER_DAY)
        points = []
        for day in range(since, today() + 1, step):
            prompt, completion, requests = found.get(day, (0, 0, 0))
            point = TokenPoint(date=_date(day), prompt_tokens=prompt, completion_tokens=completion, requests=requests)
            points.append(point)
        return TokenInsights(
            points=points,
            models=[
                ModelTokens(
                    model=model,
                    prompt_tokens=sums.prompt_tokens,
                    completion_tokens=sums.completion_tokens,
                    requests=sums.requests,
                )
                for model, sums in models.items()
            ],
        )


def _range(by: Period, days: int) -> tuple[int, int]:
    """The first day of the range, and the days of each point. The range of weeks begins on a Monday."""
    since = today() - days + 1
    return (since, 1) if by == "day" else (since - (since - _FIRST_MONDAY) % 7, 7)


def _date(day: int) -> date:
    return _EPOCH + timedelta(days=day)


def _skill(name: str, figures: CallFigures, *, last_at: int | None, is_installed: bool) -> SkillFigures:
    return SkillFigures(
        name=name,
        installed=is_installed,
        calls=figures.calls,
        failed=figures.failed,
        success_rate=round(1 - figures.failed / figures.calls, 4) if figures.calls else None,
        p50_ms=figures.p50,
        p95_ms=figures.p95,
        last_used_at=from_ms(last_at) if last_at is not None else None,
    )
