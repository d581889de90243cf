"""Records of chat requests to a real server over HTTP, with a scripted model."""

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import BaseModel

from apexbridge.agent.records.content import log_safe
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.storage.audit import AUDIT_FILE, exported
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from tests.chat.live import Json, Live, environment_of_servers, live, request_of, request_until_disconnect
from tests.chat.upstream import Step, Upstream, call, refusal, upstreams
from tests.surfaces.conftest import Apex
from tests.surfaces.keyed_server import error_of
from tests.waiting import wait_until

USER, MODEL, TOOL, QUERY, NAME, QUOTED = (
    f"{word}-never-on-disk" for word in ("user", "model", "tool", "query", "invented", "quoted")
)
TEXTS = (USER, MODEL, TOOL, QUERY, NAME, QUOTED)


class NoInput(BaseModel):
    """Nothing."""


@Tool.define("tell-id", description="Answers with something that looks like the id of a run.", parameters=NoInput)
async def tell_id(args: NoInput, context: ToolContext) -> ToolResult:
    return ToolResult(output=TOOL, data={"id": TOOL})


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with environment_of_servers(tmp_path_factory.mktemp("cwd")):
        yield


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with upstreams() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Default settings: steps are recorded, but no text."""
    with live(tmp_path_factory.mktemp("steps") / "data", upstream, embedder) as opened:
        yield opened


@pytest.fixture(scope="module")
def full(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Steps and texts are recorded."""
    with live(tmp_path_factory.mktemp("full") / "data", upstream, embedder, chat_records="full") as opened:
        yield opened


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def is_stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def records(server: Live, **query: Any) -> list[Json]:
    found: list[Json] = server.http.get("/api/chats", params=query).raise_for_status().json()["chats"]
    return found


def record(server: Live, model: str) -> Json:
    """The complete record of the only request to this model."""
    (summary,) = records(server, model=model)
    found: Json = server.http.get(f"/api/chats/{summary['id']}").raise_for_status().json()
    assert {key: found[key] for key in summary} == summary
    return found


def wait_for(server: Live, model: str) -> Json:
    wait_until(lambda: records(server, model=model))
    return record(server, model)


# ----------------------------------------------------------------------------------------------------------- records
@pytest.mark.requirement("G7")
def test_a_response_is_recorded_with_steps_times_and_tokens(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(
        Step(
            text="Let me see.", calls=[call("calculate", {"expression": "6*7"}), call("search_skills", {"query": "x"})]
        ),
        Step(text="42."),
    )
    response = server.answer(is_stream, model)
    found = record(server, model)
    assert (found["outcome"], found["stopCause"], found["isStream"]) == ("answered", "answered", is_stream)
    assert (found["turns"], found["calls"], found["error"]) == (2, 2, None)
    assert (found["caller"], found["keyName"], found["upstream"]) == ("", None, "native")
    assert found["usage"] == {"promptTokens": 20, "completionTokens": 10, "totalTokens": 30}
    assert (found["messages"], found["answer"]) == (None, None)
    assert [step["kind"] for step in found["trajectory"]] == ["model", "tool", "search", "model"]
    assert [step["name"] for step in found["trajectory"]] == [model, "calculate", "search_skills", model]
    assert found["trajectory"][0]["usage"]["total_tokens"] == 15
    assert found["trajectory"][1]["success"] is True
    assert all(step["durationMs"] >= 0 for step in found["trajectory"])
    assert found["durationMs"] >= response["x_bridge"]["durationMs"]


def test_a_forwarded_request_is_recorded(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="As it is.", finish="length"))
    options = {"stream_options": {"include_usage": True}} if is_stream else {}
    response = server.post(model, stream=is_stream, x_bridge={"tools": False}, **options)
    assert "As it is." in response.text or is_stream
    found = record(server, model)
    assert (found["outcome"], found["stopCause"], found["turns"], found["calls"]) == ("answered", "length", 1, 0)
    assert found["usage"]["totalTokens"] == 15
    assert [(step["kind"], step["name"]) for step in found["trajectory"]] == [("model", model)]


@pytest.mark.parametrize("more", [{}, {"x_bridge": {"tools": False}}], ids=["loop", "plain"])
def test_a_failure_is_recorded_with_its_code(
    server: Live, upstream: Upstream, is_stream: bool, more: dict[str, Any]
) -> None:
    model = upstream.play(refusal(400, f"You said {QUOTED}", code="content_filter"))
    assert server.post(model, stream=is_stream, **more).status_code == 400
    found = record(server, model)
    assert (found["outcome"], found["stopCause"], found["turns"]) == ("failed", "error", 0)
    assert found["error"] == {"code": "content_filter", "message": "Answered with the status 400."}


