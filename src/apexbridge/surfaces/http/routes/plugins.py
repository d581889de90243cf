"""Plugins over HTTP."""

from fastapi import APIRouter

from apexbridge.skills.models import PluginSummary, Receipt
from apexbridge.surfaces.http.deps import Skills

router = APIRouter(prefix="/api/plugins", tags=["plugins"])


@router.get("")
async def list_plugins(skills: Skills) -> list[PluginSummary]:
    """Installed plugins with their skills."""
    return await skills.list_plugins()


@router.delete("/{name}")
async def uninstall_plugin(name: str, skills: Skills) -> Receipt:
    """Remove a plugin with all its skills."""
    return await skills.uninstall_plugin(name)
