"""Parameters that routes share."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from apexbridge.bridge import Bridge
from apexbridge.monitoring.key_usage import UsageBoard
from apexbridge.skills.manager import SkillManager
from apexbridge.surfaces.http.transport.requests import caller_of

MAX_LIMIT = 500
DEFAULT_LIMIT = 50
APPROVAL_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"


async def _bridge(request: Request) -> Bridge:
    bridge: Bridge = request.app.state.bridge
    return bridge


async def _skills(request: Request) -> SkillManager:
    return (await _bridge(request)).skills


async def _caller(request: Request) -> str:
    return caller_of(request.scope)


async def _owner(request: Request) -> str | None:
    return (await _bridge(request)).keys.reach(caller_of(request.scope))


async def _usage(request: Request) -> UsageBoard:
    board: UsageBoard = request.app.state.usage
    return board


ServedBridge = Annotated[Bridge, Depends(_bridge)]
Usage = Annotated[UsageBoard, Depends(_usage)]
Skills = Annotated[SkillManager, Depends(_skills)]
Caller = Annotated[str, Depends(_caller)]
"""The id of the request's API key; empty if it was admitted without one."""
Owner = Annotated[str | None, Depends(_owner)]
"""The API key whose runs and uploads the request may see; None for all."""
SkillName = Annotated[str, Path(alias="name", description="The skill's name.")]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000, description="The page number.")]
PageLimit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Entries per page.")]
