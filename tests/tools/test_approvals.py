"""Dangerous calls: asked for once, good for one call, and for that call only."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge.errors import ApexBridgeError, RequestError, ToolError
from apexbridge.storage.approval_store import SqliteApprovals
from apexbridge.storage.database import Database
from apexbridge.tools import approvals as approvals_module
from apexbridge.tools.approvals import Approvals, ApprovalUse
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B16")]


class Desk:
    """A registry with one dangerous tool, over a real database."""

    def __init__(self, database: Database) -> None:
        self.store = SqliteApprovals(database)
        self.approvals = Approvals(self.store)
        self.registry = ToolRegistry(approvals=self.approvals)
        self.calls: list[dict[str, Any]] = []
        self.offer()

    def offer(self, **changes: Any) -> None:
        async def wipe(input: dict[str, Any], context: ToolContext) -> str:
            self.calls.append(input)
            return "wiped"

        metadata = ToolMetadata(**{"dangerous": True, "confirm": "Really wipe it?", "content_hash": "one", **changes})
        self.registry.put(Tool.define("wipe", description="Wipes.", execute=wipe, metadata=metadata))

    async def refused(
        self, input: dict[str, Any], *, approval: str | None = None, caller: str = "", code: str = ""
    ) -> ApexBridgeError:
        with pytest.raises(ApexBridgeError) as caught:
            await self.call(input, approval=approval, caller=caller)
        assert caught.value.code == (code or "CONFIRMATION_REQUIRED")
        return caught.value

    async def asked(self, input: dict[str, Any], *, caller: str = "") -> str:
        return str((await self.refused(input, caller=caller)).details["approvalId"])

    async def call(self, input: dict[str, Any], *, approval: str | None = None, caller: str = "") -> str:
        conversation = Conversation(caller=caller)
        return (await self.registry.execute("wipe", input, approval=approval, conversation=conversation)).output


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    database = Database(tmp_path / "apex.sqlite3")
    try:
        yield Desk(database)
    finally:
        database.close()


async def test_a_dangerous_call_asks_and_runs_once_it_is_approved(desk: Desk) -> None:
    error = await desk.refused({"a": 1})
    assert error.status == 409
    assert error.details["confirm"] == "Really wipe it?"
    (waiting,) = await desk.approvals.waiting()
    assert (waiting.id, waiting.tool, waiting.summary) == (error.details["approvalId"], "wipe", '{"input": {"a": 1}}')
    assert waiting.expires_at - waiting.created_at == 10 * 60 * 1000
    await desk.approvals.decide(waiting.id, approve=True)
    assert await desk.call({"a": 1}, approval=waiting.id) == "wiped"
    assert desk.calls == [{"a": 1}]
    assert await desk.approvals.waiting() == []


async def test_an_id_that_nobody_approved_does_not_run(desk: Desk) -> None:
    id = await desk.asked({"a": 1})
    error = await desk.refused({"a": 1}, approval=id, code="APPROVAL_INVALID")
    assert error.status == 403
    assert "it has not been approved yet" in error.message
    with pytest.raises(RequestError) as caught:
        await desk.call({"a": 1}, approval="no-such-id")
    assert (caught.value.code, caught.value.status) == ("APPROVAL_NOT_FOUND", 404)
    assert desk.calls == []


async def test_one_that_was_denied_or_used_does_not_count(desk: Desk) -> None:
    denied = await desk.asked({"a": 1})
    await desk.approvals.decide(denied, approve=False)
    assert "denied" in (await desk.refused({"a": 1}, approval=denied, code="APPROVAL_INVALID")).message
    used = await desk.asked({"a": 1})
    assert used != denied
    await desk.approvals.decide(used, approve=True)
    await desk.call({"a": 1}, approval=used)
    assert "used" in (await desk.refused({"a": 1}, approval=used, code="APPROVAL_INVALID")).message
    for id in (denied, used):
        with pytest.raises(ToolError) as caught:
            await desk.approvals.decide(id, approve=True)
        assert caught.value.code == "APPROVAL_INVALID"
    assert len(desk.calls) == 1


async def test_it_is_bound_to_input_caller_and_content(desk: Desk) -> None:
    id = await desk.asked({"a": 1}, caller="key-1")
    await desk.approvals.decide(id, approve=True)
    await desk.refused({"a": 2}, approval=id, caller="key-1", code="APPROVAL_INVALID")
    await desk.refused({"a": 1}, approval=id, caller="key-2", code="APPROVAL_INVALID")
    await desk.refused({"a": 1}, approval=id, code="APPROVAL_INVALID")
    desk.offer(content_hash="two")
    await desk.refused({"a": 1}, approval=id, caller="key-1", code="APPROVAL_INVALID")
    desk.offer(confirm="Wipe the other thing?")
    await desk.refused({"a": 1}, approval=id, caller="key-1", code="APPROVAL_INVALID")
    desk.offer()
    assert await desk.call({"a": 1}, approval=id, caller="key-1") == "wiped"


async def test_it_expires(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    id = await desk.asked({"a": 1})
    assert await desk.approvals.waiting() == []
    with pytest.raises(ToolError, match="expired"):
        await desk.approvals.decide(id, approve=True)
    assert "expired" in (await desk.refused({"a": 1}, approval=id, code="APPROVAL_INVALID")).message
    assert await desk.asked({"a": 1}) != id


async def test_of_many_calls_with_one_approval_at_once_one_runs(desk: Desk) -> None:
    id = await desk.asked({"a": 1})
    await desk.approvals.decide(id, approve=True)
    results = await asyncio.gather(*(desk.call({"a": 1}, approval=id) for _ in range(20)), return_exceptions=True)
    assert [result for result in results if isinstance(result, str)] == ["wiped"]
    assert len(desk.calls) == 1


async def test_the_same_question_is_not_asked_twice_and_the_waiting_room_is_bounded(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await desk.asked({"a": 1}) == await desk.asked({"a": 1})
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 5)
    for number in range(20):
        await desk.asked({"number": number})
    assert len(await desk.approvals.waiting()) == 5


async def test_an_approval_survives_a_restart_and_goes_with_its_tool(desk: Desk, tmp_path: Path) -> None:
    id = await desk.asked({"a": 1})
    await desk.approvals.decide(id, approve=True)
    other = Database(tmp_path / "apex.sqlite3")
    try:
        again = Desk(other)
        assert await again.call({"a": 1}, approval=id) == "wiped"
        waiting = await again.asked({"a": 2})
        await again.approvals.forget("wipe")
        with pytest.raises(RequestError):
            await again.approvals.get(waiting)
    finally:
        other.close()


async def test_an_operator_can_switch_it_off(desk: Desk) -> None:
    desk.registry = ToolRegistry(approvals=Approvals(desk.store, enabled=False))
    desk.offer()
    assert await desk.call({"a": 1}) == "wiped"


async def test_input_that_does_not_fit_is_not_asked_about(desk: Desk) -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    metadata = ToolMetadata(dangerous=True)
    desk.registry.put(
        Tool.define("wipe", description="d", parameters=schema, execute=lambda input, context: "", metadata=metadata)
    )
    await desk.refused({}, code="INVALID_INPUT")
    assert await desk.approvals.waiting() == []


async def test_a_flood_of_one_caller_drops_its_own_questions_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 5)
    monkeypatch.setattr(approvals_module, "MAX_WAITING", 8)
    others = [await desk.asked({"of": caller}, caller=caller) for caller in ("b", "c", "d")]
    flood = [await desk.asked({"number": number}, caller="a") for number in range(20)]
    assert [one.id for one in await desk.approvals.waiting()] == others + flood[-5:]
    # Over the common limit, the caller with the most makes room for the newcomer.
    more = [await desk.asked({"of": caller}, caller=caller) for caller in ("e", "f")]
    assert [one.id for one in await desk.approvals.waiting()] == others + flood[-3:] + more
    for id in others:
        await desk.approvals.decide(id, approve=True)


async def test_questions_that_expired_or_were_decided_do_not_count(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 2)
    await desk.approvals.decide(await desk.asked({"a": 1}), approve=True)
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    await desk.asked({"a": 2})
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 600_000)
    kept = [await desk.asked({"a": 3}), await desk.asked({"a": 4})]
    assert [one.id for one in await desk.approvals.waiting()] == kept


async def test_the_whole_call_is_kept_until_it_is_decided(desk: Desk) -> None:
    text = "x" * 3000 + "the end"
    for approve in (True, False):
        id = await desk.asked({"note": text, "approve": approve})
        detail = await desk.approvals.detail(id)
        assert json.loads(detail.call) == {"input": {"note": text, "approve": approve}}
        assert "hidden, sha256" in detail.summary
        assert len(detail.summary) < 1000
        await desk.approvals.decide(id, approve=approve)
        decided = await desk.approvals.detail(id)
        assert (decided.call, decided.summary) == ("", "")


async def test_the_call_of_a_question_that_expired_is_deleted_with_the_next_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    id = await desk.asked({"secret": 1})
    await desk.asked({"other": 1})
    expired = await desk.approvals.detail(id)
    assert (expired.call, expired.summary) == ("", "")


async def test_only_the_admission_that_used_an_approval_can_release_it(desk: Desk) -> None:
    tool, call = desk.registry.get("wipe"), {"input": {"a": 1}}

    async def admit(id: str) -> ApprovalUse | None:
        return await desk.approvals.require(tool, call, caller="", approval=id)

    id = await desk.asked({"a": 1})
    await desk.approvals.decide(id, approve=True)
    first = await admit(id)
    assert first is not None
    foreign = ApprovalUse(desk.store, id)
    assert not await foreign.take()
    await foreign.release()
    assert (await desk.approvals.get(id)).state == "used"
    await first.release()
    assert (await desk.approvals.get(id)).state == "approved"
    second = await admit(id)
    assert second is not None
    await first.release()  # it was released before: the approval is the second one's now
    assert (await desk.approvals.get(id)).state == "used"
    second.use_up()
    await second.release()
    assert (await desk.approvals.get(id)).state == "used"


async def test_a_call_that_is_cancelled_while_it_is_admitted_leaves_the_approval_as_it_was(desk: Desk) -> None:
    id = await desk.asked({"a": 1})
    await desk.approvals.decide(id, approve=True)
    for steps in range(12):
        calling = asyncio.ensure_future(desk.call({"a": 1}, approval=id))
        for _ in range(steps):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling])
        state = (await desk.approvals.get(id)).state
        assert state == ("used" if desk.calls else "approved")
        if desk.calls:
            break
    else:
        assert await desk.call({"a": 1}, approval=id) == "wiped"
    assert len(desk.calls) == 1


async def test_a_decision_wakes_all_that_wait_and_dropping_the_question_too(desk: Desk) -> None:
    approved, forgotten = await desk.asked({"a": 1}), await desk.asked({"a": 2})
    asking = [asyncio.ensure_future(desk.approvals.answer_to(approved, seconds=60)) for _ in range(3)]
    gone = asyncio.ensure_future(desk.approvals.answer_to(forgotten, seconds=60))
    await until(lambda: sum(map(len, desk.approvals._listeners.values())) == 4)
    await desk.approvals.decide(approved, approve=True)
    assert {(await one).state for one in asking} == {"approved"}
    await desk.approvals.forget("wipe")
    with pytest.raises(RequestError):
        await gone
    assert (desk.approvals._listeners, dict(desk.approvals._requests)) == ({}, {})


async def test_one_that_is_decided_already_or_has_no_time_left_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await desk.asked({"a": 1})
    assert (await desk.approvals.answer_to(id, seconds=0)).state == "waiting"
    await desk.approvals.decide(id, approve=False)
    assert (await desk.approvals.answer_to(id, seconds=60)).state == "denied"
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    expired = await desk.asked({"a": 2})
    assert (await desk.approvals.answer_to(expired, seconds=60)).state == "waiting"


async def test_requests_of_one_caller_that_wait_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "MAX_REQUESTS_OF_CALLER", 2)
    id, other = await desk.asked({"a": 1}, caller="a"), await desk.asked({"a": 1}, caller="b")
    asking = [asyncio.ensure_future(desk.approvals.answer_to(id, seconds=60)) for _ in range(2)]
    await until(lambda: sum(map(len, desk.approvals._listeners.values())) == 2)
    assert (await desk.approvals.answer_to(id, seconds=60)).state == "waiting"
    asking.append(asyncio.ensure_future(desk.approvals.answer_to(other, seconds=60)))
    await until(lambda: sum(map(len, desk.approvals._listeners.values())) == 3)
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)
    assert (desk.approvals._listeners, dict(desk.approvals._requests)) == ({}, {})


# ---------------------------------------------------------------------------------------------------- words on disk
WORD = "quaggaword"


def files_with_word(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()]


async def until_no_file_has_the_word(folder: Path) -> None:
    await until(lambda: not files_with_word(folder))


@pytest.mark.parametrize("approve", [True, False])
async def test_a_decided_call_soon_stands_in_no_file(desk: Desk, tmp_path: Path, approve: bool) -> None:
    id = await desk.asked({"a": WORD * 1000})
    assert files_with_word(tmp_path)
    await desk.approvals.decide(id, approve=approve)
    await until_no_file_has_the_word(tmp_path)


async def test_the_call_of_a_forgotten_tool_soon_stands_in_no_file(desk: Desk, tmp_path: Path) -> None:
    await desk.asked({"a": WORD})
    await desk.approvals.forget("wipe")
    await until_no_file_has_the_word(tmp_path)


async def test_a_dropped_call_soon_stands_in_no_file(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 1)
    await desk.asked({"a": WORD}, caller="key")
    await desk.asked({"a": "another"}, caller="key")
    await until_no_file_has_the_word(tmp_path)


async def test_an_expired_call_is_not_shown_and_a_sweep_takes_it_from_every_file(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    id = await desk.asked({"a": WORD})
    detail = await desk.approvals.detail(id)
    assert (detail.call, detail.summary) == ("", "")
    assert files_with_word(tmp_path)
    await desk.store.sweep()
    assert files_with_word(tmp_path) == []
