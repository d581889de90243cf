"""Bundles of Python packages for all runs, over HTTP."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import StreamingResponse

from apexbridge.sandbox.bundles import BundleView
from apexbridge.surfaces.http.deps import ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import defer
from apexbridge.surfaces.http.transport.progress_stream import asks_for_events, line_stream

router = APIRouter(tags=["packages"])
BundleName = Annotated[str, Path(description="The bundle's name: documents, data, web or images.")]


@router.get("/api/packages")
async def list_bundles(bridge: ServedBridge) -> list[BundleView]:
    """List the bundles of packages: what each contains, what is installed, and the progress of an install."""
    return await bridge.packages.views()


@router.post("/api/packages/{bundle}/install", response_model=BundleView)
async def install_bundle(bundle: BundleName, request: Request, bridge: ServedBridge) -> BundleView | StreamingResponse:
    """Install a bundle for all runs, and respond when it is installed. `GET /api/packages` shows the progress.

    With `Accept: text/event-stream`, the answer is the installer's lines as events.
    """
    if asks_for_events(request):
        return line_stream(request, partial(bridge.packages.install, bundle), defer(request))
    return await bridge.packages.install(bundle)


@router.delete("/api/packages/{bundle}")
async def remove_bundle(bundle: BundleName, bridge: ServedBridge) -> BundleView:
    """Remove a bundle. Active runs that use it lose its packages."""
    return await bridge.packages.remove(bundle)
