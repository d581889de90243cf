"""API keys over HTTP, and verification of the audit log."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import Field

from apexbridge._time import now_ms
from apexbridge.storage.keys import MAX_NAME_CHARACTERS, ApiKey, KeyScope
from apexbridge.surfaces.http.deps import ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireInput, WireModel

MAX_LIFE_SECONDS = 10 * 366 * 24 * 3600
router = APIRouter(tags=["access"])


class KeyInput(WireInput):
    """A key to be made."""

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARACTERS, description="Who or what it is for.")
    scopes: list[KeyScope] = Field(min_length=1, max_length=10, description="chat, read, run, admin.")
    expires_in: int | None = Field(
        default=None, ge=1, le=MAX_LIFE_SECONDS, description="Seconds until it expires; without it, it does not."
    )


class KeyView(WireModel):
    """A key, without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Written down a little later than it happens.")


class NewKey(KeyView):
    """A key that was made now."""

    key: str = Field(description="What is sent with each request. It is shown here and never again.")


class AuditVerdict(WireModel):
    """Whether the audit log is as it was written."""

    intact: bool
    count: int = Field(description="Sound rows, up to the first that is not.")
    row: int | None = Field(description="The number of the first row that is broken or missing.")
    problem: str | None = Field(description="What is wrong there.")


@router.get("/api/keys")
async def list_keys(bridge: ServedBridge) -> list[KeyView]:
    """Every key there ever was, the oldest first."""
    return [KeyView(**_told(key)) for key in bridge.keys.list()]


@router.post("/api/keys", status_code=201)
async def create_key(bridge: ServedBridge, request: Request, wanted: KeyInput) -> NewKey:
    """Make a key; its text is in this answer and nowhere else."""
    expires_at = now_ms() + wanted.expires_in * 1000 if wanted.expires_in else None
    key, text = await bridge.keys.create(wanted.name, wanted.scopes, expires_at=expires_at)
    note(request, target=key.id, detail=f"{key.name}: {', '.join(sorted(key.scopes))}")
    return NewKey(**_told(key), key=text)


@router.delete("/api/keys/{id}")
async def revoke_key(
    bridge: ServedBridge, identity: Annotated[str, Path(alias="id", description="The key's id.")]
) -> KeyView:
    """Take a key back, for good and at once."""
    return KeyView(**_told(await bridge.keys.revoke(identity)))


@router.get("/api/audit/verify")
async def verify_audit(bridge: ServedBridge) -> AuditVerdict:
    """Verify the whole audit log and name the first row that is not as it was written."""
    report = await bridge.audit.verify()
    return AuditVerdict(**asdict(report))


def _told(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "created_at": _moment(key.created_at),
        "expires_at": _moment(key.expires_at),
        "revoked_at": _moment(key.revoked_at),
        "last_used_at": _moment(key.last_used_at),
    }


def _moment(value: int | None) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, UTC) if value is not None else None
