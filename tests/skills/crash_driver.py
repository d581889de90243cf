"""Run one change in a child process that kills itself at a chosen step, then look at what a restart finds.

A step is anything the change does to the file system, seen through Python's audit events, so that no step is
forgotten when the code changes. Run as a program of its own: it forks, which a process with threads should not.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from apexbridge.bridge import DATABASE_FILE
from apexbridge.skills.manager import SkillManager
from apexbridge.storage.database import Database
from tests.making import WatchedIndex, skill_manager, skill_zip
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
        plugin_zip("q-one", "q-three", description=NEW, root="bag/"), overwrite=True
    ),
    "plugin uninstall": lambda skills: skills.uninstall_plugin("bag"),
}


@asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[SkillManager]:
    """The library alone: the index can always be rebuilt."""
    data_dir.mkdir(exist_ok=True)
    database = Database(data_dir / DATABASE_FILE)
    try:
        library = skill_manager(data_dir, database, WatchedIndex())
        await library.initialize()
        yield library
    finally:
        database.close()


async def prepare(data_dir: Path) -> None:
    async with opened(data_dir) as library:
        await library.install_skill(skill_zip("known", {"o.md": "x"}, description=OLD))
        await library.install_skill(plugin_zip("q-one", "q-two", description=OLD, root="bag/"))


def change_and_die(data_dir: Path, change: str, step: int) -> bool:
    """Whether the change was done before the step came."""
    child = os.fork()
    if child == 0:
        anyio.run(_change, data_dir, change, step)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"{change} failed by itself at step {step}")
    return not os.WIFSIGNALED(status)


async def _change(data_dir: Path, change: str, step: int) -> None:
    async with opened(data_dir) as library:
        taken, armed = 0, True

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal taken
            if armed and event in STEPS:
                taken += 1
                if taken == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        await CHANGES[change](library)
        armed = False


def look_after_restart(data_dir: Path) -> dict[str, Any]:
    """What a restart finds, seen in a child of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(anyio.run(_look, data_dir)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return dict(found)


async def _look(data_dir: Path) -> dict[str, Any]:
    async with opened(data_dir) as library:
        skills = {}
        for summary in await library.list_skills():
            detail = await library.get_skill(summary.name)
            skills[detail.name] = [detail.description, detail.plugin, [file.path for file in detail.files]]
        folders = data_dir / "skills"
        return {
            "skills": skills,
            "plugins": {plugin.name: plugin.skills for plugin in await library.list_plugins()},
            "problems": [problem.reason for problem in await library.problems()],
            "folders": sorted(path.name for path in folders.iterdir()),
            "marked": sorted(path.parent.name for path in folders.glob("*/.vectorized")),
            "left": sorted(str(path) for place in ("staging", "trash") for path in (data_dir / place).iterdir()),
        }


def main(base: Path, every: int) -> None:
    anyio.run(prepare, base / "before")
    before = look_after_restart(base / "before")
    report: dict[str, Any] = {}
    for change in CHANGES:
        done_dir = base / "done"
        shutil.copytree(base / "before", done_dir)
        change_and_die(done_dir, change, sys.maxsize)
        after = look_after_restart(done_dir)
        shutil.rmtree(done_dir)
        step, states, done = 1, [], False
        while not done:
            work = base / "work"
            shutil.copytree(base / "before", work)
            done = change_and_die(work, change, step)
            found = look_after_restart(work)
            states.append("old" if found == before else "new" if found == after else found)
            shutil.rmtree(work)
            step += every
        report[change] = states
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
