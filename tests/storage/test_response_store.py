"""Stored responses: found by their ids for their own key only, and limited in number, size and time."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge.storage import response_store
from apexbridge.storage.database import Database
from apexbridge.storage.response_store import ChainError, ResponseStore, StoredResponse
from tests.waiting import until

_times = itertools.count(1)
HOUR_MS = 3600 * 1000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "test.sqlite")
    yield database
    database.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time in milliseconds, which a test can change."""
    now = [10**12]
    monkeypatch.setattr(response_store, "now_ms", lambda: now[0])
    return now


def stored(id: str, caller: str = "a", **fields: Any) -> StoredResponse:
    values: dict[str, Any] = {"response": {"id": id}, "input": [{"id": f"in_{id}"}], "output": [{"id": f"out_{id}"}]}
    return StoredResponse(id=id, caller=caller, created_at=next(_times), **{**values, **fields})


async def rows(store: ResponseStore, database: Database) -> list[str]:
    """The ids in the database, in the order in which they were stored."""
    await store.get("", caller="")  # writes what is pending
    return [id for (id,) in await database.rows("SELECT id FROM responses ORDER BY number")]


async def ids(store: ResponseStore, *names: str, caller: str = "a") -> list[str]:
    return [name for name in names if await store.get(name, caller=caller) is not None]


def test_a_response_is_found_by_its_own_key_alone(database: Database) -> None:
    async def run() -> None:
        store = ResponseStore(database)
        await store.add(stored("r", workspace="w", response={"n": 1, "text": "\ud800"}))
        found = await store.get("r", caller="a")
        assert found is not None
        assert (found.workspace, found.response, found.output) == ("w", {"n": 1, "text": "\ud800"}, [{"id": "out_r"}])
        assert await store.get("r", caller="b") is None
        assert await store.referenced(["r"], caller="b") == []
        assert await store.delete("r", caller="b") is False
        with pytest.raises(ChainError) as error:
            await store.chain("r", caller="b")
        assert error.value.missing == "r"
        assert await store.delete("r", caller="a") is True
        assert await store.get("r", caller="a") is None

    asyncio.run(run())


def test_a_chain_is_complete_or_an_error(database: Database) -> None:
    async def run() -> None:
        store = ResponseStore(database)
        for id, previous in (("1", None), ("2", "1"), ("3", "2")):
            await store.add(stored(id, previous=previous))
        chain = await store.chain("3", caller="a")
        assert [one.id for one in chain] == ["1", "2", "3"]
        assert [item["id"] for one in chain for item in one.items][:3] == ["in_1", "out_1", "in_2"]
        await store.delete("2", caller="a")
        with pytest.raises(ChainError) as error:
            await store.chain("3", caller="a")
        assert error.value.missing == "2"

    asyncio.run(run())


def test_a_chain_that_is_too_long_or_runs_in_a_circle_is_an_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        store = ResponseStore(database)
        await store.add(stored("1", previous="2"))
        await store.add(stored("2", previous="1"))
        with pytest.raises(ChainError) as error:
            await store.chain("1", caller="a")
        assert error.value.missing is None
        monkeypatch.setattr(response_store, "MAX_CHAIN_BYTES", 10)
        await store.add(stored("3"))
        for reading in (store.chain("3", caller="a"), store.referenced(["3"], caller="a")):
            with pytest.raises(ChainError):
                await reading

    asyncio.run(run())


def test_a_response_expires_after_its_last_use(database: Database, clock: list[int]) -> None:
    async def run() -> None:
        store = ResponseStore(database, retention_days=1)
        await store.add(stored("old"))
        await store.add(stored("used"))
        clock[0] += 20 * HOUR_MS
        await store.add(stored("new", previous="used"), used=["used"])
        clock[0] += 10 * HOUR_MS
        assert await ids(store, "old", "used", "new") == ["used", "new"]
        await store.sweep()
        assert await rows(store, database) == ["used", "new"]
        assert [one.id for one in await store.chain("new", caller="a")] == ["used", "new"]

    asyncio.run(run())


