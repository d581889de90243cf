"""Approvals of dangerous calls: requested once, and valid for exactly one call."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge._time import now_ms
from apexbridge.errors import ApexBridgeError, RequestError, ToolError
from apexbridge.storage import approval_store as store_module
from apexbridge.storage.approval_store import SqliteApprovals
from apexbridge.storage.database import Database
from apexbridge.tools import approvals as approvals_module
from apexbridge.tools.approvals import Approvals, ApprovalUse
from apexbridge.tools.callview import STORED_CHARACTERS
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B16")]


class Harness:
    """A registry with one dangerous tool, over a real database."""

    def __init__(self, database: Database) -> None:
        self.store = SqliteApprovals(database)
        self.approvals = Approvals(self.store)
        self.registry = ToolRegistry(approvals=self.approvals)
        self.calls: list[dict[str, Any]] = []
        self.define_tool()

    def define_tool(self, **changes: Any) -> None:
        async def wipe(input: dict[str, Any], context: ToolContext) -> str:
            self.calls.append(input)
            return "wiped"

        metadata = ToolMetadata(**{"dangerous": True, "confirm": "Really wipe it?", "content_hash": "one", **changes})
        self.registry.put(Tool.define("wipe", description="Wipes.", execute=wipe, metadata=metadata))

    async def expect_refusal(
        self, input: dict[str, Any], *, approval: str | None = None, caller: str = "", code: str = ""
    ) -> ApexBridgeError:
        with pytest.raises(ApexBridgeError) as caught:
            await self.call(input, approval=approval, caller=caller)
        assert caught.value.code == (code or "CONFIRMATION_REQUIRED")
        return caught.value

    async def request_approval(self, input: dict[str, Any], *, caller: str = "") -> str:
        return str((await self.expect_refusal(input, caller=caller)).details["approvalId"])

    async def call(self, input: dict[str, Any], *, approval: str | None = None, caller: str = "") -> str:
        conversation = Conversation(caller=caller)
        return (await self.registry.execute("wipe", input, approval=approval, conversation=conversation)).output


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    database = Database(tmp_path / "apex.sqlite3")
    try:
        yield Harness(database)
    finally:
        database.close()


async def test_a_dangerous_call_runs_after_its_approval(harness: Harness) -> None:
    error = await harness.expect_refusal({"a": 1})
    assert error.status == 409
    assert error.details["confirm"] == "Really wipe it?"
    (waiting,) = await harness.approvals.waiting()
    assert (waiting.id, waiting.tool, waiting.summary) == (error.details["approvalId"], "wipe", '{"input": {"a": 1}}')
    assert waiting.expires_at - waiting.created_at == 10 * 60 * 1000
    await harness.approvals.decide(waiting.id, approve=True)
    assert await harness.call({"a": 1}, approval=waiting.id) == "wiped"
    assert harness.calls == [{"a": 1}]
    assert await harness.approvals.waiting() == []


async def test_an_undecided_or_unknown_approval_is_refused(harness: Harness) -> None:
    id = await harness.request_approval({"a": 1})
    error = await harness.expect_refusal({"a": 1}, approval=id, code="APPROVAL_INVALID")
    assert error.status == 403
    assert "it has not been approved yet" in error.message
    with pytest.raises(RequestError) as caught:
        await harness.call({"a": 1}, approval="no-such-id")
    assert (caught.value.code, caught.value.status) == ("APPROVAL_NOT_FOUND", 404)
    assert harness.calls == []


async def test_a_denied_or_used_approval_is_refused(harness: Harness) -> None:
    denied = await harness.request_approval({"a": 1})
    await harness.approvals.decide(denied, approve=False)
    assert "denied" in (await harness.expect_refusal({"a": 1}, approval=denied, code="APPROVAL_INVALID")).message
    used = await harness.request_approval({"a": 1})
    assert used != denied
    await harness.approvals.decide(used, approve=True)
    await harness.call({"a": 1}, approval=used)
    assert "used" in (await harness.expect_refusal({"a": 1}, approval=used, code="APPROVAL_INVALID")).message
    for id in (denied, used):
        with pytest.raises(ToolError) as caught:
            await harness.approvals.decide(id, approve=True)
        assert caught.value.code == "APPROVAL_INVALID"
    assert len(harness.calls) == 1


async def test_an_approval_is_bound_to_input_caller_and_content(harness: Harness) -> None:
    id = await harness.request_approval({"a": 1}, caller="key-1")
    await harness.approvals.decide(id, approve=True)
    await harness.expect_refusal({"a": 2}, approval=id, caller="key-1", code="APPROVAL_INVALID")
    await harness.expect_refusal({"a": 1}, approval=id, caller="key-2", code="APPROVAL_INVALID")
    await harness.expect_refusal({"a": 1}, approval=id, code="APPROVAL_INVALID")
    harness.define_tool(content_hash="two")
    await harness.expect_refusal({"a": 1}, approval=id, caller="key-1", code="APPROVAL_INVALID")
    harness.define_tool(confirm="Wipe the other thing?")
    await harness.expect_refusal({"a": 1}, approval=id, caller="key-1", code="APPROVAL_INVALID")
    harness.define_tool()
    assert await harness.call({"a": 1}, approval=id, caller="key-1") == "wiped"


async def test_an_approval_expires(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    id = await harness.request_approval({"a": 1})
    assert await harness.approvals.waiting() == []
    with pytest.raises(ToolError, match="expired"):
        await harness.approvals.decide(id, approve=True)
    assert "expired" in (await harness.expect_refusal({"a": 1}, approval=id, code="APPROVAL_INVALID")).message
    assert await harness.request_approval({"a": 1}) != id


async def test_one_of_many_concurrent_calls_with_one_approval_runs(harness: Harness) -> None:
    id = await harness.request_approval({"a": 1})
    await harness.approvals.decide(id, approve=True)
    results = await asyncio.gather(*(harness.call({"a": 1}, approval=id) for _ in range(20)), return_exceptions=True)
    assert [result for result in results if isinstance(result, str)] == ["wiped"]
    assert len(harness.calls) == 1


async def test_identical_requests_share_one_approval_and_the_queue_is_limited(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await harness.request_approval({"a": 1}) == await harness.request_approval({"a": 1})
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 5)
    for number in range(20):
        await harness.request_approval({"number": number})
    assert len(await harness.approvals.waiting()) == 5


async def test_an_approval_survives_a_restart_and_is_deleted_with_its_tool(harness: Harness, tmp_path: Path) -> None:
    id = await harness.request_approval({"a": 1})
    await harness.approvals.decide(id, approve=True)
    other = Database(tmp_path / "apex.sqlite3")
    try:
        again = Harness(other)
        assert await again.call({"a": 1}, approval=id) == "wiped"
        waiting = await again.request_approval({"a": 2})
        await again.approvals.forget("wipe")
        with pytest.raises(RequestError):
            await again.approvals.get(waiting)
    finally:
        other.close()


async def test_an_operator_can_disable_approvals(harness: Harness) -> None:
    harness.registry = ToolRegistry(approvals=Approvals(harness.store, enabled=False))
    harness.define_tool()
    assert await harness.call({"a": 1}) == "wiped"


async def test_invalid_input_does_not_request_approval(harness: Harness) -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    metadata = ToolMetadata(dangerous=True)
    harness.registry.put(
        Tool.define("wipe", description="d", parameters=schema, execute=lambda input, context: "", metadata=metadata)
    )
    await harness.expect_refusal({}, code="INVALID_INPUT")
    assert await harness.approvals.waiting() == []


async def test_a_flood_of_one_caller_drops_its_own_requests_only(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 5)
    monkeypatch.setattr(approvals_module, "MAX_WAITING", 8)
    others = [await harness.request_approval({"of": caller}, caller=caller) for caller in ("b", "c", "d")]
    flood = [await harness.request_approval({"number": number}, caller="a") for number in range(20)]
    assert [item.id for item in await harness.approvals.waiting()] == others + flood[-5:]
    # Above the total limit, the oldest requests of the caller with the most are dropped.
    more = [await harness.request_approval({"of": caller}, caller=caller) for caller in ("e", "f")]
    assert [item.id for item in await harness.approvals.waiting()] == others + flood[-3:] + more
    for id in others:
        await harness.approvals.decide(id, approve=True)


async def test_expired_and_decided_requests_do_not_count_towards_the_limit(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 2)
    await harness.approvals.decide(await harness.request_approval({"a": 1}), approve=True)
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    await harness.request_approval({"a": 2})
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 600_000)
    expected = [await harness.request_approval({"a": 3}), await harness.request_approval({"a": 4})]
    assert [item.id for item in await harness.approvals.waiting()] == expected


async def test_the_complete_call_is_stored_until_it_is_decided(harness: Harness) -> None:
    text = "x" * 3000 + "the end"
    for approve in (True, False):
        id = await harness.request_approval({"note": text, "approve": approve})
        detail = await harness.approvals.detail(id)
        assert json.loads(detail.call) == {"input": {"note": text, "approve": approve}}
        assert "hidden, sha256" in detail.summary
        assert len(detail.summary) < 1000
        await harness.approvals.decide(id, approve=approve)
        decided = await harness.approvals.detail(id)
        assert (decided.call, decided.summary) == ("", "")


async def test_an_expired_call_is_deleted_with_the_next_request(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    id = await harness.request_approval({"secret": 1})
    await harness.request_approval({"other": 1})
    expired = await harness.approvals.detail(id)
    assert (expired.call, expired.summary) == ("", "")


async def test_only_the_call_that_used_an_approval_can_release_it(harness: Harness) -> None:
    tool, call = harness.registry.get("wipe"), {"input": {"a": 1}}

    async def admit(id: str) -> ApprovalUse | None:
        return await harness.approvals.require(tool, call, caller="", approval=id)

    id = await harness.request_approval({"a": 1})
    await harness.approvals.decide(id, approve=True)
    first = await admit(id)
    assert first is not None
    foreign = ApprovalUse(harness.store, id)
    assert not await foreign.take()
    await foreign.release()
    assert (await harness.approvals.get(id)).state == "used"
    await first.release()
    assert (await harness.approvals.get(id)).state == "approved"
    second = await admit(id)
    assert second is not None
    await first.release()  # already released: the approval belongs to the second call now
    assert (await harness.approvals.get(id)).state == "used"
    second.use_up()
    await second.release()
    assert (await harness.approvals.get(id)).state == "used"


async def test_an_approval_is_not_used_up_by_a_call_cancelled_during_admission(harness: Harness) -> None:
    id = await harness.request_approval({"a": 1})
    await harness.approvals.decide(id, approve=True)
    for steps in range(12):
        task = asyncio.ensure_future(harness.call({"a": 1}, approval=id))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        state = (await harness.approvals.get(id)).state
        assert state == ("used" if harness.calls else "approved")
        if harness.calls:
            break
    else:
        assert await harness.call({"a": 1}, approval=id) == "wiped"
    assert len(harness.calls) == 1


async def test_a_decision_or_a_deletion_wakes_all_waiters(harness: Harness) -> None:
    approved, forgotten = await harness.request_approval({"a": 1}), await harness.request_approval({"a": 2})
    waiters = [asyncio.ensure_future(harness.approvals.answer_to(approved, seconds=60)) for _ in range(3)]
    removed = asyncio.ensure_future(harness.approvals.answer_to(forgotten, seconds=60))
    await until(lambda: sum(map(len, harness.approvals._listeners.values())) == 4)
    await harness.approvals.decide(approved, approve=True)
    assert {(await item).state for item in waiters} == {"approved"}
    await harness.approvals.forget("wipe")
    with pytest.raises(RequestError):
        await removed
    assert (harness.approvals._listeners, dict(harness.approvals._requests)) == ({}, {})


async def test_a_decided_or_expired_approval_is_returned_without_waiting(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await harness.request_approval({"a": 1})
    assert (await harness.approvals.answer_to(id, seconds=0)).state == "waiting"
    await harness.approvals.decide(id, approve=False)
    assert (await harness.approvals.answer_to(id, seconds=60)).state == "denied"
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    expired = await harness.request_approval({"a": 2})
    assert (await harness.approvals.answer_to(expired, seconds=60)).state == "waiting"


async def test_waiting_requests_are_limited_per_caller(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_module, "MAX_REQUESTS_OF_CALLER", 2)
    id, other = (
        await harness.request_approval({"a": 1}, caller="a"),
        await harness.request_approval({"a": 1}, caller="b"),
    )
    waiters = [asyncio.ensure_future(harness.approvals.answer_to(id, seconds=60)) for _ in range(2)]
    await until(lambda: sum(map(len, harness.approvals._listeners.values())) == 2)
    assert (await harness.approvals.answer_to(id, seconds=60)).state == "waiting"
    waiters.append(asyncio.ensure_future(harness.approvals.answer_to(other, seconds=60)))
    await until(lambda: sum(map(len, harness.approvals._listeners.values())) == 3)
    for item in waiters:
        item.cancel()
    await asyncio.wait(waiters)
    assert (harness.approvals._listeners, dict(harness.approvals._requests)) == ({}, {})


async def test_a_decision_is_recorded_with_its_time_and_key(harness: Harness) -> None:
    for approve, by in ((True, "key-1"), (False, "")):
        id = await harness.request_approval({"approve": approve})
        assert ((await harness.approvals.get(id)).decided_at, (await harness.approvals.get(id)).decided_by) == (
            None,
            None,
        )
        begun = now_ms()
        decided = await harness.approvals.decide(id, approve=approve, by=by)
        assert decided.decided_at is not None
        assert begun <= decided.decided_at <= now_ms()
        assert decided.decided_by == by
        known = await harness.approvals.get(id)
        assert (known.state, known.decided_at, known.decided_by) == (decided.state, decided.decided_at, by)
        with pytest.raises(ToolError):
            await harness.approvals.decide(id, approve=not approve, by="another")
        assert (await harness.approvals.get(id)).decided_by == by


async def test_approvals_are_listed_by_state_the_newest_first(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    expired = await harness.request_approval({"a": 0})
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 600_000)
    denied, approved, used, first, second = [await harness.request_approval({"a": number}) for number in range(1, 6)]
    await harness.approvals.decide(denied, approve=False)
    await harness.approvals.decide(approved, approve=True)
    await harness.approvals.decide(used, approve=True)
    await harness.call({"a": 3}, approval=used)

    async def listed(state: Any, page: int = 1, limit: int = 10) -> list[str]:
        found = await harness.approvals.page(state, page=page, limit=limit)
        assert all(state in ("all", one.state) for one in found)
        return [one.id for one in found]

    assert await listed("waiting") == [second, first]
    assert await listed("expired") == [expired]
    assert (await listed("approved"), await listed("denied"), await listed("used")) == ([approved], [denied], [used])
    everything = [second, first, used, approved, denied, expired]
    assert await listed("all") == everything
    assert [await listed("all", page, 4) for page in (1, 2, 3)] == [everything[:4], everything[4:], []]
    assert (await harness.approvals.detail(expired)).state == "expired"


async def test_decisions_outlive_their_tool_and_their_expiry(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    denied, approved, used, _ = [await harness.request_approval({"a": number}) for number in range(4)]
    await harness.approvals.decide(denied, approve=False)
    for id in (approved, used):
        await harness.approvals.decide(id, approve=True)
    await harness.call({"a": 2}, approval=used)
    await harness.approvals.forget("wipe")
    assert {one.id for one in await harness.approvals.page("all", page=1, limit=10)} == {denied, used}
    day_ms = 24 * 60 * 60 * 1000
    now = now_ms()
    for later, expected in ((29 * day_ms, {denied, used}), (31 * day_ms, set())):
        monkeypatch.setattr(store_module, "now_ms", lambda later=later: now + later)
        await harness.store.sweep()
        assert {one.id for one in await harness.approvals.page("all", page=1, limit=10)} == expected


async def test_the_number_of_recorded_decisions_is_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_DECIDED", 2)
    ids = [await harness.request_approval({"a": number}) for number in range(4)]
    for id in ids:
        await harness.approvals.decide(id, approve=True)
    await harness.store.sweep()
    assert len(await harness.approvals.page("approved", page=1, limit=10)) == 4  # they can still be used
    now = now_ms()
    monkeypatch.setattr(store_module, "now_ms", lambda: now + 2 * 60 * 60 * 1000)
    await harness.store.sweep()
    assert [one.id for one in await harness.approvals.page("all", page=1, limit=10)] == ids[:1:-1]


async def test_a_large_call_is_stored_in_full_and_a_larger_one_says_that_it_is_not(harness: Harness) -> None:
    text = "x" * 4_000_000
    detail = await harness.approvals.detail(await harness.request_approval({"note": text}))
    assert (json.loads(detail.call), detail.call_truncated) == ({"input": {"note": text}}, False)
    larger = await harness.approvals.detail(await harness.request_approval({"note": "x" * STORED_CHARACTERS}))
    assert larger.call_truncated
    assert "hidden, sha256" in larger.call


async def test_large_calls_of_one_caller_displace_its_own_oldest_only(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MAX_CALLS_OF_CALLER", 5_000)
    monkeypatch.setattr(approvals_module, "MAX_CALLS", 8_000)
    small = await harness.request_approval({"a": "x" * 100}, caller="small")
    large = [await harness.request_approval({"a": "x" * 2_000, "n": number}, caller="large") for number in range(3)]
    assert [one.id for one in await harness.approvals.waiting()] == [small, *large[1:]]
    other = [await harness.request_approval({"a": "x" * 2_000, "n": number}, caller="other") for number in range(2)]
    assert [one.id for one in await harness.approvals.waiting()] == [small, large[2], *other]


async def test_with_recorded_inputs_a_decision_is_shown_with_its_call(harness: Harness, tmp_path: Path) -> None:
    harness.store._keeps_calls = True
    id = await harness.request_approval({"a": 1})
    await harness.approvals.decide(id, approve=False)
    await harness.store.sweep()
    detail = await harness.approvals.detail(id)
    assert json.loads(detail.call) == {"input": {"a": 1}}
    assert detail.summary
    large = await harness.request_approval({"a": "x" * 100_000})
    await harness.approvals.decide(large, approve=False)
    assert (await harness.approvals.detail(large)).call == ""


# ----------------------------------------------------------------------------------------------------- text on disk
WORD = "quaggaword"


def files_with_word(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()]


async def wait_until_no_file_has_the_word(folder: Path) -> None:
    await until(lambda: not files_with_word(folder))


@pytest.mark.parametrize("approve", [True, False])
async def test_a_decided_call_is_removed_from_all_files(harness: Harness, tmp_path: Path, approve: bool) -> None:
    id = await harness.request_approval({"a": WORD * 1000})
    assert files_with_word(tmp_path)
    await harness.approvals.decide(id, approve=approve)
    await wait_until_no_file_has_the_word(tmp_path)


async def test_the_call_of_a_deleted_tool_is_removed_from_all_files(harness: Harness, tmp_path: Path) -> None:
    await harness.request_approval({"a": WORD})
    await harness.approvals.forget("wipe")
    await wait_until_no_file_has_the_word(tmp_path)


async def test_a_dropped_call_is_removed_from_all_files(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MAX_WAITING_OF_CALLER", 1)
    await harness.request_approval({"a": WORD}, caller="key")
    await harness.request_approval({"a": "another"}, caller="key")
    await wait_until_no_file_has_the_word(tmp_path)


async def test_an_expired_call_is_hidden_and_a_sweep_removes_it_from_all_files(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "LIFETIME_MS", 0)
    id = await harness.request_approval({"a": WORD})
    detail = await harness.approvals.detail(id)
    assert (detail.call, detail.summary) == ("", "")
    assert files_with_word(tmp_path)
    await harness.store.sweep()
    assert files_with_word(tmp_path) == []
