"""A layer on its way: an installer's process, what it says, how large it gets, and its end."""

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from apexbridge.sandbox.layers.tree import size_of
from apexbridge.sandbox.layers.words import MAX_LINE_CHARACTERS, readable, too_large, without_paths

Progress = Callable[[str], None]
LAYER_FOLDER = "layer"
MAX_TOLD_BYTES = 1024 * 1024
"""Of an installer's output; the rest is read and dropped."""
LAST_LINES = 8
LOOK_SECONDS = 1.0
"""Between two looks at the size of what is being built."""
_PASSED_ON = re.compile(
    r"(?:PATH|HOME|LANG|LC_\w+|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE"
    r"|NODE_EXTRA_CA_CERTS|PIP_\w+|(?:NPM_CONFIG|npm_config)_.+)\Z"
)
"""The only variables an installer sees; whatever else the server was given may be a secret."""
_EMPTY_WORDS = re.compile(r"npm (?:error|ERR!)(?: \w+| Log files .*)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A layer on its way: `work` is where the installer stands, `done` is what becomes the layer."""

    folder: Path
    max_bytes: int
    tell: Progress

    @property
    def work(self) -> Path:
        """Where the installer stands."""
        return self.folder / "work"

    @property
    def layer(self) -> Path:
        """What becomes the layer."""
        return self.folder / "done" / LAYER_FOLDER

    async def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run an installer to its end; gives its exit code and its last words. Nothing of it outlives this call."""
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self.work,
            env=_environment(self.folder / "temporary"),
            start_new_session=True,
        )
        try:
            words = await self._listen(process)
            return await process.wait(), words
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def _listen(self, process: anyio.abc.Process) -> str:
        """Tell what the installer prints, and look now and then at how large the layer has become."""
        last: deque[str] = deque(maxlen=LAST_LINES)
        room, rest, looked = MAX_TOLD_BYTES, b"", anyio.current_time()
        while True:
            chunk = b""
            with anyio.move_on_after(LOOK_SECONDS):
                try:
                    chunk = await process.stdout.receive()  # type: ignore[union-attr]  # a pipe, by default
                except anyio.EndOfStream:
                    break
            if anyio.current_time() - looked >= LOOK_SECONDS:
                await self._look()
                looked = anyio.current_time()
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[:MAX_LINE_CHARACTERS]
            for line in map(without_paths, filter(None, map(readable, whole))):
                if not _EMPTY_WORDS.match(line):
                    last.append(line)
                room -= len(line)
                if room > 0:
                    self.tell(line)
        errors = [at for at, line in enumerate(last) if line.startswith(("ERROR", "npm error", "npm ERR!"))]
        return "\n".join([*last][errors[0] :] if errors else last)

    async def _look(self) -> None:
        # pip keeps what it fetched beside what it unpacked, until it ends.
        if await anyio.to_thread.run_sync(size_of, self.folder) > 2 * self.max_bytes:
            raise too_large(self.max_bytes)


def _environment(temporary: Path) -> dict[str, str]:
    passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
    # Within the build, so that whatever an installer leaves when it is killed goes with it.
    return {**passed_on, "TMPDIR": str(temporary)}
