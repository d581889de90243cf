"""The ring of events, and streams for its readers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from apexbridge._time import now_ms
from apexbridge.errors import RequestError
from apexbridge.monitoring import event_feed, event_stream
from apexbridge.monitoring.event_feed import EventFeed
from apexbridge.monitoring.event_stream import HEARTBEAT, EventStreams
from apexbridge.monitoring.metrics import Metrics
from apexbridge.monitoring.server_events import ServerEvents
from apexbridge.storage.database import Database
from apexbridge.storage.key_store import KeyStore
from apexbridge.storage.run_store import RunRow
from apexbridge.tools.approvals import Approval
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


class Harness:
    """A feed with real keys, and runs that the test counts."""

    def __init__(self, database: Database, size: int = 10) -> None:
        self.feed = EventFeed(size)
        self.events = ServerEvents(self.feed, Metrics(version="1", models=()))
        self.keys = KeyStore(database, changed=self.events.keys_changed)
        self.running: dict[str, int] = {}
        self.streams = EventStreams(
            self.feed, self.events, keys=self.keys, run_counts=self._counts, instance="instance"
        )

    def _counts(self, owner: str | None) -> tuple[int, int]:
        return (sum(self.running.values()) if owner is None else self.running.get(owner, 0)), 0

    def start_run(self, caller: str, id: str = "run") -> None:
        self.running[caller] = self.running.get(caller, 0) + 1
        self.events.run_changed(run_row(id, caller))

    async def key(self, *scopes: str) -> str:
        return (await self.keys.create("key", scopes))[0].id


def run_row(id: str, caller: str) -> RunRow:
    return RunRow(
        id=id,
        skill="pdf",
        script="scripts/execute.py",
        content_hash="",
        caller=caller,
        state="running",
        created_at=1,
        input_digest="",
    )


def approval(id: str, caller: str = "", *, lifetime_ms: int = 600_000) -> Approval:
    return Approval(
        id=id,
        tool="skill:wipe",
        confirm="Sure?",
        summary="{}",
        content_hash="",
        digest="",
        caller=caller,
        created_at=now_ms(),
        expires_at=now_ms() + lifetime_ms,
        decided_at=None,
        decided_by=None,
    )


class Reader:
    """Reads a stream event by event."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._events: list[tuple[int, str, Json]] = []

    async def next(self) -> tuple[int, str, Json]:
        """Number, kind and data of the next event. Heartbeats are skipped."""
        while not self._events:
            async with asyncio.timeout(PATIENCE_SECONDS):
                chunk = await anext(self._chunks)
            for block in chunk.decode().split("\n\n"):
                if block and not block.startswith(":"):
                    number, kind, data = (line.split(": ", 1)[1] for line in block.split("\n"))
                    self._events.append((int(number), kind, json.loads(data)))
        return self._events.pop(0)

    async def kinds(self, count: int) -> list[str]:
        return [(await self.next())[1] for _ in range(count)]

    async def has_ended(self) -> bool:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return [chunk async for chunk in self._chunks] == []


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    database = Database(tmp_path / "apex.sqlite3")
    harness = Harness(database)
    try:
        yield harness
    finally:
        harness.events.close()
        await harness.keys.close()
        database.close()


@asynccontextmanager
async def reading(harness: Harness, caller: str = "", last: str | None = None) -> AsyncIterator[Reader]:
    chunks = harness.streams.follow(caller, last)
    try:
        yield Reader(chunks)
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]  # a generator


async def test_a_stream_begins_with_hello_and_continues_with_numbered_events(harness: Harness) -> None:
    harness.start_run("", "before")
    async with reading(harness) as reader:
        number, kind, data = await reader.next()
        assert (kind, data) == ("hello", {"instance": "instance", "approvals": 0, "running": 1, "waiting": 0})
        harness.start_run("", "first")
        harness.events.skills_changed("installed", ["b", "a"])
        first, second, counts = [await reader.next() for _ in range(3)]
    assert first == (
        number + 1,
        "run",
        {"id": "first", "skill": "pdf", "state": "running", "status": None, "caller": "", "durationMs": None},
    )
    assert second == (number + 2, "skills", {"change": "installed", "names": ["a", "b"], "total": 2})
    assert counts == (number + 2, "counts", {"approvals": 0, "running": 2, "waiting": 0})


async def test_a_stream_resumes_after_the_last_event_that_the_client_saw(harness: Harness) -> None:
    harness.events.mcp_changed("files", "connecting")
    last = harness.feed.newest
    harness.events.mcp_changed("files", "connected")
    async with reading(harness, last=str(last)) as reader:
        assert (await reader.next())[:2] == (last, "hello"), "a stream that breaks now still resumes from there"
        assert await reader.next() == (last + 1, "mcp", {"name": "files", "state": "connected"})


@pytest.mark.parametrize("last", ["0", "1", "9" * 16, "9" * 5000, "-1", "x", "", "１"])
async def test_a_stream_that_cannot_resume_resets_the_client(harness: Harness, last: str) -> None:
    harness.events.mcp_changed("files", "connected")
    async with reading(harness, last=last) as reader:
        assert await reader.kinds(2) == ["hello", "reset"]


