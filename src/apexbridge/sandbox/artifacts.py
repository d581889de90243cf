"""Artifacts: the files that a run leaves in `output/`, copied out of its workspace."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from apexbridge._fs import PRIVATE_FILE, make_private_folder
from apexbridge.disk import Claim, Disk, blocks
from apexbridge.errors import ServerError
from apexbridge.sandbox.launcher.syscalls import opened
from apexbridge.sandbox.models import RunFile

MAX_FILES = 1000
MAX_DEPTH = 32
MAX_WARNINGS = 20
MAX_SHOWN_CHARACTERS = 200
MAX_BYTES = 256 * 1024 * 1024
"""For all artifacts of a run, even if its workspace may be larger."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def collect_artifacts(
    workspace: int,
    secrets: Sequence[str] = (),
    *,
    target: Path,
    limit: int = MAX_BYTES,
    disk: Disk | None = None,
    caller: str = "",
) -> tuple[list[RunFile], list[str]]:
    """Copy regular files from the workspace's `output/`; returns them, sorted, and a warning for each that was skipped.

    The files are untrusted: links are not followed, names are checked, and pipes, links and devices are skipped. They
    no longer change, because no process of the run is alive. A sparse file counts with its full size, which is the
    size of its copy.
    """
    disk = disk or Disk(target)
    files: list[RunFile] = []
    warnings: list[str] = []
    remaining = min(MAX_BYTES, limit)
    with ExitStack() as stack:
        try:
            output = stack.enter_context(opened("output", _FOLDER, workspace))
        except OSError:
            return [], []
        claim = stack.enter_context(disk.claim(caller, target))  # separate claims could get the same space
        for folder, name, path in _walk(output, "", 0, warnings):
            if any(secret in path for secret in secrets):
                warnings.append("a file with a secret in its name was skipped")
                continue
            if len(files) >= MAX_FILES:
                warnings.append(f"output/ contains more than {MAX_FILES} files; the others were skipped")
                break
            size = _copy(folder, name, target / path, remaining, claim, secrets)
            claim.wrote()
            if isinstance(size, str):
                warnings.append(f"output/{path[:MAX_SHOWN_CHARACTERS]} was skipped: {size}")
                continue
            remaining -= size
            files.append(RunFile(path=path, size=size))
    if len(warnings) > MAX_WARNINGS:
        warnings[MAX_WARNINGS:] = [f"and {len(warnings) - MAX_WARNINGS} more were skipped"]
    return sorted(files, key=lambda file: file.path), warnings


def _walk(folder: int, prefix: str, depth: int, warnings: list[str]) -> Iterator[tuple[int, str, str]]:
    """All files below an open folder: the descriptor of the folder that contains it, its name, its path."""
    for name in sorted(os.listdir(folder)):
        path = f"{prefix}{name}"
        if not _is_plain(name):
            warnings.append("a file with an unusual name was skipped")
            continue
        with suppress(OSError):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                yield folder, name, path
                continue
        if depth >= MAX_DEPTH:
            warnings.append("a folder was skipped: too deep")
            continue
        try:
            with opened(name, _FOLDER, folder) as below:
                yield from _walk(below, f"{path}/", depth + 1, warnings)
        except OSError as error:
            warnings.append(f"a folder was skipped: {error.strerror}")


def _copy(folder: int, name: str, target: Path, max_bytes: int, claim: Claim, secrets: Sequence[str]) -> int | str:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        return str(error.strerror)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size > max_bytes:
            return "no space left for it"
        try:
            claim.take(blocks(status.st_size))
        except ServerError:
            return "no space left for it"
        data = source.read(status.st_size)
    if any(secret.encode("utf-8", "surrogateescape") in data for secret in secrets if secret):
        return "it contains a secret"
    try:
        make_private_folder(target.parent)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(copy, "wb") as file:
            file.write(data)
    except OSError as error:  # the path is too long for this disk, or the disk is full
        with suppress(OSError):
            target.unlink()
        return str(error.strerror)
    return len(data)


def _is_plain(name: str) -> bool:
    """Whether a name is printable text of at most 255 bytes."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return name.isprintable() and size <= 255
