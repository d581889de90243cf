"""The access log: one line for each request, without query strings and without secrets.

The request's id is in this line and in every other line that is logged on behalf of the request.
"""

import logging
import time
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._request_id import REQUEST_ID as LOGGED_ID
from apexbridge.surfaces.http.transport.api_dialects import is_anthropic
from apexbridge.surfaces.http.transport.requests import REQUEST_ID, caller_of, request_id, route_of

QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Not logged if they succeed: probes and commands request them all the time."""
logger = logging.getLogger("apexbridge.access")


class AccessLog:
    """Logs each request when its response is complete, and sends the id that is in the log as `X-Request-Id`.

    Anthropic's clients get it as `request-id` too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        key_name: Callable[[str], str | None],
        count: Callable[[str | None, str, int | None, float], None],
        unrouted: Collection[str] = (),
    ) -> None:
        """`count` is called with the route, method, status and seconds of each request.

        `unrouted` are the paths that are served without the router.
        """
        self._app = app
        self._count = count
        self._unrouted = frozenset(unrouted)
        self._key_name = key_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id = request_id(scope)
        scope.setdefault("state", {})[REQUEST_ID] = id
        names = (b"x-request-id", b"request-id") if is_anthropic(scope) else (b"x-request-id",)
        status: int | None = None
        begun = time.monotonic()
        outer = LOGGED_ID.set(id)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = {name.lower() for name, _ in message["headers"]}
                added = [(name, id.encode("ascii")) for name in names if name not in sent]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            took = time.monotonic() - begun
            self._count(route_of(scope, self._unrouted), scope["method"], status, took)
            self._log(scope, status, round(took * 1000))
            LOGGED_ID.reset(outer)

    def _log(self, scope: Scope, status: int | None, took_ms: int) -> None:
        if not logger.isEnabledFor(logging.INFO) or (scope["path"] in QUIET_PATHS and status == 200):
            return
        caller = caller_of(scope)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,  # None if the client disconnected first
            "durationMs": took_ms,
            "key": (self._key_name(caller) or caller) if caller else None,
        }
        logger.info(
            "%(method)s %(path)s %(status)s %(durationMs)s ms key=%(key)s",
            {key: "-" if value is None else value for key, value in fields.items()},
            extra={"fields": fields},
        )
