"""The HTTP application over an opened bridge."""

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline

import apexbridge
from apexbridge._tracing import NO_TRACER
from apexbridge.bridge import Bridge
from apexbridge.monitoring.key_usage import UsageBoard
from apexbridge.surfaces.console.built_files import ConsoleFiles
from apexbridge.surfaces.http.chat import endpoint, stored_responses
from apexbridge.surfaces.http.middleware.access_log import AccessLog
from apexbridge.surfaces.http.middleware.audit_trail import AuditTrail
from apexbridge.surfaces.http.middleware.auth import Access, AccessGuard
from apexbridge.surfaces.http.middleware.browser_protection import OriginGuard, SecurityHeaders
from apexbridge.surfaces.http.middleware.compression import CompressedAnswers
from apexbridge.surfaces.http.middleware.limits import BodyLimit, ConcurrencyLimit, RateLimit
from apexbridge.surfaces.http.middleware.traces import RequestSpans
from apexbridge.surfaces.http.openapi import complete_document
from apexbridge.surfaces.http.routes import (
    backups,
    chats,
    console_page,
    discovery,
    events,
    executions,
    files,
    insights,
    keys,
    lock,
    mcp_servers,
    packages,
    provenance,
    search,
    service,
    session,
    skills,
    skills_api,
    system,
    tools,
    workspaces,
)
from apexbridge.surfaces.http.transport.error_responses import MCP_PATHS, CatchAll, ErrorAnswer, add_error_handlers
from apexbridge.surfaces.http.transport.response_pacing import PacedAnswers, UnreadAnswers
from apexbridge.surfaces.mcp.endpoint import Build as BuildMcp
from apexbridge.surfaces.mcp.endpoint import McpDispatch, McpEndpoint

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request was refused; see `code`."},
    "5XX": {"model": ErrorAnswer, "description": "The server failed."},
}
_ROUTES = APIRouter(responses=_ERRORS)
for _module in (
    search,
    skills,
    skills_api,
    lock,
    provenance,
    packages,
    executions,
    events,
    workspaces,
    files,
    tools,
    mcp_servers,
    keys,
    chats,
    stored_responses,
    discovery,
    session,
    insights,
    system,
    backups,
    service,
):
    _ROUTES.include_router(_module.router)


def create_app(
    bridge: Bridge,
    access: Access | None = None,
    *,
    build_mcp: BuildMcp | None = None,
    console: ConsoleFiles | None = None,
) -> FastAPI:
    """Build the application: all routes, one error shape, and documentation that works offline.

    Without `access` the application is for use in this process and requires no API keys. `build_mcp` builds another
    MCP server than the usual one. `console` are other files of the console than the installed ones.
    """
    access = access or Access()
    settings = bridge.settings
    mcp = McpEndpoint(bridge, build_mcp)
    app = FastAPIOffline(
        title="apexbridge",
        version=apexbridge.__version__,
        description="Skills and tools: install, find, list, show, edit, run, approve, count, uninstall.",
        redoc_url=None,
        static_url="/docs/static",
        lifespan=lambda app: mcp.running(),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # otherwise looked up for every request
    )
    app.state.bridge = bridge
    app.state.mcp = mcp
    app.state.access = access
    chat = endpoint.routes(bridge)
    app.router.routes.extend(chat)
    app.router.routes.extend(console_page.routes(console or ConsoleFiles()))
    # All applications of a process share these: `app.include_router` would build them again for each one.
    app.router.routes.extend(_ROUTES.routes)
    complete_document(app, access)
    add_error_handlers(app)
    trail = AuditTrail(bridge.audit, bridge.content_hash)
    rates = RateLimit(settings.rate_limit, limit_of=lambda key: bridge.keys.limits_of(key).get("rate_limit"))
    concurrency, unread = ConcurrencyLimit(), UnreadAnswers()
    app.state.usage = UsageBoard([bridge.usage, rates.usage, concurrency.usage, unread.usage, mcp.usage])
    app.add_middleware(endpoint.ChatDispatch, bridge=bridge)
    app.add_middleware(McpDispatch, endpoint=mcp)
    app.add_middleware(BodyLimit)
    app.add_middleware(AccessGuard, access=access, keys=bridge.keys, rates=rates, concurrency=concurrency, trail=trail)
    app.add_middleware(
        OriginGuard, access=access, hosts=settings.allowed_hosts, origins=settings.allowed_origins, trail=trail
    )
    app.add_middleware(CompressedAnswers)
    app.add_middleware(PacedAnswers, unread=unread)
    app.add_middleware(CatchAll)
    app.add_middleware(SecurityHeaders)
    unrouted = [*(route.path for route in chat), *MCP_PATHS]
    if bridge.tracer is not NO_TRACER:
        app.add_middleware(RequestSpans, tracer=bridge.tracer, unrouted=unrouted)
    app.add_middleware(  # the last one added is the outermost
        AccessLog,
        key_name=bridge.keys.name_of,
        count=bridge.metrics.request_ended,
        unrouted=unrouted,
    )
    return app
