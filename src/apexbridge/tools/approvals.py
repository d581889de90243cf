"""Approval of dangerous calls by a person. An approval is valid once, and only for one exact call."""

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, Protocol

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._time import now_ms
from apexbridge._usage import ResourceUsage
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
MAX_CALLS_OF_CALLER = 32 * 1024 * 1024
"""Characters of the calls of a caller's pending approvals; beyond that its oldest are dropped."""
MAX_CALLS = 128 * 1024 * 1024
"""The same for all callers together; beyond that the oldest are dropped of those who have the most."""
ApprovalState = Literal["waiting", "approved", "denied", "used", "expired"]
"""`expired` is shown, but not stored: such an approval was not decided in time."""
ListedState = Literal["waiting", "approved", "denied", "used", "expired", "all"]


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
    decided_at: int | None
    decided_by: str | None
    """The API key of who decided it; empty for callers without a key, None if it is not decided."""


class ApprovalDetail(Approval):
    """An approval with the whole call."""

    call: str
    """The call as JSON; empty once it is decided or expired, unless inputs are recorded."""
    call_truncated: bool
    """Whether the call was too long to be stored in full."""


class Limit(NamedTuple):
    """Of pending approvals."""

    approvals: int
    characters: int
    """Of their calls."""


class ApprovalStore(Protocol):
    """Stores approvals; see `SqliteApprovals`."""

    async def put(
        self, approval: dict[str, Any], *, call: str, is_truncated: bool, own: Limit, total: Limit
    ) -> Sequence[str]: ...
    async def get(self, id: str) -> dict[str, Any] | None: ...
    async def call_of(self, id: str) -> tuple[str, bool] | None: ...
    async def latest(self, digest: str, state: ApprovalState, *, now: int) -> dict[str, Any] | None: ...
    async def waiting(self, *, now: int) -> Sequence[dict[str, Any]]: ...
    async def page(self, state: ListedState, *, now: int, offset: int, limit: int) -> Sequence[dict[str, Any]]: ...
    async def decide(self, id: str, *, state: str, by: str, now: int) -> bool: ...
    async def use(self, id: str, *, admission: str, now: int) -> bool: ...
    async def release(self, id: str, *, admission: str) -> bool: ...
    async def forget(self, tool: str) -> Sequence[str]: ...
    async def sizes(self, *, now: int) -> Sequence[tuple[str, int]]: ...
    async def withdraw(self, caller: str) -> Sequence[str]: ...


class ApprovalListener(Protocol):
    """Is notified of every approval that is requested, decided, used, or removed."""

    def approval_changed(self, approval: Approval) -> None: ...
    def approvals_removed(self, ids: Sequence[str]) -> None: ...


class ApprovalUse:
    """The use of an approval by one call. Only this use can release the approval again."""

    def __init__(
        self, store: ApprovalStore, approval: str, changed: Callable[[ApprovalState], object] = lambda state: None
    ) -> None:
        self.approval = approval
        self._store = store
        self._changed = changed
        self._token: str | None = secrets.token_hex(16)

    async def take(self) -> bool:
        """Use the approval; False if it is not an unused approval. If the caller is cancelled, it stays unused."""
        assert self._token is not None  # noqa: S101  # take precedes release and use_up
        using = asyncio.ensure_future(self._store.use(self.approval, admission=self._token, now=now_ms()))
        try:
            is_taken = await run_to_completion(using)
        except asyncio.CancelledError:
            if using.result():
                await self.release()
            raise
        if is_taken:
            self._changed("used")
        return is_taken

    async def release(self) -> None:
        """Make the approval valid again, because the call never began. Works once, also during a cancellation."""
        token, self._token = self._token, None
        if token is not None:
            await run_to_completion(self._release(token))

    async def _release(self, token: str) -> None:
        if await self._store.release(self.approval, admission=token):
            self._changed("approved")

    def use_up(self) -> None:
        """Leave the approval used, because the call has begun."""
        self._token = None


