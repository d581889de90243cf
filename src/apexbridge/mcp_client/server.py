"""One MCP server: a task owns its connection, connects again after a failure, and reads its list of tools."""

import asyncio
import importlib
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from apexbridge._fair_queue import Turns
from apexbridge._tasks import in_thread, start_shared, wait_up_to
from apexbridge._text import escaped
from apexbridge._time import now_ms
from apexbridge.errors import ToolError, ToolExecutionError
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.definitions import Listing, listing_of
from apexbridge.mcp_client.limits import (
    CONNECT_SECONDS,
    FIRST_PAUSE_SECONDS,
    LIST_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MAX_CALLS,
    MAX_ERROR_CHARACTERS,
    REFRESH_SECONDS,
    RELIST_PAUSE_SECONDS,
    STABLE_SECONDS,
)
from apexbridge.mcp_client.processes import StartProcess
from apexbridge.mcp_client.results import result_of
from apexbridge.mcp_client.secret_values import ResolvedValues, SecretOf
from apexbridge.tools.tool import ToolContext, ToolResult

if TYPE_CHECKING:
    from apexbridge.mcp_client.connection import Connection

ServerState = Literal["idle", "connecting", "connected", "waiting"]
"""idle: not used yet; waiting: the next attempt to connect comes after a pause."""
Origin = Literal["apex.toml", "added"]
OnListing = Callable[["McpServer", Listing], Awaitable[None]]
OnState = Callable[[str, str], None]
"""Called with the name of a server and its new state."""
MISSING_SDK = "the package mcp is not installed; install it with: pip install 'apexbridge[mcp]'"
logger = logging.getLogger(__name__)


