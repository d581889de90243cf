"""Dependencies of routes."""

from typing import Annotated

from fastapi import Depends, Request

from apexbridge.bridge import Bridge
from apexbridge.skills.manager import SkillManager


def _bridge(request: Request) -> Bridge:
    bridge: Bridge = request.app.state.bridge
    return bridge


async def _caller(request: Request) -> str:
    caller: str = request.scope["state"]["caller"]
    return caller


async def _owner(request: Request) -> str | None:
    return _bridge(request).keys.reach(await _caller(request))


def _skills(request: Request) -> SkillManager:
    return _bridge(request).skills


Caller = Annotated[str, Depends(_caller)]
"""The id of the request's API key; empty if it was admitted without one."""
Owner = Annotated[str | None, Depends(_owner)]
"""The API key whose runs and uploads the request may see; None for all."""
ServedBridge = Annotated[Bridge, Depends(_bridge)]
"""The bridge of this application."""
Skills = Annotated[SkillManager, Depends(_skills)]
"""The skill manager of this application."""
