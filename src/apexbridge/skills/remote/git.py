"""Fetches one commit of a repository with the system's `git`, without hooks, filters, prompts or its configuration."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.disk import blocks, size_on_disk
from apexbridge.errors import ApexBridgeError, RequestError, ServerError
from apexbridge.sandbox.layers import readable, without_paths
from apexbridge.skills.remote.egress import Egress, EgressProxy
from apexbridge.skills.remote.source_text import RemoteSource
from apexbridge.skills.remote.tree import Listing, TreeEntry, too_large, write_tree

MB = 1024 * 1024
SIZE_CHECK_SECONDS = 0.2
READ_BYTES = 64 * 1024
LAST_LINES = 6
SSH_PORT = 22
MAX_LIST_BYTES = 64 * 1024
"""Of a list of refs. A server can have any number of refs with the same last part."""
MAX_MEMORY_KB = 2 * 1024 * 1024
MAX_CPU_SECONDS = 120
_LIMITED = f'ulimit -v {MAX_MEMORY_KB}; ulimit -t {MAX_CPU_SECONDS}; exec "$0" "$@"'
_PASSED_ON = ("PATH", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR")
_OPTIONS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.symlinks": "false",
    "core.askPass": "",
    "core.sshCommand": "",
    "core.bigFileThreshold": "16m",
    "core.alternateRefsCommand": "",
    "credential.helper": "",
    "fetch.unpackLimit": "1",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "http.followRedirects": "initial",
    "maintenance.auto": "false",
    "pack.threads": "1",
    "protocol.version": "2",
    "submodule.recurse": "false",
}
"""Set even though no configuration is read: a later version may have another source of it."""
_MISSING = re.compile(
    r"couldn't find remote ref|not our ref|no such remote ref|does not exist|not found|not appear to be a git"
    r"|does not have any commits|Invalid refspec|no such path|unadvertised object",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(
    r"could not read (?:Username|Password)|Authentication failed|Permission denied|terminal prompts disabled",
    re.IGNORECASE,
)


def find_git() -> str | None:
    """The path of `git`; None if it is not installed."""
    return shutil.which("git")


class Repository:
    """A bare repository in a folder of its own with one commit. Its files are read without a checkout."""

    def __init__(self, folder: Path, git: str, source: RemoteSource, *, max_bytes: int) -> None:
        self._folder = folder
        self._git = git
        self._source = source
        self._max_bytes = max_bytes
        self.commit = ""

    async def fetch(self, egress: Egress, *, claim: Callable[[int], None]) -> None:
        """Fetch the source's commit, without history. `claim` is called with the bytes on disk so far.

        Raises:
            RequestError: ADDRESS_REFUSED, SOURCE_NOT_FOUND or SOURCE_UNREACHABLE.
            InvalidArchiveError: ARCHIVE_TOO_LARGE.
        """
        options = ["--depth=1", "--no-tags", "--no-recurse-submodules", "--force", "--progress"]
        await self._connect(egress, "fetch", *options, "--", self._source.url, self._source.ref or "HEAD", claim=claim)
        self.commit = (await in_thread(self._output, "rev-parse", "--verify", "FETCH_HEAD^{commit}")).strip()

    async def find_commit(self, egress: Egress, *, claim: Callable[[int], None]) -> str | None:
        """The commit that the source has now, without fetching it; None if the ref is not a branch or a tag."""
        ref = self._source.ref
        # In the order in which git resolves a name. The commit of an annotated tag has the suffix ^{}.
        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"] if ref else ["HEAD"]
        listed = self._folder / "refs"
        with listed.open("xb+") as file:
            await self._connect(egress, "ls-remote", "--", self._source.url, *names, claim=claim, stdout=file)
            file.seek(0)
            lines = file.read(MAX_LIST_BYTES).decode("utf-8", "replace").splitlines()
        commits = {name: id for id, _, name in (line.partition("\t") for line in lines)}
        return next((commits[name] for name in names if name in commits), None)

    async def _connect(
        self, egress: Egress, *arguments: str, claim: Callable[[int], None], stdout: BinaryIO | None = None
    ) -> None:
        """Run a command of git that connects to the source."""
        source = self._source
        (self._folder / "home").mkdir(parents=True)
        await self._run("init", "--bare", "--quiet", "--template=", str(self._repository), env={}, claim=claim)
        async with AsyncExitStack() as stack:
            env: dict[str, str] = {"GIT_ALLOW_PROTOCOL": "http:https" if source.scheme == "http" else source.scheme}
            proxy = None
            if source.scheme == "ssh":
                env["GIT_SSH_COMMAND"] = await _ssh_command(egress, source)
            elif source.scheme != "file":
                proxy = EgressProxy(egress, max_bytes=self._max_bytes)
                address = await stack.enter_async_context(proxy.listening())
                env |= {"http_proxy": address, "https_proxy": address, "all_proxy": address, "no_proxy": ""}
            try:
                await self._run(*arguments, env=env, claim=claim, stdout=stdout)
            except ApexBridgeError:
                if proxy and proxy.refusal:
                    raise proxy.refusal from None
                if proxy and proxy.is_exhausted:
                    raise too_large(f"more than {self._max_bytes // MB} MB") from None
                raise

    async def extract(self, path: str, target: Path, *, claim: Callable[[int], None]) -> Path:
        """Write a folder of the repository, or all of it, as a new folder below `target`; returns that folder.

        Raises:
            RequestError: SOURCE_NOT_FOUND, there is no such folder.
            InvalidArchiveError: UNSAFE_PATH or ARCHIVE_TOO_LARGE.
        """
        return await in_thread(self._extract, path, target, claim)

    @property
    def _repository(self) -> Path:
        return self._folder / "repository.git"

    # ------------------------------------------------------------------------------------------------ processes
    def _command(self, *arguments: str) -> list[str]:
        """git with its options, below the limits of a shell: a small pack can describe huge objects."""
        options = [word for key, value in _OPTIONS.items() for word in ("-c", f"{key}={value}")]
        return ["/bin/sh", "-c", _LIMITED, self._git, *options, *arguments]

    def _environment(self) -> dict[str, str]:
        """Nothing of the user's or the system's configuration; only errors in English, which are read here."""
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return passed_on | {
            "HOME": str(self._folder / "home"),
            "XDG_CONFIG_HOME": str(self._folder / "home"),
            "TMPDIR": str(self._folder),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_DIR": str(self._repository),
        }

    async def _run(
        self, *arguments: str, env: dict[str, str], claim: Callable[[int], None], stdout: BinaryIO | None = None
    ) -> None:
        """Run git. It is killed if it writes too much, if this task is cancelled, or (by its pipe) if the server is."""
        process = await asyncio.create_subprocess_exec(
            *self._command(*arguments),
            stdin=DEVNULL,
            stdout=stdout or DEVNULL,
            stderr=PIPE,
            cwd=self._folder,
            env=self._environment() | env,
            start_new_session=True,
        )
        try:
            last_lines = await self._read_errors(process, claim)
            if await process.wait():
                raise _failure(self._source, last_lines)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await run_to_completion(process.wait())

    async def _read_errors(self, process: asyncio.subprocess.Process, claim: Callable[[int], None]) -> list[str]:
        """The last lines that git wrote. Meanwhile, the size on disk is checked."""
        last: deque[str] = deque(maxlen=LAST_LINES)
        clock = asyncio.get_running_loop().time
        tail, checked_at = b"", 0.0
        while True:
            chunk = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(SIZE_CHECK_SECONDS):
                    chunk = await process.stderr.read(READ_BYTES)  # type: ignore[union-attr]  # a pipe
                    if not chunk:
                        break
            *lines, tail = re.split(rb"[\r\n]+", tail + chunk)
            tail = tail[-READ_BYTES:]
            last.extend(line for line in map(without_paths, map(readable, lines)) if line)
            if clock() - checked_at >= SIZE_CHECK_SECONDS:
                await self._check_size(claim)
                checked_at = clock()
        await self._check_size(claim)
        return [*last, *filter(None, [without_paths(readable(tail))])]

    async def _check_size(self, claim: Callable[[int], None]) -> None:
        size = await asyncio.to_thread(size_on_disk, self._folder)
        if size > self._max_bytes:
            raise too_large(f"more than {self._max_bytes // MB} MB")
        claim(size)

    # ----------------------------------------------------------------------------------------------- reading
    def _output(self, *arguments: str) -> str:
        result = subprocess.run(  # noqa: S603  # git with checked arguments
            self._command(*arguments), cwd=self._folder, env=self._environment(), capture_output=True, check=False
        )
        if result.returncode:
            raise _failure(self._source, [without_paths(readable(result.stderr))])
        return result.stdout.decode("utf-8", "replace")

    def _extract(self, path: str, target: Path, claim: Callable[[int], None]) -> Path:
        entries = self._list(path)
        if len(entries) == 1 and entries[0].path == path and not entries[0].is_link:
            if path.rpartition("/")[2].lower() != "skill.md":
                raise _no_folder(self._source, path)
            return self._extract(path.rpartition("/")[0], target, claim)
        if not entries:
            raise _no_folder(self._source, path)
        prefix = f"{path}/" if path else ""
        claim(size_on_disk(self._folder) + sum(blocks(entry.size) for entry in entries))
        folder = target / (path.rpartition("/")[2] or self._source.name)
        write_tree(folder, self._contents(entries, prefix))
        return folder

    def _list(self, path: str) -> list[TreeEntry]:
        """The files below a path, streamed: a tree can be endless in effect, and is left at the limit."""
        listing = Listing(max_bytes=self._max_bytes)
        command = self._command(
            "ls-tree", "-r", "-z", "-l", "--full-tree", self.commit, "--", *([path] if path else [])
        )
        with self._popen(command) as process:
            for line in _split(process):
                meta, _, name = line.partition(b"\t")
                mode, _, id, size = meta.split()
                listing.add(
                    TreeEntry(
                        path=os.fsdecode(name),
                        mode=int(mode, 8),
                        size=0 if size == b"-" else int(size),
                        id=id.decode("ascii"),
                    )
                )
            if process.wait():
                raise ServerError("git could not list the files of the source", code="EXECUTION_ERROR")
        return listing.entries

    def _contents(self, entries: list[TreeEntry], prefix: str) -> Iterator[tuple[TreeEntry, bytes]]:
        with self._popen(self._command("cat-file", "--batch")) as process:
            stdin, stdout = process.stdin, process.stdout
            assert stdin is not None  # noqa: S101  # a pipe
            assert stdout is not None  # noqa: S101  # a pipe
            for entry in entries:
                stdin.write(f"{entry.id}\n".encode())
                stdin.flush()
                header = stdout.readline().split()
                if header != [entry.id.encode(), b"blob", str(entry.size).encode()]:
                    raise ServerError("git could not read a file of the source", code="EXECUTION_ERROR")
                data = stdout.read(entry.size)
                stdout.read(1)
                path = entry.path.removeprefix(prefix)
                yield TreeEntry(path=path, mode=entry.mode, size=entry.size, id=entry.id), data
            stdin.close()

    def _popen(self, command: list[str]) -> "_Process":
        return _Process(
            command, cwd=self._folder, env=self._environment(), stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL
        )


class _Process(subprocess.Popen[bytes]):
    """A process that does not outlive its block."""

    def __exit__(self, *args: object) -> None:
        if self.poll() is None:
            self.kill()
        with suppress(BrokenPipeError):
            super().__exit__(*args)  # type: ignore[arg-type]  # closes the pipes and waits


def _split(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The output of a process, split at NUL bytes."""
    assert process.stdout is not None  # noqa: S101  # a pipe
    tail = b""
    while chunk := process.stdout.read1(READ_BYTES):  # type: ignore[attr-defined]  # a buffered reader
        *lines, tail = (tail + chunk).split(b"\0")
        yield from lines


