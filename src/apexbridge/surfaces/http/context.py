"""What a route may ask for."""

from typing import Annotated

from fastapi import Depends, Request

from apexbridge.bridge import Bridge
from apexbridge.skills.manager import SkillManager


def _bridge(request: Request) -> Bridge:
    bridge: Bridge = request.app.state.bridge
    return bridge


def _skills(request: Request) -> SkillManager:
    return _bridge(request).skills


ServedBridge = Annotated[Bridge, Depends(_bridge)]
"""What the server that was asked has opened."""
Skills = Annotated[SkillManager, Depends(_skills)]
"""The skills of the server that was asked."""
