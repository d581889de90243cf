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


Skills = Annotated[SkillManager, Depends(_skills)]
"""The skills of the server that was asked."""
