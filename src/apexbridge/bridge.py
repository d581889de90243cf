"""The composition root: everything wired together, once, here."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread

from apexbridge.settings import Settings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.scanner import Progress
from apexbridge.skills.watcher import watch as watch_skills
from apexbridge.storage.database import Database
from apexbridge.storage.directory import owned
from apexbridge.storage.faults import storage_faults

DATABASE_FILE = "apex.sqlite3"


class Bridge:
    """An opened data directory with everything that works on it.

    Example:
        async with Bridge.open(Settings(data_dir="data")) as bridge:
            receipt = await bridge.skills.install_skill(Path("git-commit.zip"))
    """

    def __init__(self, settings: Settings, skills: SkillManager) -> None:
        self.settings = settings
        self.skills = skills
        self.instance = uuid.uuid4().hex
        """Tells this opened directory apart from any other one, so that nobody talks to the wrong server."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings | None = None, *, watch: bool = True, progress: Progress | None = None
    ) -> AsyncIterator["Bridge"]:
        """Take the data directory, bring everything in line with the disk, and keep it so until the block ends.

        Raises:
            ServerError: DATA_DIR_IN_USE, or STORAGE_FULL where the directory cannot be written to.
        """
        settings = settings or Settings()
        with owned(settings.data_dir):
            database = await anyio.to_thread.run_sync(_open_database, settings.data_dir)
            try:
                skills = SkillManager(data_dir=settings.data_dir, database=database, settings=settings.skills)
                await skills.initialize(progress)
                async with _background(watch_skills(skills) if watch else None):
                    yield cls(settings, skills)
            finally:
                await anyio.to_thread.run_sync(database.close, abandon_on_cancel=False)


@asynccontextmanager
async def _background(work: Coroutine[None, None, None] | None) -> AsyncIterator[None]:
    """Let something go on while the block lasts. No task group: it would wrap the block's own errors in a group."""
    task = asyncio.create_task(work) if work is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def _open_database(data_dir: Path) -> Database:
    with storage_faults():
        return Database(data_dir / DATABASE_FILE)
