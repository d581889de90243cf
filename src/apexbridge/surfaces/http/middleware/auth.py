"""Access control: API keys, their scopes and their rate limits.

The key's id becomes `caller` in the request's state. It is empty for the owner of the data directory and
for requests that are admitted without a key.
"""

import hmac
import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_plus

from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge._time import now_ms
from apexbridge.errors import ApexBridgeError, RequestError
from apexbridge.settings import KeysRequired
from apexbridge.storage.keys import PREFIX, KeyScope, KeyStore
from apexbridge.surfaces.http.middleware.audit_trail import AuditTrail
from apexbridge.surfaces.http.middleware.concurrency import TooMuchError, UnderWay
from apexbridge.surfaces.http.middleware.rate_limit import RateLimit
from apexbridge.surfaces.http.middleware.scopes import UPLOAD_PATHS, is_act, required_scope
from apexbridge.surfaces.http.transport.error_responses import answer_error

_KEY_IN_QUERY = re.compile(
    r"apex_[0-9a-f]{8}_|(?:^|[&;])(?:x-)?(?:api[-_]?key|access[-_]?token|authorization|bearer)=", re.IGNORECASE
)
REMEMBERED_HOSTS = 256
_EXPORT_PATH = re.compile(r"/api/skills/[^/]+/export/?")
_REALM = 'Bearer realm="apexbridge"'
_HOW = "Send it as `Authorization: Bearer …` or `x-api-key: …`; make one with: apex keys create"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server can be reached, and whether it requires keys."""

    bound: str | None = None
    """The address it listens on; None for the command line without a server."""
    keys_required: bool = False
    owner: str | None = None
    """The key of the data directory's owner. It is in `server.json`, which only the owner can read."""


def needs_keys(required: KeysRequired, host: str) -> bool:
    """Whether a server on this address requires keys."""
    return required == "true" or (required == "auto" and not is_loopback(host))


@lru_cache(REMEMBERED_HOSTS)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessGuard:
    """Authenticates, authorizes and limits requests."""

    def __init__(self, app: ASGIApp, *, access: Access, keys: KeyStore, rates: RateLimit, trail: AuditTrail) -> None:
        self._app = app
        self._access = access
        self._owner = access.owner.encode() if access.owner else None
        self._keys = keys
        self._rates = rates
        self._trail = trail
        self._under_way = UnderWay()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on allowed requests. Administrative acts are recorded in the audit log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"] = ""
        needed = required_scope(scope["method"], scope["path"])
        if needed is not None:
            try:
                self._admit(scope, state, needed)
            except RequestError as error:
                if error.code != "RATE_LIMITED":
                    self._trail.refused(scope, error.status, who=state["caller"])
                await answer_error(error, scope, receive, send, headers=_headers(error))
                return
            caller = state["caller"]
            if not caller:
                await self._pass(scope, receive, send, needed)
                return
            try:
                with self._under_way.request(
                    caller, is_upload=_is_upload(scope), is_export=_is_export(scope)
                ) as counted:
                    await self._pass(scope, counted.receive(receive), send, needed)
            except RequestError as error:  # raised by the counter only: the app handles its own errors
                await answer_error(error, scope, receive, send, headers=_headers(error))
            except TooMuchError as refused:
                await answer_error(refused.error, scope, receive, send, headers=_headers(refused.error))
            return
        await self._app(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, needed: KeyScope) -> None:
        if not is_act(scope["method"], needed):
            await self._app(scope, receive, send)
            return
        try:
            await self._trail.follow(self._app, scope, receive, send)
        except ApexBridgeError as error:  # raised by the trail only: the app handles its own errors
            await answer_error(error, scope, receive, send)

    def _admit(self, scope: Scope, state: dict[str, str], needed: KeyScope) -> None:
        """Check the key of a request and set `caller`.

        Raises:
            RequestError: UNAUTHORIZED, FORBIDDEN or RATE_LIMITED.
        """
        query = scope["query_string"]
        if query and _KEY_IN_QUERY.search(unquote_plus(query.decode("latin-1"))):
            raise RequestError(
                f"A key does not belong into an address, where it ends up in logs; take it for known and revoke it. "
                f"{_HOW}",
                code="UNAUTHORIZED",
            )
        given = _given_key(scope)
        if given is None or not (self._access.keys_required or given.startswith(PREFIX)):
            # OpenAI SDKs always send a key. If this server requires none, ignore foreign keys.
            if self._access.keys_required:
                raise RequestError(f"This server asks for an API key. {_HOW}", code="UNAUTHORIZED")
            return
        if self._owner is not None and hmac.compare_digest(given.encode(), self._owner):
            return
        key = self._keys.find(given)
        if key is None:
            raise RequestError(f"This is no API key of this server. {_HOW}", code="UNAUTHORIZED", given=True)
        state["caller"] = key.id
        now = now_ms()
        if problem := key.problem(now):
            raise RequestError(f"The API key {key.id} {problem}. {_HOW}", code="UNAUTHORIZED", given=True)
        if wait := self._rates.take(key.id):
            raise RequestError(
                f"The API key {key.id} has made too many requests; try again in {wait} s.",
                code="RATE_LIMITED",
                retryAfter=wait,
            )
        if not key.allows(needed):
            raise RequestError(
                f"This needs the scope {needed}; the API key {key.id} has {', '.join(sorted(key.scopes))}.",
                code="FORBIDDEN",
                scope=needed,
            )
        self._keys.note_use(key, now)


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"] in UPLOAD_PATHS


def _is_export(scope: Scope) -> bool:
    return _EXPORT_PATH.fullmatch(scope["path"]) is not None


def _given_key(scope: Scope) -> str | None:
    """The key as it was sent; None without a header, empty if the header contains no key.

    Raises:
        RequestError: UNAUTHORIZED, a header is repeated. A proxy before this server may have checked the other one.
    """
    first: bytes | None = None
    other: bytes | None = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            if first is not None:
                raise _twice()
            first = value
        elif name == b"x-api-key":
            if other is not None:
                raise _twice()
            other = value
    if first is not None:
        kind, _, text = first.partition(b" ")
        return text.strip().decode("latin-1") if kind.lower() == b"bearer" else ""
    return other.strip().decode("latin-1") if other is not None else None


def _twice() -> RequestError:
    return RequestError(f"The request has the same header for a key twice; send one. {_HOW}", code="UNAUTHORIZED")


def _headers(error: RequestError) -> dict[str, str]:
    if error.code == "UNAUTHORIZED":
        return {"WWW-Authenticate": f'{_REALM}, error="invalid_token"' if error.details.pop("given", False) else _REALM}
    return {"Retry-After": str(error.details["retryAfter"])} if error.code == "RATE_LIMITED" else {}
