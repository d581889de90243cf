"""`skills.lock` of the current folder: a copy of the server's lock, for version control.

A folder with an `apex.toml` or a `skills.lock` is a project. There, commands that install, update or remove write the
file again.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from apexbridge.errors import ApexBridgeError, RequestError
from apexbridge.skills.lock_file import LOCK_FILE, format_lock, read_lock
from apexbridge.storage.directory import SETTINGS_FILE

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api
    from apexbridge.surfaces.cli.console import Console

T = TypeVar("T")


async def and_lock(api: "Api", console: "Console", work: Awaitable[T]) -> T:
    """Do something that changes the skills, then write the lock of the project, if this folder is one."""
    result = await work
    if _is_project():
        try:
            _write_lock_of_project((await api.ask("GET", "/api/lock"))["packages"])
        except ApexBridgeError as error:
            console.warn([f"{LOCK_FILE} was not written: {error.message}"])
    return result


def changing(console: "Console", work: "Callable[[Api], Awaitable[T]]") -> "Callable[[Api], Awaitable[T]]":
    """The same work, followed by `and_lock`."""
    return lambda api: and_lock(api, console, work(api))


def _is_project() -> bool:
    return Path(LOCK_FILE).exists() or Path(SETTINGS_FILE).exists()


def _write_lock_of_project(packages: list[dict[str, Any]]) -> None:
    path = Path(LOCK_FILE)
    if packages or path.exists():
        write_lock(path, packages)


def write_lock(path: Path, packages: list[dict[str, Any]]) -> bool:
    """Write a lock file; returns whether it changed. Refuses to replace a file that is something else."""
    text = format_lock(packages)
    if path.exists():
        read_lock(path)
        if path.read_text("utf-8") == text:
            return False
    draft = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}", code="FILE_NOT_FOUND") from error
    finally:
        draft.unlink(missing_ok=True)
    return True
