"""Building a layer: the installer's process and its output, the size of the files, and making them read-only."""

import os
import re
import signal
import stat
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from apexbridge.errors import ServerError

Progress = Callable[[str], None]
LAYER_FOLDER = "layer"
MAX_REPORTED_CHARACTERS = 1024 * 1024
"""Of an installer's output; the remainder is read and dropped."""
LAST_LINES = 8
SIZE_CHECK_SECONDS = 1.0
MAX_LINE_CHARACTERS = 500
BLOCK_BYTES = 4096
"""The disk space of even an empty file or folder."""
_PASSED_ON = re.compile(
    r"(?:PATH|HOME|LANG|LC_\w+|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE"
    r"|NODE_EXTRA_CA_CERTS|PIP_\w+|(?:NPM_CONFIG|npm_config)_.+)\Z"
)
"""The only variables that an installer gets; the others may contain secrets."""
_EMPTY_LINE = re.compile(r"npm (?:error|ERR!)(?: \w+| Log files .*)?\Z")
_PATH = re.compile(r"(?:file:/*|(?<![\w/:.~-]))/(?:[^\s/'\"]+/)+(?P<last>[^\s/'\"]*)")
"""An absolute path of two segments or more, or a `file:` URL. Paths in other URLs follow a host and do not match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A layer that is being built."""

    folder: Path
    max_bytes: int
    progress: Progress

    @property
    def work(self) -> Path:
        """The working folder of the installer."""
        return self.folder / "work"

    @property
    def layer(self) -> Path:
        """The folder that becomes the layer."""
        return self.folder / "done" / LAYER_FOLDER

    async def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run an installer; returns its exit code and the last lines that it printed. No process outlives this call."""
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self.work,
            env=_environment(self.folder / "temporary"),
            start_new_session=True,
        )
        try:
            last_lines = await self._read_output(process)
            return await process.wait(), last_lines
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def _read_output(self, process: anyio.abc.Process) -> str:
        """Report what the installer prints, and check the size of the layer meanwhile."""
        last: deque[str] = deque(maxlen=LAST_LINES)
        remaining, tail, checked_at = MAX_REPORTED_CHARACTERS, b"", anyio.current_time()
        while True:
            chunk = b""
            with anyio.move_on_after(SIZE_CHECK_SECONDS):
                try:
                    chunk = await process.stdout.receive()  # type: ignore[union-attr]  # a pipe, by default
                except anyio.EndOfStream:
                    break
            if anyio.current_time() - checked_at >= SIZE_CHECK_SECONDS:
                await self._check_size()
                checked_at = anyio.current_time()
            *lines, tail = (tail + chunk).split(b"\n")
            tail = tail[:MAX_LINE_CHARACTERS]
            for line in map(without_paths, filter(None, map(readable, lines))):
                if not _EMPTY_LINE.match(line):
                    last.append(line)
                remaining -= len(line)
                if remaining > 0:
                    self.progress(line)
        errors = [index for index, line in enumerate(last) if line.startswith(("ERROR", "npm error", "npm ERR!"))]
        return "\n".join([*last][errors[0] :] if errors else last)

    async def _check_size(self) -> None:
        # Until it ends, pip keeps what it downloaded in addition to what it unpacked.
        if await anyio.to_thread.run_sync(size_of, self.folder) > 2 * self.max_bytes:
            raise too_large(self.max_bytes)


def _environment(temporary: Path) -> dict[str, str]:
    passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
    # Inside the build folder, so that files of a killed installer are removed with it.
    return {**passed_on, "TMPDIR": str(temporary)}


def freeze(folder: Path, *, within: Path) -> int:
    """Make all files read-only; returns their size on disk.

    Raises:
        ServerError: there is something other than files, folders and links, or a link leads out of `within`.
    """
    size, inside = 0, f"{os.path.realpath(within)}{os.sep}"
    for path, status in _entries(folder):
        size += _cost(status)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # noqa: PTH115  # thousands of paths: plain strings are faster
            if os.path.isabs(target) or not os.path.realpath(path).startswith(inside):  # noqa: PTH117
                raise install_error(
                    f"A link in the packages leads out of them: {readable(os.path.relpath(path, folder))}"
                )
        elif stat.S_ISDIR(status.st_mode):
            os.chmod(path, 0o555)  # noqa: PTH101, S103  # runs have another user
        elif stat.S_ISREG(status.st_mode):
            os.chmod(path, 0o555 if status.st_mode & 0o111 else 0o444)  # noqa: PTH101
        else:
            raise install_error("Among the packages is something that is neither a file nor a folder.")
    return size


def size_of(folder: Path) -> int:
    """The disk space of a folder."""
    return sum(_cost(status) for _, status in _entries(folder))


def _cost(status: os.stat_result) -> int:
    return max(1, -(-status.st_size // BLOCK_BYTES)) * BLOCK_BYTES


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The folder and everything below it; entries that disappear meanwhile are skipped."""
    yield str(folder), folder.stat()
    pending = [str(folder)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def readable(line: str | bytes) -> str:
    """One line of untrusted text, truncated and without control characters."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    shown = text.strip()[:MAX_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in shown)


def without_paths(line: str) -> str:
    """A line in which absolute paths of the server are reduced to their last segment."""
    return _PATH.sub(lambda match: f"…/{match['last']}", line)


def install_error(message: str) -> ServerError:
    return ServerError(message.strip(), code="EXECUTION_ERROR")


def too_large(limit: int) -> ServerError:
    return install_error(f"The packages are larger than {limit // (1024 * 1024)} MB and were not installed.")
