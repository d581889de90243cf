"""Health, metrics and configuration over HTTP."""

import sqlite3
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

import apexbridge
from apexbridge.errors import ServerError
from apexbridge.monitoring.metrics_page import CONTENT_TYPE
from apexbridge.skills.config import SkillManagerConfig
from apexbridge.surfaces.http.deps import ServedBridge, Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireModel

router = APIRouter(tags=["service"])


class Health(WireModel):
    status: str
    version: str
    instance: str
    """The same as in `server.json` of the data directory."""


@router.get("/healthz")
async def healthz(bridge: ServedBridge) -> Health:
    """Check that the process responds."""
    return Health(status="ok", version=apexbridge.__version__, instance=bridge.instance)


@router.get("/readyz")
async def readyz(bridge: ServedBridge, skills: Skills) -> Health:
    """Check that the catalog is readable and the skills present at startup are indexed."""
    try:
        await skills.list_skills(limit=1)
    except sqlite3.Error as error:
        raise ServerError("The catalog cannot be read.", code="NOT_READY") from error
    if not bridge.is_indexed:
        raise ServerError("The skills are being indexed; everything but search is complete.", code="NOT_READY")
    return Health(status="ready", version=apexbridge.__version__, instance=bridge.instance)


@router.get("/metrics", response_class=Response)
async def metrics(bridge: ServedBridge) -> Response:
    """Metrics for Prometheus."""
    return Response(await bridge.metrics_page.render(), media_type=CONTENT_TYPE)


@router.get("/api/config")
async def show_config(skills: Skills) -> SkillManagerConfig:
    """Show the settings that can be changed at runtime."""
    return skills.get_config()


@router.patch("/api/config")
async def change_config(
    request: Request, skills: Skills, changes: Annotated[dict[str, Any], Body()]
) -> SkillManagerConfig:
    """Change settings until the next start. If one value is invalid, nothing is changed."""
    note(request, detail=", ".join(changes))
    return await skills.update_config(changes)
