# Generated from _async by scripts/unasync.py. Do not edit.
"""Runs that are under way or over, and approvals of dangerous calls."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from apexbridge.client.protocol import file_path, path_of, without_none
from apexbridge.errors import ServerError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.runs.run_views import RunDetail, RunPage
from apexbridge.tools.approvals import Approval, ApprovalDetail

if TYPE_CHECKING:
    from apexbridge.client._sync.client import SyncClient

MAX_RECONNECTS = 3


class RunEvent(NamedTuple):
    """Something that a run did."""

    kind: str
    """`state`, `stdout`, `stderr`, or `result`, which is the last one."""
    data: Any
    """A text, or an `ExecutionResult`."""


class Runs:
    """`client.runs`"""

    def __init__(self, client: "SyncClient") -> None:
        self._client = client

    def list(self, *, skill: str | None = None, state: str | None = None, page: int = 1, limit: int = 50) -> RunPage:
        """A page of the runs, the newest first."""
        params = without_none(skill=skill, state=state, page=page, limit=limit)
        return self._client.read(RunPage, "GET", "/api/executions", params=params)

    def show(self, id: str) -> RunDetail:
        """One run; `result` is set when it has ended."""
        return self._client.read(RunDetail, "GET", path_of("api", "executions", id))

    def events(self, id: str) -> Iterator[RunEvent]:
        """Follow a run from its beginning to its end. A lost connection is resumed."""
        last, lost = "", 0
        while True:
            headers = {"last-event-id": last} if last else {}
            try:
                for number, kind, text in self._client.events(
                    "GET", path_of("api", "executions", id, "events"), headers=headers
                ):
                    last, lost = number, 0
                    if kind == "result":
                        yield RunEvent(kind, ExecutionResult.model_validate_json(text))
                        return
                    yield RunEvent(kind, json.loads(text))
                return
            except ServerError as error:
                lost += 1
                if error.code != "NOT_READY" or lost > MAX_RECONNECTS:
                    raise

    def wait(self, id: str) -> ExecutionResult:
        """Wait until a run ends. The run goes on if this is interrupted."""
        for event in self.events(id):
            if event.kind == "result":
                return ExecutionResult.model_validate(event.data)
        detail = self.show(id)
        if detail.result is None:
            raise ServerError(f"The run {id} has no result", code="INTERNAL_ERROR")
        return detail.result

    def cancel(self, id: str) -> None:
        """Cancel a run."""
        self._client.ask("POST", path_of("api", "executions", id, "cancel"))

    def delete(self, id: str) -> None:
        """Delete a run and its files; an active run is cancelled first."""
        self._client.ask("DELETE", path_of("api", "executions", id))

    def download(self, id: str, path: str) -> bytes:
        """A file that the run made."""
        return self._client.fetch("GET", file_path(path_of("api", "executions", id), path))


class Approvals:
    """`client.approvals`: dangerous calls that wait for a person. Deciding needs the scope admin."""

    def __init__(self, client: "SyncClient") -> None:
        self._client = client

    def list(self) -> list[Approval]:
        """The pending approvals, the oldest first."""
        return [Approval.model_validate(one) for one in self._client.ask("GET", "/api/approvals")]

    def show(self, id: str) -> ApprovalDetail:
        """One approval, with the whole call."""
        return self._client.read(ApprovalDetail, "GET", path_of("api", "approvals", id))

    def approve(self, id: str) -> Approval:
        """Approve a call. The approval is valid for one call, until it expires."""
        return self._decide(id, approve=True)

    def deny(self, id: str) -> Approval:
        """Deny a call."""
        return self._decide(id, approve=False)

    def _decide(self, id: str, *, approve: bool) -> Approval:
        body = {"approve": approve}
        return self._client.read(Approval, "POST", path_of("api", "approvals", id), json=body)
