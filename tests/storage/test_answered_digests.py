"""Digests of answered conversations: none is forgotten, and callers have their own."""

import hashlib
from pathlib import Path

import pytest

from apexbridge.storage.answered_digests import FILTER_BYTES, AnsweredDigests


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_a_digest_is_new_once_also_after_a_restart(tmp_path: Path) -> None:
    first = AnsweredDigests(tmp_path / "answered")
    assert not first.has_filter("one")
    new = [number for number in range(5_000) if first.add("one", digest(number))]
    assert len(new) >= 4_990
    assert not any(first.add("one", digest(number)) for number in range(5_000))
    second = AnsweredDigests(tmp_path / "answered")
    assert second.has_filter("one")
    assert not any(second.add("one", digest(number)) for number in range(5_000))


def test_callers_do_not_fill_the_filters_of_others(tmp_path: Path) -> None:
    answered = AnsweredDigests(tmp_path / "answered")
    assert answered.add("one", digest(1))
    assert answered.add("two", digest(1))
    assert answered.add("", digest(1))
    assert len(list((tmp_path / "answered").iterdir())) == 3


def test_a_filter_does_not_grow_and_only_the_owner_can_read_it(tmp_path: Path) -> None:
    answered = AnsweredDigests(tmp_path / "answered")
    for number in range(2_000):
        answered.add("one", digest(number))
    status = (tmp_path / "answered/one.bits").stat()
    assert (status.st_size, status.st_mode & 0o777) == (FILTER_BYTES, 0o600)


def test_a_full_filter_knows_everything(tmp_path: Path) -> None:
    answered = AnsweredDigests(tmp_path)
    answered.add("one", digest(1))
    (tmp_path / "one.bits").write_bytes(b"\xff" * FILTER_BYTES)
    assert not answered.add("one", digest(2))


def test_a_filter_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "answered").write_text("a file instead of a folder")
    with pytest.raises(OSError, match="answered"):
        AnsweredDigests(tmp_path / "answered").add("one", digest(1))
    assert (tmp_path / "answered").is_file()
