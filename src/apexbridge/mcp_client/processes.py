"""Processes of stdio servers: the operator's own, or in the sandbox. Both are three pipes and an end."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import IO

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.limits import MAX_MESSAGE_BYTES, STOP_SECONDS

POLL_SECONDS = 0.1
_STOP_POLL_SECONDS = 0.02
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER")
"""Variables of this server that its children get. All others may contain secrets."""


class StartError(Exception):
    """The process could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    ended: Callable[[], Awaitable[str]]
    """Waits for the end; returns how it ended."""


StartProcess = Callable[[McpServerConfig, Mapping[str, str]], AbstractAsyncContextManager[ServerProcess]]
"""Starts the process of a server with these variables, and stops it when the block ends."""


@asynccontextmanager
async def own_process(config: McpServerConfig, variables: Mapping[str, str]) -> AsyncIterator[ServerProcess]:
    """A process of the operator's own, with a minimal environment and its own process group. Raises StartError."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn() -> None:
        spawned.append(_spawn(config, {**inherited, **variables}))

    try:
        await in_thread(spawn)  # if it is cancelled meanwhile, the process is there, and is ended below
        process = spawned[0]

        async def ended() -> str:
            # Not only the end of its output: a descendant may hold the pipe open.
            while (ending := _ending(process)) is None:  # noqa: ASYNC110  # asyncio cannot wait for a process of Popen
                await asyncio.sleep(POLL_SECONDS)
            return ending

        async with connected_pipes(*(os.dup(pipe.fileno()) for pipe in _pipes(process))) as (stdin, stdout, stderr):
            for pipe in _pipes(process):
                pipe.close()
            try:
                yield ServerProcess(stdin=stdin, stdout=stdout, stderr=stderr, ended=ended)
            finally:
                stdin.close()
                await run_to_completion(_stop(process))
    finally:
        for process in spawned:
            for pipe in _pipes(process):
                pipe.close()
            _signal(process, signal.SIGKILL)
            await run_to_completion(_has_ended_within(process, STOP_SECONDS))
            process.poll()


def _pipes(process: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]


def _spawn(config: McpServerConfig, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    assert config.command is not None  # noqa: S101  # the caller chose stdio
    try:
        return subprocess.Popen(  # noqa: S603  # the operator's own command
            [config.command, *config.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            cwd=config.cwd,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(f"{config.command} cannot be started: {reason}") from None


@asynccontextmanager
async def connected_pipes(
    stdin: int, stdout: int, stderr: int
) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]]:
    """Streams over the server's ends of the pipes, which are closed at the end of the block."""
    loop = asyncio.get_running_loop()
    waiting = [stdin, stdout, stderr]
    transports: list[asyncio.BaseTransport] = []
    try:
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(waiting.pop(0), "wb", buffering=0)
        )
        transports.append(writing)
        readers = []
        while waiting:
            reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
            reading, _ = await loop.connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader),  # type: ignore[misc]  # bound per pipe
                os.fdopen(waiting.pop(0), "rb", buffering=0),
            )
            transports.append(reading)
            readers.append(reader)
        yield asyncio.StreamWriter(writing, protocol, None, loop), readers[0], readers[1]
    finally:
        for descriptor in waiting:
            os.close(descriptor)
        for transport in transports:
            if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
                transport.abort()  # what is not written yet is not needed any more
            transport.close()


async def _stop(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end after its input was closed; then SIGTERM, then SIGKILL."""
    if not await _has_ended_within(process, STOP_SECONDS):
        _signal(process, signal.SIGTERM)
        await _has_ended_within(process, STOP_SECONDS)


async def _has_ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    for _ in range(round(seconds / _STOP_POLL_SECONDS)):
        if _ending(process) is not None:
            return True
        await asyncio.sleep(_STOP_POLL_SECONDS)
    return False


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the process group: children of the process may have outlived it. It is not reaped yet, so its id holds."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _ending(process: subprocess.Popen[bytes]) -> str | None:
    """How the process ended; None while it runs. It stays a zombie, so that its group can still be signalled."""
    try:
        status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "it ended"
    if status is None:
        return None
    if status.si_code == os.CLD_EXITED:
        return f"it ended with exit code {status.si_status}"
    return f"it was ended by {signal.Signals(status.si_status).name}"