def test_a_later_failure_is_recorded_with_the_steps_before_it(
    server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(
        Step(text="Let me see.", calls=[call("calculate", {"expression": "1"})]), refusal(403, "No more.", code="quota")
    )
    server.post(model, stream=is_stream)
    found = record(server, model)
    assert (found["outcome"], found["turns"], found["calls"], found["error"]["code"]) == ("failed", 1, 1, "quota")
    assert [step["kind"] for step in found["trajectory"]] == ["model", "tool"]
    assert found["usage"]["totalTokens"] == 15


@pytest.mark.parametrize("more", [{}, {"x_bridge": {"tools": False}}], ids=["loop", "plain"])
def test_a_client_disconnect_is_recorded_as_cancelled(
    server: Live, upstream: Upstream, is_stream: bool, more: dict[str, Any]
) -> None:
    model = upstream.play(Step(text="a text that never ends", hang_after=3 if is_stream else -1))
    with request_until_disconnect(server, model, stream=is_stream, **more):
        wait_until(lambda: upstream.seen(model))
        assert records(server, model=model) == []
    found = wait_for(server, model)
    assert (found["outcome"], found["stopCause"], found["error"]) == ("cancelled", "cancelled", None)


def test_client_tools_and_loops_are_recorded_as_stop_causes(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("theirs", {})]))
    tools = [{"type": "function", "function": {"name": "theirs", "parameters": {"type": "object"}}}]
    server.ask(model, tools=tools)
    assert record(server, model)["stopCause"] == "client_tools"
    again = upstream.play(lambda _: Step(text="Again.", calls=[call("calculate", {"expression": "1"})]))
    summary = server.ask(again)["x_bridge"]
    assert record(server, again)["stopCause"] == summary["stopCause"] == "loop"


def test_a_request_refused_before_a_model_call_is_not_recorded(server: Live) -> None:
    before = server.http.get("/api/chats").json()["total"]
    assert server.post("nobody-serves-this").status_code == 404
    assert server.http.post("/v1/chat/completions", json={"messages": []}).status_code == 400
    assert server.http.get("/api/chats").json()["total"] == before


# ------------------------------------------------------------------------------------------------------------- texts
def send_all_texts(server: Live, upstream: Upstream, is_stream: bool) -> str:
    """Send requests with texts of a user, a model, a tool and an upstream error."""
    workspace = server.bridge.settings.data_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "note.txt").write_text(TOOL)
    if server.bridge.tools.find("tell-id") is None:
        server.bridge.tools.register(tell_id)
    model = upstream.play(
        Step(
            text=f"{MODEL}, thinking",
            calls=[
                call("file_read", {"path": "note.txt"}),
                call("tell_id"),
                call("search_skills", {"query": QUERY}),
                call(NAME, {"text": USER}),
                call("calculate", f"{{ {MODEL}"),
            ],
        ),
        Step(text=MODEL, fields={"reasoning_content": MODEL}),
    )
    messages = [{"role": "system", "content": USER}, {"role": "user", "content": [{"type": "text", "text": USER}]}]
    server.answer(is_stream, model, messages, user=USER, metadata={"a": USER})
    headers = {"x-request-id": f"{USER} is no word"}
    plain = upstream.play(Step(text=MODEL))
    server.http.post(
        "/v1/chat/completions", json=request_of(plain, USER, x_bridge={"tools": False}), headers=headers
    ).raise_for_status()
    server.post(upstream.play(refusal(400, f"You said {QUOTED}", code=f"{QUOTED} !")), USER)
    return model


def on_disk(server: Live) -> bytes:
    files = sorted(server.bridge.settings.data_dir.glob("apex.sqlite3*"))
    assert len(files) == 3, "the database and its two WAL files"
    return b"".join(file.read_bytes() for file in files)


@pytest.mark.requirement("G7")
def test_no_text_is_on_disk_unless_texts_are_recorded(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = send_all_texts(server, upstream, is_stream)
    found = record(server, model)
    assert [step["kind"] for step in found["trajectory"]] == [
        "model",
        "tool",
        "tool",
        "search",
        "tool",
        "tool",
        "model",
    ]
    assert [text for text in TEXTS if text in json.dumps(records(server)) + json.dumps(found)] == []
    data = on_disk(server)
    assert model.encode() in data
    assert [text for text in TEXTS if text.encode() in data] == []


def test_no_text_is_in_the_log_and_a_name_cannot_add_a_line(
    server: Live, upstream: Upstream, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="apexbridge"):
        send_all_texts(server, upstream, is_stream)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("apexbridge.")]
    assert len(lines) > 6
    assert [text for text in TEXTS if text in "".join(lines)] == []
    assert log_safe("m\nERROR x" + "y" * 500) == "m\N{REPLACEMENT CHARACTER}ERROR x" + "y" * 191


