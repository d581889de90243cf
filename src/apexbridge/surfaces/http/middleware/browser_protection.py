"""Protection against other sites: cross-site requests, DNS rebinding and framing.

A page of another site can make a browser send requests to this server. Two things reveal it: the `Host` header, which
has the other site's name even after DNS rebinding, and the browser's `Origin` and `Sec-Fetch-Site` headers.
"""

from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge.errors import RequestError
from apexbridge.surfaces.http.middleware.audit_trail import AuditTrail
from apexbridge.surfaces.http.middleware.auth import REMEMBERED_HOSTS, Access, is_loopback
from apexbridge.surfaces.http.middleware.scopes import SAFE_METHODS
from apexbridge.surfaces.http.transport.error_responses import answer_error

_IN_PROCESS = "in-process"
"""Host name of the command line without a server. On a socket it is not accepted: a network's DNS could define it."""
_SINGLE_HEADERS = frozenset({b"host", b"origin", b"sec-fetch-site", b"content-type"})
_INVALID_IN_HOSTS = frozenset("@/?#\\")
_OTHER_SITE = "This request was caused by a page of another site. Allow the site with the setting APEX_ALLOWED_ORIGINS."
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_PAGE_POLICY = (b"content-security-policy", b"frame-ancestors 'none'")
_DATA_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class OriginGuard:
    """Refuses requests that another site caused.

    Loopback names and addresses are always accepted as `Host`. If the server is bound to another address, so is the
    local address of the connection: DNS rebinding needs a name, and a numeric address is not resolved.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        trail: AuditTrail,
    ) -> None:
        self._app = app
        self._is_local_only = access.bound is None or is_loopback(access.bound)
        own = [*hosts, access.bound or _IN_PROCESS]
        self._hosts = frozenset(_host_name(host) or host for host in own)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._trail = trail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            error = RequestError(problem, code="FORBIDDEN")
            self._trail.refused(scope, error.status)
            await answer_error(error, scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        single: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in _SINGLE_HEADERS:
                if name in single:  # a proxy in front of this server may have checked the other one
                    return f"The request has the header {name.decode()} twice; send one."
                single[name] = value.decode("latin-1")
        host, origin, site = single.get(b"host"), single.get(b"origin"), single.get(b"sec-fetch-site")
        if not self._is_own(_host_name(host or ""), scope):
            return (
                "The Host header names another server. Set the names of this one with APEX_ALLOWED_HOSTS; "
                "loopback addresses always work on the machine itself."
            )
        if origin is not None and origin.lower() in self._origins:
            return None
        if origin is not None and _part(origin, "netloc") != host:
            return _OTHER_SITE
        if site not in (None, "same-origin", "none") and scope["method"] not in SAFE_METHODS:
            return _OTHER_SITE
        return None

    def _is_own(self, name: str | None, scope: Scope) -> bool:
        if name is None:
            return False
        if is_loopback(name) or name in self._hosts:
            return True
        return not self._is_local_only and name == (scope.get("server") or (None,))[0]


@lru_cache(REMEMBERED_HOSTS)
def _host_name(host: str) -> str | None:
    return None if _INVALID_IN_HOSTS.intersection(host) else _part(f"//{host}", "hostname")


def _part(address: str, name: str) -> str | None:
    try:
        found: str | None = getattr(urlsplit(address), name)
    except ValueError:
        return None
    return found


class SecurityHeaders:
    """Adds security headers, unless a route has set its own. No page may frame a response of this server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                known = dict(headers)
                is_page = known.get(b"content-type", b"").startswith(b"text/html")
                added = (*_SECURITY_HEADERS, _PAGE_POLICY if is_page else _DATA_POLICY)
                message = {**message, "headers": [*headers, *(pair for pair in added if pair[0] not in known)]}
            await send(message)

        await self._app(scope, receive, with_headers)
