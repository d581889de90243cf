"""Bodies in memory and in a file."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.index.vector_file import VectorFile
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.packed_body import EMPTY_BODY, BodyFile, PackedBody

LIMIT = 4


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_body_is_the_same_in_memory_in_a_file_and_in_a_table(text: str) -> None:
    file = BodyFile()
    file.append(b"something else")
    body = PackedBody.of(text)
    for same in (body.filed(file), PackedBody.of_stored(body.stored), PackedBody.known(body.digest, body.data())):
        assert (same, same.text, same.size, same.stored) == (body, text, len(body.data()), body.stored)
        assert hash(same) == hash(body)
    assert (body == PackedBody.of(f"{text}!"), body.is_filed, body.filed(file).is_filed) == (False, False, bool(text))
    assert (PackedBody.of(""), EMPTY_BODY.text, EMPTY_BODY.stored) == (EMPTY_BODY, "", "")


def document(number: int, body: str = "", **fields: Any) -> Document:
    text = body or f"body of number {number}"
    return Document(name=f"skill-{number}", description=f"number {number}", packed_body=PackedBody.of(text), **fields)


@pytest.fixture
def index() -> VectorIndex:
    """A large one."""
    index = VectorIndex((2,), exact_limit=LIMIT)
    for number in range(3 * LIMIT):
        index.put(document(number), np.ones(2, np.float32))
    assert not index.vectors.is_exact
    return index


def bodies(index: VectorIndex) -> list[str]:
    return [document.body for document in index.documents]


def test_bodies_of_a_large_index_are_in_a_file(index: VectorIndex, tmp_path: Path) -> None:
    assert all(document.packed_body.is_filed for document in index.documents)
    assert bodies(index) == [f"body of number {number}" for number in range(3 * LIMIT)]
    assert index.keywords.score(["bodi"]).all()

    version = index.version
    index.put(document(5), np.ones(2, np.float32))
    assert index.documents[5] == document(5), "the same body is the same document"
    index.put(document(5, "knots"), np.ones(2, np.float32))
    assert (bodies(index)[5], index.version) == ("knots", version + 2)
    assert np.flatnonzero(index.keywords.score(["knot"])).tolist() == [5]

    copy = index.with_document(document(6, "sails"), np.ones(2, np.float32))
    assert (bodies(copy)[5:7], bodies(index)[6]) == (["knots", "sails"], "body of number 6")
    index.drop([f"skill-{number}" for number in range(1, 3 * LIMIT)])
    assert index.vectors.is_exact
    assert bodies(index) == ["body of number 0"]
    index.put(document(1), None)
    assert bodies(index) == ["body of number 0", "body of number 1"]


@pytest.mark.parametrize("count", [2, 3 * LIMIT])
def test_bodies_are_in_a_snapshot(count: int, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    index = VectorIndex((2,), exact_limit=LIMIT, new_file=lambda dimensions: VectorFile.create(path, dimensions))
    for number in range(count):
        vector = np.ones(2, np.float32)
        index.put(Document(name="bare", description="x") if number == 1 else document(number), vector)
    assert index.ensure_file(path)

    def open_file(id: str, checksums: Any) -> VectorFile:
        return VectorFile.open(path, 2, id=id, checksums=checksums)

    restored = VectorIndex.unpacked((2,), index.packed(), open_file=open_file)
    assert restored.documents == index.documents
    assert bodies(restored) == bodies(index)
    assert [own.packed_body.is_filed for own in restored.documents] == [
        own.packed_body.is_filed for own in index.documents
    ]


def test_the_file_is_written_again_when_most_of_it_is_unused(
    index: VectorIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.retrieval.index.vector_index.MAX_UNUSED_BODY_BYTES", 0)
    for turn in range(40):
        index.put(document(3, f"turn {turn}"), np.ones(2, np.float32))
    before = index._bodies
    assert before is not None
    index.ensure_file(tmp_path / "vectors")
    after = index._bodies
    assert after is not None
    assert after.size == sum(own.packed_body.size for own in index.documents) < before.size
    assert bodies(index)[2:4] == ["body of number 2", "turn 39"]


def test_without_disk_space_bodies_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BodyFile, "append", fail)
    index = VectorIndex((2,), exact_limit=LIMIT)
    for number in range(3 * LIMIT):
        index.put(document(number), None)
    assert bodies(index) == [f"body of number {number}" for number in range(3 * LIMIT)]
    assert not any(own.packed_body.is_filed for own in index.documents)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_file_is_closed_with_the_last_body(index: VectorIndex) -> None:
    gc.collect()
    before = open_files()
    body = index.documents[0].packed_body
    file = BodyFile()
    moved = body.filed(file)
    del file
    gc.collect()
    assert (moved.text, open_files()) == (body.text, before + 1)
    del moved
    gc.collect()
    assert open_files() == before
