"""Who may talk to a server that asks for no key: programs of this machine, and pages that it served itself.

A web page somewhere else can make a browser send requests here. Two things give it away: the address it believes it
talks to (`Host`, which a DNS trick cannot fake) and what the browser says about where the request began.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge.errors import RequestError
from apexbridge.surfaces.http.errors import error_response

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_OWN_NAMES = {"localhost", "in-process"}
"""`in-process` is the command line without a server."""


class OriginGuard:
    """Refuses requests that another site caused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what comes from here."""
        problem = _problem(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await error_response(RequestError(problem, code="FORBIDDEN"))(scope, receive, send)


def _problem(method: str, headers: Headers) -> str | None:
    host = headers.get("host", "")
    if not _is_local(_part(f"//{host}", "hostname")):
        return "This server answers to loopback addresses only; the Host header names another one."
    origin = headers.get("origin")
    if origin is not None and _part(origin, "netloc") != host:
        return "This request was caused by a page of another site."
    if method not in _SAFE_METHODS and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "This request was caused by a page of another site."
    return None


def _part(address: str, name: str) -> str | None:
    try:
        found: str | None = getattr(urlsplit(address), name)
    except ValueError:
        return None
    return found


def _is_local(name: str | None) -> bool:
    if name is None:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() in _OWN_NAMES
