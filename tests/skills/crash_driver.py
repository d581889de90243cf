"""Run one change in a child process that kills itself at a chosen step, then report the state after a restart.

A step is any file system operation of the change, observed through Python's audit events: new code is covered
automatically. This is its own program because it forks, and a process with threads should not fork.
"""

import io
import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from apexbridge.bridge import DATABASE_FILE
from apexbridge.skills.manager import SkillManager
from apexbridge.storage.database import Database
from tests.making import WatchedIndex, skill_manager, skill_zip, write_skill, zip_of
from tests.skills.source_server import shop_of
from tests.skills.test_plugins import plugin_zip

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "ctypes.dlsym", "os.truncate"}
OLD, NEW = "The old version of this skill.", "The new version of this skill."

CHANGES: dict[str, Callable[[SkillManager], Awaitable[Any]]] = {
    "install": lambda skills: skills.install_skill(skill_zip("fresh", {"a/b.md": "x"}, description=NEW)),
    "overwrite": lambda skills: skills.install_skill(
        skill_zip("known", {"n.md": "x"}, description=NEW), overwrite=True
    ),
    "uninstall": lambda skills: skills.uninstall_skill("known"),
    "edit": lambda skills: skills.update_skill_description("known", NEW),
    "plugin": lambda skills: skills.install_skill(plugin_zip("p-one", "p-two", description=NEW, root="box/")),
    "plugin overwrite": lambda skills: skills.install_skill(
        plugin_zip("q-one", "q-three", "known", description=NEW, root="bag/"), overwrite=True
    ),
    "plugins": lambda skills: skills.install_skill(
        zip_of({f"shop/{path}": text for path, text in shop_of(("tea", "brew"), ("coffee", "brew")).items()})
    ),
    "qualified uninstall": lambda skills: skills.uninstall_skill("bag:known"),
    "qualified restore": lambda skills: skills.restore_skill("belt:known"),
    "plugin uninstall": lambda skills: skills.uninstall_plugin("bag"),
    "restore": lambda skills: skills.restore_skill("lost"),
    "plugin restore": lambda skills: skills.restore_plugin("sack"),
    "version": lambda skills: skills.add_version("versioned", version_zip("three"), default=False),
    "rollback": lambda skills: skills.versions.rollback("versioned"),
    "version removal": lambda skills: skills.versions.remove("versioned", 1),
    "hide": lambda skills: skills.uninstall_skill("shared"),
}


def version_zip(text: str) -> bytes:
    return skill_zip("versioned", {"o.md": text}, description=text)


@asynccontextmanager
async def open_manager(data_dir: Path) -> AsyncIterator[SkillManager]:
    """Open the skills without the index, which can always be rebuilt."""
    data_dir.mkdir(exist_ok=True)
    database = Database(data_dir / DATABASE_FILE)
    try:
        manager = skill_manager(data_dir, database, WatchedIndex(), roots=(data_dir / "team",))
        await manager.initialize()
        yield manager
    finally:
        database.close()


async def prepare(data_dir: Path) -> None:
    write_skill(data_dir / "team", "shared", description=OLD)
    async with open_manager(data_dir) as manager:
        await manager.install_skill(skill_zip("known", {"o.md": "x"}, description=OLD))
        await manager.install_skill(plugin_zip("q-one", "q-two", "known", description=OLD, root="bag/"))
        await manager.install_skill(skill_zip("lost", {"o.md": "x"}, description=OLD))
        await manager.uninstall_skill("lost")
        await manager.install_skill(plugin_zip("s-one", "known", description=OLD, root="belt/"))
        await manager.change_dependencies("belt:known", add=["pypdf"])
        await manager.uninstall_skill("belt:known")
        await manager.install_skill(plugin_zip("r-one", "r-two", "known", description=OLD, root="sack/"))
        await manager.uninstall_plugin("sack")
        for text in ("one", "two"):
            await manager.install_skill(version_zip(text), overwrite=True)


def change_until_killed(data_dir: Path, change: str, step: int) -> bool:
    """Kill the change at this step. Return whether it finished before."""
    child = os.fork()
    if child == 0:
        anyio.run(_change, data_dir, change, step)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"{change} failed before it was killed at step {step}")
    return not os.WIFSIGNALED(status)


async def _change(data_dir: Path, change: str, step: int) -> None:
    async with open_manager(data_dir) as manager:
        steps_taken, armed = 0, True

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal steps_taken
            if armed and event in STEPS:
                steps_taken += 1
                if steps_taken == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        await CHANGES[change](manager)
        armed = False


def state_after_restart(data_dir: Path) -> dict[str, Any]:
    """Open the folder in another child process and return what it finds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(anyio.run(_state, data_dir)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return dict(found)


async def _state(data_dir: Path) -> dict[str, Any]:
    async with open_manager(data_dir) as manager:
        skills, versions = {}, {}
        for summary in await manager.list_skills():
            detail = await manager.get_skill(summary.name)
            added = (await manager.dependencies_of(summary.name)).added
            versions[detail.name] = await _versions(manager, detail.name)
            skills[detail.name] = [detail.description, detail.plugin, [file.path for file in detail.files], added]
        folders = data_dir / "skills"
        return {
            "skills": skills,
            "versions": versions,
            "version folders": sorted(path.name for path in (data_dir / "versions").iterdir()),
            "removed versions": len(list((data_dir / "trash").glob("*/versions.*/versions.json"))),
            "plugins": {plugin.name: plugin.skills for plugin in await manager.list_plugins()},
            "problems": [problem.reason for problem in await manager.problems()],
            "folders": sorted(path.name for path in folders.iterdir()),
            "marked": sorted(path.parent.name for path in folders.glob("*/.vectorized")),
            "left": sorted(str(path) for path in (data_dir / "staging").iterdir()),
            "removed": sorted([item.name, *item.skills] for item in await manager.removed_skills()),
            "trash": len(list((data_dir / "trash").iterdir())),
        }


async def _versions(manager: SkillManager, name: str) -> list[Any]:
    """Number, description and default of each version, and whether its content is complete."""
    found = []
    for version in (await manager.versions.listed(name)).versions:
        with await manager.versions.open(name, version.version) as file:
            is_complete = zipfile.ZipFile(io.BytesIO(file.read())).testzip() is None
        found.append([version.version, version.description, version.default, is_complete])
    return found


def main(base: Path, every: int) -> None:
    anyio.run(prepare, base / "before")
    before = state_after_restart(base / "before")
    report: dict[str, Any] = {}
    for change in CHANGES:
        done_dir = base / "done"
        shutil.copytree(base / "before", done_dir)
        change_until_killed(done_dir, change, sys.maxsize)
        after = state_after_restart(done_dir)
        shutil.rmtree(done_dir)
        step, states, done = 1, [], False
        while not done:
            work = base / "work"
            shutil.copytree(base / "before", work)
            done = change_until_killed(work, change, step)
            found = state_after_restart(work)
            states.append("old" if found == before else "new" if found == after else found)
            shutil.rmtree(work)
            step += every
        report[change] = states
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
