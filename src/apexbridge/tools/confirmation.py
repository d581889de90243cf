"""A person's approval before a dangerous call: asked for once, good for one call, and for that call only."""

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TypeVar

from apexbridge._time import now_ms
from apexbridge.errors import ApexBridgeError, RequestError, SkillError, ToolError
from apexbridge.tools.callview import summary_of, whole_of
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.tool import Tool
from apexbridge.wire import WireModel

LIFETIME_MS = 10 * 60 * 1000
LEAST_LEFT_MS = 60 * 1000
"""A question with less time than this left is asked anew."""
MAX_WAITING_OF_CALLER = 100
"""Questions of one caller that may wait at once; beyond that its oldest is dropped."""
MAX_WAITING = 1_000
"""Questions of all callers; beyond that the caller with the most loses its oldest."""
MAX_REQUESTS_OF_CALLER = 20
"""Requests of one caller that may wait for an answer at once; the next one does not wait."""
MAX_REQUESTS_WITHOUT_KEY = 200
"""The same for all callers without a key together: they can be many people behind one proxy."""
T = TypeVar("T")
ApprovalState = Literal["waiting", "approved", "denied", "used"]


class Approval(WireModel):
    """A question that was put to a person, and what became of it; times in milliseconds since 1970."""

    id: str
    tool: str
    confirm: str
    """What the person is asked."""
    summary: str
    """The call, shortened, so that one knows what one agrees to; empty once it is decided."""
    content_hash: str
    digest: str
    """Of everything that the call consists of."""
    caller: str
    created_at: int
    expires_at: int
    state: ApprovalState = "waiting"


class ApprovalDetail(Approval):
    """A question with the whole call."""

    call: str
    """The call as JSON, up to 64 KB whole; empty once it is decided."""


class ApprovalStore(Protocol):
    """Where questions and answers are kept."""

    async def put(self, approval: dict[str, Any], *, call: str, own: int, total: int) -> Sequence[str]:
        """Keep a question and forget what has expired; returns the ids of questions that were dropped for it."""

    async def get(self, id: str) -> dict[str, Any] | None:
        """One of them."""

    async def call_of(self, id: str) -> str:
        """The whole call that a question is about, as long as it waits."""

    async def waiting_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """The question that is already open for the same call."""

    async def approved_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """An approval for the same call that nobody has used."""

    async def open(self, *, now: int) -> Sequence[dict[str, Any]]:
        """All that wait for an answer, the oldest first."""

    async def decide(self, id: str, *, state: str, now: int) -> bool:
        """Answer a question that waits, and delete its call; False if it does not wait."""

    async def use(self, id: str, *, admission: str, now: int) -> bool:
        """Use an approval for one admission; False if it is not an unused approval."""

    async def release(self, id: str, *, admission: str) -> bool:
        """Make an approval good again that this admission used; False for any other."""

    async def forget(self, tool: str) -> Sequence[str]:
        """Drop everything about a tool; returns the ids."""


class Admission:
    """The right of one call to run, for which an approval was used. Nothing else can make that approval good again."""

    def __init__(self, store: ApprovalStore, approval: str) -> None:
        self.approval = approval
        self._store = store
        self._token: str | None = secrets.token_hex(16)

    async def take(self) -> bool:
        """Use the approval; False if it is not an unused approval. A caller that is cancelled has not used it."""
        assert self._token is not None  # noqa: S101  # it is taken first
        using = asyncio.ensure_future(self._store.use(self.approval, admission=self._token, now=now_ms()))
        try:
            return await asyncio.shield(using)
        except asyncio.CancelledError:
            if await _completed(using):
                await self.release()
            raise

    async def release(self) -> None:
        """The call never began: the approval is good again, for another try. Works once, also when cancelled."""
        token, self._token = self._token, None
        if token is not None:
            await _completed(asyncio.ensure_future(self._store.release(self.approval, admission=token)))

    def settle(self) -> None:
        """The call has begun: the approval stays used."""
        self._token = None


