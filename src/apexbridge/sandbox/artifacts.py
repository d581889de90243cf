"""Artifacts: what a run leaves in `output/`, carried out of its workspace and nothing else with it."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from apexbridge._fs import PRIVATE_FILE, make_private_folder
from apexbridge.disk import Claim, Disk, blocks
from apexbridge.errors import ServerError
from apexbridge.sandbox.models import RunFile

MAX_FILES = 1000
MAX_DEPTH = 32
MAX_WARNINGS = 20
MAX_SHOWN_CHARACTERS = 200
MAX_BYTES = 256 * 1024 * 1024
"""However large a workspace may be, a run's artifacts take no more of the server's disk."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def carry_out(
    workspace: int,
    target: Path,
    *,
    limit: int = MAX_BYTES,
    disk: Disk | None = None,
    caller: str = "",
    secrets: Sequence[str] = (),
) -> tuple[list[RunFile], list[str]]:
    """Copy regular files from the workspace's `output/`; gives them, sorted, and a word on each that was left.

    Nothing is followed and nothing is trusted: names are checked, sizes are counted while copying, pipes, links and
    devices stay behind. What the run left is frozen by now, since nothing of it is alive.

    All files together take at most `limit` bytes. A sparse file counts with its full size, which its copy will take.
    Room is claimed on `disk` for `caller`.
    """
    disk = disk or Disk(target)
    try:
        output = os.open("output", _OPEN_FOLDER, dir_fd=workspace)
    except OSError:
        return [], []
    files: list[RunFile] = []
    left: list[str] = []
    try:
        room = min(MAX_BYTES, limit)
        with disk.claim(caller, target) as claim:  # one for all files, or each would get the last room again
            for folder, name, path in _walk(output, "", 0, left):
                if any(secret in path for secret in secrets):
                    left.append("a file with a secret in its name was left")
                    continue
                if len(files) >= MAX_FILES:
                    left.append(f"output/ holds more than {MAX_FILES} files; the rest was left")
                    break
                size = _copy(folder, name, target / path, room, claim, secrets)
                claim.wrote()
                if isinstance(size, str):
                    left.append(f"output/{path[:MAX_SHOWN_CHARACTERS]} was left: {size}")
                    continue
                room -= size
                files.append(RunFile(path=path, size=size))
    finally:
        os.close(output)
    if len(left) > MAX_WARNINGS:
        left[MAX_WARNINGS:] = [f"and {len(left) - MAX_WARNINGS} more were left"]
    return sorted(files, key=lambda file: file.path), left


def _walk(folder: int, prefix: str, depth: int, left: list[str]) -> Iterator[tuple[int, str, str]]:
    """Every file below an open folder, with the folder it is in and its path."""
    for name in sorted(os.listdir(folder)):
        path = f"{prefix}{name}"
        if not _is_plain(name):
            left.append("a file with an odd name was left")
            continue
        with suppress(OSError):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                yield folder, name, path
                continue
        if depth >= MAX_DEPTH:
            left.append("a folder was left: too deep")
            continue
        try:
            below = os.open(name, _OPEN_FOLDER, dir_fd=folder)
        except OSError as error:
            left.append(f"a folder was left: {error.strerror}")
            continue
        try:
            yield from _walk(below, f"{path}/", depth + 1, left)
        finally:
            os.close(below)


def _copy(folder: int, name: str, target: Path, room: int, claim: Claim, secrets: Sequence[str]) -> int | str:
    """Copy one file; gives its size, or why it was left."""
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError as error:
        return str(error.strerror)
    with os.fdopen(descriptor, "rb") as source:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return "no regular file"
        if found.st_size > room:
            return "there is no room for it"
        try:
            claim.take(blocks(found.st_size))
        except ServerError:
            return "there is no room for it"
        data = source.read(found.st_size)
    if any(secret.encode("utf-8", "surrogateescape") in data for secret in secrets if secret):
        return "it holds a secret"
    try:
        make_private_folder(target.parent)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(copy, "wb") as file:
            file.write(data)
    except OSError as error:  # a path that is too long for this disk, or no room on it
        with suppress(OSError):
            target.unlink()
        return str(error.strerror)
    return len(data)


def _is_plain(name: str) -> bool:
    """Whether a name can be shown, sent and stored: text, no control characters, not too long."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return name.isprintable() and size <= 255
