"""A connection to one MCP server, over the SDK. Import this module in a thread: the SDK takes a second to import."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from apexbridge._json import dumped
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.http_transport import http_client
from apexbridge.mcp_client.limits import (
    CONNECT_SECONDS,
    MAX_LIST_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PAGES,
    MAX_ROUNDS,
    MAX_TOOLS,
)
from apexbridge.mcp_client.processes import StartProcess
from apexbridge.mcp_client.secret_values import ResolvedValues
from apexbridge.mcp_client.stdio_transport import stdio_streams
from apexbridge.tools.tool import Progress

RELISTEN_SECONDS = 5.0
Json = dict[str, Any]
_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_INFO = types.Implementation(name="apexbridge", version=version("apexbridge"))
# The SDK logs what servers send, with tracebacks. It is untrusted, may contain secrets, and can be endless.
for _name in ("mcp.client", "mcp.shared", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class CallError(Exception):
    """A call that has no result."""

    def __init__(self, message: str, *, is_connection: bool = False) -> None:
        """`is_connection`: the server may be gone."""
        super().__init__(message)
        self.is_connection = is_connection


class Connection:
    """An open connection. `woken` is set when the list of tools may have changed or the connection is lost."""

    def __init__(self, client: Client, woken: asyncio.Event, lost: Callable[[], str | None]) -> None:
        self._client = client
        self._lost = lost
        self.woken = woken

    @property
    def lost(self) -> str | None:
        """Why nothing more can arrive; None while the connection is open."""
        return self._lost()

    @property
    def protocol_version(self) -> str:
        return self._client.protocol_version

    @property
    def is_modern(self) -> bool:
        return self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def server_info(self) -> str | None:
        info = self._client.server_info
        return None if info is None else f"{info.name} {info.version}"

    async def list_tools(self) -> tuple[list[Json], str | None]:
        """The tools as JSON, and a problem if the list is too long."""
        if self._client.server_capabilities.tools is None:
            return [], None
        tools: list[Json] = []
        size = 0
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            listed = [tool.model_dump(mode="json", by_alias=True, exclude_unset=True) for tool in page.tools]
            tools += listed
            size += len(dumped(listed))
            previous, cursor = cursor, page.next_cursor
            if cursor is None or len(tools) > MAX_TOOLS:
                return tools, None
            if size > MAX_LIST_BYTES:  # it must not fill the memory until the last page
                return tools, f"the list has more than {MAX_LIST_BYTES} bytes; what follows is left out"
            if cursor == previous:
                return tools, "the list repeats a page; what follows is left out"
        return tools, f"the list has more than {MAX_PAGES} pages; what follows is left out"

    async def call(self, tool: str, arguments: Json, progress: Progress) -> Json:
        """Call a tool; returns the result as JSON. A cancellation is passed on to the server. Raises CallError."""
        try:
            return await self._call(tool, arguments, progress)
        except MCPError as error:
            is_connection = error.code in (types.CONNECTION_CLOSED, types.INVALID_REQUEST, types.INTERNAL_ERROR)
            raise CallError(error.message, is_connection=is_connection) from None
        except CallError:
            raise
        except Exception as error:  # the SDK raises many types for malformed answers and closed streams
            raise CallError(problem_of(error), is_connection=True) from None

    async def _call(self, tool: str, arguments: Json, progress: Progress) -> Json:
        responses: dict[str, Any] | None = None
        state: str | None = None
        for _ in range(MAX_ROUNDS + 1):
            params = types.CallToolRequestParams(
                name=tool, arguments=arguments, input_responses=responses, request_state=state
            )
            result = await self._send(types.CallToolRequest(params=params), progress)
            if isinstance(result, types.CallToolResult):
                return result.model_dump(mode="json", by_alias=True, exclude_unset=True)
            responses = {key: _declined(request) for key, request in (result.input_requests or {}).items()}
            state = result.request_state
        raise CallError(f"it asked for input more than {MAX_ROUNDS} times")

    async def _send(
        self, request: types.CallToolRequest, on_progress: Progress
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Send a call. The SDK's own method would check the result against the server's schema, without limits."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            on_progress(message or "", min(1.0, max(0.0, progress / total)) if total else None)

        try:
            return await self._client.session.send_request(request, _RESULT, progress_callback=report)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH or not self.is_modern:
                raise
        await self.list_tools()  # the headers of a call depend on the listed schema, which has changed
        return await self._client.session.send_request(request, _RESULT, progress_callback=report)

    async def follow_changes(self) -> None:
        """Set `woken` when the list changes, until cancelled. Older servers send notifications without a request."""
        capability = self._client.server_capabilities.tools
        if not self.is_modern or capability is None or not capability.list_changed:
            return
        while True:
            try:
                async with self._client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self.woken.set()
            except (MCPError, SubscriptionLost, TimeoutError):
                self.woken.set()  # there is no replay, so the list is read again
            await asyncio.sleep(RELISTEN_SECONDS)


@asynccontextmanager
async def connect(
    config: McpServerConfig, values: ResolvedValues, start_process: StartProcess
) -> AsyncIterator[Connection]:
    """Connect to a server. `values` are its headers, or the variables of its process.

    Raises StartError, TimeoutError, and errors of the SDK, often in an exception group.
    """
    woken = asyncio.Event()
    reason: str | None = None

    def lose(message: str) -> None:
        nonlocal reason
        reason = reason or message
        woken.set()

    async def handle(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            woken.set()

    async with AsyncExitStack() as stack:
        client = Client(
            _transport(config, values, start_process, lose),
            mode="auto",
            read_timeout_seconds=None,
            elicitation_callback=_decline,
            message_handler=handle,
            client_info=_INFO,
            cache=None,
        )
        try:
            # Not anyio's timeout: the SDK leaves scopes open that end with the connection.
            async with asyncio.timeout(CONNECT_SECONDS):
                await stack.enter_async_context(client)
        except Exception as error:
            if reason is not None:  # the process has ended; the SDK only knows that the stream is closed
                raise ConnectionError(reason) from error
            raise
        connection = Connection(client, woken, lambda: reason)
        following = asyncio.create_task(connection.follow_changes())
        try:
            yield connection
        finally:
            following.cancel()
            await asyncio.wait([following])


def _transport(
    config: McpServerConfig,
    values: ResolvedValues,
    start_process: StartProcess,
    lose: Callable[[str], None],
) -> AbstractAsyncContextManager[Any]:
    if config.url is not None:
        return _http_streams(config.url, values)

    @asynccontextmanager
    async def streams() -> AsyncIterator[Any]:
        async with (
            start_process(config, values.values) as process,
            stdio_streams(process, lose, masked=values.masked) as opened,
        ):
            yield opened

    return streams()


@asynccontextmanager
async def _http_streams(url: str, values: ResolvedValues) -> AsyncIterator[Any]:
    async with (
        http_client(values.values) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as opened,
    ):
        yield opened


async def _decline(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


def _declined(request: Any) -> types.ElicitResult:
    if isinstance(request, types.ElicitRequest):
        return types.ElicitResult(action="decline")
    raise CallError("it asks for something that this client does not offer, such as sampling or roots")


def problem_of(error: BaseException) -> str:
    """The first cause in an exception group, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if type(error).__name__ == "ValidationError":
        return "its answer does not follow the protocol"
    if isinstance(error, httpx2.ConnectError):
        return "nothing answers at its address"
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__
