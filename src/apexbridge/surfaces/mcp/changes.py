"""Notifies clients of changed skills: by `subscriptions/listen`, or by notifications to sessions."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from apexbridge._fair_queue import decrease
from apexbridge._usage import ResourceUsage
from apexbridge.errors import RequestError
from apexbridge.skills import SKILL_FILE
from apexbridge.surfaces.mcp.calls import Context, caller_in
from apexbridge.surfaces.mcp.uris import skill_uri
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.registry import ToolRegistry

COLLECT_SECONDS = 0.1
"""Changes are reported together: an import of a folder changes hundreds of skills."""
SEND_SECONDS = 5
RETRY_SECONDS = 60
MAX_KEY_SESSIONS = 100
OPENING = "mcp_opening"
"""Key of the request's state: is called when the session that the request opens is noted."""
MAX_SUBSCRIPTIONS = 1_000
"""Resources that one session may subscribe to."""
logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Session:
    connection: Connection
    caller: str
    uris: set[str] = field(default_factory=set)


class OpenSessions:
    """The sessions of clients that use a revision with a handshake."""

    def __init__(self) -> None:
        self._sessions: dict[Connection, _Session] = {}
        self._opening: Counter[str] = Counter()
        """Requests of each caller that are opening a session."""

    @contextmanager
    def opening(self, caller: str, state: MutableMapping[str, Any]) -> Iterator[None]:
        """Take the place of a session until the request that opens it has ended, or the session is noted.

        Raises RequestError (RATE_LIMITED) if the caller's key has too many sessions.
        """
        if caller and self.count(caller) >= MAX_KEY_SESSIONS:
            raise RequestError(
                f"The API key {caller} has {MAX_KEY_SESSIONS} MCP sessions open, the most for one key.",
                code="RATE_LIMITED",
                retryAfter=RETRY_SECONDS,
            )
        self._opening[caller] += 1
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                decrease(self._opening, caller)
            is_over = True

        state[OPENING] = end
        try:
            yield
        finally:
            end()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware of the MCP server: notes each new session until it ends."""
        if ctx.method == "initialize":
            connection = _connection(ctx)
            self._sessions[connection] = _Session(connection, caller_in(ctx))
            connection.exit_stack.callback(self._sessions.pop, connection, None)
            if ctx.request is not None and (end := ctx.request.scope.get("state", {}).get(OPENING)):
                end()
        return await call_next(ctx)

    def count(self, caller: str) -> int:
        """The sessions of a caller, those that are being opened included."""
        return self._opening[caller] + sum(session.caller == caller for session in self._sessions.values())

    def usage(self, caller: str, *, max_sessions: int) -> ResourceUsage:
        return ResourceUsage(
            resource="mcp-sessions",
            used=self.count(caller),
            limit=MAX_KEY_SESSIONS if caller else max_sessions,
            total=self._opening.total() + len(self._sessions),
            total_limit=max_sessions,
        )

    def all(self) -> list[_Session]:
        return list(self._sessions.values())

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        session = self._sessions.get(_connection(context))
        if session is not None:
            if len(session.uris) >= MAX_SUBSCRIPTIONS:
                raise MCPError(INVALID_PARAMS, f"A session can subscribe to {MAX_SUBSCRIPTIONS} resources at most.")
            session.uris.add(params.uri)
        return types.EmptyResult()

    async def unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        session = self._sessions.get(_connection(context))
        if session is not None:
            session.uris.discard(params.uri)
        return types.EmptyResult()


class ChangeNotices:
    """Watches the registry, in which each skill is a tool, and notifies clients."""

    def __init__(self, registry: ToolRegistry, bus: InMemorySubscriptionBus, sessions: OpenSessions) -> None:
        self._registry = registry
        self._bus = bus
        self._sessions = sessions
        self._states: dict[str, tuple[str, bool]] = {
            tool.id: (tool.metadata.content_hash, registry.is_enabled(tool.id))
            for tool in registry.list()
            if tool.id.startswith(SKILL_PREFIX)
        }
        self._changed: set[str] = set()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Notify until cancelled."""
        unsubscribe: Callable[[], None] = self._registry.subscribe(self._note)
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(COLLECT_SECONDS)
                self._wake.clear()
                changed, self._changed = self._changed, set()
                if names := [id.removeprefix(SKILL_PREFIX) for id in sorted(changed) if self._is_different(id)]:
                    try:
                        await self._publish(names)
                    except Exception:
                        logger.exception("MCP clients could not be notified of changed skills")
        finally:
            unsubscribe()

    def _note(self, id: str) -> None:
        if id.startswith(SKILL_PREFIX):
            self._changed.add(id)
            self._wake.set()

    def _is_different(self, id: str) -> bool:
        """Whether clients see a difference. Indexing, for example, also registers a skill again."""
        tool = self._registry.find(id)
        state = (tool.metadata.content_hash, self._registry.is_enabled(id)) if tool is not None else None
        before = self._states.get(id)
        if state is None:
            self._states.pop(id, None)
        else:
            self._states[id] = state
        return state != before

    async def _publish(self, names: list[str]) -> None:
        updated = [skill_uri(name, SKILL_FILE) for name in names]
        await self._bus.publish(ResourcesListChanged())
        await self._bus.publish(PromptsListChanged())
        for uri in updated:
            await self._bus.publish(ResourceUpdated(uri=uri))
        # At once: a client that does not read must not delay the others.
        await asyncio.gather(*(_notify(session, updated) for session in self._sessions.all()))


async def _notify(session: _Session, updated: Sequence[str]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(SEND_SECONDS):
            await session.connection.send_resource_list_changed()
            await session.connection.send_prompt_list_changed()
            for uri in updated:
                if uri in session.uris:
                    await session.connection.send_resource_updated(uri)


def _connection(context: Context) -> Connection:
    """The connection of a session. The SDK passes it to handlers only inside the session object."""
    return context.session._connection
