"""Audit of administrative acts: each is written to the audit log before its response is sent."""

from collections.abc import Awaitable, Callable
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
_DEFERRED, _WRITER = "deferred", "audit_writer"
REVOKE = "keys.revoke"
_REMOVE_VERSION = "skills.remove-version"


def note(request: Request, *, target: str | None = None, detail: str | None = None) -> None:
    """Add details that only the route knows to the audit row of its request; never anything secret."""
    notes: dict[str, Any] = request.scope["state"].setdefault(_STATE, {})
    notes |= {key: value for key, value in {"target": target, "detail": detail}.items() if value is not None}


def defer(request: Request) -> Callable[[int], Awaitable[None]]:
    """Record the act of a streamed request when its outcome is known. Returns the function that records it.

    Otherwise it is recorded when the response begins. A stream that ends before is recorded with 500.
    """
    state = request.scope["state"]
    state.setdefault(_STATE, {})[_DEFERRED] = True

    async def record(status: int) -> None:
        if write := state.get(_WRITER):
            await write(status)

    return record


class AuditTrail:
    def __init__(self, log: AuditLog, content_hash: ContentHash) -> None:
        self._log = log
        self._content_hash = content_hash

    async def follow(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, is_administrative: bool = True
    ) -> None:
        """Handle a request and record its act before the response is sent. STORAGE_FULL if it cannot be recorded.

        Of acts that are not administrative, those that changed nothing count as refused attempts, whose rows are
        limited: a key that may only run could fill the disk with them.
        """
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
            if is_administrative or not 400 <= outcome < 500:
                await run_to_completion(self._log.append(act))
            else:
                self._log.note_refusal(act)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_written:
                if not scope["state"].get(_STATE, {}).get(_DEFERRED):
                    await write(message["status"])
                headers = [*message.get("headers", ()), (b"x-request-id", identity.encode("latin-1"))]
                message = {**message, "headers": headers}
            await send(message)

        scope["state"][_WRITER] = write
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
    if path == "/v1/skills" or path.startswith("/v1/skills/"):
        return _act_of_skills_api(method, path)
    if not path.startswith("/api/"):
        kinds = {"v1": "chat", "mcp": "mcp"}
        return kinds.get(path.split("/")[1], "service.read"), path
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
        case "POST", "skills", [target, "versions", "rollback"]:
            return "skills.rollback", target
        case "DELETE", "skills", [target, "versions", _]:
            return _REMOVE_VERSION, target
        case "POST", "backup", []:
            return "backup.create", ""
        case "POST", "doctor", []:
            return "doctor.check", ""
        case "POST", "status", ["check"]:
            return "status.check", ""
        case "POST", "approvals", [target]:
            return "approvals.decide", target
        case "DELETE", "keys", [target]:
            return REVOKE, target
        case "POST", "mcp", ["servers"]:
            return "mcp.add", ""
        case "DELETE", "mcp", ["servers", target]:
            return "mcp.remove", target
        case "POST", "mcp", ["servers", target, verb]:
            return f"mcp.{verb}", target
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


def _act_of_skills_api(method: str, path: str) -> tuple[str, str]:
    """As `act_of`, for the skills APIs below `/v1`. The routes note the names of skills, which the paths name by id."""
    segments = path.removeprefix("/v1/skills").strip("/").split("/")
    match method, segments:
        case "POST", [""]:
            return "skills.install", ""
        case "POST", [target]:
            return "skills.rollback", target
        case "POST", [target, "versions"]:
            return "skills.add-version", target
        case "DELETE", [target]:
            return "skills.uninstall", target
        case "DELETE", [target, "versions", _]:
            return _REMOVE_VERSION, target
        case _:
            return "skills.read" if method in SAFE_METHODS else f"skills.{method.lower()}", "/".join(segments)
