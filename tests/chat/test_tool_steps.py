"""A stream with `activity` reports each state of a tool call, while the call runs."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import jsonschema_rs
import pytest

from apexbridge.agent.tool_steps import ARGUMENTS_BYTES, RESULT_BYTES
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.surfaces.http.app import create_app
from tests.chat.live import Live, Streamed, live, request_of
from tests.chat.upstream import Step, Upstream, call
from tests.mcp_client.serving import READ_ONLY, fake, listed
from tests.waiting import wait_until

pytestmark = pytest.mark.requirement("G7")
Json = dict[str, Any]
ACTIVITY = {"activity": True}
USER = {"role": "user", "content": "Go."}
TALK = "import json, sys, time\nprint('begun', flush=True)\nopen('output/x.txt', 'w').write('x')\ntime.sleep(3600)\n"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("served") / "data"
    tools = {"tools": [listed("echo", **READ_ONLY)]}
    with live(folder, upstream, embedder, mcp=(fake("maps", options=tools),)) as opened:
        opened.do(opened.bridge.mcp.views(wait_seconds=60))
        opened.install("shout", {"scripts/execute.py": "print('LOUD')"}, description="Shouts a text loudly.")
        opened.install("talk", {"scripts/execute.py": TALK})
        script = "import json, sys\nprint('wiped', json.load(sys.stdin)['what'])\n"
        opened.install("wipe", {"scripts/execute.py": script}, dangerous=True, confirm="This wipes everything.")
        yield opened


def steps_of(streamed: Streamed) -> list[Json]:
    return [chunk["x_bridge"]["toolCall"] for chunk in streamed.chunks if "toolCall" in chunk.get("x_bridge", {})]


def states(steps: list[Json]) -> list[str]:
    return [step["state"] for step in steps]


def wipe() -> Json:
    return call("run_skill", {"name": "wipe", "input": {"what": f"all {next(_numbers)}"}})


@contextmanager
def reading(server: Live, model: str, messages: Any = "hello", **options: Any) -> Iterator[Iterator[Json]]:
    """A stream that is read step by step."""
    body = request_of(model, messages, stream=True, x_bridge={**ACTIVITY, **options})
    with (
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        chunks = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))
        yield (chunk["x_bridge"]["toolCall"] for chunk in chunks if "toolCall" in chunk.get("x_bridge", {}))


def test_a_call_is_reported_with_its_arguments_when_it_starts_and_with_its_result_when_it_ends(
    server: Live, upstream: Upstream
) -> None:
    asked = call("calculate", '{"expression":  "6*7"}')
    streamed = server.stream(upstream.play(Step(calls=[asked]), Step(text="Done.")), x_bridge=ACTIVITY)
    started, ended = steps_of(streamed)
    assert started == {
        "id": asked["id"],
        "name": "calculate",
        "kind": "tool",
        "arguments": '{"expression":  "6*7"}',
        "argumentsTruncated": False,
        "state": "started",
        "executionId": None,
        "approvalId": None,
        "success": None,
        "durationMs": None,
        "result": None,
        "resultTruncated": False,
        "results": None,
    }
    assert isinstance(ended["durationMs"], int)
    assert ended == {**started, "state": "ended", "success": True, "durationMs": ended["durationMs"], "result": "42"}
    assert streamed.whole()["content"] == "Done."
    [activity] = [chunk for chunk in streamed.chunks if "activity" in chunk.get("x_bridge", {})]
    assert set(activity["x_bridge"]) == {"activity"}
    assert set(activity["x_bridge"]["activity"]) == {"kind", "name", "tool", "success", "durationMs"}


@pytest.mark.parametrize("options", [None, {}, {"activity": False}, {"debug": True}])
def test_a_client_that_does_not_ask_gets_no_steps(server: Live, upstream: Upstream, options: Json | None) -> None:
    model = upstream.play(Step(calls=[call("calculate", {"expression": "6*7"})]), Step(text="Done."))
    streamed = server.stream(model, **({} if options is None else {"x_bridge": options}))
    assert streamed.whole()["content"] == "Done."
    shapes = [(set(chunk), *(set(choice["delta"]) for choice in chunk["choices"])) for chunk in streamed.chunks]
    head = {"id", "object", "created", "model", "choices"}
    assert shapes == [
        (head, {"role", "content"}),
        *[(head, {"content"})] * (len(shapes) - 2),
        (head | {"x_bridge"}, set()),
    ]


def test_a_whole_answer_has_no_steps(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("calculate", {"expression": "6*7"})]), Step(text="Done."))
    assert set(server.ask(model, x_bridge=ACTIVITY)["x_bridge"]) <= {
        "turns", "calls", "stopCause", "durationMs", "workspace", "files"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "kind", "seen"),
    [
        (call("search_skills", {"query": "shout loudly"}), "search", ["started", "ended"]),
        (call("load_skill", {"name": "shout"}), "skill", ["started", "ended"]),
        (call("run_skill", {"name": "shout"}), "skill", ["started", "running", "ended"]),
        (call("run_code", {"language": "python", "code": "print('LOUD')"}), "code", ["started", "running", "ended"]),
        (call("maps_echo", {}), "mcp", ["started", "ended"]),
        (call("run_skill", {"name": "maps_echo"}), "mcp", ["started", "ended"]),
        (call("no_such_tool", "not JSON"), "tool", ["started", "ended"]),
        (call("run_skill", "[1]"), "skill", ["started", "ended"]),
    ],
)
def test_each_kind_of_call_has_its_states(
    server: Live, upstream: Upstream, asked: Json, kind: str, seen: list[str]
) -> None:
    steps = steps_of(server.stream(upstream.play(Step(calls=[asked]), Step(text="Done.")), x_bridge=ACTIVITY))
    assert states(steps) == seen
    assert {step["kind"] for step in steps} == {kind}
    assert {step["id"] for step in steps} == {asked["id"]}
    ended = steps[-1]
    if kind == "search":
        assert ended["results"][0]["name"] == "shout"
        assert set(ended["results"][0]) == {"kind", "name", "score", "why"}
    if "running" in seen:
        assert "LOUD" in ended["result"]
        assert ended["executionId"] == steps[1]["executionId"]
        record = server.http.get(f"/api/executions/{ended['executionId']}").raise_for_status().json()
        assert record["result"]["stdout"] == "LOUD\n"
    else:
        assert ended["executionId"] is None


def test_a_skill_that_is_offered_as_a_function_is_a_skill(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("skill__shout", {})]), Step(text="Done."))
    steps = steps_of(server.stream(model, x_bridge={**ACTIVITY, "skills": ["shout"]}))
    assert [(step["kind"], step["state"]) for step in steps] == [
        ("skill", "started"), ("skill", "running"), ("skill", "ended")
    ]  # fmt: skip


def test_the_output_of_a_run_can_be_followed_while_the_chat_waits_for_it(server: Live, upstream: Upstream) -> None:
    code = call("run_code", {"language": "python", "code": TALK.replace("output/", "")})
    for asked in (call("run_skill", {"name": "talk"}), code):
        model = upstream.play(Step(calls=[asked]), Step(text="Done."))
        with reading(server, model) as steps:
            running = next(step for step in steps if step["state"] == "running")
            path = f"/api/executions/{running['executionId']}"
            with server.http.stream("GET", f"{path}/events") as events:
                assert any('data: "begun' in line for line in events.iter_lines())
            server.http.post(f"{path}/cancel").raise_for_status()
            ended = next(steps)
            assert (ended["state"], ended["success"], ended["executionId"]) == ("ended", False, running["executionId"])


def test_calls_that_run_at_the_same_time_end_on_their_own(server: Live, upstream: Upstream) -> None:
    slow, quick = call("run_skill", {"name": "talk"}), call("calculate", {"expression": "6*7"})
    with reading(server, upstream.play(Step(calls=[slow, quick]), Step(text="Done."))) as steps:
        seen = [next(steps) for _ in range(4)]
        assert sorted((step["name"], step["state"]) for step in seen) == [
            ("calculate", "ended"), ("calculate", "started"), ("run_skill", "running"), ("run_skill", "started")
        ]  # fmt: skip
        [running] = [step for step in seen if step["state"] == "running"]
        server.http.post(f"/api/executions/{running['executionId']}/cancel").raise_for_status()
        assert [(step["id"], step["state"]) for step in steps] == [(slow["id"], "ended")]


@pytest.mark.parametrize("approve", [True, False])
def test_a_call_that_waits_for_approval_is_reported(server: Live, upstream: Upstream, approve: bool) -> None:
    asked = wipe()
    with reading(server, upstream.play(Step(calls=[asked]), Step(text="Done.")), approvals="wait") as steps:
        assert next(steps)["state"] == "started"
        waiting = next(steps)
        assert (waiting["state"], waiting["id"]) == ("waiting", asked["id"])
        path = f"/api/approvals/{waiting['approvalId']}"
        assert server.http.get(path).json()["state"] == "waiting"
        server.http.post(path, json={"approve": approve}).raise_for_status()
        seen = list(steps)
    assert states(seen) == (["running", "ended"] if approve else ["ended"])
    assert seen[-1]["success"] is approve
    assert seen[-1]["approvalId"] == waiting["approvalId"]
    assert ("wiped all" in seen[-1]["result"]) is approve


@pytest.mark.parametrize("approve", [True, False])
def test_a_call_that_the_client_is_asked_about_waits_and_is_reported_when_it_runs(
    server: Live, upstream: Upstream, approve: bool
) -> None:
    asked = wipe()
    model = upstream.play(Step(calls=[asked]), lambda body: Step(text=str(body["messages"][-1]["content"])))
    options = {**ACTIVITY, "approvals": "tool"}
    first = server.stream(model, [USER], x_bridge=options)
    started, waiting = steps_of(first)
    assert (started["state"], waiting["state"]) == ("started", "waiting")
    [question] = first.whole()["tool_calls"]
    assert json.loads(question["function"]["arguments"])["approvalId"] == waiting["approvalId"]
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [question]},
        {"role": "tool", "tool_call_id": question["id"], "content": json.dumps({"approve": approve})},
    ]
    second = server.stream(model, messages, x_bridge=options)
    steps = steps_of(second)
    assert states(steps) == (["started", "running", "ended"] if approve else ["started", "ended"])
    assert {step["id"] for step in steps} == {asked["id"]}
    assert second.whole()["x_bridge"]["stopCause"] == "answered"


def test_an_approved_run_can_be_followed_before_the_model_is_asked(server: Live, upstream: Upstream) -> None:
    server.install("slow-wipe", {"scripts/execute.py": TALK}, dangerous=True)
    asked = call("run_skill", {"name": "slow-wipe"})
    model = upstream.play(Step(calls=[asked]), Step(text="Done."))
    first = server.stream(model, [USER], x_bridge={**ACTIVITY, "approvals": "tool"})
    [question] = first.whole()["tool_calls"]
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [question]},
        {"role": "tool", "tool_call_id": question["id"], "content": '{"approve": true}'},
    ]
    with reading(server, model, messages, approvals="tool") as steps:
        running = next(step for step in steps if step["state"] == "running")
        assert len(upstream.seen(model)) == 1
        server.http.post(f"/api/executions/{running['executionId']}/cancel").raise_for_status()
        assert states(list(steps)) == ["ended"]


def test_a_call_that_is_denied_by_default_ends_with_the_id_of_its_approval(server: Live, upstream: Upstream) -> None:
    steps = steps_of(server.stream(upstream.play(Step(calls=[wipe()]), Step(text="Done.")), x_bridge=ACTIVITY))
    assert states(steps) == ["started", "ended"]
    assert server.http.get(f"/api/approvals/{steps[-1]['approvalId']}").json()["state"] == "waiting"


def test_a_run_of_a_chat_names_the_chat(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("run_skill", {"name": "shout"})]), Step(text="Done."))
    body = request_of(model, stream=True, x_bridge=ACTIVITY)
    response = server.http.post("/v1/chat/completions", json=body)
    steps = steps_of(Streamed(response.status_code, response.headers, response.content))
    run = server.http.get(f"/api/executions/{steps[-1]['executionId']}").json()
    assert run["origin"] == {"kind": "chat", "id": response.headers["x-request-id"]}
    wait_until(lambda: server.http.get(f"/api/chats/{run['origin']['id']}").status_code == 200)


def test_long_arguments_and_results_are_truncated(server: Live, upstream: Upstream) -> None:
    code = f"# {'é' * ARGUMENTS_BYTES}\nprint('ü' * {RESULT_BYTES})"
    asked = call("run_code", {"language": "python", "code": code})
    steps = steps_of(server.stream(upstream.play(Step(calls=[asked]), Step(text="Done.")), x_bridge=ACTIVITY))
    for step in steps:
        assert step["argumentsTruncated"]
        assert ARGUMENTS_BYTES - 4 < len(step["arguments"].encode()) <= ARGUMENTS_BYTES
        assert asked["function"]["arguments"].startswith(step["arguments"])
    assert steps[-1]["resultTruncated"]
    assert RESULT_BYTES - 4 < len(steps[-1]["result"].encode()) <= RESULT_BYTES


def test_a_client_that_disconnects_during_a_step_cancels_the_run(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("run_skill", {"name": "talk"})]), Step(text="Never."))
    with reading(server, model) as steps:
        running = next(step for step in steps if step["state"] == "running")
    path = f"/api/executions/{running['executionId']}"
    wait_until(lambda: server.http.get(path).json()["state"] == "error")
    assert server.http.get(path).json()["result"]["errorCode"] == "CANCELLED"


def test_calls_beyond_the_limit_are_reported_too(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    calls = [call("calculate", {"expression": f"6*{number}"}) for number in range(3)]
    with live(tmp_path_factory.mktemp("limited") / "data", upstream, embedder, chat_max_calls=1) as limited:
        model = upstream.play(Step(calls=calls), Step(text="Done."))
        steps = steps_of(limited.stream(model, x_bridge=ACTIVITY))
    assert sorted(states(steps)) == ["ended"] * 3 + ["started"] * 3
    assert ["LIMIT_REACHED" in step["result"] for step in steps if step["state"] == "ended"] == [False, True, True]


def test_steps_match_the_document(server: Live, upstream: Upstream) -> None:
    document = create_app(server.bridge).openapi()
    schema = {**document["components"]["schemas"]["ChatToolCall"], "additionalProperties": False}
    check = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    calls = [call("run_skill", {"name": "shout"}), call("search_skills", {"query": "shout"}), wipe()]
    steps = steps_of(server.stream(upstream.play(Step(calls=calls), Step(text="Done.")), x_bridge=ACTIVITY))
    assert len(steps) == 7
    for step in steps:
        check.validate(step)
