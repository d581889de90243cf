"""Fixtures with real databases, managers, bridges and HTTP clients."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from apexbridge.bridge import DATABASE_FILE, Bridge
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.embedders.embedder import Embedder, choose_embedder
from apexbridge.retrieval.embedders.model_choice import read_choice
from apexbridge.settings import Settings
from apexbridge.skills.manager import SkillManager
from apexbridge.storage.database import Database
from apexbridge.surfaces.http.app import create_app
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.registry import ToolRegistry
from tests.loop_watchdog import pytest_runtest_call as pytest_runtest_call  # pytest finds the hook here
from tests.making import WatchedIndex, skill_manager

# A loaded machine is slow at times, so examples have no deadline.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


def pytest_configure() -> None:
    _use_own_temporary_folder()
    # A background process ignores SIGINT, and the commands that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _use_own_temporary_folder() -> None:
    """Tests check which files runs leave in the temporary folder, so each worker has its own."""
    folder = tempfile.mkdtemp(prefix="apex-tests-")
    Path(folder).chmod(0o1777)  # some tests run commands as other users
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _without_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("APEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "cwd/share"))  # commands without --data-dir use it
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


class Workshop:
    """A manager over real folders and a real database, with an index that tests can inspect and break."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.index = WatchedIndex()
        self.tools = ToolRegistry()

    @property
    def tool_names(self) -> list[str]:
        """The skills that are enabled as tools."""
        ids = [tool.id for tool in self.tools.list() if self.tools.is_enabled(tool.id)]
        return [id.removeprefix(SKILL_PREFIX) for id in ids]

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[SkillManager]:
        """Open a manager that has read the disk, as at a server start."""
        self.data_dir.mkdir(exist_ok=True)
        database = Database(self.data_dir / DATABASE_FILE)
        try:
            manager = skill_manager(self.data_dir, database, self.index, **settings)
            self.tools = manager.tools
            await manager.initialize()
            yield manager
        finally:
            database.close()


@pytest.fixture
def workshop(data_dir: Path) -> Workshop:
    return Workshop(data_dir)


@pytest.fixture
async def skills(workshop: Workshop) -> AsyncIterator[SkillManager]:
    async with workshop.open() as manager:
        yield manager


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    """The real models, loaded once for all tests."""
    return choose_embedder(RetrievalSettings())


@pytest.fixture(scope="session", autouse=True)
def _models_loaded_once(embedder: Embedder) -> Iterator[None]:
    """Bridges that tests do not open themselves, such as those of the command line, use the loaded models too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "apexbridge.bridge.choose_embedder",
            lambda settings, data_dir: (
                embedder
                if settings.embedding == "bundled" and not settings.models and not read_choice(data_dir)
                else choose_embedder(settings, data_dir)
            ),
        )
        yield


@pytest.fixture
async def bridge(data_dir: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as opened:
        yield opened


def client_of(bridge: Bridge) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(bridge), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.fixture
async def client(bridge: Bridge) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(bridge) as opened:
        yield opened
