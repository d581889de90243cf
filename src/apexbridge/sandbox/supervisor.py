"""One run from start to end, the same for every kind of walls: pipes, clock, budget, kill, carry out."""

import asyncio
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from apexbridge.sandbox.launcher_client import Cell, Exit, LaunchError
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import Output, Stream

PIPE_GRACE_SECONDS = 0.5
"""How long a pipe may stay open after the run has ended."""
KILL_SECONDS = 5
READ_BYTES = 256 * 1024
PIPE_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class Pipes:
    """The server's ends of a run's files, and the run's own ends until they were handed over."""

    stdin: int
    stdout: int
    stderr: int
    job: int
    theirs: list[int]

    @classmethod
    def make(cls) -> "Pipes":
        """Four pipes; ours do not block."""
        made: list[tuple[int, int]] = []
        try:
            for _ in range(4):
                made.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401  # what was made before a failure has to be closed
        except OSError:
            for pair in made:
                for descriptor in pair:
                    os.close(descriptor)
            raise
        (stdin, ours_in), (ours_out, stdout), (ours_err, stderr), (job, ours_job) = made
        for descriptor in (ours_in, ours_out, ours_err, ours_job):
            os.set_blocking(descriptor, False)
        for descriptor in (ours_out, ours_err):
            with suppress(OSError):  # more than a user may have is no reason to fail
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return cls(stdin=ours_in, stdout=ours_out, stderr=ours_err, job=ours_job, theirs=[stdin, stdout, stderr, job])

    def hand_over(self) -> None:
        """The run has its ends now; ours of them are closed, so that the end of a pipe is seen."""
        _close(self.theirs)

    def close(self) -> None:
        """Close whatever is still open."""
        self.hand_over()
        ours = [self.stdin, self.stdout, self.stderr, self.job]
        self.stdin = self.stdout = self.stderr = self.job = -1
        _close(ours)


class Supervisor:
    """Watches over one run in a cell."""

    def __init__(self, cell: Cell, pipes: Pipes, output: Output) -> None:
        self._cell = cell
        self._pipes = pipes
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._verdict: str | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._open_streams = 0
        self._drained = self._loop.create_future()
        self._writers: dict[int, memoryview] = {}

    def begin(self, *, stdin: bytes, job: bytes | None) -> None:
        """Send the input and listen to the output; the run has its ends of the pipes."""
        if self._verdict is not None:  # decided while it was being started: say it again, now that there is something
            self._cell.kill()
        self._pipes.hand_over()
        streams: list[tuple[Stream, int]] = [("stdout", self._pipes.stdout), ("stderr", self._pipes.stderr)]
        for stream, descriptor in streams:
            self._open_streams += 1
            self._loop.add_reader(descriptor, self._read, stream, descriptor)
        self._write("stdin", stdin)
        self._write("job", job or b"")

    def start_clock(self, timeout: float) -> None:
        """From now on the run has this much time, whether it was started by then or not."""
        self._clock = self._loop.call_later(max(timeout, 0), self.end_for, "timeout")

    def end_for(self, verdict: str) -> None:
        """End the run because of this; the first reason is the one that counts."""
        if not self._cell.exited.done():
            self._verdict = self._verdict or verdict
            self._cell.kill()

    async def wait(self) -> tuple[Ending, int]:
        """Wait for the end, or make one; gives how it ended and the most memory it had.

        Cancelling this ends the run first.
        """
        try:
            try:
                ended = await asyncio.shield(self._cell.exited)
            except asyncio.CancelledError:
                self.end_for("cancelled")
                await asyncio.wait([self._cell.exited], timeout=KILL_SECONDS)
                raise
            await asyncio.wait([self._drained], timeout=PIPE_GRACE_SECONDS)
            return self._ending(ended), ended.peak
        except LaunchError as error:
            self._output.add("stderr", f"{error}\n".encode())
            return Ending(code=None), 0
        finally:
            self.stop()

    def _ending(self, ended: Exit) -> Ending:
        """Why and how it ended; a limit that the launcher saw comes before a reason of ours."""
        verdict = ended.verdict or self._verdict
        return Ending(code=ended.code, verdict=verdict)

    # ---------------------------------------------------------------------------------------------------- pipes
    def _read(self, stream: Stream, descriptor: int) -> None:
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
            self.end_for("output")

    def _write(self, name: str, data: bytes) -> None:
        descriptor: int = getattr(self._pipes, name)
        self._writers[descriptor] = memoryview(data)
        self._loop.add_writer(descriptor, self._push, name, descriptor)
        self._push(name, descriptor)

    def _push(self, name: str, descriptor: int) -> None:
        """Write what fits; at the end, or when nobody reads any more, close."""
        if descriptor not in self._writers:
            return
        rest = self._writers[descriptor]
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            self._writers[descriptor] = rest
            return
        except OSError:
            pass
        del self._writers[descriptor]
        self._loop.remove_writer(descriptor)
        setattr(self._pipes, name, -1)
        os.close(descriptor)

    def stop(self) -> None:
        """Let go of clock and pipes."""
        if self._clock is not None:
            self._clock.cancel()
        for descriptor in (self._pipes.stdout, self._pipes.stderr):
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)
        for descriptor in self._writers:
            self._loop.remove_writer(descriptor)
        self._writers.clear()
        self._pipes.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
    descriptors.clear()


def packed(script: str, layer: str, arguments: Sequence[str], variables: dict[str, str]) -> bytes:
    """A job as the loaders read it: strings, each ended by a NUL."""
    words = [script, layer, str(len(arguments)), *arguments]
    words += [word for pair in variables.items() for word in pair]
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
