"""What the doctor finds besides the sandbox, in directories with one fault each."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from email.utils import formatdate
from pathlib import Path

import pytest

from apexbridge._time import now_ms
from apexbridge.bridge import Bridge
from apexbridge.monitoring import host_checks
from apexbridge.monitoring.host_checks import HostCheck, _check_local, check_host
from apexbridge.settings import Settings, UpstreamSettings, load_settings
from tests.chat.upstream import KEY, upstreams
from tests.making import skill_zip, walk
from tests.mounting import mounted_disk
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index answers, at once."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:s3cret@127.0.0.1:9/")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")


async def found(settings: Settings) -> dict[tuple[str, str], HostCheck]:
    checks = await check_host(settings, version="1")
    assert all(bool(check.remedy) == (check.state != "ok") for check in checks)
    return {(check.section, check.name): check for check in checks}


@pytest.fixture
async def filled(bridge: Bridge, data_dir: Path) -> Path:
    await bridge.skills.install_skill(skill_zip("notes", description="Keeps the notes of all meetings."))
    await until((data_dir / "skills.snapshot").exists)  # written after the index
    return data_dir


async def test_a_sound_directory_passes_beside_its_server(filled: Path) -> None:
    before = walk(filled)
    checks = await found(Settings(data_dir=filled))
    assert {key for key, check in checks.items() if check.state != "ok"} == {("packages", "pip"), ("packages", "npm")}
    assert "a server" in checks["data directory", "lock"].detail
    assert "none of 1" in checks["index", "pending"].detail
    assert "dimensions" in checks["index", "models"].detail
    assert walk(filled) == before


async def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    checks = await found(Settings(data_dir=tmp_path / "none/data"))
    assert checks["data directory", "exists"].state == "ok"
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    assert _check_local(Settings(data_dir=tmp_path / "file"))[0].state == "failed"


async def test_package_indexes_that_do_not_answer_are_named_without_their_addresses(tmp_path: Path) -> None:
    checks = await found(Settings(data_dir=tmp_path / "data"))
    assert checks["packages", "pip"].state == "warning"
    assert "s3cret" not in str(checks)


async def test_an_installer_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "INSTALLER_SECONDS", 0.2)
    assert await host_checks._exit_code(["sleep", "1000"], os.environ) is None


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "apex.sqlite3")) as connection:
        connection.execute(statement)
        connection.commit()


def damage(folder: Path) -> None:
    with (folder / "apex.sqlite3").open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * 4096)


FAULTS: dict[str, tuple[Callable[[Path], object], tuple[str, str], str]] = {
    "others may enter": (lambda folder: folder.chmod(0o755), ("data directory", "mode"), "warning"),
    "a damaged database": (damage, ("databases", "apex.sqlite3"), "failed"),
    "a newer database": (
        lambda folder: change(folder, "PRAGMA user_version = 999"),
        ("databases", "apex.sqlite3"),
        "failed",
    ),
    "a damaged audit log": (
        lambda folder: (folder / "audit.sqlite3").write_bytes(b"no database at all"),
        ("databases", "audit.sqlite3"),
        "failed",
    ),
    "a database that was replaced": (
        lambda folder: (folder / "apex.sqlite3.broken-1").touch(),
        ("databases", "damaged"),
        "warning",
    ),
    "skills without a vector": (
        lambda folder: change(folder, "UPDATE skills SET embedder = NULL"),
        ("index", "pending"),
        "warning",
    ),
    "an index that was damaged": (
        lambda folder: (folder / "skills.lance.damaged").mkdir(),
        ("index", "on disk"),
        "warning",
    ),
    "a clock that is behind": (
        lambda folder: change(folder, f"UPDATE skills SET updated_at = {now_ms() + 3_600_000}"),
        ("time", "clock"),
        "failed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_found(data_dir: Path, fault: str) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), watch=False) as bridge:
        await bridge.skills.install_skill(skill_zip("notes", description="Keeps the notes of all meetings."))
    make, key, state = FAULTS[fault]
    make(data_dir)
    (check,) = [check for check in _check_local(Settings(data_dir=data_dir)) if (check.section, check.name) == key]
    assert (check.state, bool(check.remedy)) == (state, True)


def test_a_disk_with_nothing_but_the_reserve_fails(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", megabytes=200) as disk:
        (disk / "data").mkdir()
        checks = {(check.section, check.name): check for check in _check_local(Settings(data_dir=disk / "data"))}
        assert checks["disk", "free space"].state == "failed"
        assert checks["data directory", "file system"].detail == "tmpfs"


async def test_model_servers_their_models_and_their_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with upstreams() as upstream:
        monkeypatch.setenv("THE_KEY", KEY)
        upstream.models = {"data": [{"id": "m-1"}]}
        tables = (
            UpstreamSettings(name="near", base_url=upstream.url, api_key_env="THE_KEY"),
            UpstreamSettings(name="far", base_url="http://user:hidden@127.0.0.1:9/v1", api_key_env="THE_KEY"),
        )
        settings = load_settings(data_dir=tmp_path / "data").model_copy(update={"llm": tables})
        for model, state in (("no-such-model", "warning"), ("m-1", "ok")):
            checks = await found(settings.model_copy(update={"llm_model": model}))
            assert checks["upstream", "near"].state == "ok"
            assert checks["upstream", "model"].state == state
        assert checks["upstream", "far"].state == "warning"
        assert checks["time", "against near"].state == "ok"
        assert not any(secret in str(checks) for secret in ("hidden", KEY))


@pytest.mark.parametrize(("seconds", "state"), [(0, "ok"), (3600, "warning"), (-3600, "warning")])
def test_a_clock_that_differs_from_the_model_server_is_reported(seconds: int, state: str) -> None:
    date = formatdate(now_ms() / 1000 + seconds, usegmt=True)
    check = host_checks._skew("x", date)
    assert check is not None
    assert check.state == state
    assert host_checks._skew("x", "yesterday") is None