async def test_numbers_of_an_earlier_process_are_not_resumed(harness: Harness) -> None:
    for _ in range(100):
        harness.events.keys_changed()
    later = EventFeed()
    assert later.newest > harness.feed.newest
    assert later.after(harness.feed.newest) is None
    assert later.newest < 2**53, "JavaScript has it as an exact number"


async def test_a_reader_that_falls_behind_the_ring_is_reset(harness: Harness) -> None:
    async with reading(harness) as reader:
        await reader.next()
        for number in range(11):
            harness.events.mcp_changed(f"server-{number}", "connected")
        assert await reader.next() == (harness.feed.newest, "reset", {})
        harness.events.mcp_changed("next", "connected")
        assert (await reader.next())[1] == "mcp"


async def test_a_key_sees_its_own_runs_and_approvals_only(harness: Harness) -> None:
    own, other, admin = [await harness.key(scope) for scope in ("run", "run", "admin")]
    async with reading(harness, own) as reader, reading(harness, admin) as admin_reader:
        assert (await reader.next())[2]["approvals"] is None
        assert (await admin_reader.next())[2]["approvals"] == 0
        harness.start_run(other, "foreign")
        harness.start_run("", "without-key")
        harness.events.approval_changed(approval("foreign-approval", other))
        harness.events.mcp_changed("files", "connected")
        harness.events.keys_changed()
        harness.events.approval_changed(approval("own-approval", own))
        harness.start_run(own, "own")
        seen = [await reader.next() for _ in range(3)]
        assert [(kind, data.get("id")) for _, kind, data in seen] == [
            ("approval", "own-approval"),
            ("run", "own"),
            ("counts", None),
        ]
        assert seen[-1][2] == {"approvals": None, "running": 1, "waiting": 0}
        assert await admin_reader.kinds(8) == [
            *("run", "run", "approval", "mcp", "keys", "approval", "run", "counts"),
        ]


async def test_the_stream_of_a_revoked_key_ends_before_the_next_event(harness: Harness) -> None:
    key = await harness.key("read")
    async with reading(harness, key) as reader:
        await reader.next()
        await harness.keys.revoke(key)
        harness.events.skills_changed("installed", ["secret"])
        assert await reader.has_ended()


async def test_streams_end_when_the_server_stops(harness: Harness) -> None:
    async with reading(harness) as reader:
        await reader.next()
        ending = asyncio.ensure_future(reader.has_ended())
        await asyncio.sleep(0)
        harness.feed.close()
        assert await ending


async def test_an_idle_stream_sends_heartbeats(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.01)
    chunks = harness.streams.follow("", None)
    await anext(chunks)
    assert await anext(chunks) == HEARTBEAT
    await chunks.aclose()  # type: ignore[attr-defined]  # a generator


async def test_an_approval_that_expires_is_published_and_no_longer_counted(harness: Harness) -> None:
    async with reading(harness) as reader:
        await reader.next()
        harness.events.approval_changed(approval("long"))
        harness.events.approval_changed(approval("short", lifetime_ms=20))
        seen = [await reader.next() for _ in range(4)]
        states = [(kind, data.get("id"), data.get("state")) for _, kind, data in seen]
        while states[-1] != ("approval", "short", "expired"):
            _, kind, data = await reader.next()
            states.append((kind, data.get("id"), data.get("state")))
    assert ("approval", "short", "waiting") in states
    assert harness.events.pending_approvals == 1


async def test_approvals_that_are_dropped_are_published_as_removed(harness: Harness) -> None:
    async with reading(harness) as reader:
        await reader.next()
        harness.events.follow_approvals([approval("old")])
        assert harness.events.pending_approvals == 1
        harness.events.approvals_removed(["old", "unknown"])
        _, kind, data = await reader.next()
    assert (kind, data["id"], data["state"]) == ("approval", "old", "removed")
    assert harness.events.pending_approvals == 0


async def test_an_event_names_a_hundred_skills_at_most(harness: Harness) -> None:
    async with reading(harness) as reader:
        await reader.next()
        harness.events.skills_changed("indexed", [f"skill-{number:04}" for number in range(5000)])
        _, _, data = await reader.next()
    assert (len(data["names"]), data["total"]) == (100, 5000)


async def test_a_key_has_a_limited_number_of_streams(harness: Harness) -> None:
    feed = harness.feed
    streams = [feed.stream_of("key") for _ in range(event_feed.MAX_KEY_STREAMS)]
    for stream in streams:
        stream.__enter__()
    with pytest.raises(RequestError) as refused, feed.stream_of("key"):
        pass
    assert (refused.value.code, refused.value.status) == ("RATE_LIMITED", 429)
    with feed.stream_of("other"), feed.stream_of(""):
        pass
    streams[0].__exit__(None, None, None)
    with feed.stream_of("key"):
        pass
