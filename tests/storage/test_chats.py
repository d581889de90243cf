"""Records of chat requests: written in batches, listed, bounded, and deleted completely."""

import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.agent.chat_events import PassedThrough
from apexbridge.agent.records import chat_records
from apexbridge.agent.records.chat_records import BATCH, ChatRecords
from apexbridge.agent.records.content import MAX_RECORD_BYTES, bounded
from apexbridge.agent.records.recorder import ChatRecorder
from apexbridge.agent.request import read_request
from apexbridge.errors import RequestError, ServerError
from apexbridge.storage import chat_store
from apexbridge.storage.chat_store import ChatRow, ChatStore
from apexbridge.storage.database import Database
from tests.waiting import until

pytestmark = pytest.mark.anyio
NOW = now_ms()
RECORD = ChatRow(
    id="req_1",
    caller="0a1b2c3d",
    model="a-model",
    upstream="default",
    started_at=NOW,
    duration_ms=1200,
    is_stream=True,
    turns=2,
    calls=1,
    stop_cause="answered",
    outcome="answered",
    prompt_tokens=20,
    completion_tokens=10,
    total_tokens=30,
    trajectory='[{"kind":"model","name":"a-model","durationMs":3}]',
)
NO_TOKENS: dict[str, Any] = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "x.sqlite3")
    yield opened
    opened.close()


@pytest.fixture
async def records(database: Database) -> AsyncIterator[ChatRecords]:
    opened = ChatRecords(ChatStore(database), has_texts=True, key_name={"0a1b2c3d": "laptop"}.get)
    yield opened
    await opened.close()


