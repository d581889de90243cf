"""Access control: API keys, their scopes and their rate limits.

The key's id becomes `caller` in the request's state. It is empty for the owner of the data directory and
for requests that are admitted without a key. Only for the owner, `is_owner` is true.
"""

import hmac
import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge._time import now_ms
from apexbridge.errors import ApexBridgeError, RequestError
from apexbridge.settings import KeysRequired
from apexbridge.storage.key_store import PREFIX, KeyScope, KeyStore
from apexbridge.surfaces.http.middleware.audit_trail import AuditTrail
from apexbridge.surfaces.http.middleware.limits import ConcurrencyLimit, RateLimit
from apexbridge.surfaces.http.middleware.scopes import (
    SESSION_PATH,
    is_act,
    is_enough_to_chat,
    is_upload,
    required_scope,
)
from apexbridge.surfaces.http.transport.error_responses import answer_error

_KEY_IN_QUERY = re.compile(
    r"apex_[0-9a-f]{8}_|(?:^|[&;])(?:x-)?(?:api[-_]?key|access[-_]?token|authorization|bearer)=", re.IGNORECASE
)
REMEMBERED_HOSTS = 256
_EXPORT_PATH = re.compile(
    r"/api/skills/[^/]+(?:/versions/[^/]+)?/export/?|/v1/skills/[^/]+(?:/versions/[^/]+)?/content/?"
)
_HOW = "Send it as `Authorization: Bearer …` or `x-api-key: …`; create one with: apex keys create --name NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server can be reached, and whether it requires keys."""

    bound: str | None = None
    """The address it listens on; None for the command line without a server."""
    keys_required: bool = False
    owner: str | None = None
    """The key of the data directory's owner. It is in `server.json`, which only the owner can read."""


def needs_keys(required: KeysRequired, host: str) -> bool:
    return required == "true" or (required == "auto" and not is_loopback(host))


@lru_cache(REMEMBERED_HOSTS)
def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessGuard:
    """Authenticates, authorizes and limits requests. Administrative acts are recorded in the audit log."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        keys: KeyStore,
        rates: RateLimit,
        concurrency: ConcurrencyLimit,
        trail: AuditTrail,
    ) -> None:
        self._app = app
        self._access = access
        self._owner = access.owner.encode() if access.owner else None
        self._keys = keys
        self._rates = rates
        self._trail = trail
        self._concurrency = concurrency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"] = ""
        state["is_owner"] = self._access.bound is None
        needed = required_scope(scope["method"], scope["path"])
        if needed is None and scope["path"] != SESSION_PATH:
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope, state, needed)
            with self._concurrency.request(
                state["caller"],
                receive,
                is_upload=is_upload(scope["method"], scope["path"]),
                is_export=_is_export(scope),
            ) as counted:
                if needed is not None and is_act(scope["method"], needed):
                    is_administrative = needed == "admin"
                    await self._trail.follow(self._app, scope, counted, send, is_administrative=is_administrative)
                else:
                    await self._app(scope, counted, send)
        except ApexBridgeError as error:  # raised by the checks and the trail only: the app handles its own errors
            if error.code in ("UNAUTHORIZED", "FORBIDDEN"):
                self._trail.refused(scope, error.status, who=state["caller"])
            await answer_error(error, scope, receive, send)

    def _admit(self, scope: Scope, state: dict[str, Any], needed: KeyScope | None) -> None:
        """Check the key of a request and set `caller` and `is_owner`. If no scope is needed, the key is optional."""
        query = scope["query_string"]
        if query and _KEY_IN_QUERY.search(unquote_plus(query.decode("latin-1"))):
            raise RequestError(
                f"API keys must not be sent in the URL: URLs are logged. Treat it as leaked and revoke it. {_HOW}",
                code="UNAUTHORIZED",
            )
        sent = _sent_key(scope)
        if self._owner is not None and sent is not None and hmac.compare_digest(sent.encode(), self._owner):
            state["is_owner"] = True
            return
        if sent is None or not (self._access.keys_required or sent.startswith(PREFIX)):
            # OpenAI SDKs always send a key. If this server requires none, ignore foreign keys.
            if self._access.keys_required and needed is not None:
                raise RequestError(f"This server requires an API key. {_HOW}", code="UNAUTHORIZED")
            return
        key = self._keys.find(sent)
        if key is None:
            raise RequestError(f"This is not an API key of this server. {_HOW}", code="UNAUTHORIZED", invalidKey=True)
        state["caller"] = key.id
        now = now_ms()
        if problem := key.problem(now):
            raise RequestError(f"The API key {key.id} {problem}. {_HOW}", code="UNAUTHORIZED", invalidKey=True)
        if wait := self._rates.take(key.id):
            raise RequestError(
                f"The API key {key.id} has made too many requests; try again in {wait} s.",
                code="RATE_LIMITED",
                retryAfter=wait,
            )
        if needed is not None and not (
            key.allows(needed) or (is_enough_to_chat(scope["method"], scope["path"]) and key.allows("chat"))
        ):
            raise RequestError(
                f"This needs the scope {needed}; the API key {key.id} has {', '.join(sorted(key.scopes))}.",
                code="FORBIDDEN",
                scope=needed,
            )
        self._keys.note_use(key, now)


def _is_export(scope: Scope) -> bool:
    return _EXPORT_PATH.fullmatch(scope["path"]) is not None


def _sent_key(scope: Scope) -> str | None:
    """The key as it was sent; None without a header, empty if the header contains no key."""
    sent: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in (b"authorization", b"x-api-key"):
            if name in sent:  # a proxy in front of this server may have checked the other one
                problem = f"The request has the same header for a key twice; send one. {_HOW}"
                raise RequestError(problem, code="UNAUTHORIZED")
            sent[name] = value
    if b"authorization" in sent:
        kind, _, text = sent[b"authorization"].partition(b" ")
        return text.strip().decode("latin-1") if kind.lower() == b"bearer" else ""
    return sent[b"x-api-key"].strip().decode("latin-1") if b"x-api-key" in sent else None
