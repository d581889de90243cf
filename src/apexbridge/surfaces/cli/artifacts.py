"""Saves files of the server to a local folder. Nothing is written outside the folder, and a file is only replaced if
the same command wrote it and it was not changed since.

The names come from the server, which takes them from the script. Both are untrusted.
"""

import asyncio
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category
from urllib.parse import quote

from apexbridge.errors import ApexBridgeError, InvalidInputError, ServerError
from apexbridge.surfaces.cli.client import Api, TooLargeError

MAX_FILES = 1_000
MAX_BYTES = 256 * 1024 * 1024
"""Limit for all files together. A server collects no more than this from one run."""
DOWNLOAD_SECONDS = 3600
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Signature = tuple[int, ...]
"""Changes when a file is replaced, written to, or gets another mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file of the server. `problem` says why it was not written; None if it was."""

    path: str
    size: int = 0
    problem: str | None = None
    exists: bool = False
    """Whether the problem is an existing file of the same name."""


async def save_files(api: Api, result: dict[str, Any], folder: Path) -> list[SavedFile]:
    """Download a run's files to a folder, which is created if it is missing."""
    address = f"/api/executions/{quote(str(result.get('id')), safe='')}/files/"
    return await download_files(api, address, _paths(result), folder)


async def download_files(
    api: Api, address: str, paths: Sequence[str], folder: Path, *, written: dict[str, Signature] | None = None
) -> list[SavedFile]:
    """Download the files with these paths below an address to a folder, which is created if it is missing.

    `written` has the files that earlier calls of the same command wrote to the folder, and gets those of this call.
    """
    if not paths:
        return []
    root = _open_root(folder)
    try:
        async with asyncio.timeout(DOWNLOAD_SECONDS):
            return await _save_all(api, address, paths, root, {} if written is None else written)
    except TimeoutError as error:
        raise ServerError(f"The files took longer than {DOWNLOAD_SECONDS} s.", code="NOT_READY") from error
    finally:
        os.close(root)


def _open_root(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInputError(f"--out {folder} cannot be used: {error.strerror}") from error


def _paths(result: dict[str, Any]) -> list[str]:
    files = result.get("files") or []
    if not isinstance(files, list) or not all(isinstance(item, dict) for item in files):
        raise ServerError("The server sent no list of files. Check --url.", code="NOT_READY")
    return [str(item.get("path")) for item in files]


async def _save_all(
    api: Api, address: str, paths: Sequence[str], root: int, written: dict[str, Signature]
) -> list[SavedFile]:
    saved: list[SavedFile] = []
    remaining = MAX_BYTES
    for number, path in enumerate(paths):
        problem = _problem(path) if number < MAX_FILES else f"more than {MAX_FILES:,} files"
        size, exists = 0, False
        if problem is None:
            try:
                size = await _save(api, address + quote(path), path, root, remaining, written)
            except FileExistsError:
                problem, exists = "exists already", True
            except TooLargeError:
                problem = f"the files are larger than {MAX_BYTES // 1024 // 1024} MB together"
            except OSError as error:
                problem = error.strerror or "cannot be written"
            except ApexBridgeError as error:  # for example if the run was deleted meanwhile
                problem = error.message
        remaining -= size
        saved.append(SavedFile(path=path, size=size, problem=problem, exists=exists))
    return saved


def _problem(path: str) -> str | None:
    """Why a path must not be written, judged by its text alone; None if it may be."""
    segments = path.split("/")
    is_printable = all(letter.isprintable() or category(letter) == "Zs" for letter in path)  # such as U+00A0
    if not is_printable or any(segment in ("", ".", "..") for segment in segments):
        return "not a plain relative path"
    if any(segment.startswith(".") for segment in segments):
        return "hidden files are not written"
    if segments[-1] == "HEAD":  # with objects/, refs/ and config it makes a bare repository, and git obeys its config
        return "a file of this name could make a git repository of its folder"
    return None


async def _save(api: Api, address: str, path: str, root: int, limit: int, written: dict[str, Signature]) -> int:
    *folders, name = path.split("/")
    with _opened(root, folders) as parent:
        is_own = path in written and written[path] == _signature(name, parent)
        draft = f".apex-{secrets.token_hex(8)}" if is_own else name
        descriptor = os.open(draft, _CREATE_FILE, 0o666, dir_fd=parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = await api.download(address, file, limit=limit)
            if is_own:
                if written[path] != _signature(name, parent):
                    raise FileExistsError  # changed during the download
                os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(draft, dir_fd=parent)
            raise
        written[path] = _signature(name, parent)
        return size


def _signature(name: str, parent: int) -> Signature:
    """Of a file; empty if it is missing."""
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def _opened(root: int, folders: Sequence[str]) -> Iterator[int]:
    """Open a folder below the root and create it if it is missing. A link in the path raises OSError."""
    current = os.dup(root)
    try:
        for name in folders:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=current)
            try:
                following = os.open(name, _OPEN_FOLDER, dir_fd=current)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise OSError(error.errno, f"{name} is a link or a file, not a folder") from error
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)
