"""Protection against cross-site requests and DNS rebinding.

A page of another site can make a browser send requests to this server. Two things reveal it: the `Host` header, which
has the other site's name even after DNS rebinding, and the browser's `Origin` and `Sec-Fetch-Site` headers.
"""

from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge.errors import RequestError
from apexbridge.surfaces.http.middleware.audit_trail import AuditTrail
from apexbridge.surfaces.http.middleware.auth import REMEMBERED_HOSTS, Access, is_loopback
from apexbridge.surfaces.http.middleware.scopes import SAFE_METHODS
from apexbridge.surfaces.http.transport.error_responses import answer_error

_IN_PROCESS = "in-process"
"""Host name of the command line without a server. On a socket it is not accepted: a network's DNS could define it."""
_SINGLE = frozenset({b"host", b"origin", b"sec-fetch-site", b"content-type"})
_NOT_IN_HOSTS = frozenset("@/?#\\")
_OTHER_SITE = (
    "This request was caused by a page of another site. Pages that may do so are named in APEX_ALLOWED_ORIGINS."
)


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
        host = origin = site = None
        single: set[bytes] = set()
        for name, value in scope["headers"]:
            if name not in _SINGLE:
                continue
            if name in single:  # a proxy in front of this server may have checked the other one
                return f"The request has the header {name.decode()} twice; send one."
            single.add(name)
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
            elif name == b"sec-fetch-site":
                site = value
        if not self._is_own(_host_name(host or ""), scope):
            return (
                "The Host header names another server than this one. Names that it goes by are set with "
                "APEX_ALLOWED_HOSTS; loopback addresses always work on the machine itself."
            )
        if origin is not None and origin.lower() in self._origins:
            return None
        if origin is not None and _part(origin, "netloc") != host:
            return _OTHER_SITE
        if site not in (None, b"same-origin", b"none") and scope["method"] not in SAFE_METHODS:
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
    return None if _NOT_IN_HOSTS.intersection(host) else _part(f"//{host}", "hostname")


def _part(address: str, name: str) -> str | None:
    try:
        found: str | None = getattr(urlsplit(address), name)
    except ValueError:
        return None
    return found
