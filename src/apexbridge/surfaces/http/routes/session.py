"""What the sender of a request may do, for pages that show only that."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

import apexbridge
from apexbridge._time import from_ms
from apexbridge.monitoring.key_usage import KeyUsage
from apexbridge.skills.package.archive import MAX_ARCHIVE_BYTES
from apexbridge.storage.key_store import SCOPES, ApiKey, KeyScope
from apexbridge.surfaces.http.deps import Caller, ServedBridge, Usage
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.limits import MAX_BODY_BYTES
from apexbridge.surfaces.http.middleware.scopes import SESSION_PATH
from apexbridge.surfaces.http.transport.requests import is_owner
from apexbridge.surfaces.mcp import extra
from apexbridge.wire import WireModel

router = APIRouter(tags=["access"])


class SessionKey(WireModel):
    """The key that the request was sent with."""

    id: str
    name: str
    scopes: list[KeyScope]
    expires_at: datetime | None


class SessionFeatures(WireModel):
    """What this server can do."""

    mcp: bool = Field(description="Whether MCP is installed: `/mcp` and tools of MCP servers.")
    approvals: bool = Field(description="Whether dangerous skills wait for approval.")
    run_code: bool = Field(description="Whether models may run code that they wrote.")
    record_input: bool = Field(description="Whether records of runs have their input.")


class SessionLimits(WireModel):
    """Sizes in bytes above which a body is refused."""

    upload_bytes: int = Field(description="A file.")
    archive_bytes: int = Field(description="An archive of skills.")
    request_bytes: int = Field(description="JSON.")


class SessionInfo(WireModel):
    """What the sender may do. Without a key that is needed, everything but the version is null or empty."""

    keys_required: bool = Field(description="Whether this server requires API keys.")
    authenticated: bool = Field(description="Whether requests like this one are admitted.")
    key: SessionKey | None = Field(description="Null for requests without a key, and for the owner's.")
    scopes: list[KeyScope] = Field(description="What the sender may do. `admin` includes the others.")
    version: str
    instance: str | None = Field(description="Changes with each start of the server.")
    default_model: str | None = Field(description="The model of chat requests that name none.")
    model_configured: bool | None = Field(description="Whether a model server is configured.")
    features: SessionFeatures | None
    limits: SessionLimits | None
    usage: list[KeyUsage] | None = Field(description="What the key holds, if it is asked for.")


@router.get(SESSION_PATH)
async def show_session(
    request: Request,
    bridge: ServedBridge,
    caller: Caller,
    board: Usage,
    usage: Annotated[bool, Query(description="Return what the key holds.")] = False,
) -> SessionInfo:
    """Show what the sender of this request may do."""
    access: Access = request.app.state.access
    if access.keys_required and not caller and not is_owner(request.scope):
        return _anonymous()
    key = bridge.keys.get(caller)
    llm = bridge.chat.settings.llm
    return SessionInfo(
        keys_required=access.keys_required,
        authenticated=True,
        key=_key(key) if key else None,
        scopes=[scope for scope in SCOPES if bridge.keys.allows(caller, scope)],
        version=apexbridge.__version__,
        instance=bridge.instance,
        default_model=llm.default_model,
        model_configured=bool(llm.upstreams),
        features=SessionFeatures(
            mcp=extra.is_installed(),
            approvals=bridge.settings.confirm_dangerous,
            run_code=bridge.settings.run_code,
            record_input=bridge.settings.record_input,
        ),
        limits=SessionLimits(
            upload_bytes=MAX_ARCHIVE_BYTES, archive_bytes=MAX_ARCHIVE_BYTES, request_bytes=MAX_BODY_BYTES
        ),
        usage=await board.of(caller) if usage else None,
    )


def _anonymous() -> SessionInfo:
    return SessionInfo(
        keys_required=True,
        authenticated=False,
        key=None,
        scopes=[],
        version=apexbridge.__version__,
        instance=None,
        default_model=None,
        model_configured=None,
        features=None,
        limits=None,
        usage=None,
    )


def _key(key: ApiKey) -> SessionKey:
    expires_at = None if key.expires_at is None else from_ms(key.expires_at)
    scopes = [scope for scope in SCOPES if scope in key.scopes]
    return SessionKey(id=key.id, name=key.name, scopes=scopes, expires_at=expires_at)
