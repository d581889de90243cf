"""Approval of dangerous calls by a person. An approval is valid once, and only for one exact call."""

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol

from apexbridge._tasks import run_to_completion
from apexbridge._time import now_ms
from apexbridge.errors import ApexBridgeError, RequestError, SkillError, ToolError
from apexbridge.tools.callview import summary_of, whole_of
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.tool import Tool
from apexbridge.wire import WireModel

LIFETIME_MS = 10 * 60 * 1000
LEAST_LEFT_MS = 60 * 1000
"""If a pending approval has less time left than this, a new one is requested."""
MAX_WAITING_OF_CALLER = 100
"""Pending approvals of one caller; beyond that its oldest is dropped."""
MAX_WAITING = 1_000
"""Pending approvals of all callers; beyond that the caller with the most loses its oldest."""
MAX_REQUESTS_OF_CALLER = 20
"""Requests of one caller that may wait for a decision at a time; further ones do not wait."""
MAX_REQUESTS_WITHOUT_KEY = 200
"""The same limit for all callers without a key together: they can be many people behind one proxy."""
ApprovalState = Literal["waiting", "approved", "denied", "used"]


class Approval(WireModel):
    """A request for approval, and its decision; times in milliseconds since 1970."""

    id: str
    tool: str
    confirm: str
    """The question to the person."""
    summary: str
    """The call, shortened; empty once it is decided."""
    content_hash: str
    digest: str
    """Hash of everything that the call consists of."""
    caller: str
    created_at: int
    expires_at: int
    state: ApprovalState = "waiting"


class ApprovalDetail(Approval):
    """An approval with the whole call."""

    call: str
    """The call as JSON, up to 64 KB in full; empty once it is decided."""


class ApprovalStore(Protocol):
    """Stores approvals; see `SqliteApprovals`."""

    async def put(self, approval: dict[str, Any], *, call: str, own: int, total: int) -> Sequence[str]: ...
    async def get(self, id: str) -> dict[str, Any] | None: ...
    async def latest(self, digest: str, state: ApprovalState, *, now: int) -> dict[str, Any] | None: ...
    async def waiting(self, *, now: int) -> Sequence[dict[str, Any]]: ...
    async def decide(self, id: str, *, state: str, now: int) -> bool: ...
    async def use(self, id: str, *, admission: str, now: int) -> bool: ...
    async def release(self, id: str, *, admission: str) -> bool: ...
    async def forget(self, tool: str) -> Sequence[str]: ...


class ApprovalUse:
    """The use of an approval by one call. Only this use can release the approval again."""

    def __init__(self, store: ApprovalStore, approval: str) -> None:
        self.approval = approval
        self._store = store
        self._token: str | None = secrets.token_hex(16)

    async def take(self) -> bool:
        """Use the approval; False if it is not an unused approval. If the caller is cancelled, it stays unused."""
        assert self._token is not None  # noqa: S101  # take precedes release and use_up
        using = asyncio.ensure_future(self._store.use(self.approval, admission=self._token, now=now_ms()))
        try:
            return await run_to_completion(using)
        except asyncio.CancelledError:
            if using.result():
                await self.release()
            raise

    async def release(self) -> None:
        """Make the approval valid again, because the call never began. Works once, also during a cancellation."""
        token, self._token = self._token, None
        if token is not None:
            await run_to_completion(self._store.release(self.approval, admission=token))

    def use_up(self) -> None:
        """Leave the approval used, because the call has begun."""
        self._token = None


