"""Approvals over HTTP: lists by state, the whole call, and who decided."""

import json
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from tests.making import skill_zip

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B16")]
FIELDS = {
    "id", "tool", "confirm", "summary", "contentHash", "digest", "caller", "createdAt", "expiresAt", "state",
    "decidedAt", "decidedBy",
}  # fmt: skip


@pytest.fixture
async def wipe(bridge: Bridge) -> None:
    files = {"scripts/execute.py": "print('wiped')"}
    await bridge.skills.install_skill(skill_zip("wipe", files=files, dangerous=True))


async def request_approval(client: httpx.AsyncClient, **input: Any) -> str:
    refused = await client.post("/api/skills/wipe/execute", json={"input": input})
    assert refused.json()["code"] == "CONFIRMATION_REQUIRED"
    return str(refused.json()["details"]["approvalId"])


@pytest.mark.usefixtures("wipe")
async def test_lists_by_state_show_when_and_by_whom_a_call_was_decided(client: httpx.AsyncClient) -> None:
    denied, first, second = [await request_approval(client, n=number) for number in range(3)]
    decided = (await client.post(f"/api/approvals/{denied}", json={"approve": False})).raise_for_status().json()
    assert set(decided) == FIELDS
    assert (decided["state"], decided["decidedBy"]) == ("denied", "")
    assert isinstance(decided["decidedAt"], int)

    async def listed(**query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await client.get("/api/approvals", params=query)).raise_for_status().json()
        assert all(set(one) == FIELDS for one in found)
        return found

    assert [one["id"] for one in await listed()] == [first, second]
    assert [one["id"] for one in await listed(state="waiting")] == [second, first]
    assert [one["id"] for one in await listed(state="all", page=2, limit=2)] == [denied]
    assert await listed(state="expired") == []
    [record] = await listed(state="denied")
    assert record == {**decided, "summary": ""}
    refused = await client.get("/api/approvals", params={"state": "lost"})
    assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")
    refused = await client.get("/api/approvals", params={"state": "all", "limit": 501})
    assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")


@pytest.mark.usefixtures("wipe")
async def test_a_large_call_is_shown_in_full(client: httpx.AsyncClient) -> None:
    text = "né\u202e" * 1_200_000
    id = await request_approval(client, text=text)
    shown = (await client.get(f"/api/approvals/{id}")).raise_for_status().json()
    assert set(shown) == FIELDS | {"call", "callTruncated"}
    assert shown["callTruncated"] is False
    assert "\u202e" not in shown["call"]
    assert json.loads(shown["call"]) == {"input": {"text": text}}
    assert "hidden, sha256" in shown["summary"]


@pytest.mark.usefixtures("wipe")
async def test_a_decision_names_the_key_that_made_it(bridge: Bridge, client: httpx.AsyncClient) -> None:
    admin, secret = await bridge.keys.create("admin", ["admin"])
    _, reader = await bridge.keys.create("reader", ["read", "run", "chat"])
    id = await request_approval(client)
    transport = httpx.ASGITransport(create_app(bridge, Access(keys_required=True)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as keyed:
        for path in ("/api/approvals", f"/api/approvals/{id}", "/api/approvals?state=all"):
            refused = await keyed.get(path, headers={"authorization": f"Bearer {reader}"})
            assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        headers = {"authorization": f"Bearer {secret}"}
        decided = await keyed.post(f"/api/approvals/{id}", json={"approve": True}, headers=headers)
        assert decided.json()["decidedBy"] == admin.id
        again = await keyed.post(f"/api/approvals/{id}", json={"approve": False}, headers=headers)
        assert (again.status_code, again.json()["code"]) == (403, "APPROVAL_INVALID")
    await client.post("/api/skills/wipe/execute", json={"approval": id})
    shown = (await client.get(f"/api/approvals/{id}")).json()
    assert (shown["state"], shown["decidedBy"], shown["call"]) == ("used", admin.id, "")
