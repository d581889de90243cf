"""The files of a run's workspace: copied in before it starts, and collected after it has ended."""

import os
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from apexbridge._fs import PRIVATE_FILE, make_private_folder
from apexbridge._text import control_character
from apexbridge.disk import Claim, Disk, blocks
from apexbridge.errors import ServerError
from apexbridge.sandbox.launcher.syscalls import opened

MAX_FILES = 10_000
MAX_DEPTH = 32
MAX_PATH_BYTES = 2048
"""Of a path in the workspace: half of what Linux allows for the whole path on the server's disk."""
MAX_WARNINGS = 20
MAX_SHOWN_CHARACTERS = 200
MAX_BYTES = 256 * 1024 * 1024
"""For all files of a run, even if its workspace may be larger."""
OUTPUT = "output"
INPUT = "input"
TEMPORARY = "tmp"
UNCHANGED = "The files of the workspace stay as they were before the run."
CODE_NAME = ".code"
"""Name of the file with the code of a run that has no script, without its suffix."""
_HOME_FOLDERS = frozenset({TEMPORARY, ".cache", ".config", ".local", ".npm", ".matplotlib"})
"""Folders at the top of a workspace that programs fill with their own files. The workspace is also their home. What a
run adds there is not kept."""
_BYTECODE = "__pycache__"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_COPY_BYTES = 8 * 1024 * 1024

