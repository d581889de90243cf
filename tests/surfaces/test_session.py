"""`/api/session`: what the sender of a request may do."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import apexbridge
from apexbridge._time import now_ms
from apexbridge.bridge import Bridge
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access

pytestmark = pytest.mark.anyio
OWNER = "owner-key"
NOTHING: dict[str, Any] = {
    "keysRequired": True,
    "authenticated": False,
    "key": None,
    "scopes": [],
    "version": apexbridge.__version__,
    "instance": None,
    "defaultModel": None,
    "modelConfigured": None,
    "features": None,
    "limits": None,
    "usage": None,
}


def client_of(bridge: Bridge, *, keys_required: bool) -> httpx.AsyncClient:
    app = create_app(bridge, Access(bound="127.0.0.1", keys_required=keys_required, owner=OWNER))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
async def keyed(bridge: Bridge) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(bridge, keys_required=True) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_without_a_key_that_is_needed_only_the_version_is_shown(keyed: httpx.AsyncClient) -> None:
    response = await keyed.get("/api/session")
    assert (response.status_code, response.json()) == (200, NOTHING)


async def test_a_server_without_keys_admits_everyone(bridge: Bridge) -> None:
    async with client_of(bridge, keys_required=False) as client:
        session = (await client.get("/api/session", headers=bearer("sk-of-another-service"))).json()
    assert session == {
        "keysRequired": False,
        "authenticated": True,
        "key": None,
        "scopes": ["chat", "read", "run", "admin"],
        "version": apexbridge.__version__,
        "instance": bridge.instance,
        "defaultModel": None,
        "modelConfigured": False,
        "features": {"mcp": True, "approvals": True, "runCode": True, "recordInput": False},
        "limits": {"uploadBytes": 50 * 2**20, "archiveBytes": 50 * 2**20, "requestBytes": 8 * 2**20},
        "usage": None,
    }


@pytest.mark.parametrize(
    ("scopes", "effective"),
    [(["chat"], ["chat"]), (["run", "read"], ["read", "run"]), (["admin"], ["chat", "read", "run", "admin"])],
)
async def test_a_key_of_any_scope_sees_its_own_rights(
    bridge: Bridge, keyed: httpx.AsyncClient, scopes: list[str], effective: list[str]
) -> None:
    key, text = await bridge.keys.create("laptop", scopes, expires_at=now_ms() + 3_600_000)
    session = (await keyed.get("/api/session", headers=bearer(text))).json()
    assert (session["keysRequired"], session["authenticated"]) == (True, True)
    assert session["key"].pop("expiresAt") is not None
    assert session["key"] == {"id": key.id, "name": "laptop", "scopes": sorted(scopes)}
    assert session["scopes"] == effective


async def test_the_owner_has_all_scopes_and_no_key(keyed: httpx.AsyncClient) -> None:
    session = (await keyed.get("/api/session", headers=bearer(OWNER))).json()
    assert (session["authenticated"], session["key"]) == (True, None)
    assert session["scopes"] == ["chat", "read", "run", "admin"]


async def test_a_wrong_expired_or_revoked_key_is_refused(bridge: Bridge, keyed: httpx.AsyncClient) -> None:
    _, expired = await bridge.keys.create("old", ["read"], expires_at=now_ms() - 1)
    key, revoked = await bridge.keys.create("gone", ["read"])
    await bridge.keys.revoke(key.id)
    for text in ("wrong", "", expired, revoked, f"{expired[:-1]}~"):
        response = await keyed.get("/api/session", headers={"x-api-key": text})
        assert (response.status_code, response.json()["code"]) == (401, "UNAUTHORIZED"), text
        assert bridge.instance not in response.text
    assert (await keyed.get(f"/api/session?api_key={expired}")).status_code == 401


async def test_nothing_else_is_open_below_that_path(keyed: httpx.AsyncClient) -> None:
    assert (await keyed.get("/api/session/")).status_code == 401
    assert (await keyed.post("/api/session")).status_code == 401
