"""A person's word before a dangerous call: asked for once, good for one call, and for that call only."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar

from apexbridge.errors import ApexBridgeError, RequestError, SkillError, ToolError
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.tool import Tool
from apexbridge.wire import WireModel

LIFETIME_MS = 10 * 60 * 1000
LEAST_LEFT_MS = 60 * 1000
"""A question with less time than this left is asked anew."""
MAX_WAITING = 1_000
"""Questions that may wait at once; beyond that the oldest is dropped."""
SUMMARY_CHARACTERS = 500
T = TypeVar("T")
ApprovalState = Literal["waiting", "approved", "denied", "used"]


class Approval(WireModel):
    """A question that was put to a person, and what became of it; times in milliseconds since 1970."""

    id: str
    tool: str
    confirm: str
    """What the person is asked."""
    summary: str
    """The call's input, shortened, so that one knows what one agrees to."""
    content_hash: str
    digest: str
    """Of everything that the call consists of."""
    caller: str
    created_at: int
    expires_at: int
    state: ApprovalState = "waiting"


class ApprovalStore(Protocol):
    """Where questions and answers are kept."""

    async def put(self, approval: dict[str, Any], *, keep: int) -> None:
        """Write one down; forget what has expired, and all but so many of the newest that still wait."""

    async def get(self, id: str) -> dict[str, Any] | None:
        """One of them."""

    async def waiting_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """The question that is already open for the same call."""

    async def approved_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """An approval for the same call that nobody has used."""

    async def open(self, *, now: int) -> Sequence[dict[str, Any]]:
        """All that wait for an answer, the oldest first."""

    async def move(self, id: str, *, before: str, after: str, now: int) -> bool:
        """Change a state, if it is the expected one and not expired; False where it is not. Nobody comes between."""

    async def forget(self, tool: str) -> None:
        """Drop everything about a tool."""


class Confirmation:
    """Asks before dangerous calls, and takes the answers."""

    def __init__(self, store: ApprovalStore, *, enabled: bool = True) -> None:
        self._store = store
        self._enabled = enabled

    async def require(
        self, tool: Tool, call: Mapping[str, Any], *, caller: str, approval: str | None, always: bool = False
    ) -> str | None:
        """Let a dangerous call through that was confirmed; gives the confirmation that it used up.

        `call` is everything that makes this call what it is: the input, and what else decides what happens. `always`
        asks even where the operator switched the questions off.

        Raises:
            ApexBridgeError: CONFIRMATION_REQUIRED with the id to be approved; APPROVAL_INVALID for one that does not
                count. A `SkillError` where the tool is a skill, else a `ToolError`.
            RequestError: APPROVAL_NOT_FOUND.
        """
        if not self._enabled and not always:
            return None
        digest = _digest(tool, call, caller)
        if approval is None:
            raise await self._question(tool, call, caller, digest)
        given = await self.get(approval)
        if given.digest != digest:
            raise _invalid("it was given for another call, another caller, or before the tool changed", tool)
        if not await self._use(approval):
            raise _invalid(_why(await self.get(approval)), tool)
        return approval

    async def _use(self, approval: str) -> bool:
        """Use one up; whoever is called off meanwhile has not used it."""
        using = asyncio.ensure_future(self._store.move(approval, before="approved", after="used", now=_now()))
        try:
            return await asyncio.shield(using)
        except asyncio.CancelledError:
            if await _in_spite_of_all(using):
                await _in_spite_of_all(asyncio.ensure_future(self.give_back(approval)))
            raise

    async def give_back(self, id: str | None) -> None:
        """The call that used it never began."""
        if id is not None:
            await self._store.move(id, before="used", after="approved", now=_now())

    async def get(self, id: str) -> Approval:
        """One question.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
        """
        row = await self._store.get(id)
        if row is None:
            raise RequestError(f"There is no approval {id[:64]}", code="APPROVAL_NOT_FOUND")
        return Approval(**row)

    async def given_already(self, id: str) -> str | None:
        """Another approval for the very call that a question is about, which nobody has used; None where there is none.

        For whoever cannot be asked to bring an id along, such as a model.
        """
        row = await self._store.approved_for((await self.get(id)).digest, now=_now())
        return None if row is None else str(row["id"])

    async def waiting(self) -> list[Approval]:
        """Questions without an answer, the oldest first."""
        return [Approval(**row) for row in await self._store.open(now=_now())]

    async def decide(self, id: str, *, approve: bool) -> Approval:
        """Answer a question.

        Raises:
            RequestError: APPROVAL_NOT_FOUND.
            ToolError: APPROVAL_INVALID, it has been answered or has expired.
        """
        known = await self.get(id)
        after: ApprovalState = "approved" if approve else "denied"
        if not await self._store.move(id, before="waiting", after=after, now=_now()):
            raise ToolError(
                f"This confirmation cannot be answered: {_why(await self.get(id))}", code="APPROVAL_INVALID"
            )
        return known.model_copy(update={"state": after})

    async def forget(self, tool: str) -> None:
        """The tool is gone, and with it every question about it."""
        await self._store.forget(tool)

    async def _question(self, tool: Tool, call: Mapping[str, Any], caller: str, digest: str) -> ApexBridgeError:
        now = _now()
        row = await self._store.waiting_for(digest, now=now + LEAST_LEFT_MS)
        if row is None:
            asked = Approval(
                id=secrets.token_hex(16),
                tool=tool.id,
                confirm=tool.metadata.confirm or f"Run {_called(tool)}? It calls itself dangerous.",
                summary=_shown(call),
                content_hash=tool.metadata.content_hash,
                digest=digest,
                caller=caller,
                created_at=now,
                expires_at=now + LIFETIME_MS,
            )
            row = asked.model_dump(by_alias=False)
            await self._store.put(row, keep=MAX_WAITING)
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


def _shown(call: Mapping[str, Any]) -> str:
    text = json.dumps(call, ensure_ascii=False, default=str)
    return text if len(text) <= SUMMARY_CHARACTERS else f"{text[:SUMMARY_CHARACTERS]}…"


def _why(approval: Approval) -> str:
    if approval.state in ("used", "denied"):
        return {"used": "it has been used", "denied": "it was denied"}[approval.state]
    if approval.expires_at <= _now():
        return "it has expired"
    return "nobody has approved it yet" if approval.state == "waiting" else "it has been answered"


async def _in_spite_of_all(work: "asyncio.Future[T]") -> T:
    """Wait for something short that was begun, however often whoever waits is called off."""
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


def _now() -> int:
    return int(time.time() * 1000)
