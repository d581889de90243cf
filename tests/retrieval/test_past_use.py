"""Past use on disk: vectors, never the text of a request, and nothing of forgotten requests."""

import json
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.endpoint import EndpointModel
from apexbridge.retrieval.index.writer import Changes
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.retrieval.usage import UsagePair
from tests.retrieval.conftest import LIBRARY, Searching
from tests.retrieval.endpoint import Endpoint

pytestmark = pytest.mark.anyio
REQUEST = "the quagga habit of the team"


def files_containing(folder: Path, *marks: bytes) -> list[str]:
    """The files that contain one of the marks."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(mark in path.read_bytes() for mark in marks)
    ]


async def flush(service: ToolRetrievalService) -> None:
    await service._index.writer.flush()
    assert not service.is_behind


def pairs(service: ToolRetrievalService) -> list[tuple[UsagePair, Any]]:
    return service._index.usage.pairs()


@pytest.mark.requirement("E11")
async def test_no_file_contains_the_text_of_a_request(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        assert await service.remember(REQUEST, "weather", succeeded=True)
        await flush(service)
        assert files_containing(data_dir, pairs(service)[0][0].key.encode()) != []
        assert files_containing(data_dir, b"quagga") == []
    assert (data_dir / "skills.snapshot").exists()
    assert files_containing(data_dir, b"quagga") == []


@pytest.mark.requirement("E11")
async def test_a_forgotten_pair_is_removed_from_every_file_immediately(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        for number in range(30):
            await service.remember(f"forecast of the weather for day {number}", "weather", succeeded=True)
        await service.remember(REQUEST, "pdf-merge", succeeded=True, chat="c" * 32)
        await flush(service)
        (pair, vector) = pairs(service)[-1]
        marks = (pair.key.encode(), b"c" * 32, vector.tobytes())
        assert files_containing(data_dir, *marks) != []
        assert await service.forget("pdf-merge") == 1
        assert files_containing(data_dir, *marks) == []
        assert len(pairs(service)) == 30
    assert files_containing(data_dir, *marks) == []
    (data_dir / "skills.snapshot").unlink()
    async with searching.open() as again:
        assert await again.forget() == 30


async def test_past_use_of_a_forgotten_chat_is_removed_and_not_learnt_later(
    searching: Searching, data_dir: Path
) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "weather", succeeded=True, chat="one")
        await service.remember("merge these two", "pdf-merge", succeeded=True, chat="two")
        assert await service.forget_chat("one") == 1
        assert [pair.chat for pair, _ in pairs(service)] == ["two"]
        assert not await service.remember(REQUEST, "weather", succeeded=True, chat="one")
        assert await service.forget_chat("unknown") == 0


async def test_a_chat_can_be_forgotten_without_an_index(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        assert await service.forget_chat("one") == 0
    assert not (data_dir / "skills.lance").exists()


@pytest.mark.parametrize("how", ["snapshot", "tables"])
async def test_past_use_that_is_not_repeated_expires(searching: Searching, data_dir: Path, how: str) -> None:
    async with searching.open(usage_days=30) as service:
        await service.index_skills(LIBRARY)
        now = now_ms()
        for number, days in enumerate((31, 29)):
            vector = np.zeros(service.dimensions, np.float32)
            vector[number] = 1
            pair, _ = service._index.usage.teach("weather", vector, caller="", now=now - days * MS_PER_DAY)
            service._index.writer.queue(Changes(pairs={pair.key: (pair, vector)}))
        old = pairs(service)[0][0].key.encode()
        await flush(service)
    assert files_containing(data_dir, old) != []
    if how == "tables":
        (data_dir / "skills.snapshot").unlink()
    async with searching.open(usage_days=30) as again:
        await again.wake()
        assert len(pairs(again)) == 1
        await flush(again)
        assert files_containing(data_dir, old) == []
        again._index._usage_days = 28
        assert await again.forget_expired() == 1
    async with searching.open() as last:
        assert await last.forget() == 0


async def test_past_use_of_another_model_is_removed(searching: Searching, data_dir: Path, endpoint: Endpoint) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "weather", succeeded=True)
        key = pairs(service)[0][0].key.encode()
    other = Embedder([EndpointModel(base_url=endpoint.url, model="other", api_key=None)])
    async with searching.open(other) as service:
        await service.index_skills(LIBRARY)
        assert not await service.models.run_once(), "the vectors of the skills are there already"
        assert service.models.dropped == 1
        await flush(service)
        assert files_containing(data_dir, key) == []


async def test_files_of_an_earlier_version_that_contain_request_texts_are_removed(
    searching: Searching, data_dir: Path
) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    rows = pa.table({"key": ["k"], "request": [REQUEST], "skill": ["weather"], "caller": [""], "at": [1]})
    for store in ("skills.lance", "skills.lance.damaged", "skills.lance.new"):
        lancedb.connect(data_dir / store).create_table("usage", rows)
    about = np.frombuffer(json.dumps({"format": 1, "pairs": [REQUEST]}).encode(), np.uint8)
    for name in ("skills.snapshot", "skills.snapshot.new"):
        with (data_dir / name).open("wb") as file:
            np.savez(file, about=about)
    assert len(files_containing(data_dir, b"quagga")) == 5
    async with searching.open() as again:  # removed at the start, before any search
        assert files_containing(data_dir, b"quagga") == []
        await again.wake()
        assert await again.missing({skill.name: skill.version for skill in LIBRARY}) == []


async def test_only_the_owner_can_read_the_index(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "weather", succeeded=True)
        await flush(service)
        await service.forget()
        await service.remember(REQUEST, "weather", succeeded=True)
        await flush(service)
    for path in (data_dir / "skills.snapshot", data_dir / "skills.lance", *(data_dir / "skills.lance").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
