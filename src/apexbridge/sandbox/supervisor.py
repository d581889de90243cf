"""Supervises one run from start to end, with any backend: pipes, timeout, output limit, kill."""

import asyncio
import os
from dataclasses import replace

from apexbridge.sandbox.launcher_client import CellHandle, PipeName
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import STREAMS, OutputStream, RunOutput

PIPE_GRACE_SECONDS = 0.5
"""How long a pipe may stay open after the run has ended."""
KILL_SECONDS = 5
READ_BYTES = 256 * 1024


class Supervisor:
    def __init__(self, cell: CellHandle, output: RunOutput, *, deadline: float) -> None:
        """Kills the run at the deadline, a time of the event loop's clock, even if it has not started by then."""
        self._cell = cell
        self._pipes = cell.pipes
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
        for stream in STREAMS:
            self._loop.add_reader(self._pipes.ours[stream], self._read, stream)
        self._write("stdin", memoryview(stdin))
        self._write("job", memoryview(job or b""))

    def kill_for(self, verdict: str) -> None:
        """Kill the run; the first verdict counts."""
        if not self._cell.exited.done():
            self._verdict = self._verdict or verdict
            self._cell.kill()

    async def wait(self) -> Ending:
        """Wait for the end. Cancelling this kills the run first."""
        try:
            try:
                ended = await asyncio.shield(self._cell.exited)
            except asyncio.CancelledError:
                self.kill_for("cancelled")
                await asyncio.wait([self._cell.exited], timeout=KILL_SECONDS)
                raise
            await asyncio.wait([self._drained], timeout=PIPE_GRACE_SECONDS)
            # A limit that the launcher noticed takes precedence over a verdict of this class.
            return replace(ended, verdict=ended.verdict or self._verdict)
        except LaunchError as error:
            self._output.add("stderr", f"{error}\n".encode())
            return Ending(code=None)
        finally:
            self.stop()

    def stop(self) -> None:
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
