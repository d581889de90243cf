"""The HTTP application over an opened bridge."""

from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

import apexbridge
from apexbridge.bridge import Bridge
from apexbridge.surfaces.http import chat, executions, permits, plugins, search, service, skills, tools
from apexbridge.surfaces.http.errors import CatchAll, ErrorAnswer, add_error_handlers
from apexbridge.surfaces.http.limits import BodyLimit
from apexbridge.surfaces.http.origin import OriginGuard

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "Refused; `code` says why."},
    "5XX": {"model": ErrorAnswer, "description": "The server could not."},
}


def create_app(bridge: Bridge) -> FastAPI:
    """Every route, every error in one shape, and documentation that needs no network."""
    app = FastAPIOffline(
        title="apexbridge",
        version=apexbridge.__version__,
        description="Skills and tools: install, find, list, show, edit, run, confirm, count, uninstall.",
        redoc_url=None,
        static_url="/docs/static",
        responses=_ERRORS,
    )
    app.state.bridge = bridge
    for part in (search, permits, skills, executions, tools, plugins, service):
        app.include_router(part.router)
    app.router.routes.extend(chat.routes(bridge))
    add_error_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(OriginGuard)
    app.add_middleware(CatchAll)  # the last one added is the outermost
    return app
