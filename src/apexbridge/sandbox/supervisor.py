"""Supervises one run from start to end, with any backend: pipes, timeout, output limit, kill."""

import asyncio
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass

from apexbridge.sandbox.launcher_client import CellHandle
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import OutputStream, RunOutput

PIPE_GRACE_SECONDS = 0.5
"""How long a pipe may stay open after the run has ended."""
KILL_SECONDS = 5
READ_BYTES = 256 * 1024
PIPE_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class Pipes:
    """The pipes of a run: the server's ends, and the run's ends until the run has them."""

    stdin: int
    stdout: int
    stderr: int
    job: int
    theirs: list[int]

    @classmethod
    def create(cls) -> "Pipes":
        """The server's ends are non-blocking."""
        made: list[tuple[int, int]] = []
        try:
            for _ in range(4):
                made.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401  # if one fails, those created before it must be closed
        except OSError:
            for pair in made:
                for descriptor in pair:
                    os.close(descriptor)
            raise
        (stdin, ours_in), (ours_out, stdout), (ours_err, stderr), (job, ours_job) = made
        for descriptor in (ours_in, ours_out, ours_err, ours_job):
            os.set_blocking(descriptor, False)
        for descriptor in (ours_out, ours_err):
            with suppress(OSError):  # above the user's limit for pipes
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return cls(stdin=ours_in, stdout=ours_out, stderr=ours_err, job=ours_job, theirs=[stdin, stdout, stderr, job])

    def close_theirs(self) -> None:
        """Close the server's copies of the run's ends, so that end of file arrives when the run closes its own."""
        _close(self.theirs)

    def close(self) -> None:
        self.close_theirs()
        ours = [self.stdin, self.stdout, self.stderr, self.job]
        self.stdin = self.stdout = self.stderr = self.job = -1
        _close(ours)


class Supervisor:
    """Supervises one run in a cell."""

    def __init__(self, cell: CellHandle, pipes: Pipes, output: RunOutput) -> None:
        self._cell = cell
        self._pipes = pipes
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._verdict: str | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._open_streams = 0
        self._drained = self._loop.create_future()
        self._writers: dict[int, memoryview] = {}

    def begin(self, *, stdin: bytes, job: bytes | None) -> None:
        """Send the input and read the output, once the run has its ends of the pipes."""
        if self._verdict is not None:  # killed while it was being started: kill again, now that there is a process
            self._cell.kill()
        self._pipes.close_theirs()
        streams: list[tuple[OutputStream, int]] = [("stdout", self._pipes.stdout), ("stderr", self._pipes.stderr)]
        for stream, descriptor in streams:
            self._open_streams += 1
            self._loop.add_reader(descriptor, self._read, stream, descriptor)
        self._write("stdin", stdin)
        self._write("job", job or b"")

    def start_timeout(self, seconds: float) -> None:
        """Kill the run after this time, even if it has not started by then."""
        self._timeout = self._loop.call_later(max(seconds, 0), self.kill_for, "timeout")

    def kill_for(self, verdict: str) -> None:
        """Kill the run; the first verdict counts."""
        if not self._cell.exited.done():
            self._verdict = self._verdict or verdict
            self._cell.kill()

    async def wait(self) -> tuple[Ending, int]:
        """Wait for the end; returns how it ended and its peak memory. Cancelling this kills the run first."""
        try:
            try:
                ended = await asyncio.shield(self._cell.exited)
            except asyncio.CancelledError:
                self.kill_for("cancelled")
                await asyncio.wait([self._cell.exited], timeout=KILL_SECONDS)
                raise
            await asyncio.wait([self._drained], timeout=PIPE_GRACE_SECONDS)
            # A limit that the launcher noticed takes precedence over a verdict of this class.
            return Ending(code=ended.code, verdict=ended.verdict or self._verdict), ended.peak
        except LaunchError as error:
            self._output.add("stderr", f"{error}\n".encode())
            return Ending(code=None), 0
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancel the timeout and close the pipes."""
        if self._timeout is not None:
            self._timeout.cancel()
        for descriptor in (self._pipes.stdout, self._pipes.stderr):
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)
        for descriptor in self._writers:
            self._loop.remove_writer(descriptor)
        self._writers.clear()
        self._pipes.close()

    def _read(self, stream: OutputStream, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(descriptor)
            self._open_streams -= 1
            if not self._open_streams and not self._drained.done():
                self._drained.set_result(None)
        elif not self._output.add(stream, data):
            self.kill_for("output")

    def _write(self, name: str, data: bytes) -> None:
        descriptor: int = getattr(self._pipes, name)
        self._writers[descriptor] = memoryview(data)
        self._loop.add_writer(descriptor, self._push, name, descriptor)
        self._push(name, descriptor)

    def _push(self, name: str, descriptor: int) -> None:
        """Write as much as fits; close the pipe at the end, or if the run has closed its end."""
        if descriptor not in self._writers:
            return
        data = self._writers[descriptor]
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            self._writers[descriptor] = data
            return
        except OSError:
            pass
        del self._writers[descriptor]
        self._loop.remove_writer(descriptor)
        setattr(self._pipes, name, -1)
        os.close(descriptor)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
    descriptors.clear()
