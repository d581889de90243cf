"""Dangerous skills: the person at the client is asked, if the client's key may approve and the client can ask."""

import json
from typing import Any

import mcp_types as types
import pytest

from apexbridge.storage.audit import AUDIT_FILE, exported
from tests.chat.live import Live
from tests.surfaces.mcp.conftest import ERAS, connect, new_key, text_of

pytestmark = pytest.mark.anyio


class Person:
    """Answers the questions of a client."""

    def __init__(self, action: str, **content: Any) -> None:
        self.asked: list[str] = []
        self._answer = types.ElicitResult.model_validate({"action": action, "content": content or None})

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        return self._answer


@pytest.mark.parametrize("era", ERAS)
async def test_a_dangerous_skill_runs_after_the_person_agreed_and_asks_each_time(served: Live, era: str) -> None:
    person = Person("accept", approve=True)
    async with connect(served, era, elicitation_callback=person) as client:
        for _ in range(2):
            ran = await client.call_tool("run_skill", {"name": "eraser", "input": {"what": era}})
            assert (ran.is_error, ran.structured_content["stdout"]) == (False, "ERASED\n")
    assert len(person.asked) == 2
    assert "eraser" in person.asked[0]
    assert era in person.asked[0]  # the call itself is shown
    rows = [row for row in exported(served.bridge.settings.data_dir / AUDIT_FILE) if row["what"] == "approvals.decide"]
    assert rows[-1]["detail"] == "approve"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("person", [Person("decline"), Person("accept", approve=False), Person("accept")])
async def test_a_dangerous_skill_does_not_run_without_a_clear_yes(served: Live, era: str, person: Person) -> None:
    async with connect(served, era, elicitation_callback=person) as client:
        refused = await client.call_tool("run_skill", {"name": "eraser", "input": {"no": id(person)}})
    assert refused.is_error
    assert "not run" in text_of(refused)


@pytest.mark.parametrize("era", ERAS)
async def test_without_elicitation_the_approval_is_named_and_can_be_given_elsewhere(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        call = ("run_skill", {"name": "eraser", "input": {"elsewhere": era}})
        refused = await client.call_tool(*call)
        assert refused.is_error
        id = (refused.meta or {})["apexbridge/error"]["details"]["approvalId"]
        assert f"apex approvals approve {id}" in text_of(refused)
        served.do(served.bridge.approvals.decide(id, approve=True))
        assert not (await client.call_tool(*call)).is_error
        assert (await client.call_tool(*call)).is_error  # once only


@pytest.mark.parametrize("era", ERAS)
async def test_a_question_without_an_answer_leaves_the_approval_pending(served: Live, era: str) -> None:
    call = ("run_skill", {"name": "eraser", "input": {"unanswered": era}})
    async with connect(served, era, elicitation_callback=Person("cancel")) as client:
        refused = await client.call_tool(*call)
        id = (refused.meta or {})["apexbridge/error"]["details"]["approvalId"]
        assert f"apex approvals approve {id}" in text_of(refused)
        served.do(served.bridge.approvals.decide(id, approve=True))
        assert not (await client.call_tool(*call)).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_a_key_that_may_not_approve_is_not_asked(served: Live, era: str) -> None:
    person = Person("accept", approve=True)
    async with connect(served, era, new_key(served, "read", "run"), elicitation_callback=person) as client:
        refused = await client.call_tool("run_skill", {"name": "eraser"})
    assert (refused.is_error, person.asked) == (True, [])


def _modern(served: Live, arguments: dict[str, Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    params = {"name": "run_skill", "arguments": arguments, "_meta": meta, **fields}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "run_skill",
        **({"authorization": f"Bearer {key}"} if key else {}),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    result: dict[str, Any] = served.http.post("/mcp", json=body, headers=headers).json()["result"]
    return result


def test_an_answer_counts_only_for_the_call_that_was_asked_about(served: Live) -> None:
    yes = {"approval": {"action": "accept", "content": {"approve": True}}}
    first = _modern(served, {"name": "eraser", "input": {"file": "a"}})
    assert first["resultType"] == "input_required"
    state = first["requestState"]
    for fields in (
        {"inputResponses": yes},
        {"inputResponses": yes, "requestState": "0" * 32},
        {"inputResponses": yes, "requestState": json.dumps({"id": state})},
        {"inputResponses": {"other": yes["approval"]}, "requestState": state},
        {"requestState": state},
    ):
        again = _modern(served, {"name": "eraser", "input": {"file": "a"}}, **fields)
        assert (again["resultType"], again["requestState"]) == ("input_required", state)
    other = _modern(served, {"name": "eraser", "input": {"file": "b"}}, inputResponses=yes, requestState=state)
    assert other["resultType"] == "input_required"
    assert other["requestState"] != state
    admin = new_key(served, "admin")
    stolen = _modern(served, {"name": "eraser", "input": {"file": "a"}}, admin, inputResponses=yes, requestState=state)
    assert stolen["resultType"] == "input_required"
    ran = _modern(served, {"name": "eraser", "input": {"file": "a"}}, inputResponses=yes, requestState=state)
    assert ran["structuredContent"]["stdout"] == "ERASED\n"
    replayed = _modern(served, {"name": "eraser", "input": {"file": "a"}}, inputResponses=yes, requestState=state)
    assert replayed["resultType"] == "input_required"