def test_full_records_contain_all_texts(full: Live, upstream: Upstream, is_stream: bool) -> None:
    model = send_all_texts(full, upstream, is_stream)
    found = record(full, model)
    assert found["messages"] == [
        {"role": "system", "content": USER},
        {"role": "user", "content": [{"type": "text", "text": USER}]},
    ]
    assert found["answer"] == f"{MODEL}, thinking\n\n{MODEL}"
    assert NAME in json.dumps(found["trajectory"])
    assert [text for text in (USER, MODEL, NAME, QUOTED) if text.encode() not in on_disk(full)] == []
    failed = records(full, outcome="failed")[0]
    assert failed["error"] == {"code": "upstream_error", "message": f"You said {QUOTED}"}
    plain = full.http.get(f"/api/chats/{records(full, outcome='answered')[0]['id']}").json()
    assert (plain["answer"], plain["messages"]) == (MODEL, [{"role": "user", "content": USER}])


def test_the_text_of_a_forwarded_stream_is_joined(full: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="piece by piece by piece"))
    full.stream(model, x_bridge={"tools": False})
    assert record(full, model)["answer"] == "piece by piece by piece"


def test_off_records_nothing_and_keeps_existing_records(upstream: Upstream, embedder: Embedder, tmp_path: Path) -> None:
    model = upstream.play(Step(text="Hello."))
    with live(tmp_path / "data", upstream, embedder) as opened:
        opened.ask(model)
    with live(tmp_path / "data", upstream, embedder, chat_records="off") as opened:
        opened.ask(model)
        opened.stream(model)
        assert record(opened, model)["outcome"] == "answered", "the record survives the restart, and there is only one"
    with live(tmp_path / "data", upstream, embedder, chat_records="off", chat_retention_days=0) as opened:
        assert records(opened) == [], "a start deletes expired records"


# ------------------------------------------------------------------------------------------------------------ queries
def test_a_valid_unique_request_id_becomes_the_id_of_the_record(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hello."))
    request_ids = [
        "mine-1",
        "mine-1",
        "stats",
        "..",
        "a/b",
        "x" * 128,
        "%2e",
        "a b",
        "-x",
        "\N{SECTION SIGN}",
        "é" * 200,
        "",
    ]
    for id in request_ids:
        headers = {b"x-request-id": id.encode("latin-1")}
        server.http.post("/v1/chat/completions", json=request_of(model), headers=headers).raise_for_status()
    found = [chat["id"] for chat in records(server, model=model)]
    assert len(set(found)) == len(request_ids)
    assert {"mine-1", "x" * 128} <= set(found)
    assert sum(id.startswith("mine-1.") for id in found) == 1
    assert sum(id.startswith("req_") for id in found) == len(request_ids) - 3
    for id in found:
        assert server.http.get(f"/api/chats/{id}").json()["id"] == id
        assert server.http.delete(f"/api/chats/{id}").json() == {"success": True, "id": id}
    assert records(server, model=model) == []


def test_lists_are_filtered_and_paged(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hello."))
    for _ in range(5):
        server.ask(model)
    answer = server.http.get("/api/chats", params={"model": model, "limit": 2, "page": 2}).json()
    assert (answer["total"], answer["page"], answer["limit"], len(answer["chats"])) == (5, 2, 2, 2)
    start_times = [datetime.fromisoformat(chat["startedAt"]) for chat in records(server, model=model)]
    assert start_times == sorted(start_times, reverse=True)
    assert len(records(server, model=model, stopCause="answered", outcome="answered", caller="")) == 5
    assert records(server, model=model, outcome="failed") == []
    assert records(server, model=model, stopCause="loop") == []


@pytest.mark.parametrize(
    "query",
    [
        {"page": 0},
        {"page": "x"},
        {"page": 10**30},
        {"limit": 0},
        {"limit": 501},
        {"stopCause": "whim"},
        {"outcome": "'; DROP TABLE chats; --"},
        {"model": "m" * 301},
    ],
    ids=str,
)
def test_invalid_query_values_are_refused(server: Live, query: dict[str, Any]) -> None:
    assert error_of(server.http.get("/api/chats", params=query)) == (422, "RequestError", "INVALID_INPUT")


@pytest.mark.parametrize("days", [0, -1, 3651, "all"])
def test_an_invalid_number_of_days_is_refused(server: Live, days: Any) -> None:
    assert error_of(server.http.get("/api/chats/stats", params={"days": days})) == (
        422,
        "RequestError",
        "INVALID_INPUT",
    )


@pytest.mark.parametrize("id", ["none", "' OR 1=1 --", "%00", "x" * 5000, "\N{SECTION SIGN}", "a%ff"])
def test_an_unknown_id_is_not_found(server: Live, id: str) -> None:
    for method in ("GET", "DELETE"):
        answer = server.http.request(method, f"/api/chats/{quote(id, safe='%')}")
        assert error_of(answer) == (404, "RequestError", "CHAT_NOT_FOUND")


def test_statistics_report_requests_and_tokens_by_model(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("calculate", {"expression": "1"})]), Step(text="1."))
    server.ask(model)
    server.ask(model)
    statistics = server.http.get("/api/chats/stats", params={"days": 1}).json()
    (entry,) = [entry for entry in statistics["models"] if entry["model"] == model]
    assert (entry["requests"], entry["failed"], entry["cancelled"]) == (2, 0, 0)
    assert (entry["totalTokens"], entry["meanTurns"], entry["meanCalls"]) == (45, 1.5, 0.5)
    assert statistics["days"] == 1
    assert statistics["requests"] == server.http.get("/api/chats").json()["total"]