def refuse(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TRIGGER refuse BEFORE INSERT ON chats BEGIN SELECT RAISE(ABORT, 'disk full'); END")


def allow(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TRIGGER refuse")


async def test_a_record_is_found_unchanged_even_before_it_is_written(records: ChatRecords) -> None:
    failed = replace(
        RECORD,
        id="req_2",
        outcome="failed",
        stop_cause="error",
        **NO_TOKENS,
        error_code="x",
        error_message="y",
    )
    records.keep(replace(RECORD, messages='[{"role":"user","content":"hi"}]', answer="hello"))
    records.keep(failed)
    found = await records.get("req_1")
    assert (found.id, found.caller, found.key_name, found.model) == ("req_1", "0a1b2c3d", "laptop", "a-model")
    assert (found.duration_ms, found.is_stream, found.turns, found.calls) == (1200, True, 2, 1)
    assert (found.stop_cause, found.outcome, found.error) == ("answered", "answered", None)
    assert found.usage is not None
    assert found.usage.total_tokens == 30
    assert found.trajectory == json.loads(RECORD.trajectory)
    assert (found.messages, found.answer) == ([{"role": "user", "content": "hi"}], "hello")
    other = await records.get("req_2")
    assert other.error is not None
    assert (other.error.code, other.error.message, other.usage, other.messages) == ("x", "y", None, None)


async def test_a_record_is_written_automatically(records: ChatRecords, database: Database) -> None:
    records.keep(RECORD)
    query = "SELECT count(*) FROM chats"

    async def is_written() -> bool:
        return bool(await database.read(lambda connection: connection.execute(query).fetchone() != (0,)))

    await until(is_written)


async def test_a_duplicate_id_is_replaced_by_a_unique_one(records: ChatRecords) -> None:
    for model in ("one", "two"):
        records.keep(replace(RECORD, model=model))
    await records.list()
    records.keep(replace(RECORD, model="three"))
    found = (await records.list()).chats
    assert {chat.model for chat in found} == {"one", "two", "three"}
    assert len({chat.id for chat in found}) == 3
    assert all(chat.id.startswith("req_1") for chat in found)


async def test_lists_of_thousands_are_filtered_and_paged_newest_first(records: ChatRecords) -> None:
    for number in range(3000):
        records.keep(
            replace(
                RECORD,
                id=f"req_{number}",
                started_at=NOW + number,
                model=f"model-{number % 3}",
                caller=["", "0a1b2c3d"][number % 2],
                outcome="cancelled" if number % 10 == 0 else "answered",
                stop_cause="cancelled" if number % 10 == 0 else "max_turns",
            )
        )
    page = await records.list(limit=10)
    assert (page.total, page.page, page.limit) == (3000, 1, 10)
    assert [chat.id for chat in page.chats] == [f"req_{number}" for number in range(2999, 2989, -1)]
    assert [chat.id for chat in (await records.list(page=300, limit=10)).chats][-1] == "req_0"
    assert (await records.list(page=301, limit=10)).chats == []
    assert (await records.list(model="model-1")).total == 1000
    assert (await records.list(caller="0a1b2c3d", model="model-0")).total == 500
    assert (await records.list(outcome="cancelled")).total == 300
    assert (await records.list(stop_cause="max_turns")).total == 2700
    assert (await records.list(model="' OR 1 --")).total == 0


async def test_every_filter_uses_an_index(database: Database) -> None:
    def plans(connection: sqlite3.Connection) -> list[str]:
        wheres = ["TRUE", *(f"{name} = 'x'" for name in ("model", "caller", "stop_cause", "outcome"))]
        query = "EXPLAIN QUERY PLAN SELECT id FROM chats WHERE {} ORDER BY started_at DESC, rowid DESC LIMIT 50"
        return [str(connection.execute(query.format(where)).fetchall()) for where in wheres]

    for name, plan in zip(
        ("time", "model", "caller", "stop_cause", "outcome"), await database.read(plans), strict=True
    ):
        assert f"chats_by_{name}" in plan, plan


async def test_sums_are_reported_in_total_and_by_model(records: ChatRecords) -> None:
    records.keep(RECORD)
    records.keep(replace(RECORD, turns=5, calls=4, duration_ms=600, **NO_TOKENS))
    records.keep(replace(RECORD, model="other", outcome="failed", stop_cause="error"))
    records.keep(replace(RECORD, model="old", started_at=NOW - 8 * MS_PER_DAY))
    sums = await records.statistics(days=7)
    assert (sums.requests, sums.failed, sums.cancelled, sums.total_tokens) == (3, 1, 0, 60)
    assert (sums.mean_turns, sums.mean_calls, sums.mean_duration_ms) == (3.0, 2.0, 1000)
    assert [(own.model, own.requests, own.prompt_tokens) for own in sums.models] == [
        ("a-model", 2, 20),
        ("other", 1, 20),
    ]
    assert (await records.statistics(days=30)).requests == 4


async def test_sums_without_records_are_zero(records: ChatRecords) -> None:
    sums = await records.statistics()
    assert (sums.requests, sums.total_tokens, sums.mean_turns, sums.models) == (0, 0, 0.0, [])


async def test_a_deleted_record_is_erased_from_the_file(tmp_path: Path) -> None:
    database = Database(tmp_path / "y.sqlite3")
    records = ChatRecords(ChatStore(database), has_texts=True)
    records.keep(replace(RECORD, answer="a very private answer"))
    await records.list()
    await records.delete("req_1")
    with pytest.raises(RequestError) as refused:
        await records.delete("req_1")
    assert refused.value.code == "CHAT_NOT_FOUND"
    files = [path.read_bytes() for path in tmp_path.glob("y.sqlite3*")]
    assert len(files) == 3, "the database is still open"
    assert not any(b"very private" in data for data in files)
    await records.close()
    database.close()
    assert b"very private" not in (tmp_path / "y.sqlite3").read_bytes()


async def test_cleanup_starts_immediately_and_erases_expired_records_from_all_files(tmp_path: Path) -> None:
    database = Database(tmp_path / "y.sqlite3")
    records = ChatRecords(ChatStore(database), has_texts=True, retention_days=7)
    for number in range(2 * BATCH):
        records.keep(replace(RECORD, id=f"req_{number}", started_at=1, answer="a very private answer"))
    assert (await records.list()).total == 2 * BATCH
    async with anyio.create_task_group() as group:
        group.start_soon(records.keep_tidy)
        await until(lambda: not any(b"very private" in path.read_bytes() for path in tmp_path.glob("y.sqlite3*")))
        group.cancel_scope.cancel()
    assert (await records.list()).total == 0
    database.close()


async def test_records_older_than_the_retention_setting_are_deleted(database: Database) -> None:
    records = ChatRecords(ChatStore(database), retention_days=7)
    for days in range(14):
        for number in range(100):
            moment = NOW - days * MS_PER_DAY - 60_000
            records.keep(replace(RECORD, id=f"req_{days}_{number}", started_at=moment))
    assert (await records.list()).total == 1400
    await records.sweep()
    assert (await records.list()).total == 700
    await ChatRecords(ChatStore(database), retention_days=0).sweep()
    assert (await records.list()).total == 0


@pytest.mark.parametrize(
    ("trajectory", "messages", "answer"),
    [
        ([{"kind": "tool", "name": "x" * 100, "durationMs": n} for n in range(10_000)], [], ""),
        ([], [{"role": "user", "content": "m" * 100} for _ in range(10_000)], ""),
        ([], [{"role": "user", "content": [{"type": "text", "text": "\x01" * 1_000_000}]}], ""),
        ([], [], "\N{GRINNING FACE}" * 500_000),
        ([{"kind": "tool", "name": "x" * 400_000}], [{"role": "user", "content": "m" * 400_000}], "a" * 400_000),
    ],
    ids=["steps", "messages", "message", "answer", "all"],
)
async def test_a_record_that_is_too_long_is_cut_with_a_notice(
    records: ChatRecords, database: Database, trajectory: Any, messages: Any, answer: str
) -> None:
    steps, said, text = bounded(trajectory, messages, answer)
    records.keep(replace(RECORD, trajectory=steps, messages=said, answer=text))
    found = await records.get("req_1")
    assert "[cut: " in json.dumps([found.trajectory, found.messages, found.answer])
    query = "SELECT length(CAST(trajectory || messages || answer AS BLOB)) FROM chats"
    ((size,),) = await database.read(lambda connection: connection.execute(query).fetchall())
    assert size <= MAX_RECORD_BYTES


async def test_a_record_that_fits_is_not_cut(records: ChatRecords) -> None:
    answer = "a" * (MAX_RECORD_BYTES - 1000)
    steps, said, text = bounded([], [], answer)
    records.keep(replace(RECORD, trajectory=steps, messages=said, answer=text))
    assert (await records.get("req_1")).answer == answer


async def test_values_that_sqlite_refuses_do_not_affect_other_records(records: ChatRecords) -> None:
    surrogate = "\ud800 lone surrogate"
    request = read_request(
        {"model": surrogate, "messages": [{"role": "user", "content": surrogate}]}, request_id="req_1"
    )
    recording = ChatRecorder(records, request, "default")
    completion = {"choices": [{"message": {"content": surrogate}}], "usage": {"total_tokens": 10**30}}
    recording.observe(PassedThrough(chunks=[completion]))
    recording.end(ServerError(surrogate, code="STORAGE_FULL"))
    records.keep(replace(RECORD, id="req_2"))
    assert (await records.list()).total == 2
    found = await records.get("req_1")
    assert found.answer == "? lone surrogate"
    assert found.model_dump_json()


async def test_records_are_written_later_if_the_disk_refuses(
    records: ChatRecords, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await database.write(refuse)
    for number in range(5):
        records.keep(replace(RECORD, id=f"req_{number}"))
        assert (await records.list()).total == 0
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING], "logged once"
    await database.write(allow)
    assert (await records.list()).total == 5


async def test_memory_is_bounded_and_dropped_records_are_counted(
    records: ChatRecords, database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_records, "MAX_WAITING", 40)
    monkeypatch.setattr(chat_records, "MAX_WAITING_BYTES", 48_000)
    await database.write(refuse)
    for number in range(12):
        records.keep(replace(RECORD, id=f"long_{number}", answer="a" * 1_000 * (number % 3)))
    for number in range(100):
        records.keep(replace(RECORD, id=f"req_{number}"))
    assert (await records.list()).total == 0
    assert "92 chat requests were not recorded" in caplog.text
    records.keep(replace(RECORD, id="other", caller="ffffffff"))  # half of the space is for other keys
    await database.write(allow)
    assert (await records.list()).total == 21
    records.keep(replace(RECORD, id="again"))
    assert (await records.list()).total == 22


async def test_the_oldest_records_of_a_key_beyond_its_limit_are_deleted(
    records: ChatRecords, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_store, "MAX_CHATS_OF_A_KEY", 3)
    monkeypatch.setattr(chat_store, "SPARE", 0)
    records.keep(replace(RECORD, id="other", caller="ffffffff", started_at=NOW - 1))
    for number in range(10):
        records.keep(replace(RECORD, id=f"req_{number}", started_at=NOW + number))
    assert [chat.id for chat in (await records.list()).chats] == ["req_9", "req_8", "req_7", "other"]
    await records.delete("req_8")
    store = ChatStore(database)  # as after a restart
    rows, size = await store.usage(RECORD.caller)
    assert (rows.used, rows.limit, rows.total) == (2, 3, 3)
    assert size.used == 2 * RECORD.size
    await store.add([replace(RECORD, id=f"new_{number}", started_at=NOW + 20 + number) for number in range(2)])
    assert [chat.id for chat in (await records.list()).chats] == ["new_1", "new_0", "req_9", "other"]


async def test_records_lost_at_shutdown_are_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    records = ChatRecords(ChatStore(database))
    await database.write(refuse)
    records.keep(RECORD)
    await records.close()
    assert "1 chat requests could not be written and are lost" in caplog.text


async def test_records_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "y.sqlite3"
    database = Database(path)
    records = ChatRecords(ChatStore(database))
    records.keep(RECORD)
    await records.close()
    database.close()
    again = Database(path)
    assert (await ChatRecords(ChatStore(again)).get("req_1")).model == "a-model"
    again.close()
