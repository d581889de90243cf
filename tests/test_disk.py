"""Quotas and the reserve on disk, and administration of the server on a full disk."""

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import Message

from apexbridge import disk as disk_module
from apexbridge.bridge import Bridge
from apexbridge.disk import BALLAST_BYTES, BLOCK_BYTES, MB, RESERVE_BYTES, Ballast, Disk, blocks, size_on_disk
from apexbridge.errors import RequestError, ServerError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware import auth
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.limits import MAX_KEY_EXPORTS, ConcurrencyLimit
from apexbridge.tools.conversation import Conversation
from tests.making import skill_zip
from tests.mounting import mounted_disk

pytestmark = pytest.mark.anyio
TIMEOUT_SECONDS = 60
OWNER = "owner-of-the-data-directory"
ZIP = {"content-type": "application/zip"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
PRINTS_MUCH = "import sys\nsys.stdout.write('x' * 3_000_000)"
WRITES_FILES = "open('output/small', 'w').write('x')\nf = open('output/sparse', 'wb')\nf.truncate(3_000_000)"


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 48 MB, with a reserve of 1 MB."""
    monkeypatch.setattr(disk_module, "RESERVE_BYTES", MB)
    with mounted_disk(tmp_path / "small", megabytes=48) as folder:
        yield folder


@asynccontextmanager
async def served(data_dir: Path, embedder: Embedder, **settings: Any) -> AsyncIterator["Gate"]:
    """Serve the application, with API keys required."""
    async with Bridge.open(
        Settings(data_dir=data_dir, rate_limit=0, **settings), watch=False, embedder=embedder
    ) as opened:
        app = create_app(opened, Access(keys_required=True, owner=OWNER))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=TIMEOUT_SECONDS
        ) as client:
            yield Gate(opened, client)


class Gate:
    """Sends requests with API keys, by default with the owner's."""

    def __init__(self, bridge: Bridge, client: httpx.AsyncClient) -> None:
        self.bridge = bridge
        self._client = client

    async def ask(self, method: str, path: str, key: str = OWNER, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
        with anyio.fail_after(TIMEOUT_SECONDS):
            return await self._client.request(method, path, headers=headers, **options)

    async def key(self, *scopes: str) -> str:
        response = await self.ask("POST", "/api/keys", json={"name": "made", "scopes": scopes})
        return str(response.raise_for_status().json()["key"])

    async def install(self, name: str, script: str) -> None:
        archive = skill_zip(name, {"scripts/execute.py": script})
        (await self.ask("POST", "/api/skills", content=archive, headers=ZIP)).raise_for_status()

    async def write(self, key: str, path: str, size: int, **options: Any) -> httpx.Response:
        call = {"input": {"path": path, "content": "x" * size, **options}}
        return await self.ask("POST", "/api/tools/file-write/execute", key, json=call)


def identity_of(key: str) -> str:
    return key.split("_")[1]


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def free_bytes(folder: Path) -> int:
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def fill_disk(folder: Path) -> None:
    """Leave no free block."""
    descriptor = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
    size = 0
    for step in (MB, BLOCK_BYTES):
        try:
            while True:
                os.posix_fallocate(descriptor, size, step)
                size += step
        except OSError:
            pass
    os.close(descriptor)
    assert free_bytes(folder) == 0


# -------------------------------------------------------------------------------------------------------------- claims
def test_the_reserve_is_256_mb() -> None:
    assert RESERVE_BYTES == 256 * MB


def test_a_quota_counts_used_and_claimed_bytes(tmp_path: Path) -> None:
    disk = Disk(tmp_path, quota_of=lambda _: 10 * BLOCK_BYTES, measure=lambda _: 4 * BLOCK_BYTES)
    with disk.claim("one") as claim:
        claim.take(5 * BLOCK_BYTES)
        with pytest.raises(ServerError) as caught, disk.claim("one") as second:
            second.take(2 * BLOCK_BYTES)
        assert (caught.value.code, caught.value.status) == ("STORAGE_FULL", 507)
        claim.keep(2 * BLOCK_BYTES)
    assert disk.used_by("one") == 6 * BLOCK_BYTES
    disk.release("one", 6 * BLOCK_BYTES)
    with disk.claim("one") as claim:
        assert claim.take_up_to(20 * BLOCK_BYTES) == 10 * BLOCK_BYTES
        claim.keep(10 * BLOCK_BYTES)
    with pytest.raises(ServerError):
        disk.check("one")
    with disk.claim("one") as claim:  # a claim that frees space is never refused
        claim.take(BLOCK_BYTES, replaces=5 * BLOCK_BYTES)
        claim.keep(BLOCK_BYTES, replaced=5 * BLOCK_BYTES)
    assert disk.used_by("one") == 6 * BLOCK_BYTES
    with disk.claim("") as claim:  # callers without a key have no quota
        claim.take(100 * BLOCK_BYTES)


def test_concurrent_writers_cannot_claim_the_same_free_space(small_disk: Path) -> None:
    disk, granted, barrier = Disk(small_disk), [], threading.Barrier(8)
    free = free_bytes(small_disk) - MB

    def write() -> None:
        with disk.claim("") as claim:
            try:
                claim.take(free // 2 + 1)
                granted.append(1)
            except ServerError:
                pass
            barrier.wait(TIMEOUT_SECONDS)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 1


def test_a_tree_is_measured_in_blocks_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "inner").mkdir(parents=True)
    (folder / "empty").touch()
    (folder / "link").symlink_to("/")
    (folder / "inner/file").write_bytes(bytes(BLOCK_BYTES + 1))
    assert size_on_disk(folder) == (2 + 1 + 1 + 2) * BLOCK_BYTES
    assert size_on_disk(tmp_path / "none") == 0
    assert [blocks(size) for size in (0, 1, 4096, 4097)] == [4096, 4096, 4096, 8192]


def test_the_ballast_is_released_once_and_filled_again_when_space_is_free(small_disk: Path) -> None:
    ballast = Ballast(small_disk / ".ballast")
    ballast.fill()
    assert (small_disk / ".ballast").stat().st_mode & 0o777 == 0o600
    assert free_bytes(small_disk) <= 48 * MB - BALLAST_BYTES
    fill_disk(small_disk)
    assert (ballast.release(), ballast.release()) == (True, False)
    assert free_bytes(small_disk) == BALLAST_BYTES
    ballast.fill()
    assert free_bytes(small_disk) == BALLAST_BYTES, "there is not enough space to fill it again"
    (small_disk / "filler").unlink()
    ballast.fill()
    assert not ballast.is_released


# --------------------------------------------------------------------------------------------------------- a small disk
@pytest.mark.computes_in_loop
async def test_callers_cannot_use_the_reserve(small_disk: Path, embedder: Embedder) -> None:
    async with served(small_disk / "data", embedder) as gate:
        key = await gate.key("run", "read")
        await gate.install("talks", PRINTS_MUCH)
        await gate.install("leaves", WRITES_FILES)
        while (answer := await gate.write(key, "a.txt", 4_000_000, append=True, backup=True)).status_code == 200:
            pass
        assert code(answer) == (507, "STORAGE_FULL") or "backups" in answer.json()["message"]
        for size in (1_000_000, 100_000, 1000):
            number = 0
            while (answer := await gate.write(key, f"f-{size}-{number}", size)).status_code == 200:
                number += 1
        assert code(answer) == (507, "STORAGE_FULL")
        assert free_bytes(small_disk) >= MB // 2
        for name in ("talks", "leaves"):
            result = (await gate.ask("POST", f"/api/skills/{name}/execute", key, json={})).json()
            assert result["success"]
            record = (await gate.ask("GET", f"/api/executions/{result['id']}", key)).json()["result"]
            assert any("no space left" in warning for warning in record["warnings"])
            assert record["files"] == []
        form = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + bytes(MB) + b"\r\n--b--\r\n"
        )
        assert code(await gate.ask("POST", "/api/uploads", key, content=form, headers=FORM)) == (507, "STORAGE_FULL")
        body = {"content": bytes(MB), "headers": ZIP}
        assert code(await gate.ask("POST", "/api/skills/validate", key, **body)) == (507, "STORAGE_FULL")
        assert gate.bridge.disk._pending == 0
        assert (await gate.ask("DELETE", f"/api/keys/{identity_of(key)}")).status_code == 200


@pytest.mark.computes_in_loop
async def test_a_full_disk_can_be_administered(small_disk: Path, embedder: Embedder) -> None:
    async with served(small_disk / "data", embedder) as gate:
        await gate.install("talks", PRINTS_MUCH)
        await gate.install("other", "print(1)")
        keys = [await gate.key("run") for _ in range(21)]
        runs = [(await gate.ask("POST", "/api/skills/other/execute", keys[0], json={})).json()["id"] for _ in range(3)]
        gate.bridge.disk.ballast.fill()
        fill_disk(small_disk)
        for key in keys[1:]:
            assert (await gate.ask("DELETE", f"/api/keys/{identity_of(key)}")).status_code == 200
            assert code(await gate.ask("GET", "/api/tools", key)) == (401, "UNAUTHORIZED")
        for run in runs:
            assert (await gate.ask("DELETE", f"/api/executions/{run}", keys[0])).status_code == 200
        assert (await gate.ask("POST", "/api/skills/talks/disable")).status_code == 200
        for name in ("talks", "other"):
            assert (await gate.ask("DELETE", f"/api/skills/{name}")).status_code == 200
        assert (await gate.ask("DELETE", f"/api/keys/{identity_of(keys[0])}")).status_code == 200
        assert (await gate.ask("GET", "/api/audit/verify")).json()["intact"] is True
        (small_disk / "filler").unlink()
        await gate.key("read")
        assert not gate.bridge.disk.ballast.is_released
    async with served(small_disk / "data", embedder) as gate:
        assert all(key.revoked_at for key in gate.bridge.keys.list() if key.id in set(map(identity_of, keys)))


@pytest.mark.computes_in_loop
async def test_a_key_is_revoked_even_if_nothing_can_be_written(small_disk: Path, embedder: Embedder) -> None:
    async with served(small_disk / "data", embedder) as gate:
        key = await gate.key("run")
        fill_disk(small_disk)  # the ballast has not been filled
        wal = small_disk / "data/apex.sqlite3-wal"
        answer = await gate.ask("DELETE", f"/api/keys/{identity_of(key)}")
        assert code(answer)[0] in (200, 507), "the WAL may still have had space"
        assert code(await gate.ask("GET", "/api/tools", key)) == (401, "UNAUTHORIZED")
        assert wal.exists()
        (small_disk / "filler").unlink()
        assert (await gate.ask("DELETE", f"/api/keys/{identity_of(key)}")).status_code == 200
    async with served(small_disk / "data", embedder) as gate:
        assert code(await gate.ask("GET", "/api/tools", key)) == (401, "UNAUTHORIZED")


# --------------------------------------------------------------------------------------------------------------- quotas
async def test_the_quota_of_a_key_covers_files_and_runs(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=10) as gate:
        one, other = await gate.key("run", "read"), await gate.key("run")
        await gate.install("talks", PRINTS_MUCH)
        assert (await gate.write(one, "a.txt", 4_000_000)).status_code == 200
        run = (await gate.ask("POST", "/api/skills/talks/execute", one, json={})).json()["id"]
        assert (await gate.write(one, "a.txt", 2_000_000, append=True)).status_code == 200
        refused = await gate.write(one, "b.txt", 2_000_000)
        assert code(refused) == (507, "STORAGE_FULL")
        assert "/api/executions" in refused.json()["message"]
        assert code(await gate.write(one, "a.txt", 1, append=True, backup=True)) == (507, "STORAGE_FULL")
        assert (await gate.write(other, "b.txt", 2_000_000)).status_code == 200, "another key has its own quota"
        assert (await gate.write(one, "a.txt", 4_000_000)).status_code == 200, "a smaller file replaces it"
        assert (await gate.ask("DELETE", f"/api/executions/{run}", one)).status_code == 200
        assert (await gate.write(one, "b.txt", 4_000_000)).status_code == 200
        used = gate.bridge.disk.used_by(identity_of(one))
    async with served(data_dir, embedder, key_quota_mb=10) as gate:
        assert abs(gate.bridge.disk.used_by(identity_of(one)) - used) <= 16 * BLOCK_BYTES
        assert code(await gate.write(one, "c.txt", 4_000_000)) == (507, "STORAGE_FULL")
        assert (await gate.write(one, "a.txt", 0)).status_code == 200
        assert (await gate.write(one, "c.txt", 3_000_000)).status_code == 200


async def test_concurrent_deletions_of_a_run_release_its_bytes_once(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=20) as gate:
        key = await gate.key("run", "read")
        await gate.install("talks", PRINTS_MUCH)
        for name in ("a.txt", "b.txt", "c.txt"):
            assert (await gate.write(key, name, 4_000_000)).status_code == 200
        before = gate.bridge.disk.used_by(identity_of(key))
        run = (await gate.ask("POST", "/api/skills/talks/execute", key, json={})).json()["id"]
        assert gate.bridge.disk.used_by(identity_of(key)) > before + 3_000_000
        statuses: list[int] = []

        async def delete() -> None:
            statuses.append((await gate.ask("DELETE", f"/api/executions/{run}", key)).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(delete)
        assert set(statuses) <= {200, 404}
        assert 200 in statuses
        assert gate.bridge.disk.used_by(identity_of(key)) == before


async def test_request_bodies_in_progress_count_and_are_refused_when_their_key_is_revoked(
    data_dir: Path, embedder: Embedder
) -> None:
    async with served(data_dir, embedder, key_quota_mb=4) as gate:
        key = await gate.key("run")
        arrived, resume = anyio.Event(), anyio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield bytes(3 * MB)
            yield b"x"
            arrived.set()
            await resume.wait()
            yield b"x"

        answers: list[httpx.Response] = []

        async def send() -> None:
            answers.append(await gate.ask("POST", "/api/skills/validate", key, content=body(), headers=ZIP))

        with anyio.fail_after(TIMEOUT_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await arrived.wait()
                assert gate.bridge.disk.used_by(identity_of(key)) >= 3 * MB
                assert code(await gate.write(key, "a.txt", 2_000_000)) == (507, "STORAGE_FULL")
                await gate.ask("DELETE", f"/api/keys/{identity_of(key)}")
                resume.set()
        assert code(answers[0]) == (401, "UNAUTHORIZED")
        assert gate.bridge.disk.used_by(identity_of(key)) <= 2 * BLOCK_BYTES, (
            "only the folders of its workspace are left"
        )
        assert gate.bridge.disk._pending == 0


async def test_folders_and_empty_files_count(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=1) as gate:
        key = await gate.key("run")
        written = 0
        while (answer := await gate.write(key, f"{written}/a/b/c", 0)).status_code == 200:
            written += 1
        assert code(answer) == (507, "STORAGE_FULL")
        assert written == MB // (4 * BLOCK_BYTES) - 1 or written == MB // (4 * BLOCK_BYTES)


async def test_a_run_is_refused_if_its_key_has_reached_its_quota(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=1) as gate:
        key = await gate.key("run")
        await gate.install("one", "print('x' * 7000)")
        while (answer := await gate.ask("POST", "/api/skills/one/execute", key, json={})).status_code == 200:
            identity = answer.json()["id"]
            disk = gate.bridge.disk
            disk.add(identity_of(key), MB // 4)  # as many more runs would do
        assert code(answer) == (507, "STORAGE_FULL")
        disk.release(identity_of(key), MB)
        assert (await gate.ask("DELETE", f"/api/executions/{identity}", key)).status_code == 200
        assert (await gate.ask("POST", "/api/skills/one/execute", key, json={})).status_code == 200


def test_usage_of_a_refused_caller_is_measured_again_after_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that the operator removed by hand no longer count."""
    sizes = [10 * BLOCK_BYTES, 2 * BLOCK_BYTES]
    disk = Disk(tmp_path, quota_of=lambda _: 10 * BLOCK_BYTES, measure=lambda _: sizes.pop(0))
    with pytest.raises(ServerError), disk.claim("one") as claim:
        claim.take(BLOCK_BYTES)
    with pytest.raises(ServerError):
        disk.check("one")
    monkeypatch.setattr(disk_module, "MEASURE_AGAIN_SECONDS", -1.0)
    with disk.claim("one") as claim:
        claim.take(BLOCK_BYTES)
        assert disk.used_by("one") == 3 * BLOCK_BYTES
    assert sizes == []


async def test_the_artifacts_of_a_run_together_stay_within_the_quota(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=2) as gate:
        key = await gate.key("run")
        await gate.install("many", "for n in range(20): open(f'output/{n}', 'wb').write(b'x' * 1_000_000)")
        answer = await gate.ask("POST", "/api/skills/many/execute", key, json={})
        assert len(answer.json()["files"]) == 2
        assert size_on_disk(data_dir / "runs") < 3 * MB


async def test_inputs_are_not_recorded_while_disk_space_is_short(
    data_dir: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(data_dir, embedder, record_input=True) as gate:
        await gate.install("echo", "print(1)")
        runs = []
        for state in (property(lambda _: False), property(lambda _: True)):
            monkeypatch.setattr(Disk, "is_short", state)
            runs.append((await gate.ask("POST", "/api/skills/echo/execute", json={"input": {"a": 1}})).json()["id"])
        inputs = [(await gate.ask("GET", f"/api/executions/{id}")).json()["input"] for id in runs]
        assert inputs == [{"a": 1}, None]


async def test_copies_of_approved_files_count_toward_the_callers_quota(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=4) as gate:
        key = await gate.key("run")
        (await gate.write(key, "large.txt", 3_000_000)).raise_for_status()
        caller, runs = identity_of(key), gate.bridge.runs
        before = gate.bridge.disk.used_by(caller)
        with pytest.raises(ServerError):
            await runs.inputs.hold(["large.txt"], conversation=Conversation(caller=caller))
        (await gate.write(key, "large.txt", 1_000_000)).raise_for_status()
        with await runs.inputs.hold(["large.txt"], conversation=Conversation(caller=caller)) as held:
            assert [file["bytes"] for file in held.described] == [1_000_000]
            assert gate.bridge.disk.used_by(caller) > before - 1_500_000
        assert gate.bridge.disk.used_by(caller) < before


# -------------------------------------------------------------------------------------------------------------- exports
async def test_an_export_counts_toward_its_callers_quota_until_it_is_closed(data_dir: Path, embedder: Embedder) -> None:
    async with served(data_dir, embedder, key_quota_mb=2) as gate:
        noise: dict[str, str | bytes] = {"scripts/execute.py": "print(1)", "noise.bin": os.urandom(3 * MB // 2)}
        archive = skill_zip("large", noise)
        (await gate.ask("POST", "/api/skills", content=archive, headers=ZIP)).raise_for_status()
        key = await gate.key("read")
        identity, disk = identity_of(key), gate.bridge.disk
        before = disk.used_by(identity)
        with await gate.bridge.skills.export_skill("large", caller=identity) as exported:
            assert os.fstat(exported.fileno()).st_dev == data_dir.stat().st_dev
            assert str(data_dir) in str(Path(f"/proc/self/fd/{exported.fileno()}").readlink())
            assert disk.used_by(identity) - before >= 3 * MB // 2
            assert code(await gate.ask("GET", "/api/skills/large/export", key)) == (507, "STORAGE_FULL")
        assert disk.used_by(identity) == before
        answer = await gate.ask("GET", "/api/skills/large/export", key)
        assert answer.status_code == 200
        assert len(answer.content) >= 3 * MB // 2
        assert disk.used_by(identity) == before
        assert disk._pending == 0


def test_a_key_may_have_a_limited_number_of_concurrent_exports() -> None:
    limit = ConcurrencyLimit()

    async def receive() -> Message:
        raise AssertionError("no body is read")

    with ExitStack() as stack:
        for _ in range(MAX_KEY_EXPORTS):
            stack.enter_context(limit.request("one", receive, is_export=True))
        with pytest.raises(RequestError) as refused:
            stack.enter_context(limit.request("one", receive, is_export=True))
        assert refused.value.code == "RATE_LIMITED"
        stack.enter_context(limit.request("one", receive))
        stack.enter_context(limit.request("other", receive, is_export=True))
    with limit.request("one", receive, is_export=True):
        pass


@pytest.mark.parametrize(
    ("path", "is_export"),
    [("/api/skills/a/export", True), ("/api/skills/a", False), ("/api/skills/a/files/export", False)],
)
def test_exports_are_recognized_by_their_path(path: str, is_export: bool) -> None:
    assert auth._is_export({"path": path}) is is_export