# ------------------------------------------------------------------------------------------------------------ access
def test_only_admins_see_records_and_a_deletion_is_in_the_audit_log(server: Live, upstream: Upstream) -> None:
    keys = {scope: server.do(server.bridge.keys.create(f"for {scope}", [scope])) for scope in ("chat", "read", "admin")}

    def ask(method: str, path: str, scope: str, **options: Any) -> httpx.Response:
        return server.http.request(method, path, headers={"x-api-key": keys[scope][1]}, **options)

    model = upstream.play(Step(text="Hello."))
    ask("POST", "/v1/chat/completions", "chat", json=request_of(model)).raise_for_status()
    caller = keys["chat"][0].id
    (found,) = ask("GET", "/api/chats", "admin", params={"caller": caller}).json()["chats"]
    assert (found["model"], found["caller"], found["keyName"]) == (model, caller, "for chat")
    for scope in ("chat", "read"):
        for method, path in (("GET", ""), ("GET", "/stats"), ("GET", f"/{found['id']}"), ("DELETE", f"/{found['id']}")):
            assert error_of(ask(method, f"/api/chats{path}", scope)) == (403, "RequestError", "FORBIDDEN")
    assert ask("DELETE", f"/api/chats/{found['id']}", "admin").status_code == 200
    *_, row = exported(server.bridge.settings.data_dir / AUDIT_FILE)
    assert (row["what"], row["target"], row["outcome"]) == ("chats.remove", found["id"], 200)
    assert row["who"] == keys["admin"][0].id
    assert row["detail"].startswith(f"of {caller}, 20")


# ------------------------------------------------------------------------------------------------------ command line
def test_the_command_line_shows_records_step_by_step_without_a_server(apex: Apex) -> None:
    assert apex("tools", "run", "calculate", "--input", '{"expression": "1"}').code == 0
    assert "No chat request is recorded" in apex("chats", "list").err
    assert apex("chat", "what is 12*12?").code == 0
    listed = apex("chats", "list")
    assert "apex-offline" in listed.out
    (chat,) = apex("chats", "ls", "--json").json["chats"]
    shown = apex("chats", "show", chat["id"]).out
    assert chat["id"] in shown
    assert "calculate" in shown
    assert "12*12" not in shown
    assert apex("chats", "show", chat["id"], "--json").json["trajectory"][1]["tool"] == "calculate"
    assert "apex-offline" in apex("chats", "stats", "--days", "1").out
    assert apex("chats", "stats", "--json").json["requests"] == 1
    assert apex("chats", "list", "--outcome", "failed", "--json").json["total"] == 0
    assert apex("chats", "list", "--outcome", "whim").code == 1
    assert "deleted" in apex("chats", "delete", chat["id"]).err
    for command in ("show", "delete"):
        for id in (chat["id"], "stats", "", "..", "a/b"):
            completed = apex("chats", command, id)
            assert (completed.code, "apex chats list" in completed.err) == (1, True), id
    assert "No chat request" in apex("chats", "stats").err


def test_the_command_line_shows_recorded_texts_of_a_server(apex: Apex, full: Live, upstream: Upstream) -> None:
    model = upstream.play(
        Step(text="Let me see.", calls=[call("nowhere", {}), call("search_skills", {"query": "x"})]),
        Step(text="Found."),
    )
    full.ask(model, "a question")
    found = record(full, model)
    shown = apex("chats", "show", found["id"], "--url", full.url).out
    assert "a question" in shown
    assert "Found." in shown
    assert "nowhere" in shown
    failing = upstream.play(refusal(400, "No."))
    full.post(failing, [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}])
    completed = apex("chats", "show", record(full, failing)["id"], "--url", full.url)
    assert "in parts" in completed.out
    assert "No." in completed.out
    assert "No step was taken" in completed.err
    listed = apex("chats", "list", "--url", full.url, "--limit", "1")
    assert "1 of " in listed.err
