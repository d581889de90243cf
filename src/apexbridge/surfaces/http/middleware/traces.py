"""A span for each request. Only applications with a tracer have this middleware."""

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._tracing import Tracer
from apexbridge.surfaces.http.middleware.access_log import QUIET_PATHS
from apexbridge.surfaces.http.transport.requests import request_id, route_of

TRACE_HEADERS = (b"traceparent", b"tracestate")
SERVER_ERROR = 500


class RequestSpans:
    """Continues the trace of the client, if it sends one (`traceparent`)."""

    def __init__(self, app: ASGIApp, *, tracer: Tracer, unrouted: Collection[str] = ()) -> None:
        self._app = app
        self._tracer = tracer
        self._unrouted = frozenset(unrouted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        headers = {name.decode(): text.decode("latin-1") for name, text in scope["headers"] if name in TRACE_HEADERS}
        attributes = {
            "http.request.method": method,
            "url.scheme": scope["scheme"],
            "network.protocol.version": scope["http_version"],
            "apexbridge.request.id": request_id(scope),
        }
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._tracer.start(method, attributes, kind="server", headers=headers) as span:
            try:
                with span.current():
                    await self._app(scope, receive, watched)
            finally:
                route = route_of(scope, self._unrouted)
                span.add({"http.route": route, "http.response.status_code": status})
                if route is not None:
                    span.rename(f"{method} {route}")
                if status is not None and status >= SERVER_ERROR:
                    span.fail(str(status))
