"""A test bench: writes a skill's folder, runs it in a real sandbox, and inspects the host meanwhile."""

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio

from apexbridge.errors import ServerError
from apexbridge.sandbox.models import ExecutionResult, Job
from apexbridge.sandbox.output import OutputListener
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.sandbox.session import OnStart

SECONDS = 60
"""The longest single wait of a test, even on a busy machine."""
TIMEOUT_MS = 20_000


class Bench:
    """A sandbox, and a folder for its scripts."""

    def __init__(self, sandbox: Sandbox, root: Path) -> None:
        self.sandbox = sandbox
        self.root = root

    def write(self, text: str, suffix: str = "py", files: Mapping[str, str] | None = None) -> Path:
        """A skill folder that all users can read, with the text as its entry script."""
        folder = self.root / f"skill-{uuid.uuid4().hex}"
        for name, content in {f"scripts/execute.{suffix}": text, **(files or {})}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
        return folder

    def job(
        self, text: str, suffix: str = "py", *, files_beside: Mapping[str, str] | None = None, **fields: Any
    ) -> Job:
        """A job for that script; `fields` are the job's own."""
        report = {"skill": "tried", "script": f"scripts/execute.{suffix}", "timeout_ms": TIMEOUT_MS, **fields}
        return Job(folder=report.pop("folder", None) or self.write(text, suffix, files_beside), **report)

    async def run(
        self,
        text: str,
        suffix: str = "py",
        *,
        artifacts: Path | None = None,
        listener: OutputListener | None = None,
        on_start: OnStart | None = None,
        **fields: Any,
    ) -> ExecutionResult:
        """Run a script to its end."""
        with anyio.fail_after(SECONDS):
            return await self.sandbox.run(
                self.job(text, suffix, **fields), artifacts=artifacts, listener=listener, on_start=on_start
            )

    async def run_json(self, text: str, suffix: str = "py", **fields: Any) -> Any:
        """Run a script that must succeed; returns the JSON that it printed."""
        result = await self.run(text, suffix, **fields)
        assert result.success, (result.error, result.stderr)
        return json.loads(result.stdout)


async def warm_up_with_retry(sandbox: Sandbox) -> None:
    """Open the session and start warm cells.

    Without namespaces and without root, the self-test can be killed for too many processes: then it is tried again.
    """
    for left in range(9, -1, -1):
        try:
            await sandbox.warm_up()
            return
        except ServerError:
            if not left or sandbox.settings.backend != "landlock" or os.getuid() == 0:
                raise


class OutputRecorder:
    """A listener that can be waited for."""

    def __init__(self) -> None:
        self.chunks: list[tuple[str, str]] = []
        self._changed = anyio.Event()

    def __call__(self, stream: str, text: str) -> None:
        self.chunks.append((stream, text))
        self._changed.set()
        self._changed = anyio.Event()

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.chunks)

    async def wait_for(self, text: str) -> None:
        """Wait until a script has printed this."""
        with anyio.fail_after(SECONDS):
            while text not in self.text:
                await self._changed.wait()


async def quiet() -> None:
    """Wait until preparation and cleanup in the background are done."""
    seen: tuple[int, set[int]] | None = None
    with anyio.fail_after(SECONDS):
        while seen != (seen := (descriptors(), descendants(os.getpid()))):
            await anyio.sleep(0.2)


def processes() -> Iterator[int]:
    """Every process of this host."""
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def command_line(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ")


def named(marker: str) -> list[int]:
    """Processes whose command line holds the marker, other than this one."""
    return [pid for pid in processes() if pid != os.getpid() and marker in command_line(pid)]


def descendants(pid: int) -> set[int]:
    """Every process below this one, including zombies."""
    parents = {}
    for each in processes():
        fields = _read(f"/proc/{each}/stat").rpartition(")")[2].split()
        if len(fields) > 1:
            parents[each] = int(fields[1])
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = {child for child, parent in parents.items() if parent == waiting[-1]}
        waiting.pop()
        waiting += below - found
        found |= below
    return found


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def marker() -> str:
    """A unique word."""
    return f"mark-{uuid.uuid4().hex}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
