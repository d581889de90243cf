"""Health, metrics and configuration over HTTP."""

import sqlite3
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

import apexbridge
from apexbridge.errors import ServerError
from apexbridge.skills.config import SkillManagerConfig
from apexbridge.surfaces.http.deps import ServedBridge, Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireModel

router = APIRouter(tags=["service"])


class Health(WireModel):
    """A sign of life."""

    status: str
    version: str
    instance: str
    """As in the `server.json` of the data directory that is served."""


@router.get("/healthz")
async def healthz(bridge: ServedBridge) -> Health:
    """Whether the process answers."""
    return Health(status="ok", version=apexbridge.__version__, instance=bridge.instance)


@router.get("/readyz")
async def readyz(bridge: ServedBridge, skills: Skills) -> Health:
    """Whether the catalog can be read and the skills that were there at the start are indexed."""
    try:
        await skills.list_skills(limit=1)
    except sqlite3.Error as error:
        raise ServerError("The catalog cannot be read.", code="NOT_READY") from error
    if not bridge.is_indexed:
        raise ServerError("The skills are being indexed; everything but search is complete.", code="NOT_READY")
    return Health(status="ready", version=apexbridge.__version__, instance=bridge.instance)


@router.get("/metrics", response_class=Response)
async def metrics(bridge: ServedBridge, skills: Skills) -> Response:
    """Counters for Prometheus."""
    statistics = await skills.statistics()
    registry = CollectorRegistry()
    registry.register(
        _Gauges(
            {
                "apex_skills": ("Skills that are served.", float(statistics.total)),
                "apex_skill_problems": ("Folders that are not served.", float(len(await skills.problems()))),
                "apex_skill_calls": ("Calls of installed skills.", float(statistics.calls)),
                "apex_runs_running": ("Runs that have their turn.", float(bridge.sandbox.queue.running)),
                "apex_runs_waiting": ("Runs that wait for theirs.", float(bridge.sandbox.queue.waiting)),
            }
        )
    )
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/config")
async def show_config(skills: Skills) -> SkillManagerConfig:
    """What can be changed while running."""
    return skills.get_config()


@router.patch("/api/config")
async def change_config(
    request: Request, skills: Skills, changes: Annotated[dict[str, Any], Body()]
) -> SkillManagerConfig:
    """Change some of it until the next start; a bad value is refused whole."""
    note(request, detail=", ".join(changes))
    return await skills.update_config(changes)


class _Gauges(Collector):
    """Gauges with values that were read before."""

    def __init__(self, values: dict[str, tuple[str, float]]) -> None:
        self._values = values

    def collect(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily(name, text, value=value) for name, (text, value) in self._values.items()]
