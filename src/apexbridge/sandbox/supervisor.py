"""Supervises one run from start to end, with any backend: pipes, timeout, output limit, kill."""

import asyncio
import fcntl
import os
from contextlib import suppress
from typing import Literal

from apexbridge.sandbox.launcher_client import CellHandle
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import STREAMS, OutputStream, RunOutput

PIPE_GRACE_SECONDS = 0.5
"""How long a pipe may stay open after the run has ended."""
KILL_SECONDS = 5
READ_BYTES = 256 * 1024
PIPE_BYTES = 256 * 1024
PipeName = Literal["stdin", "stdout", "stderr", "job"]
PIPE_NAMES: tuple[PipeName, ...] = ("stdin", "stdout", "stderr", "job")


class Pipes:
    """The pipes of a run: the server's non-blocking ends, and the run's ends until the run has them."""

    def __init__(self) -> None:
        self.ours: dict[PipeName, int] = {}
        self.theirs: list[int] = []
        try:
            for name in PIPE_NAMES:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                self.ours[name] = reader if name in STREAMS else writer
                self.theirs.append(writer if name in STREAMS else reader)
                os.set_blocking(self.ours[name], False)
        except OSError:
            self.close()
            raise
        for stream in STREAMS:
            with suppress(OSError):  # above the user's limit for pipes
                fcntl.fcntl(self.ours[stream], fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close_theirs(self) -> None:
        """Close the server's copies of the run's ends, so that end of file arrives when the run closes its own."""
        while self.theirs:
            os.close(self.theirs.pop())

    def close(self) -> None:
        self.close_theirs()
        while self.ours:
            os.close(self.ours.popitem()[1])


class Supervisor:
    """Supervises one run in a cell."""

    def __init__(self, cell: CellHandle, pipes: Pipes, output: RunOutput, *, deadline: float) -> None:
        """Kills the run at the deadline, a time of the event loop's clock, even if it has not started by then."""
        self._cell = cell
        self._pipes = pipes
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._verdict: str | None = None
        self._timeout = self._loop.call_at(deadline, self.kill_for, "timeout")
        self._open_streams = len(STREAMS)
        self._drained = self._loop.create_future()

    def begin(self, *, stdin: bytes, job: bytes | None) -> None:
        """Send the input and read the output, once the run has its ends of the pipes."""
        if self._verdict is not None:  # killed while it was being started: kill again, now that there is a process
            self._cell.kill()
        self._pipes.close_theirs()
        for stream in STREAMS:
            self._loop.add_reader(self._pipes.ours[stream], self._read, stream)
        self._write("stdin", memoryview(stdin))
        self._write("job", memoryview(job or b""))

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
        self._timeout.cancel()
        for descriptor in self._pipes.ours.values():
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
        self._pipes.close()

    def _read(self, stream: OutputStream) -> None:
        descriptor = self._pipes.ours[stream]
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

    def _write(self, name: PipeName, data: memoryview) -> None:
        """Write as much as fits; close the pipe at the end, or if the run has closed its end."""
        descriptor = self._pipes.ours[name]
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            self._loop.add_writer(descriptor, self._write, name, data)
            return
        except OSError:
            pass
        self._loop.remove_writer(descriptor)
        os.close(self._pipes.ours.pop(name))
