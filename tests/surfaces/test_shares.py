"""Limits per key: concurrent requests and their bytes, uploads and threads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import Message

from apexbridge.bridge import Bridge
from apexbridge.errors import RequestError
from apexbridge.storage.run_store import RunFilter
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware import limits
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.tools.builtin.files.workspace import THREADS_OF_A_KEY, Workspace
from tests.making import skill_zip
from tests.waiting import until

pytestmark = pytest.mark.anyio
TIMEOUT_SECONDS = 60
ZIP = {"content-type": "application/zip"}


class Keys:
    """Requests with keys to the application of a bridge."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        transport = httpx.ASGITransport(create_app(bridge, Access(keys_required=True, owner="owner")))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=TIMEOUT_SECONDS)

    async def create(self) -> str:
        _, text = await self.bridge.keys.create("made", ["run"])
        return text

    async def post(self, path: str, key: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
        return await self._client.post(path, headers=headers, **options)


class Body:
    """A request body whose last chunk is sent when the test allows it."""

    def __init__(self, first: bytes, last: bytes) -> None:
        self._first, self._last = first, last
        self.has_started, self.may_end = anyio.Event(), anyio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        self.has_started.set()
        await self.may_end.wait()
        yield self._last


async def test_concurrent_uploads_are_limited_per_key(bridge: Bridge) -> None:
    keys = Keys(bridge)
    one, other = await keys.create(), await keys.create()
    archive = skill_zip()
    bodies = [Body(archive[:10], archive[10:]) for _ in range(limits.MAX_KEY_UPLOADS)]
    statuses: list[int] = []

    async def validate(body: Body) -> None:
        statuses.append((await keys.post("/api/skills/validate", one, content=body, headers=ZIP)).status_code)

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as group:
            for body in bodies:
                group.start_soon(validate, body)
                await body.has_started.wait()
            refused = await keys.post("/api/skills/validate", one, content=archive, headers=ZIP)
            assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
            assert int(refused.headers["retry-after"]) > 0
            assert (await keys.post("/api/skills/validate", other, content=archive, headers=ZIP)).status_code == 200
            calculated = await keys.post("/api/tools/calculate/execute", one, json={"input": {"expression": "1+1"}})
            assert calculated.status_code == 200
            for body in bodies:
                body.may_end.set()
        assert statuses == [200] * limits.MAX_KEY_UPLOADS
        assert (await keys.post("/api/skills/validate", one, content=archive, headers=ZIP)).status_code == 200


async def test_bytes_of_concurrent_requests_are_limited_per_key(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_KEY_BYTES", 1000)
    keys = Keys(bridge)
    one, other = await keys.create(), await keys.create()
    path, call = "/api/tools/calculate/execute", b'{"input": {"expression": "1+1"}}'
    json_type = {"content-type": "application/json"}
    body = Body(b" " * 990, call)

    async def post_slowly() -> None:
        codes.append((await keys.post(path, one, content=body, headers=json_type)).json()["code"])

    codes: list[str] = []
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(post_slowly)
            await body.has_started.wait()
            refused = await keys.post(path, one, content=call, headers=json_type)
            assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
            assert (await keys.post(path, other, content=call, headers=json_type)).status_code == 200
            body.may_end.set()
        assert codes == ["RATE_LIMITED"]
        assert (await keys.post(path, one, content=call, headers=json_type)).status_code == 200


def test_concurrent_requests_are_limited_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_KEY_REQUESTS", 1)
    limit = limits.ConcurrencyLimit()

    async def receive() -> Message:
        raise AssertionError("no body is read")

    with limit.request("one", receive), limit.request("other", receive):
        with pytest.raises(RequestError) as caught, limit.request("one", receive):
            pass
        assert caught.value.status == 429
    with limit.request("one", receive):
        pass


async def test_threads_of_file_tools_are_limited_per_key(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, lambda identity, caller: None)
    release = threading.Event()
    started: list[int] = []

    def work() -> None:
        started.append(1)
        release.wait(TIMEOUT_SECONDS)

    async def call() -> None:
        await workspace.in_thread(work, caller="one")

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(call)
            await until(lambda: len(started) >= THREADS_OF_A_KEY)
            assert await workspace.in_thread(lambda: "other", caller="other") == "other"
            assert await asyncio.to_thread(lambda: "common") == "common"
            assert len(started) == THREADS_OF_A_KEY
            release.set()
    assert len(started) == 100


async def test_listing_runs_does_not_read_their_results(bridge: Bridge, client: httpx.AsyncClient) -> None:
    archive = skill_zip("says", {"scripts/execute.py": "print('x' * 5000)"})
    await client.post("/api/skills", content=archive, headers=ZIP)
    await client.post("/api/skills/says/execute", json={})
    rows, total = await bridge.runs._store.page(RunFilter(), offset=0, limit=10)
    assert (total, rows[0].skill, rows[0].result, rows[0].input) == (1, "says", None, None)
