"""Stored uploads: found by their exact id only, limited for each caller, changed by many callers at once."""

import asyncio
import os
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import BinaryIO

import pytest

from apexbridge.disk import MB, Disk
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.skills.runs import input_files
from apexbridge.skills.runs.input_files import UPLOAD_SECONDS, UploadStore

pytestmark = pytest.mark.anyio
ROUNDS = 40


@pytest.fixture
def store(tmp_path: Path) -> UploadStore:
    return UploadStore(tmp_path / "data/uploads")


def source(tmp_path: Path, text: bytes = b"text") -> BinaryIO:
    path = tmp_path / f"source-{os.urandom(4).hex()}"
    path.write_bytes(text)
    return path.open("rb")


@pytest.mark.parametrize("make", ["add", "add_file"])
async def test_only_the_exact_id_opens_an_upload(store: UploadStore, tmp_path: Path, make: str) -> None:
    (tmp_path / "data/secret").mkdir(parents=True)
    (tmp_path / "data/secret/key.txt").write_text("secret")
    with source(tmp_path) as file:
        id = (await (store.add(file, "a.txt") if make == "add" else store.add_file(file, "a.txt", "user_data"))).id
    name, opened = store.open(id)
    with opened:
        assert (name, opened.read()) == ("a.txt", b"text")
    wrong = ["", "*", "**", "../secret", "/etc", "file-", id[:-1], f"{id}*", f"{id}/a.txt", f"{id}.", f"{id}\n", "\0"]
    wrong += [id.upper(), "\ud800", "[f]*", "**/" * 20, f"new-{id}", f"{id[:-1]}?", "x" * 10_000]
    for identity in wrong:
        with pytest.raises(InvalidInputError) as caught:
            store.open(identity)
        assert len(caught.value.message) < 200
        for attempt in (store.file(identity), store.open_file(identity), store.delete_file(identity)):
            with pytest.raises(RequestError) as refused:
                await attempt
            assert refused.value.code == "FILE_NOT_FOUND"
    store.open(id)[1].close()


async def test_uploads_for_runs_are_not_files_of_the_files_api(store: UploadStore, tmp_path: Path) -> None:
    with source(tmp_path) as file:
        upload = await store.add(file, "a.txt")
    for attempt in (store.file(upload.id), store.open_file(upload.id), store.delete_file(upload.id)):
        with pytest.raises(RequestError):
            await attempt
    assert await store.files() == []
    store.open(upload.id)[1].close()


async def test_files_can_be_added_listed_and_deleted_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    disk = Disk(tmp_path, quota_of=lambda _: 1024 * MB)
    store = UploadStore(folder, disk=disk)
    failures: list[BaseException] = []

    async def add_and_delete(caller: str) -> None:
        for _ in range(ROUNDS):
            with source(tmp_path) as file:
                made = await store.add_file(file, "a.txt", "user_data", caller=caller)
            assert await store.file(made.id, owner=caller) == made
            await store.delete_file(made.id, owner=caller)

    async def list_all() -> None:
        for _ in range(ROUNDS):
            assert {file.size for file in await store.files()} <= {4}

    def run(work: Coroutine[None, None, None]) -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            failures.append(error)

    works = [*(add_and_delete(caller) for caller in ("one", "two", "one", "")), *(list_all() for _ in range(3))]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert failures == []
    assert list(folder.iterdir()) == []
    assert [disk.used_by(caller) for caller in ("one", "two")] == [0, 0]


async def test_a_file_that_two_delete_at_once_is_deleted_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path, quota_of=lambda _: 1024 * MB)
    store = UploadStore(tmp_path / "uploads", disk=disk)
    with source(tmp_path) as file:
        first = await store.add_file(file, "a", "user_data", caller="one")
    used = disk.used_by("one")
    with source(tmp_path) as file:
        second = await store.add_file(file, "b", "user_data", caller="one")
    deletes = [store.delete_file(first.id, owner="one") for _ in range(8)]
    outcomes = await asyncio.gather(*deletes, return_exceptions=True)
    assert [outcome for outcome in outcomes if outcome is None] == [None]
    assert {outcome.code for outcome in outcomes if isinstance(outcome, ApexBridgeError)} == {"FILE_NOT_FOUND"}
    assert disk.used_by("one") == used
    assert [file.id for file in await store.files()] == [second.id]


async def test_uploads_are_limited_for_each_caller_independently_of_other_callers(
    store: UploadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "MAX_UPLOADS", 8)
    with source(tmp_path) as file:
        for caller in ("one", "two", "three", "four"):
            for _ in range(2):
                made = await store.add_file(file, "x", "user_data", caller=caller)
            with pytest.raises(RequestError) as caught:
                await store.add(file, "x", caller=caller)
            assert caught.value.code == "QUEUE_FULL"
        await store.add(file, "x", caller="five")
        for _ in range(8):
            await store.add(file, "x")
        with pytest.raises(RequestError):
            await store.add(file, "x")
        await store.delete_file(made.id, owner="four")
        await store.add(file, "x", caller="four")


async def test_the_limit_says_how_long_files_are_kept_and_how_to_delete_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "MAX_UPLOAD_BYTES", 16)
    store = UploadStore(tmp_path / "uploads", file_seconds=3 * 24 * 3600)
    with source(tmp_path) as file:
        await store.add_file(file, "x", "user_data", caller="one")
        with pytest.raises(RequestError) as caught:
            await store.add_file(file, "x", "user_data", caller="one")
    for words in ("The API key one has 1 uploads", "60 minutes", "3 days", "DELETE /v1/files/ID"):
        assert words in caught.value.message


async def test_many_uploads_at_once_do_not_exceed_the_limit(
    store: UploadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "MAX_UPLOADS", 16)

    async def add() -> None:
        with source(tmp_path, b"x" * 1_000_000) as file:
            await store.add(file, "x", caller="one")

    outcomes = await asyncio.gather(*(add() for _ in range(20)), return_exceptions=True)
    assert outcomes.count(None) == 4


async def test_drafts_are_invisible_and_removed_after_an_hour(store: UploadStore, tmp_path: Path) -> None:
    with source(tmp_path) as file:
        made = await store.add_file(file, "a", "user_data")
    folder = tmp_path / "data/uploads"
    (complete,) = folder.iterdir()
    draft = folder / f"new-{complete.name}"
    complete.rename(draft)
    assert await store.files() == []
    with pytest.raises(InvalidInputError):
        store.open(made.id)
    past = time.time() - UPLOAD_SECONDS - 10
    os.utime(draft, (past, past))
    assert await store.files() == []
    assert list(folder.iterdir()) == []


async def test_an_upload_is_copied_from_the_position_of_its_file(store: UploadStore, tmp_path: Path) -> None:
    with source(tmp_path, b"0123456789") as file:
        file.seek(8)
        upload = await store.add(file, "a")
    with store.open(upload.id)[1] as opened:
        assert (upload.size, opened.read()) == (2, b"89")