class Confirmation:
    """Asks before dangerous calls, and takes the answers."""

    def __init__(self, store: ApprovalStore, *, enabled: bool = True) -> None:
        self._store = store
        self._enabled = enabled
        self._listeners: dict[str, set[asyncio.Event]] = {}
        """Requests that wait for an answer, by the question's id."""
        self._requests: Counter[str] = Counter()
        """Such requests, by caller."""

    def asks(self, *, always: bool = False) -> bool:
        """Whether dangerous calls need an approval; `always` if they do even though the operator switched it off."""
        return self._enabled or always

    async def require(
        self, tool: Tool, call: Mapping[str, Any], *, caller: str, approval: str | None, always: bool = False
    ) -> Admission | None:
        """Admit a dangerous call that was approved; None if no approval is needed.

        `call` is everything that makes this call what it is: the input, and what else decides what happens.

        Raises:
            ApexBridgeError: CONFIRMATION_REQUIRED with the id to be approved; APPROVAL_INVALID for one that does not
                count. A `SkillError` where the tool is a skill, else a `ToolError`.
            RequestError: APPROVAL_NOT_FOUND.
        """
        if not self.asks(always=always):
            return None
        digest = _digest(tool, call, caller)
        if approval is None:
            raise await self._question(tool, call, caller, digest)
        given = await self.get(approval)
        if given.digest != digest:
            raise _invalid(
                "it was given for another call, other files, another caller, or before the tool changed", tool
            )
        admission = Admission(self._store, approval)
        if not await admission.take():
            raise _invalid(_why(await self.get(approval)), tool)
        return admission

    async def get(self, id: str) -> Approval:
        """One question.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
        """
        row = await self._store.get(id)
        if row is None:
            raise RequestError(f"There is no approval {id[:64]}", code="APPROVAL_NOT_FOUND")
        return Approval(**row)

    async def detail(self, id: str) -> ApprovalDetail:
        """One question with the whole call.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
        """
        known = await self.get(id)
        return ApprovalDetail(**known.model_dump(by_alias=False), call=await self._store.call_of(id))

    async def given_already(self, id: str) -> str | None:
        """Another approval for the very call that a question is about, which nobody has used; None where there is none.

        For whoever cannot be asked to bring an id along, such as a model.
        """
        row = await self._store.approved_for((await self.get(id)).digest, now=now_ms())
        return None if row is None else str(row["id"])

    async def waiting(self) -> list[Approval]:
        """Questions without an answer, the oldest first."""
        return [Approval(**row) for row in await self._store.open(now=now_ms())]

    async def answer_to(self, id: str, *, seconds: float) -> Approval:
        """Wait until a question is decided, dropped or expired, or the time is up; returns what became of it.

        A caller with too many requests that wait already gets the question as it is.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
        """
        known = await self.get(id)
        most = MAX_REQUESTS_OF_CALLER if known.caller else MAX_REQUESTS_WITHOUT_KEY
        if self._requests[known.caller] >= most:
            return known
        with self._listening(known) as decided:
            left = min(seconds, (known.expires_at - now_ms()) / 1000)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left)):
                    # Once more, now that a decision is noticed: one may have come before.
                    while (known := await self.get(id)).state == "waiting":
                        await decided.wait()
                        decided.clear()
        return known

    @contextmanager
    def _listening(self, question: Approval) -> Iterator[asyncio.Event]:
        decided = asyncio.Event()
        listeners = self._listeners.setdefault(question.id, set())
        listeners.add(decided)
        self._requests[question.caller] += 1
        try:
            yield decided
        finally:
            listeners.discard(decided)
            if not listeners:
                self._listeners.pop(question.id, None)
            self._requests[question.caller] -= 1
            if not self._requests[question.caller]:
                del self._requests[question.caller]

    def _wake(self, *ids: str) -> None:
        for id in ids:
            for decided in self._listeners.get(id, ()):
                decided.set()

    async def decide(self, id: str, *, approve: bool) -> Approval:
        """Answer a question.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
            ToolError: APPROVAL_INVALID, it has been answered or has expired.
        """
        known = await self.get(id)
        state: ApprovalState = "approved" if approve else "denied"
        is_decided = await self._store.decide(id, state=state, now=now_ms())
        self._wake(id)
        if not is_decided:
            raise ToolError(
                f"This confirmation cannot be answered: {_why(await self.get(id))}", code="APPROVAL_INVALID"
            )
        return known.model_copy(update={"state": state})

    async def forget(self, tool: str) -> None:
        """The tool is gone, and with it every question about it."""
        self._wake(*await self._store.forget(tool))

    async def _question(self, tool: Tool, call: Mapping[str, Any], caller: str, digest: str) -> ApexBridgeError:
        now = now_ms()
        row = await self._store.waiting_for(digest, now=now + LEAST_LEFT_MS)
        if row is None:
            asked = Approval(
                id=secrets.token_hex(16),
                tool=tool.id,
                confirm=tool.metadata.confirm or f"Run {_called(tool)}? It calls itself dangerous.",
                summary=summary_of(call),
                content_hash=tool.metadata.content_hash,
                digest=digest,
                caller=caller,
                created_at=now,
                expires_at=now + LIFETIME_MS,
            )
            row = asked.model_dump(by_alias=False)
            dropped = await self._store.put(row, call=whole_of(call), own=MAX_WAITING_OF_CALLER, total=MAX_WAITING)
            self._wake(*dropped)
        question = Approval(**row)
        return _refusal(
            tool,
            f"{_called(tool)} calls itself dangerous and runs only with a confirmation: {question.confirm}",
            "CONFIRMATION_REQUIRED",
            approvalId=question.id,
            confirm=question.confirm,
            summary=question.summary,
            expiresAt=question.expires_at,
        )


def _digest(tool: Tool, call: Mapping[str, Any], caller: str) -> str:
    """One value for tool, content, call and caller; nothing of it may differ later."""
    metadata = tool.metadata
    parts = [tool.id, metadata.content_hash, metadata.confirm, tool.description, caller, call]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _why(approval: Approval) -> str:
    if approval.state in ("used", "denied"):
        return {"used": "it has been used", "denied": "it was denied"}[approval.state]
    if approval.expires_at <= now_ms():
        return "it has expired"
    return "nobody has approved it yet" if approval.state == "waiting" else "it has been answered"


async def _completed(work: "asyncio.Future[T]") -> T:
    """Wait for something short that was begun, however often this task is cancelled; for handlers that raise again."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(work)
    return work.result()


def _invalid(why: str, tool: Tool) -> ApexBridgeError:
    return _refusal(tool, f"This confirmation does not count: {why}.", "APPROVAL_INVALID")


def _refusal(tool: Tool, message: str, code: str, **details: Any) -> ApexBridgeError:
    if tool.id.startswith(SKILL_PREFIX):
        return SkillError(message, code=code, skill=_called(tool), mode="sandbox", **details)
    return ToolError(message, code=code, tool=tool.id, **details)


def _called(tool: Tool) -> str:
    return tool.id.removeprefix(SKILL_PREFIX)
