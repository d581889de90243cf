"""API keys over HTTP, and verification of the audit log."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from apexbridge._time import now_ms
from apexbridge.monitoring.key_usage import KeyUsage
from apexbridge.storage.key_store import MAX_NAME_CHARACTERS, ApiKey, KeyLimits, KeyScope, KeyStore
from apexbridge.surfaces.http.deps import DEFAULT_LIMIT, PageLimit, PageNumber, ServedBridge, Usage
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireInput, WireModel

MAX_LIFE_SECONDS = 10 * 366 * 24 * 3600
MAX_FILTER_CHARACTERS = 300
MAX_LIMIT = 1_000_000_000
KeyId = Annotated[str, Path(alias="id", description="The key's id.")]
router = APIRouter(tags=["access"])


class KeyChange(WireInput):
    """Limits of one key. A field that is missing leaves its limit as it is."""

    quota_mb: int | None = Field(
        default=None, ge=0, le=MAX_LIMIT, description="Disk quota; 0 for none, null for `APEX_KEY_QUOTA_MB`."
    )
    max_runs: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="Runs that are active at a time; null for as many as there are."
    )
    rate_limit: int | None = Field(
        default=None, ge=0, le=MAX_LIMIT, description="Requests a minute; 0 for any number, null for `APEX_RATE_LIMIT`."
    )

    @property
    def limits(self) -> KeyLimits:
        return cast(
            KeyLimits, self.model_dump(include=set(KeyLimits.__annotations__) & self.model_fields_set, by_alias=False)
        )


class KeyInput(KeyChange):
    """A new key."""

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
    quota_mb: int | None = Field(description="Its own disk quota; null for the one of all keys.")
    max_runs: int | None = Field(description="Its own limit of active runs; null if it has none.")
    rate_limit: int | None = Field(description="Its own requests a minute; null for those of all keys.")


class KeyDetail(KeyView):
    """A key, and what it holds."""

    usage: list[KeyUsage]


class NewKey(KeyView):
    key: str = Field(description="The secret to send with each request. It is never shown again.")


class AuditVerdict(WireModel):
    """The result of a verification of the audit log."""

    intact: bool
    count: int = Field(description="Intact rows, up to the first damaged one.")
    row: int | None = Field(description="The number of the first damaged or missing row.")
    problem: str | None = Field(description="What is wrong with it.")
    restored_at: datetime | None = Field(description="When the data directory was last restored from a backup.")


@router.get("/api/keys")
async def list_keys(bridge: ServedBridge) -> list[KeyView]:
    """List all keys, including revoked ones, the oldest first."""
    return [KeyView(**_fields(key)) for key in bridge.keys.list()]


@router.get("/api/keys/{id}")
async def show_key(bridge: ServedBridge, usage: Usage, identity: KeyId) -> KeyDetail:
    """Show a key and what it holds of every limited resource."""
    key = bridge.keys.known(identity)
    return KeyDetail(**_fields(key), usage=await usage.of(identity))


@router.patch("/api/keys/{id}")
async def change_key(bridge: ServedBridge, request: Request, identity: KeyId, body: KeyChange) -> KeyView:
    """Change the limits of a key, from now on."""
    key = await bridge.keys.change(identity, body.limits)
    note(request, detail=", ".join(f"{name} {value}" for name, value in body.limits.items()))
    return KeyView(**_fields(key))


@router.post("/api/keys", status_code=201)
async def create_key(bridge: ServedBridge, request: Request, body: KeyInput) -> NewKey:
    """Create a key. Its secret is only in this response."""
    expires_at = now_ms() + body.expires_in * 1000 if body.expires_in else None
    key, text = await bridge.keys.create(body.name, body.scopes, expires_at=expires_at, limits=body.limits)
    note(request, target=key.id, detail=f"{key.name}: {', '.join(sorted(key.scopes))}")
    return NewKey(**_fields(key), key=text)


@router.delete("/api/keys/{id}")
async def revoke_key(bridge: ServedBridge, identity: KeyId) -> KeyView:
    """Revoke a key, permanently and immediately."""
    return KeyView(**_fields(await bridge.revoke_key(identity)))


class AuditEntry(WireModel):
    """One row of the audit log."""

    sequence: int
    at: str | None = Field(description="ISO 8601, in UTC.")
    actor: str = Field(description="The id of the API key; empty if the request had none.")
    actor_name: str | None = Field(description="The name of the key.")
    action: str | None = Field(description="Such as skills.install; null if the row is damaged.")
    target: str | None
    status: int | None = Field(description="The HTTP status.")
    detail: str | None
    content_hash: str | None
    request_id: str | None
    omitted: int | None = Field(description="Refused attempts before this one that were only counted.")


class AuditPage(WireModel):
    entries: list[AuditEntry]
    total: int
    page: int
    limit: int


@router.get("/api/audit")
async def list_audit(
    bridge: ServedBridge,
    action: Annotated[
        str | None, Query(max_length=MAX_FILTER_CHARACTERS, description="Only this action, such as skills.install.")
    ] = None,
    actor: Annotated[
        str | None, Query(max_length=MAX_FILTER_CHARACTERS, description="Only acts with this API key's id.")
    ] = None,
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> AuditPage:
    """List the administrative acts and refused attempts, the newest first."""
    rows, total = await bridge.audit.page(page=page, limit=limit, action=action, actor=actor)
    return AuditPage(entries=[_entry(row, bridge.keys) for row in rows], total=total, page=page, limit=limit)


@router.get("/api/audit/verify")
async def verify_audit(bridge: ServedBridge) -> AuditVerdict:
    """Verify the whole audit log and return the first row that was changed."""
    return AuditVerdict(**asdict(await bridge.audit.verify()))


def _entry(row: Mapping[str, Any], keys: KeyStore) -> AuditEntry:
    """The row as it is. A value of another type, in a row that was changed, is left out."""

    def text(name: str) -> str | None:
        return value if isinstance(value := row.get(name), str) else None

    def number(name: str) -> int | None:
        return value if isinstance(value := row.get(name), int) else None

    actor = text("who") or ""
    return AuditEntry(
        sequence=number("seq") or 0,
        at=text("time"),
        actor=actor,
        actor_name=keys.name_of(actor),
        action=text("what"),
        target=text("target"),
        status=number("outcome"),
        detail=text("detail"),
        content_hash=text("contentHash"),
        request_id=text("requestId"),
        omitted=number("omitted"),
    )


def _fields(key: ApiKey) -> dict[str, Any]:
    times = ("created_at", "expires_at", "revoked_at", "last_used_at")
    fields = {name: _moment(getattr(key, name)) for name in times}
    limits = {"quota_mb": key.quota_mb, "max_runs": key.max_runs, "rate_limit": key.rate_limit}
    return {"id": key.id, "name": key.name, "scopes": sorted(key.scopes), **fields, **limits}


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
