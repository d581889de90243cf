"""Audit of administrative acts: each is written to the audit log before its response is sent."""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge._tasks import run_to_completion
from apexbridge.errors import ServerError
from apexbridge.storage.audit import Act, AuditLog
from apexbridge.surfaces.http.middleware.scopes import SAFE_METHODS
from apexbridge.surfaces.http.transport.requests import client_request_id, request_id

ContentHash = Callable[[str], str | None]
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "remove"}
_STATE = "audit"
REVOKE = "keys.revoke"


def note(request: Request, *, target: str | None = None, detail: str | None = None) -> None:
    """Add details that only the route knows to the audit row of its request; never anything secret."""
    notes: dict[str, Any] = request.scope["state"].setdefault(_STATE, {})
    notes |= {key: value for key, value in {"target": target, "detail": detail}.items() if value is not None}


class AuditTrail:
    def __init__(self, log: AuditLog, content_hash: ContentHash) -> None:
        self._log = log
        self._content_hash = content_hash

    async def follow(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request and record its act before the response is sent. STORAGE_FULL if it cannot be recorded."""
        try:
            await self._log.ready()
        except ServerError:
            if _act(scope)[0] != REVOKE:  # revoking only removes rights; its row waits in memory
                raise
        identity = request_id(scope)
        before = self._hash_of(*_act(scope))
        is_written = False

        async def write(outcome: int) -> None:
            nonlocal is_written
            is_written = True
            what, target = _act(scope)
            notes = scope["state"].get(_STATE, {})
            target = notes.get("target", target)
            act = Act(
                what=what,
                who=scope["state"]["caller"],
                target=target,
                detail=notes.get("detail"),
                content_hash=self._hash_of(what, target) or before,
                outcome=outcome,
                request_id=identity,
            )
            await run_to_completion(self._log.append(act))

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_written:
                await write(message["status"])
                headers = [*message.get("headers", ()), (b"x-request-id", identity.encode("latin-1"))]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await app(scope, receive, watched)
        finally:
            if not is_written:  # a bug, or the server is shutting down
                await write(500)

    def refused(self, scope: Scope, outcome: int, *, who: str = "") -> None:
        """Record a refused attempt, without waiting until it is written."""
        what, target = _act(scope)
        act = Act(what=what, who=who, target=target, outcome=outcome, request_id=client_request_id(scope))
        self._log.note_refusal(act)

    def _hash_of(self, what: str, target: str) -> str | None:
        return self._content_hash(target) if target and what.startswith("skills.") else None


def _act(scope: Scope) -> tuple[str, str]:
    return act_of(scope["method"], scope["path"])


def act_of(method: str, path: str) -> tuple[str, str]:
    """The name of an act, such as `skills.install`, and its target."""
    if not path.startswith("/api/"):
        return ("chat" if path.startswith("/v1/") else "service.read"), path
    group, *segments = path.removeprefix("/api/").split("/")
    if method in SAFE_METHODS:
        return f"{group}.read", "/".join(segments)
    match method, group, segments:
        case "POST", "skills", [] | ["install"]:
            return "skills.install", ""
        case "POST", "skills", [verb]:
            return f"skills.{verb}", ""
        case "DELETE", "skills" | "plugins", [target]:
            return f"{group}.uninstall", target
        case "POST", "approvals", [target]:
            return "approvals.decide", target
        case "DELETE", "keys", [target]:
            return REVOKE, target
        case "POST", _, [target, "grants"]:
            return f"{group}.grant", target
        case "DELETE", _, [target, "grants"]:
            return f"{group}.revoke", target
        case "POST", _, [target, verb]:
            return f"{group}.{verb}", target
        case _, _, [target, item]:
            return f"{group}.{_VERBS.get(method, method.lower())}-{item}", target
        case _:
            return f"{group}.{_VERBS.get(method, method.lower())}", "/".join(segments)