Signature = tuple[int, int]
"""Inode and time of the last change of a file. A run cannot set that time."""
_FOLDER_SIGNATURE: Signature = (0, 0)


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file or folder on the server's disk."""

    path: str
    """Relative to the tree's top."""
    is_folder: bool
    size: int
    is_executable: bool
    modified_ns: int


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """A file that a run made or changed."""

    path: str
    """In the workspace."""
    artifact: str
    """In the folder of the run's artifacts: without `output/`."""
    size: int
    is_executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a run changed in its workspace."""

    files: Sequence[CollectedFile] = ()
    folders: Sequence[str] = ()
    """All folders that exist after the run."""
    removed: Sequence[str] = ()
    """Files and folders that existed before the run and no longer do, or are now the other of the two."""
    warnings: list[str] = field(default_factory=list)
    """One for each file that was skipped."""
    is_complete: bool = True
    """False if files were skipped because they are too large or too many."""

    @property
    def has_any(self) -> bool:
        return bool(self.files or self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChanges:
    """What a lasting workspace has taken over from a run."""

    files: Sequence[CollectedFile] = ()
    warnings: Sequence[str] = ()
    """One for each file that it has not."""


def list_tree(top: Path) -> list[TreeEntry]:
    """All files and folders below a folder, parents first; a missing folder is empty. Other entries are skipped."""
    found: list[TreeEntry] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        with suppress(FileNotFoundError), os.scandir(top / prefix) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if not is_folder and not stat.S_ISREG(status.st_mode):
                    continue
                path = f"{prefix}{entry.name}"
                is_executable = not is_folder and bool(status.st_mode & stat.S_IXUSR)
                found.append(TreeEntry(path, is_folder, status.st_size, is_executable, status.st_mtime_ns))
                if is_folder:
                    pending.append(f"{path}/")
    return sorted(found, key=lambda entry: entry.path)


def size_in_memory(tree: Sequence[TreeEntry]) -> tuple[int, int]:
    """Bytes and number of inodes that a copy of a tree needs in a tmpfs."""
    return sum(0 if entry.is_folder else blocks(entry.size) for entry in tree), len(tree)


def copy_in(top: Path, tree: Sequence[TreeEntry], workspace: int) -> dict[str, Signature]:
    """Copy a tree into an open workspace in which nothing runs yet; returns the signatures of what was copied.

    Instead of `output` and `tmp`, which every workspace has, the tree may have files of these names.
    """
    owner = os.fstat(workspace)
    is_foreign = owner.st_uid != os.getuid()
    copied: dict[str, Signature] = {}
    for entry in tree:
        if is_code(entry.path):
            continue
        if entry.is_folder:
            with suppress(FileExistsError):  # output/ and tmp/
                os.mkdir(entry.path, 0o755, dir_fd=workspace)
                if is_foreign:
                    os.chown(entry.path, owner.st_uid, owner.st_gid, dir_fd=workspace)
            copied[entry.path] = _FOLDER_SIGNATURE
        else:
            if entry.path in (OUTPUT, TEMPORARY):
                os.rmdir(entry.path, dir_fd=workspace)
            with (
                opened(os.fspath(top / entry.path), _READ) as source,
                opened(entry.path, _CREATE, workspace) as target,
            ):
                _copy_bytes(source, target)
                os.fchmod(target, 0o755 if entry.is_executable else 0o644)
                os.utime(target, ns=(entry.modified_ns, entry.modified_ns))
                if is_foreign:
                    os.fchown(target, owner.st_uid, owner.st_gid)
                copied[entry.path] = _signature(os.fstat(target))
    return copied


def write_code(workspace: int, name: str, code: str) -> None:
    """Write the code of a run to its workspace, where the run can only read it if it has its own user."""
    with opened(name, _CREATE, workspace) as target:
        os.fchmod(target, 0o644)
        left = memoryview(code.encode("utf-8", "surrogatepass"))
        while left:
            left = left[os.write(target, left) :]


def is_code(path: str) -> bool:
    """Whether a path is reserved for the code of a run, with everything below it."""
    return path.startswith(f"{CODE_NAME}.")


def collect_changes(
    workspace: int,
    before: Mapping[str, Signature],
    secrets: Sequence[str] = (),
    *,
    target: Path,
    limit: int = MAX_BYTES,
    disk: Disk | None = None,
    caller: str = "",
) -> Changes:
    """Copy the regular files that a run made or changed to `target`.

    The files are untrusted: links are not followed, names are checked, and pipes, links and devices are skipped. They
    no longer change, because no process of the run is alive. A sparse file counts with its full size, which is the
    size of its copy.
    """
    disk = disk or Disk(target)
    files: list[CollectedFile] = []
    folders: list[str] = []
    warnings: list[str] = []
    walk = _Walk(before, warnings)
    retyped: list[str] = []
    names = _ArtifactNames()
    remaining = min(MAX_BYTES, limit)
    is_complete = True
    with ExitStack() as stack:
        claim = stack.enter_context(disk.claim(caller, target))  # separate claims could get the same space
        for folder, name, path in walk.entries(workspace):
            if any(secret in path for secret in secrets):
                if folder is not None:
                    warnings.append("a file with a secret in its name was skipped")
                continue
            if folder is None:
                if path not in (OUTPUT, INPUT):  # made for the run
                    folders.append(path)
                if before.get(path, _FOLDER_SIGNATURE) != _FOLDER_SIGNATURE:
                    retyped.append(path)
                continue
            try:
                status = os.lstat(name, dir_fd=folder)
            except OSError:
                continue
            if before.get(path) == _signature(status):
                continue
            if len(files) >= MAX_FILES:
                warnings.append(f"the run left more than {MAX_FILES} files; the others were skipped")
                is_complete = False
                break
            artifact = names.free(path.removeprefix(f"{OUTPUT}/"))
            size = _copy_out(folder, name, target / artifact, remaining, claim, secrets)
            claim.wrote()
            if isinstance(size, str):
                warnings.append(f"{_shown(path)} was skipped: {size}")
                is_complete = is_complete and size != _NO_SPACE
                continue
            remaining -= size
            names.take(artifact)
            if before.get(path) == _FOLDER_SIGNATURE:
                retyped.append(path)
            files.append(CollectedFile(path, artifact, size, bool(status.st_mode & stat.S_IXUSR)))
    if len(warnings) > MAX_WARNINGS:
        warnings[MAX_WARNINGS:] = [f"and {len(warnings) - MAX_WARNINGS} more were skipped"]
    removed = [*retyped, *walk.missing()] if is_complete else []
    return Changes(
        files=sorted(files, key=lambda file: file.path),
        folders=folders,
        removed=removed,
        warnings=warnings,
        is_complete=is_complete,
    )


_NO_SPACE = "no space left for it"


class _Walk:
    """Walks through a workspace after a run."""

    def __init__(self, before: Mapping[str, Signature], warnings: list[str]) -> None:
        """Adds a warning for each file and folder that is skipped."""
        self._before = before
        self._warnings = warnings
        self._seen: set[str] = set()
        self._skipped: set[str] = set()
        """Files and folders that exist, of which nothing else is known."""

    def entries(self, workspace: int) -> Iterator[tuple[int | None, str, str]]:
        """All files and folders, `output` first: the descriptor of the folder that contains a file, or None for a
        folder; its name; its path."""
        yield from self._below(workspace, "", 0, only_known=False)

    def missing(self) -> list[str]:
        """What existed before the run and no longer does."""
        return [path for path in self._before if path not in self._seen and not self._is_skipped(path)]

    def _is_skipped(self, path: str) -> bool:
        return path in self._skipped or any(str(parent) in self._skipped for parent in PurePosixPath(path).parents)

    def _below(
        self, folder: int, prefix: str, depth: int, *, only_known: bool
    ) -> Iterator[tuple[int | None, str, str]]:
        """With `only_known`, only what existed before."""
        for name in sorted(os.listdir(folder), key=lambda name: (bool(prefix) or name != OUTPUT, name)):
            path = f"{prefix}{name}"
            is_folder = _is_folder(name, folder)
            is_ignored = only_known or _is_ignored(path, is_folder=is_folder)
            if is_ignored and path not in self._before:
                continue
            if (problem := _name_problem(path, name)) is not None:
                self._skip(path, f"{_shown(path)} was skipped: {problem}")
                continue
            if not is_folder:
                self._seen.add(path)
                yield folder, name, path
                continue
            if depth >= MAX_DEPTH:
                self._skip(path, "a folder was skipped: too deep")
                continue
            try:
                with opened(name, _FOLDER, folder) as below:
                    self._seen.add(path)
                    yield None, name, path
                    yield from self._below(below, f"{path}/", depth + (path != OUTPUT), only_known=is_ignored)
            except OSError as error:
                self._skip(path, f"a folder was skipped: {error.strerror}")

    def _skip(self, path: str, warning: str) -> None:
        self._skipped.add(path)
        self._warnings.append(warning)


def _is_folder(name: str, parent: int) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    return False


def _is_ignored(path: str, *, is_folder: bool) -> bool:
    """Whether a new file or folder is neither an artifact nor kept."""
    name = path.rpartition("/")[2]
    if is_folder:
        return path in _HOME_FOLDERS or name == _BYTECODE or is_code(path)
    return is_code(path) or name.startswith(".~lock.")  # of LibreOffice


def _copy_out(folder: int, name: str, target: Path, max_bytes: int, claim: Claim, secrets: Sequence[str]) -> int | str:
    """Copy a file; returns its size, or the reason why it was not copied."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        return "it is a link, a socket or a device" if _is_special(name, folder) else str(error.strerror)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size > max_bytes:
            return _NO_SPACE
        try:
            claim.take(blocks(status.st_size))
        except ServerError:
            return _NO_SPACE
        data = source.read(status.st_size)
    if any(secret.encode("utf-8", "surrogateescape") in data for secret in secrets if secret):
        return "it contains a secret"
    try:
        make_private_folder(target.parent)
        copy = os.open(target, _CREATE, PRIVATE_FILE)
        with os.fdopen(copy, "wb") as file:
            file.write(data)
    except OSError as error:  # the path is too long for this disk, or the disk is full
        with suppress(OSError):
            target.unlink()
        return str(error.strerror)
    return len(data)


