"""The host, the state and the settings of the server over HTTP."""

import asyncio

from fastapi import APIRouter, Request
from pydantic import Field

from apexbridge.monitoring.doctor import DoctorReport
from apexbridge.monitoring.settings_view import SettingView
from apexbridge.monitoring.status import ServerStatus
from apexbridge.retrieval.embedding_models import EmbeddingModelList
from apexbridge.surfaces.http.deps import ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireInput

router = APIRouter(tags=["system"])


class ModelChoice(WireInput):
    models: list[str] | None = Field(description="Names of installed models; null for the default ones.", max_length=20)


@router.get("/api/doctor")
async def show_doctor(bridge: ServedBridge) -> DoctorReport:
    """Show the last check of what this host enforces for scripts."""
    return bridge.doctor.last


@router.post("/api/doctor")
async def check_doctor(bridge: ServedBridge) -> DoctorReport:
    """Check what this host enforces for scripts, and respond when the check ends."""
    return await bridge.doctor.check()


@router.get("/api/status")
async def show_status(bridge: ServedBridge) -> ServerStatus:
    """Show the state of the server: sandbox, queue, model servers, index, disk, versions."""
    return await bridge.status.status()


@router.post("/api/status/check")
async def check_status(bridge: ServedBridge) -> ServerStatus:
    """Ask the model servers, measure the disk and verify the audit log now, and show the state of the server."""
    return await bridge.status.check()


@router.get("/api/embedding-models")
async def list_embedding_models(bridge: ServedBridge) -> EmbeddingModelList:
    """List the embedding models, which of them search uses, and how far a change of them is."""
    return await bridge.embedding_models.list()


@router.put("/api/embedding-models")
async def use_embedding_models(request: Request, bridge: ServedBridge, choice: ModelChoice) -> EmbeddingModelList:
    """Choose the embedding models. Search uses the old ones until everything is embedded again in the background."""
    note(request, detail=", ".join(choice.models) if choice.models else "default")
    return await bridge.use_models(choice.models)


@router.get("/api/settings")
async def list_settings(bridge: ServedBridge) -> list[SettingView]:
    """List every setting with its value and source. Secrets are not shown."""
    return await asyncio.to_thread(bridge.settings_view.list, bridge.skills.get_config())