async def _ssh_command(egress: Egress, source: RemoteSource) -> str:
    """ssh to the checked address, with the host key of the name, and without questions."""
    port = source.port or SSH_PORT
    options = ["BatchMode=yes", "ConnectTimeout=15", "ForwardAgent=no", "ClearAllForwardings=yes"]
    if not egress.allow_private:
        address = (await egress.resolve(source.host, port))[0]
        alias = source.host if port == SSH_PORT else f"[{source.host}]:{port}"
        options += [f"HostName={address}", f"HostKeyAlias={alias}", "CheckHostIP=no", "ProxyCommand=none"]
    return " ".join(["ssh", *(f"-o '{option}'" for option in options)])


def _no_folder(source: RemoteSource, path: str) -> RequestError:
    where = f" at {source.ref}" if source.ref else ""
    what = f"no folder {path}" if path else "no files"
    return RequestError(f"{source.url} has {what}{where}. Check the path.", code="SOURCE_NOT_FOUND")


def _failure(source: RemoteSource, lines: list[str]) -> ApexBridgeError:
    """What went wrong, in git's words, without paths of the server."""
    if any("No space left on device" in line for line in lines):
        return ServerError("The disk is full; nothing was changed. Free some space and try again.", code="STORAGE_FULL")
    said = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:", "remote:", "ssh:"))] or lines
    output = " ".join(said)[:500]
    at = f"{source.url} at {source.ref}" if source.ref else source.url
    if _CREDENTIALS.search(output):
        return RequestError(
            f"{at} was not found, or it is private. Check the address. Private repositories are fetched over SSH, "
            f"with a key of the server's user. git: {output}",
            code="SOURCE_NOT_FOUND",
        )
    if _MISSING.search(output):
        advice = "Check the address"
        if source.ref:
            advice += " and the ref: a branch, a tag, or the 40 digits of a commit"
        return RequestError(f"{at} was not found. {advice}. git: {output}", code="SOURCE_NOT_FOUND")
    return RequestError(f"{at} could not be fetched. git: {output or 'no reason'}", code="SOURCE_UNREACHABLE")
