"""The events of the server, published by the one path of each act, whichever entry point it came through."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from apexbridge._time import now_ms
from apexbridge.monitoring.event_feed import EventFeed
from apexbridge.monitoring.metrics import Metrics
from apexbridge.storage.run_store import RunRow
from apexbridge.tools.approvals import Approval
from apexbridge.wire import WireModel

MAX_NAMES = 100
"""Names of skills in one event."""
EXPIRY_PAUSE_SECONDS = 0.05
"""Added to the time until an approval expires: a timer may fire a little early."""
SkillEvent = Literal[
    "installed",
    "updated",
    "removed",
    "restored",
    "enabled",
    "disabled",
    "edited",
    "indexed",
    "granted",
    "packages",
]


class ServerEventCounts(WireModel):
    """`counts`: what goes on now. A key without the scope admin sees its own runs."""

    approvals: int | None = Field(description="Pending approvals; null without the scope admin.")
    running: int = Field(description="Runs in progress.")
    waiting: int = Field(description="Queued runs.")


class ServerEventHello(ServerEventCounts):
    """`hello`: the first event of every connection."""

    instance: str = Field(description="Identifies the server process. If it is another one, load everything again.")


class ServerEventRun(WireModel):
    """`run`: a run began, ended, or was deleted."""

    id: str
    skill: str = Field(description="Empty for code of a model.")
    state: str = Field(description="pending, running, completed, error, or deleted.")
    status: str | None = Field(description="success, error or timeout, once it has ended.")
    caller: str = Field(description="The id of its API key; empty if it was started without one.")
    duration_ms: int | None = Field(description="Once it has ended, if it began.")


class ServerEventDirect(WireModel):
    """`direct`: a skill was called in direct mode."""

    skill: str


class ServerEventApproval(WireModel):
    """`approval`: an approval was requested, decided, used, or is gone."""

    id: str
    tool: str
    state: str = Field(description="waiting, approved, denied, used, expired, or removed.")
    caller: str
    expires_at: int = Field(description="In milliseconds since 1970.")


class ServerEventSkills(WireModel):
    """`skills`: skills changed, also if the change was found on disk."""

    change: SkillEvent
    names: list[str] = Field(description=f"The first {MAX_NAMES}, sorted.")
    total: int = Field(description="How many changed.")


class ServerEventMcp(WireModel):
    """`mcp`: the state of an MCP server changed."""

    name: str
    state: str = Field(description="idle, connecting, connected, waiting, or removed.")


class ServerEvents:
    """Turns changes of runs, approvals, skills, MCP servers and keys into events, and counts runs and approvals."""

    def __init__(self, feed: EventFeed, metrics: Metrics) -> None:
        self._feed = feed
        self._metrics = metrics
        self._waiting: dict[str, Approval] = {}
        """Pending approvals by id."""
        self._expiry: asyncio.TimerHandle | None = None

    def run_changed(self, row: RunRow, *, is_deleted: bool = False) -> None:
        has_ended = row.started_at is not None and row.ended_at is not None
        event = ServerEventRun(
            id=row.id,
            skill=row.skill,
            state="deleted" if is_deleted else row.state,
            status=row.status,
            caller=row.caller,
            duration_ms=(row.ended_at or 0) - (row.started_at or 0) if has_ended else None,
        )
        self._feed.publish("run", event, owner=row.caller)
        if row.ended_at is not None and not is_deleted:
            self._metrics.run_ended(row)

    def direct_called(self, skill: str, caller: str) -> None:
        self._feed.publish("direct", ServerEventDirect(skill=skill), owner=caller)

    def skills_changed(self, change: SkillEvent, names: Iterable[str]) -> None:
        """Publish a change of skills."""
        if changed := sorted(set(names)):
            event = ServerEventSkills(change=change, names=changed[:MAX_NAMES], total=len(changed))
            self._feed.publish("skills", event, is_public=True)

    def mcp_changed(self, name: str, state: str) -> None:
        self._feed.publish("mcp", ServerEventMcp(name=name, state=state))

    def keys_changed(self) -> None:
        self._feed.publish("keys")

    def doctor_changed(self) -> None:
        self._feed.publish("doctor")

    # ------------------------------------------------------------------------------------------------------ approvals
    @property
    def pending_approvals(self) -> int:
        now = now_ms()
        return sum(approval.expires_at > now for approval in self._waiting.values())

    def follow_approvals(self, waiting: Iterable[Approval]) -> None:
        """Note the approvals that were pending before the start."""
        self._waiting |= {approval.id: approval for approval in waiting}
        self._schedule_expiry()

    def approval_changed(self, approval: Approval) -> None:
        if approval.state == "waiting":
            self._waiting[approval.id] = approval
            self._metrics.approval_changed("requested")
        elif self._waiting.pop(approval.id, None) is not None and approval.state in ("approved", "denied"):
            self._metrics.approval_changed(approval.state)
        self._publish(approval, approval.state)
        self._schedule_expiry()

    def approvals_removed(self, ids: Sequence[str]) -> None:
        for id in ids:
            if (approval := self._waiting.pop(id, None)) is not None:
                self._metrics.approval_changed("removed")
                self._publish(approval, "removed")

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _publish(self, approval: Approval, state: str) -> None:
        event = ServerEventApproval(
            id=approval.id,
            tool=approval.tool,
            state=state,
            caller=approval.caller,
            expires_at=approval.expires_at,
        )
        self._feed.publish("approval", event, owner=approval.caller)

    def _schedule_expiry(self) -> None:
        """Set a timer for the approval that expires next."""
        self.close()
        if self._waiting:
            next_ms = min(approval.expires_at for approval in self._waiting.values())
            seconds = max(0.0, (next_ms - now_ms()) / 1000) + EXPIRY_PAUSE_SECONDS
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        now = now_ms()
        for approval in [one for one in self._waiting.values() if one.expires_at <= now]:
            del self._waiting[approval.id]
            self._metrics.approval_changed("expired")
            self._publish(approval, "expired")
        self._schedule_expiry()
