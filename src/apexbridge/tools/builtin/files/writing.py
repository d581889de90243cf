"""Writes a file in an open folder: completely or not at all, and never through a symlink."""

import os
import secrets
import stat
from contextlib import suppress

from apexbridge.disk import Claim, blocks
from apexbridge.errors import InvalidInputError, PermissionDeniedError
from apexbridge.tools.builtin.files.beneath import OPEN_FILE
from apexbridge.tools.builtin.files.paths import RelativePath, check_regular

NEW_FILE_MODE = 0o600
MAX_BACKUP_BYTES = 100 * 1024 * 1024
MAX_BACKUPS = 10
"""Per file."""
_PIECE = 1024 * 1024
_CREATE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def replace_file(folder: int, path: RelativePath, data: bytes, *, backup: bool, claim: Claim) -> str | None:
    """Create or replace a file atomically; returns the name of the backup, None if none was made."""
    target = _target(folder, path)
    draft = f".apex-{secrets.token_hex(8)}"
    saved: str | None = None
    size, old_size, saved_size = blocks(len(data)), blocks(target.st_size) if target else 0, 0
    claim.take(size, replaces=0 if backup else old_size)
    try:
        _begin(folder, draft, data, NEW_FILE_MODE if target is None else stat.S_IMODE(target.st_mode) & 0o777)
        if backup and target is not None:
            saved, saved_size = _back_up(folder, path, claim)
        os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _remove(folder, draft, saved)
        raise
    claim.keep(size + saved_size, replaced=old_size)
    return saved


def append_to_file(
    folder: int, path: RelativePath, data: bytes, *, mark: bytes, backup: bool, claim: Claim
) -> tuple[int, str | None]:
    """Append to a file, or create it with `mark` first; returns the bytes written and the name of the backup.

    A file with several hard links is refused: another link could be outside the workspace.
    """
    is_there = _target(folder, path) is not None
    saved, saved_size = _back_up(folder, path, claim) if backup and is_there else (None, 0)
    try:
        append = _append if is_there else _begin_or_append
        written = append(folder, path, data, mark, claim)
    except BaseException:
        _remove(folder, saved)
        raise
    claim.keep(saved_size)
    return written, saved


def _begin(folder: int, name: str, data: bytes, mode: int = NEW_FILE_MODE) -> int:
    """Create a file that does not exist yet; returns the bytes written."""
    target = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        _write(target, data)
        os.fchmod(target, mode)
    except BaseException:
        _remove(folder, name)
        raise
    finally:
        os.close(target)
    return len(data)


def _begin_or_append(folder: int, path: RelativePath, data: bytes, mark: bytes, claim: Claim) -> int:
    size = blocks(len(mark) + len(data))
    claim.take(size)
    try:
        written = _begin(folder, path.name, mark + data)
    except FileExistsError:  # another writer created it in the meantime
        return _append(folder, path, data, mark, claim)
    claim.keep(size)
    return written


def _append(folder: int, path: RelativePath, data: bytes, mark: bytes, claim: Claim) -> int:
    target = os.open(path.name, _APPEND, dir_fd=folder)
    try:
        status = os.fstat(target)
        check_regular(status, path)
        if status.st_nlink > 1:
            raise PermissionDeniedError(f"{path} has a second name (a hard link); write it anew instead of appending")
        data = data if status.st_size else mark + data
        growth = blocks(status.st_size + len(data)) - blocks(status.st_size)
        claim.take(growth)
        try:
            _write(target, data)
        except OSError:
            if os.fstat(target).st_size < status.st_size + len(data):  # otherwise another writer appended too
                os.ftruncate(target, status.st_size)
            raise
        claim.keep(growth)
    finally:
        os.close(target)
    return len(data)


def _target(folder: int, path: RelativePath) -> os.stat_result | None:
    """Status of the existing file; None if missing. Refuses files that cannot be written to."""
    try:
        status = os.lstat(path.name, dir_fd=folder)
    except FileNotFoundError:
        return None
    check_regular(status, path)
    if not status.st_mode & 0o222:
        raise PermissionDeniedError(f"{path} is read-only; write to another name")
    return status


def _back_up(folder: int, path: RelativePath, claim: Claim) -> tuple[str, int]:
    """Copy the file to a free name in the same folder; returns the name and the size on disk."""
    source = os.open(path.name, OPEN_FILE | os.O_NOFOLLOW, dir_fd=folder)
    try:
        status = os.fstat(source)
        check_regular(status, path)
        if status.st_size > MAX_BACKUP_BYTES:
            limit = MAX_BACKUP_BYTES // 1024 // 1024
            raise InvalidInputError(f"{path} is larger than {limit} MB; leave backup out, or write to another name")
        size = blocks(status.st_size)
        claim.take(size)
        name, target = _create_backup(folder, path)
        try:
            os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)
            left = status.st_size  # even if the file grows meanwhile: no more was claimed
            while left and (piece := os.read(source, min(left, _PIECE))):
                _write(target, piece)
                left -= len(piece)
        except BaseException:
            _remove(folder, name)
            raise
        finally:
            os.close(target)
    finally:
        os.close(source)
    return name, size


def _create_backup(folder: int, path: RelativePath) -> tuple[str, int]:
    for number in range(MAX_BACKUPS):
        name = f"{path.name}.bak{number or ''}"
        with suppress(FileExistsError):
            return name, os.open(name, _CREATE, 0o600, dir_fd=folder)
    raise InvalidInputError(f"{path} has {MAX_BACKUPS} backups already; leave backup out, or write to another name")


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


def _remove(folder: int, *names: str | None) -> None:
    for name in filter(None, names):
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