class Approvals:
    """Requests approvals for dangerous calls, and accepts the decisions."""

    def __init__(self, store: ApprovalStore, *, enabled: bool = True) -> None:
        self._store = store
        self._enabled = enabled
        self._listeners: dict[str, set[asyncio.Event]] = {}
        """Requests that wait for a decision, by the approval's id."""
        self._requests: Counter[str] = Counter()
        """Number of these requests, by caller."""

    def asks(self, *, always: bool = False) -> bool:
        """Whether dangerous calls need approval; with `always`, even if the operator disabled it."""
        return self._enabled or always

    async def require(
        self, tool: Tool, call: Mapping[str, Any], *, caller: str, approval: str | None, always: bool = False
    ) -> ApprovalUse | None:
        """Admit a dangerous call that was approved; None if no approval is needed.

        `call` is the input and everything else that affects what the call does.

        Raises:
            ApexBridgeError: CONFIRMATION_REQUIRED with the id to approve; APPROVAL_INVALID if the approval does not
                match this call. A `SkillError` if the tool is a skill, else a `ToolError`.
            RequestError: APPROVAL_NOT_FOUND.
        """
        if not self.asks(always=always):
            return None
        digest = _digest(tool, call, caller)
        if approval is None:
            raise await self._request(tool, call, caller, digest)
        if (await self.get(approval)).digest != digest:
            raise _invalid(
                "it was given for another call, other files, another caller, or before the tool changed", tool
            )
        use = ApprovalUse(self._store, approval)
        if not await use.take():
            raise _invalid(_why_unusable(await self.get(approval)), tool)
        return use

    async def get(self, id: str) -> Approval:
        """An approval by its id. Raises RequestError (APPROVAL_NOT_FOUND)."""
        return Approval(**await self._row(id))

    async def detail(self, id: str) -> ApprovalDetail:
        """An approval with the whole call. Raises RequestError (APPROVAL_NOT_FOUND)."""
        return ApprovalDetail(**await self._row(id))

    async def _row(self, id: str) -> dict[str, Any]:
        row = await self._store.get(id)
        if row is None:
            raise RequestError(f"There is no approval {id[:64]}", code="APPROVAL_NOT_FOUND")
        return row

    async def given_already(self, id: str) -> str | None:
        """The id of an unused approval for the same call; None if missing.

        For callers that cannot pass an approval id, such as a model.
        """
        row = await self._store.latest((await self.get(id)).digest, "approved", now=now_ms())
        return None if row is None else str(row["id"])

    async def waiting(self) -> list[Approval]:
        """Pending approvals, oldest first."""
        return [Approval(**row) for row in await self._store.waiting(now=now_ms())]

    async def answer_to(self, id: str, *, seconds: float) -> Approval:
        """Wait until an approval is decided, dropped or expired, or the time is up; returns its current state.

        If too many requests of the caller wait already, it returns immediately.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
        """
        approval = await self.get(id)
        limit = MAX_REQUESTS_OF_CALLER if approval.caller else MAX_REQUESTS_WITHOUT_KEY
        if self._requests[approval.caller] >= limit:
            return approval
        with self._listening(approval) as decided:
            left = min(seconds, (approval.expires_at - now_ms()) / 1000)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left)):
                    # Read it again after registering the listener: the decision may have come in between.
                    while (approval := await self.get(id)).state == "waiting":
                        await decided.wait()
                        decided.clear()
        return approval

    @contextmanager
    def _listening(self, approval: Approval) -> Iterator[asyncio.Event]:
        decided = asyncio.Event()
        listeners = self._listeners.setdefault(approval.id, set())
        listeners.add(decided)
        self._requests[approval.caller] += 1
        try:
            yield decided
        finally:
            listeners.discard(decided)
            if not listeners:
                self._listeners.pop(approval.id, None)
            self._requests[approval.caller] -= 1
            if not self._requests[approval.caller]:
                del self._requests[approval.caller]

    def _wake(self, *ids: str) -> None:
        for id in ids:
            for decided in self._listeners.get(id, ()):
                decided.set()

    async def decide(self, id: str, *, approve: bool) -> Approval:
        """Approve or deny a pending approval.

        Raises RequestError (APPROVAL_NOT_FOUND); ToolError (APPROVAL_INVALID) if it was decided already or has expired.
        """
        approval = await self.get(id)
        state: ApprovalState = "approved" if approve else "denied"
        is_decided = await self._store.decide(id, state=state, now=now_ms())
        self._wake(id)
        if not is_decided:
            reason = _why_unusable(await self.get(id))
            raise ToolError(f"This approval cannot be decided: {reason}", code="APPROVAL_INVALID")
        return approval.model_copy(update={"state": state})

    async def forget(self, tool: str) -> None:
        """Delete all approvals for a tool that was removed."""
        self._wake(*await self._store.forget(tool))

    async def _request(self, tool: Tool, call: Mapping[str, Any], caller: str, digest: str) -> ApexBridgeError:
        now, name = now_ms(), tool.id.removeprefix(SKILL_PREFIX)
        row = await self._store.latest(digest, "waiting", now=now + LEAST_LEFT_MS)
        if row is None:
            new = Approval(
                id=secrets.token_hex(16),
                tool=tool.id,
                confirm=tool.metadata.confirm or f"Run {name}? It is marked dangerous.",
                summary=summary_of(call),
                content_hash=tool.metadata.content_hash,
                digest=digest,
                caller=caller,
                created_at=now,
                expires_at=now + LIFETIME_MS,
            )
            row = new.model_dump(by_alias=False)
            dropped = await self._store.put(row, call=whole_of(call), own=MAX_WAITING_OF_CALLER, total=MAX_WAITING)
            self._wake(*dropped)
        return _refusal(
            tool,
            f"{name} is marked dangerous and needs approval: {row['confirm']}",
            "CONFIRMATION_REQUIRED",
            approvalId=row["id"],
            confirm=row["confirm"],
            summary=row["summary"],
            expiresAt=row["expires_at"],
        )


def _digest(tool: Tool, call: Mapping[str, Any], caller: str) -> str:
    """Hash of tool, content, call and caller. If any of them changes, the approval is not valid."""
    metadata = tool.metadata
    covered = [tool.id, metadata.content_hash, metadata.confirm, tool.description, caller, call]
    text = json.dumps(covered, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _why_unusable(approval: Approval) -> str:
    if approval.state in ("used", "denied"):
        return {"used": "it has been used", "denied": "it was denied"}[approval.state]
    if approval.expires_at <= now_ms():
        return "it has expired"
    return "it has not been approved yet" if approval.state == "waiting" else "it was decided already"


def _invalid(reason: str, tool: Tool) -> ApexBridgeError:
    return _refusal(tool, f"This approval is not valid: {reason}.", "APPROVAL_INVALID")


def _refusal(tool: Tool, message: str, code: str, **details: Any) -> ApexBridgeError:
    if tool.id.startswith(SKILL_PREFIX):
        return SkillError(message, code=code, skill=tool.id.removeprefix(SKILL_PREFIX), mode="sandbox", **details)
    return ToolError(message, code=code, tool=tool.id, **details)