def _is_special(name: str, folder: int) -> bool:
    with suppress(OSError):
        return not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode)
    return False


def _copy_bytes(source: int, target: int) -> None:
    while os.sendfile(target, source, None, _COPY_BYTES):
        pass


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_ctime_ns


class _ArtifactNames:
    """The names of artifacts. Without `output/`, two files can have the same one."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def free(self, path: str) -> str:
        """The path, with numeric suffixes where a name is taken."""
        *parents, name = path.split("/")
        free = ""
        for parent in parents:
            free = f"{self._numbered(free + parent, self._files)}/"
        return self._numbered(free + name, self._files, self._folders)

    def take(self, artifact: str) -> None:
        self._files.add(artifact)
        self._folders.update(str(parent) for parent in PurePosixPath(artifact).parents)

    @staticmethod
    def _numbered(path: str, *taken: Container[str]) -> str:
        known, free, number = PurePosixPath(path), path, 1
        while any(free in names for names in taken):
            free, number = str(known.with_name(f"{known.stem}-{number}{known.suffix}")), number + 1
        return free


def _shown(path: str) -> str:
    """A path for messages: of limited length, with characters that cannot be printed escaped."""
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in path)
    return text[:MAX_SHOWN_CHARACTERS]


def _name_problem(path: str, name: str) -> str | None:
    """Why a file of this name is not kept."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "its name is not valid text"
    if size > MAX_PATH_BYTES:
        return "its path is too long"
    if control_character(name) is not None:
        return "its name has a control character"
    return None
