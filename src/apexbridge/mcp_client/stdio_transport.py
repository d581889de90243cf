"""Messages of a stdio server: one JSON object a line, with limits that the SDK's own transport does not have."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.mcp_client.limits import MAX_MESSAGE_BYTES, STDERR_BYTES
from apexbridge.mcp_client.processes import ServerProcess
from apexbridge.mcp_client.throttle import Throttle

MAX_VALUES = 200_000
READ_BYTES = 64 * 1024
PIPE_GRACE_SECONDS = 1.0
"""How long the last text of stderr may take to arrive after the end."""
_SHOWN_CHARACTERS = 200
Lost = Callable[[str], None]
"""Called once, with the reason, when nothing more can arrive."""


@asynccontextmanager
async def stdio_streams(
    process: ServerProcess, lost: Lost, *, masked: Callable[[str], str] = str
) -> AsyncIterator[TransportStreams]:
    """The streams of an SDK session over a process. `masked` removes secrets from text: before it is cut."""
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    printed = bytearray()
    has_printed_all = asyncio.Event()
    noise: list[str] = []

    def report(reason: str) -> None:
        last = masked(bytes(printed).decode("utf-8", "replace")).strip() or (noise[0] if noise else "")
        lost(f"{reason}: {last[-_SHOWN_CHARACTERS:]}" if last else reason)

    async def read_messages() -> None:
        throttle = Throttle()
        reason = ""
        async with incoming:
            try:
                while line := await _line(process.stdout):
                    await throttle.take(len(line))
                    check_shape(line, max_values=MAX_VALUES)
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:  # some servers print text; it is ignored
                        text = masked(line[:STDERR_BYTES].decode("utf-8", "replace")).strip()
                        noise[:] = noise or [text[:_SHOWN_CHARACTERS]]
                        continue
                    await incoming.send(SessionMessage(message))
            except JsonShapeError as error:
                reason = f"it sent a message that is too large: {error}"
            except asyncio.LimitOverrunError:
                reason = f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes"
            except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                reason = "the connection was closed"
            if not reason:
                try:
                    async with asyncio.timeout(PIPE_GRACE_SECONDS):
                        reason = await process.ended()
                except TimeoutError:
                    reason = "it closed its output"
            with suppress(TimeoutError):
                async with asyncio.timeout(PIPE_GRACE_SECONDS):
                    await has_printed_all.wait()
            report(reason)  # before the stream is closed: the session only knows that it is

    async def watch_end() -> None:
        """A descendant may hold the pipe open after the process has ended."""
        reason = await process.ended()
        await asyncio.sleep(PIPE_GRACE_SECONDS)
        report(reason)

    async def read_errors() -> None:
        throttle = Throttle()
        while data := await process.stderr.read(READ_BYTES):
            await throttle.take(len(data), messages=0)
            printed.extend(data)
            del printed[:-STDERR_BYTES]
        has_printed_all.set()

    async def write_messages() -> None:
        try:
            async with outgoing:
                async for message in outgoing:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()
        except OSError:
            pass  # the reader reports the end

    async with anyio.create_task_group() as tasks:
        for work in (read_messages, watch_end, read_errors, write_messages):
            tasks.start_soon(work)
        try:
            yield read_stream, write_stream
        finally:
            tasks.cancel_scope.cancel()
            for stream in (read_stream, write_stream, incoming, outgoing):
                stream.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line with its end; empty at the end of the stream. Raises LimitOverrunError if it is too long."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