class Approvals:
    """Requests approvals for dangerous calls, and accepts the decisions."""

    def __init__(self, store: ApprovalStore, *, enabled: bool = True, listener: ApprovalListener | None = None) -> None:
        self._store = store
        self._listener = listener
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
        known = await self.get(approval)
        if known.digest != digest:
            raise _invalid(
                "it was given for another call, other files, another caller, or before the tool changed", tool
            )
        use = ApprovalUse(self._store, approval, lambda state: self._notify(known.model_copy(update={"state": state})))
        if not await use.take():
            raise _invalid(_why_unusable(await self.get(approval)), tool)
        return use

    async def get(self, id: str) -> Approval:
        """An approval by its id. Raises RequestError (APPROVAL_NOT_FOUND)."""
        return Approval(**await self._row(id))

    async def detail(self, id: str) -> ApprovalDetail:
        """An approval with the whole call. Raises RequestError (APPROVAL_NOT_FOUND)."""
        row = _shown(await self._row(id))
        call, is_truncated = await self._store.call_of(id) or ("", False)
        return ApprovalDetail(**row, call=call, call_truncated=is_truncated)

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

    async def page(self, state: ListedState, *, page: int, limit: int) -> list[Approval]:
        """Approvals in a state, newest first."""
        rows = await self._store.page(state, now=now_ms(), offset=(page - 1) * limit, limit=limit)
        return [Approval(**_shown(row)) for row in rows]

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

    async def decide(self, id: str, *, approve: bool, by: str = "") -> Approval:
        """Approve or deny a pending approval. `by` is the API key of who decides; empty without one.

        Raises RequestError (APPROVAL_NOT_FOUND); ToolError (APPROVAL_INVALID) if it was decided already or has expired.
        """
        approval = await self.get(id)
        state: ApprovalState = "approved" if approve else "denied"
        now = now_ms()
        is_decided = await self._store.decide(id, state=state, by=by, now=now)
        self._wake(id)
        if not is_decided:
            reason = _why_unusable(await self.get(id))
            raise ToolError(f"This approval cannot be decided: {reason}", code="APPROVAL_INVALID")
        return self._notify(approval.model_copy(update={"state": state, "decided_at": now, "decided_by": by}))

    def _notify(self, approval: Approval) -> Approval:
        if self._listener is not None:
            self._listener.approval_changed(approval)
        return approval

    async def forget(self, tool: str) -> None:
        """Delete the approvals for a removed tool that are pending or can be used."""
        self._drop(await self._store.forget(tool))

    async def withdraw(self, caller: str) -> None:
        """Delete the approvals of a caller whose key was revoked that are pending or can be used."""
        self._drop(await self._store.withdraw(caller))

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        pending = await self._store.sizes(now=now_ms())
        own = [size for owner, size in pending if owner == caller]
        return (
            ResourceUsage(
                resource="approvals",
                used=len(own),
                limit=MAX_WAITING_OF_CALLER,
                total=len(pending),
                total_limit=MAX_WAITING,
            ),
            ResourceUsage(
                resource="approval-bytes",
                used=sum(own),
                limit=MAX_CALLS_OF_CALLER,
                total=sum(size for _, size in pending),
                total_limit=MAX_CALLS,
                unit="bytes",
            ),
            ResourceUsage(
                resource="requests-waiting-for-approval",
                used=self._requests[caller],
                limit=MAX_REQUESTS_OF_CALLER if caller else MAX_REQUESTS_WITHOUT_KEY,
                total=self._requests.total(),
            ),
        )

    def _drop(self, ids: Sequence[str]) -> None:
        self._wake(*ids)
        if self._listener is not None and ids:
            self._listener.approvals_removed(ids)

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
                decided_at=None,
                decided_by=None,
            )
            row = new.model_dump(by_alias=False)
            whole, is_truncated = await in_thread(whole_of, call)
            dropped = await self._store.put(
                row,
                call=whole,
                is_truncated=is_truncated,
                own=Limit(MAX_WAITING_OF_CALLER, MAX_CALLS_OF_CALLER),
                total=Limit(MAX_WAITING, MAX_CALLS),
            )
            self._drop(dropped)
            self._notify(new)
        return _refusal(
            tool,
            f"{name} is marked dangerous and needs approval: {row['confirm']}",
            "CONFIRMATION_REQUIRED",
            approvalId=row["id"],
            confirm=row["confirm"],
            summary=row["summary"],
            expiresAt=row["expires_at"],
        )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    is_expired = row["state"] == "waiting" and row["expires_at"] <= now_ms()
    return row | {"state": "expired"} if is_expired else row


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