def test_another_key_cannot_prolong_a_response(database: Database, clock: list[int]) -> None:
    async def run() -> None:
        store = ResponseStore(database, retention_days=1)
        await store.add(stored("r"))
        clock[0] += 20 * HOUR_MS
        await store.add(stored("other", caller="b"), used=["r"])
        clock[0] += 10 * HOUR_MS
        assert await ids(store, "r") == []

    asyncio.run(run())


def test_the_oldest_beyond_the_limits_of_a_key_are_deleted(
    database: Database, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "MAX_RESPONSES_OF_A_KEY", 3)
    monkeypatch.setattr(response_store, "SPARE", 0)

    async def run() -> None:
        store = ResponseStore(database)
        await store.add(stored("b1", caller="b"))
        for number in range(5):
            clock[0] += 2 * HOUR_MS
            await store.add(stored(f"a{number}"), used=["a0"])
        assert await ids(store, "a0", "a1", "a2", "a3", "a4") == ["a0", "a3", "a4"]
        assert await ids(store, "b1", caller="b") == ["b1"]
        monkeypatch.setattr(response_store, "MAX_BYTES_OF_A_KEY", 5_000)
        clock[0] += 1
        await store.add(stored("large", response={"text": "x" * 4_960}))
        assert await ids(store, "a0", "a3", "a4", "large") == ["large"]
        again = ResponseStore(database)  # counts what is there
        await again.add(stored("again", response={"text": "x" * 4_960}))
        assert await ids(again, "large", "again") == ["again"]

    asyncio.run(run())


def test_some_space_is_freed_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "MAX_RESPONSES_OF_A_KEY", 10)
    monkeypatch.setattr(response_store, "SPARE", 0.5)

    async def run() -> None:
        store = ResponseStore(database)
        for number in range(11):
            await store.add(stored(f"r{number:02}"))
        assert await rows(store, database) == ["r06", "r07", "r08", "r09", "r10"]

    asyncio.run(run())


def test_the_limits_of_all_keys_together_hold(
    database: Database, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "MAX_RESPONSES", 3)
    monkeypatch.setattr(response_store, "SPARE", 0)

    async def run() -> None:
        store = ResponseStore(database)
        for number in range(5):
            clock[0] += 1
            await store.add(stored(f"r{number}", caller=f"key{number}"))
        assert await rows(store, database) == ["r2", "r3", "r4"]
        await store.delete("r3", caller="key3")
        await store.add(stored("r5"))
        assert await rows(store, database) == ["r2", "r4", "r5"]

    asyncio.run(run())


def test_a_failed_write_is_logged_and_counts_stay_right(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(response_store, "MAX_RESPONSES_OF_A_KEY", 2)

    async def run() -> None:
        store = ResponseStore(database)
        for id in ("1", "1", "2"):
            await store.add(stored(id))
            await store.get("", caller="")
        assert await rows(store, database) == ["1", "2"]

    asyncio.run(run())
    assert "could not be stored" in caplog.text


def test_what_is_pending_is_written_soon_and_when_the_store_closes(database: Database) -> None:
    async def run() -> None:
        store = ResponseStore(database)
        await store.add(stored("1"))

        async def is_written() -> bool:
            return bool(await database.rows("SELECT id FROM responses"))

        await until(is_written)
        await store.add(stored("2"))
        await store.close()
        assert await database.rows("SELECT id FROM responses ORDER BY number") == [("1",), ("2",)]

    asyncio.run(run())


def test_much_that_is_pending_is_written_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "MAX_WAITING_BYTES", 10)

    async def run() -> None:
        await ResponseStore(database).add(stored("1"))
        assert await database.rows("SELECT id FROM responses") == [("1",)]

    asyncio.run(run())


def test_nothing_is_stored_without_a_retention_time_or_on_a_short_disk(database: Database) -> None:
    assert ResponseStore(database).is_storing
    assert not ResponseStore(database, retention_days=0).is_storing
    assert not ResponseStore(database, is_disk_short=lambda: True).is_storing
