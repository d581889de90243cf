"""API keys over HTTP, and verification of the audit log."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import Field

from apexbridge._time import now_ms
from apexbridge.storage.key_store import MAX_NAME_CHARACTERS, ApiKey, KeyScope
from apexbridge.surfaces.http.deps import ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireInput, WireModel

MAX_LIFE_SECONDS = 10 * 366 * 24 * 3600
router = APIRouter(tags=["access"])


class KeyInput(WireInput):
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARACTERS, description="Who or what uses it.")
    scopes: list[KeyScope] = Field(min_length=1, max_length=10, description="Any of chat, read, run, admin.")
    expires_in: int | None = Field(
        default=None, ge=1, le=MAX_LIFE_SECONDS, description="Seconds until it expires; default: never."
    )


class KeyView(WireModel):
    """A key, without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Updated with a short delay.")


class NewKey(KeyView):
    key: str = Field(description="The secret to send with each request. It is never shown again.")


class AuditVerdict(WireModel):
    """The result of a verification of the audit log."""

    intact: bool
    count: int = Field(description="Intact rows, up to the first damaged one.")
    row: int | None = Field(description="The number of the first damaged or missing row.")
    problem: str | None = Field(description="What is wrong with it.")


@router.get("/api/keys")
async def list_keys(bridge: ServedBridge) -> list[KeyView]:
    """List all keys, including revoked ones, the oldest first."""
    return [KeyView(**_fields(key)) for key in bridge.keys.list()]


@router.post("/api/keys", status_code=201)
async def create_key(bridge: ServedBridge, request: Request, body: KeyInput) -> NewKey:
    """Create a key. Its secret is only in this response."""
    expires_at = now_ms() + body.expires_in * 1000 if body.expires_in else None
    key, text = await bridge.keys.create(body.name, body.scopes, expires_at=expires_at)
    note(request, target=key.id, detail=f"{key.name}: {', '.join(sorted(key.scopes))}")
    return NewKey(**_fields(key), key=text)


@router.delete("/api/keys/{id}")
async def revoke_key(
    bridge: ServedBridge, identity: Annotated[str, Path(alias="id", description="The key's id.")]
) -> KeyView:
    """Revoke a key, permanently and immediately."""
    return KeyView(**_fields(await bridge.keys.revoke(identity)))


@router.get("/api/audit/verify")
async def verify_audit(bridge: ServedBridge) -> AuditVerdict:
    """Verify the whole audit log and return the first row that was changed."""
    return AuditVerdict(**asdict(await bridge.audit.verify()))


def _fields(key: ApiKey) -> dict[str, Any]:
    times = ("created_at", "expires_at", "revoked_at", "last_used_at")
    fields = {name: _moment(getattr(key, name)) for name in times}
    return {"id": key.id, "name": key.name, "scopes": sorted(key.scopes), **fields}


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
