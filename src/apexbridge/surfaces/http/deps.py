"""What a route may ask for."""

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
"""The id of the API key that the request came with; empty for whoever needs none."""
Owner = Annotated[str | None, Depends(_owner)]
"""Whose runs and uploads the request may see: those of one API key, or all."""
ServedBridge = Annotated[Bridge, Depends(_bridge)]
"""What the server that was asked has opened."""
Skills = Annotated[SkillManager, Depends(_skills)]
"""The skills of the server that was asked."""