class McpServer:
    """Connects when it is started, or for the first call."""

    def __init__(
        self,
        config: McpServerConfig,
        *,
        origin: Origin,
        secret_of: SecretOf,
        start_process: StartProcess,
        on_listing: OnListing,
        on_state: OnState = lambda name, state: None,
    ) -> None:
        self.config = config
        self.origin: Origin = origin
        self.state: ServerState = "idle"
        self.since = now_ms()
        """When the state began, in milliseconds since 1970."""
        self.last_error: str | None = None
        self.problems: tuple[str, ...] = ()
        """Tools that the server lists and that cannot be used."""
        self.protocol_version: str | None = None
        self.is_modern: bool | None = None
        self.server_info: str | None = None
        self._secret_of = secret_of
        self._start_process = start_process
        self._on_listing = on_listing
        self._on_state = on_state
        self._connection: Connection | None = None
        self._masked: Callable[[str], str] = str
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set when an attempt to connect has succeeded or failed."""
        self._retry = asyncio.Event()
        """Ends the pause before the next attempt."""
        self._must_check = False
        self._is_stopping = False
        """An error while the connection is closed can hide the cancellation."""
        self._calls = Turns(MAX_CALLS)

    def start(self) -> None:
        if self._task is None:
            self._set_state("connecting")
            self._task = start_shared(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        self._is_stopping = True
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._is_stopping = False
        self._set_state("idle")

    def reconnect(self) -> None:
        """Try to connect now, without waiting for the next attempt; a connection that exists is checked."""
        self.start()
        self._settled.clear()
        if self.state == "waiting":
            self._set_state("connecting")
        self._retry.set()
        self._check_connection()

    async def wait_until_settled(self, seconds: float) -> None:
        """Wait until the server is connected, or an attempt to connect has failed, or the time is up."""
        self.start()
        await wait_up_to(seconds, self._settled)

    @property
    def is_available(self) -> bool:
        """Whether a call can succeed: connected, or not tried yet."""
        return self.state != "waiting"

    # --------------------------------------------------------------------------------------------------------- calls
    async def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool of this server.

        Raises:
            ToolError: MCP_UNAVAILABLE, the server cannot be reached.
            ToolExecutionError: the server refused the call, or its answer is unusable.
        """
        async with self._calls.turn(context.caller):
            connection = await self._connected()
            errors: Any = _adapter()
            try:
                result = await connection.call(tool, arguments, context.progress)
            except errors.CallError as error:
                message = self._shown(str(error))
                if not error.is_connection:
                    raise ToolExecutionError(f"{self.config.name} refused the call: {message}", tool=tool) from None
                self._check_connection()
                raise self._unavailable(message, tool) from None
        return await in_thread(result_of, result, masked=self._masked)

    async def _connected(self) -> "Connection":
        if self._connection is None and self.state in ("idle", "connecting"):
            await self.wait_until_settled(CONNECT_SECONDS)
        if self._connection is None:
            raise self._unavailable(self.last_error or "it does not answer")
        return self._connection

    def _unavailable(self, reason: str, tool: str | None = None) -> ToolError:
        return ToolError(
            f"The MCP server {self.config.name} is not available: {reason}",
            code="MCP_UNAVAILABLE",
            server=self.config.name,
            tool=tool,
        )

    def _check_connection(self) -> None:
        """Read the list again, to find out whether the server is still there."""
        self._must_check = True
        if self._connection is not None:
            self._connection.woken.set()

    # ---------------------------------------------------------------------------------------------------- connection
    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        clock = asyncio.get_running_loop().time
        while True:
            self._set_state("connecting")
            begun = clock()
            try:
                await self._serve()
            except Exception as error:
                if self._is_stopping:
                    return
                self.last_error = self._shown(self._reason(error))
                if not isinstance(error, ConnectionError | TimeoutError | OSError):
                    logger.debug("the MCP server %s failed", self.config.name, exc_info=True)
            finally:
                self._connection = None
            logger.warning("the MCP server %s is not available: %s", self.config.name, self.last_error)
            if clock() - begun > STABLE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._retry.clear()
            self._set_state("waiting")
            self._settled.set()
            await wait_up_to(pause * random.uniform(0.5, 1.0), self._retry)  # noqa: S311  # jitter, not security
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _serve(self) -> None:
        """Connect and follow the server until the connection is lost. Always raises."""
        config = self.config
        try:
            adapter = await in_thread(_adapter)
        except ModuleNotFoundError as error:
            raise ConnectionError(MISSING_SDK) from error
        values = await in_thread(ResolvedValues, config.env or config.headers, self._secret_of)
        self._masked = values.masked
        async with adapter.connect(config, values, self._start_process) as connection:
            try:
                await self._follow(connection)
            except Exception:
                if connection.lost is not None:
                    raise ConnectionError(connection.lost) from None
                raise

    async def _follow(self, connection: "Connection") -> None:
        """Read the list of tools, and again when it may have changed. Always raises."""
        self.protocol_version, self.is_modern = connection.protocol_version, connection.is_modern
        self.server_info = None if connection.server_info is None else self._shown(connection.server_info)
        await self._read_list(connection)
        self._connection = connection
        self._set_state("connected")
        self._settled.set()
        logger.info("the MCP server %s is connected", self.config.name)
        while True:
            await wait_up_to(REFRESH_SECONDS * random.uniform(0.8, 1.0), connection.woken)  # noqa: S311
            connection.woken.clear()
            if connection.lost is not None:
                raise ConnectionError(connection.lost)
            self._must_check = False
            await self._read_list(connection)
            await self._pause(connection)

    async def _pause(self, connection: "Connection") -> None:
        """Wait before the list is read again, unless the connection is lost or must be checked."""
        clock = asyncio.get_running_loop().time
        deadline, has_changed = clock() + RELIST_PAUSE_SECONDS, False
        while (left := deadline - clock()) > 0 and connection.lost is None and not self._must_check:
            await wait_up_to(left, connection.woken)
            has_changed |= connection.woken.is_set()
            connection.woken.clear()
        if has_changed or connection.lost is not None or self._must_check:
            connection.woken.set()

    async def _read_list(self, connection: "Connection") -> None:
        async with asyncio.timeout(LIST_SECONDS):
            tools, problem = await connection.list_tools()
        listing = await in_thread(listing_of, tools, server=self.config.name)
        if problem is not None:
            listing = replace(listing, problems=(*listing.problems, problem))
        self.problems = tuple(self._shown(text) for text in listing.problems)
        await self._on_listing(self, listing)
        self._settled.set()

    def _reason(self, error: BaseException) -> str:
        with suppress(ModuleNotFoundError):
            return str(_adapter().problem_of(error))
        return str(error)

    def _shown(self, text: str) -> str:
        """Text of the server for people: one line, bounded, without secrets."""
        config = self.config
        masked = self._masked(text[: 4 * MAX_ERROR_CHARACTERS])
        if config.url is not None and config.shown_url is not None:
            masked = masked.replace(config.url, config.shown_url)
        return escaped(" ".join(masked.split()))[:MAX_ERROR_CHARACTERS]

    def _set_state(self, state: ServerState) -> None:
        if state != self.state:
            self.state, self.since = state, now_ms()
            self._on_state(self.config.name, state)


def _adapter() -> Any:
    """The module that wraps the SDK, imported when it is first needed."""
    return importlib.import_module("apexbridge.mcp_client.connection")
