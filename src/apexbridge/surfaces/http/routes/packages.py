"""Bundles of Python packages for all runs, over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Path

from apexbridge.sandbox.bundles import BundleView
from apexbridge.surfaces.http.deps import ServedBridge

router = APIRouter(tags=["packages"])
BundleName = Annotated[str, Path(description="The bundle's name: documents, data, web or images.")]


@router.get("/api/packages")
async def list_bundles(bridge: ServedBridge) -> list[BundleView]:
    """List the bundles of packages: what each contains, what is installed, and the progress of an install."""
    return await bridge.packages.views()


@router.post("/api/packages/{bundle}/install")
async def install_bundle(bundle: BundleName, bridge: ServedBridge) -> BundleView:
    """Install a bundle for all runs, and respond when it is installed. `GET /api/packages` shows the progress."""
    return await bridge.packages.install(bundle)


@router.delete("/api/packages/{bundle}")
async def remove_bundle(bundle: BundleName, bridge: ServedBridge) -> BundleView:
    """Remove a bundle. Active runs that use it lose its packages."""
    return await bridge.packages.remove(bundle)
