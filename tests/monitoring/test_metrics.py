"""Metrics: each changes when its act happens, labels stay bounded, and secrets are in none of them."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apexbridge.agent.records.recorder import ChatEnd
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.monitoring.metrics import STATUSES, Metrics
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.surfaces.cli.terminal_text import LOG_FORMAT, SafeFormatter
from tests.chat.live import Live, live
from tests.chat.upstream import KEY, Step
from tests.monitoring.metrics_server import MetricsServer
from tests.waiting import wait_until

EARLIER = ("apex_skills", "apex_skill_problems", "apex_skill_calls", "apex_runs_running", "apex_runs_waiting")
HOSTILE = 10_000
UNKNOWN_CHAT = ChatEnd(
    upstream="main",
    model="",
    outcome="answered",
    error=None,
    turns_ms=[5],
    prompt_tokens=1,
    completion_tokens=1,
)


# --------------------------------------------------------------------------------------------------------- requests
@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/api/skills", "/api/skills", "200"),
        ("GET", "/api/skills/speak", "/api/skills/{name}", "200"),
        ("GET", "/api/skills/no-such-skill", "/api/skills/{name}", "404"),
        ("GET", "/v1/models", "/v1/models", "200"),
        ("DELETE", "/api/status", "/api/status", "405"),
        ("GET", "/no/such/route", "other", "404"),
        ("PROPFIND", "/no/such/route", "other", "404"),
    ],
)
def test_requests_are_counted_by_route_method_and_status(
    served: MetricsServer, method: str, path: str, route: str, status: str
) -> None:
    labels = {"route": route, "method": method if method != "PROPFIND" else "other"}

    def act() -> None:
        served.live.http.request(method, path)

    assert served.counts(act, "apex_http_requests_total", **labels, status=status) == 1
    assert served.counts(act, "apex_http_request_duration_seconds_count", **labels) == 1


def test_requests_that_pass_the_router_by_have_their_path_as_route(served: MetricsServer) -> None:
    labels = {"route": "/v1/chat/completions", "method": "POST", "status": "200"}
    assert served.counts(served.answer, "apex_http_requests_total", **labels) == 1
    labels = {"route": "/mcp", "method": "POST", "status": "400"}
    assert served.counts(lambda: served.live.http.post("/mcp/", json={}), "apex_http_requests_total", **labels) == 1


# ------------------------------------------------------------------------------------------------------------ chats
def test_a_chat_counts_its_turns_tokens_and_calls(served: MetricsServer) -> None:
    model = served.model
    assert served.counts(served.answer, "apex_chat_requests_total", model=model, outcome="answered") == 1
    assert served.counts(served.answer, "apex_model_turn_duration_seconds_count", model=model) == 2
    assert served.counts(served.answer, "apex_model_tokens_total", model=model, type="input") == 20
    assert served.counts(served.answer, "apex_model_tokens_total", model=model, type="output") == 10
    assert served.counts(served.answer, "apex_tool_calls_total", kind="builtin", outcome="success") == 1
    assert served.counts(served.answer, "apex_tool_call_duration_seconds_count", kind="builtin") == 1


def test_a_failed_chat_counts_the_kind_of_error(served: MetricsServer) -> None:
    def act() -> None:
        assert served.live.post(served.failing).status_code == 400

    assert served.counts(act, "apex_chat_requests_total", model=served.failing, outcome="failed") == 1
    assert served.counts(act, "apex_upstream_errors_total", upstream="main", kind="refused") == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamError(429, b""), "rate_limited"),
        (UpstreamError(400, b""), "refused"),
        (UpstreamError(503, b""), "failed"),
        (UpstreamError.of_ours(504, "", "upstream_timeout"), "timeout"),
        (UpstreamError.of_ours(502, "", "upstream_unreachable"), "unreachable"),
        (UpstreamError.of_ours(502, "", "upstream_cut"), "cut"),
        (UpstreamError.of_ours(502, "", "upstream_redirect"), "redirect"),
        (UpstreamError.invalid(""), "invalid"),
    ],
)
def test_errors_of_upstreams_have_few_kinds(error: UpstreamError, kind: str) -> None:
    assert error.kind == kind


def test_chats_without_records_are_counted(embedder: Embedder, tmp_path: Path) -> None:
    with live(tmp_path / "data", None, embedder, chat_records="off") as opened:
        opened.ask("apex-offline", "hello")
        wait_until(lambda: 'apex_chat_requests_total{model="apex-offline",outcome="answered"} 1.0' in page_of(opened))


def page_of(opened: Live) -> str:
    return opened.http.get("/metrics").text


# ------------------------------------------------------------------------------------------------------------ search
@pytest.mark.parametrize(("query", "outcome"), [("speak a text aloud", "found"), ("xyzzy qwrtp", "nothing")])
def test_searches_are_counted_by_outcome(served: MetricsServer, query: str, outcome: str) -> None:
    def act() -> None:
        served.live.http.post("/api/skills/search", json={"query": query}).raise_for_status()

    assert served.counts(act, "apex_searches_total", outcome=outcome) == 1
    assert served.counts(act, "apex_search_duration_seconds_count") == 1


def test_a_search_without_the_model_is_degraded_and_the_index_is_behind(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "embedding": "openai",
        "embedding_base_url": "http://127.0.0.1:9",
        "embedding_model": "none",
    }
    with live(tmp_path / "data", None, **settings) as opened:
        opened.install("speak", description="Speaks a text aloud.")
        opened.http.post("/api/skills/search", json={"query": "speak a text aloud"}).raise_for_status()
        page = page_of(opened)
    assert 'apex_searches_total{outcome="degraded"} 1.0' in page
    assert "apex_index_documents 1.0" in page
    assert "apex_index_documents_without_vector 1.0" in page


# -------------------------------------------------------------------------------------------------------------- runs
def test_runs_are_counted_by_runtime_and_outcome(served: MetricsServer) -> None:
    def run() -> None:
        served.live.http.post("/api/skills/speak/execute", json={"input": {"what": "hi"}}).raise_for_status()

    assert served.counts(run, "apex_runs_total", runtime="python", outcome="success") == 1
    assert served.counts(run, "apex_run_duration_seconds_count", runtime="python") == 1
    assert served.counts(run, "apex_run_queue_seconds_count") == 1

    served.live.install("breaks", {"scripts/execute.sh": "exit 3\n"})
    labels = {"runtime": "shell", "outcome": "exit_nonzero"}
    assert served.counts(lambda: served.live.http.post("/api/skills/breaks/execute"), "apex_runs_total", **labels) == 1


# --------------------------------------------------------------------------------------------------- approvals, MCP
def test_approvals_are_counted_by_state(served: MetricsServer) -> None:
    http = served.live.http
    asked: list[str] = []

    def ask() -> None:
        refusal = http.post("/api/skills/wipe/execute", json={"input": {"what": f"number {len(asked)}"}}).json()
        asked.append(refusal["details"]["approvalId"])

    def decide(how: str) -> None:
        http.post(f"/api/approvals/{asked.pop()}", json={"approve": how == "approve"}).raise_for_status()

    waiting = served.value("apex_approvals_waiting")
    assert served.counts(ask, "apex_approvals_total", state="requested") == 1
    assert served.value("apex_approvals_waiting") == waiting + 1
    assert served.counts(lambda: decide("approve"), "apex_approvals_total", state="approved") == 1
    ask()
    assert served.counts(lambda: decide("deny"), "apex_approvals_total", state="denied") == 1
    assert served.value("apex_approvals_waiting") == waiting


def test_calls_of_mcp_servers_are_counted_by_server(served: MetricsServer) -> None:
    def act() -> None:
        served.live.http.post("/api/tools/maps_echo/execute", json={"input": {}}).raise_for_status()

    assert served.counts(act, "apex_mcp_calls_total", server="maps", outcome="success") == 1
    assert served.counts(act, "apex_tool_calls_total", kind="mcp", outcome="success") == 1


# -------------------------------------------------------------------------------------------------------------- page
def test_the_page_has_state_build_and_process(served: MetricsServer) -> None:
    series = {name: value for (name, _), value in served.series().items()}
    assert set(EARLIER) <= set(series)
    for name in ("database_bytes", "disk_free_bytes", "index_documents", "build_info"):
        assert series[f"apex_{name}"] > 0
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        assert series[f"process_{name}"] > 0
    assert not [name for name in series if name.endswith("_created")]


def test_bridges_of_one_process_count_apart() -> None:
    one, other = (Metrics(version="1", models=()) for _ in range(2))
    one.request_ended("/api/skills", "GET", 200, 0.1)
    labels = {"route": "/api/skills", "method": "GET", "status": "200"}
    assert one.registry.get_sample_value("apex_http_requests_total", labels) == 1
    assert other.registry.get_sample_value("apex_http_requests_total", labels) is None


# ------------------------------------------------------------------------------------------------------------ bounds
def test_unknown_paths_methods_models_and_tools_add_no_series(served: MetricsServer) -> None:
    http = served.live.http
    metrics = served.live.bridge.metrics

    def hostile(number: int) -> None:
        http.request("PROPFIND", f"/{number}")
        http.get(f"/api/skills/s{number}")
        http.post(f"/api/tools/t{number}/execute", json={"input": {}})
        served.live.post(f"native-unknown-{number}")
        http.get("/api/skills", headers={"authorization": f"Bearer apex_{number}", "x-request-id": f"r{number}"})

    hostile(0)
    wait_until(lambda: served.value("apex_http_requests_total", route="other", method="other", status="404"))
    before = set(served.series())
    for number in range(1, 20):
        hostile(number)
    for number in range(HOSTILE):  # the same, without the cost of a request
        metrics.request_ended(None, f"M{number}", number, 0.01)
        metrics.chat_ended(replace(UNKNOWN_CHAT, model=f"m{number}"))
        metrics.tool_called(None, success=False, duration_ms=number)
    served.answer()
    added = {(name, labels) for name, labels in set(served.series()) - before if name.endswith("_total")}
    statuses = {dict(labels).get("status") for _, labels in added}
    assert len(added) < len(STATUSES) + 20, added
    assert not [status for status in statuses if status and not re.fullmatch(r"\d{3}|other", status)]


def test_secrets_are_in_no_metric_and_no_line_of_the_log(
    served: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(SafeFormatter(LOG_FORMAT))
    caplog.set_level(logging.DEBUG, "apexbridge")
    http = served.live.http
    key = http.post("/api/keys", json={"name": "planted-name", "scopes": ["admin"]}).json()
    http.put("/api/secrets/PLANTED", json={"value": "planted-value"}).raise_for_status()
    model = served.upstream.play(Step(text="planted-answer"))
    headers = {"authorization": f"Bearer {key['key']}", "x-request-id": "planted-id"}
    http.post(
        "/v1/chat/completions",
        json={"model": model, "messages": [{"role": "user", "content": "planted-word"}]},
        headers=headers,
    )
    http.post("/api/skills/search", json={"query": "planted-query"}, headers=headers).raise_for_status()
    script = "import os\nprint(os.environ['PLANTED'])\nraise SystemExit('planted-error')\n"
    served.live.install("planted", {"scripts/execute.py": script}, permissions=["secret:PLANTED"])
    http.post("/api/skills/planted/grants", json={"permission": "secret:PLANTED"}).raise_for_status()
    http.post("/api/skills/planted/execute", json={"input": {"what": "planted-input"}}, headers=headers)
    http.get(f"/api/skills/{key['key']}", headers={"x-request-id": key["key"]})
    page, log = served.text(), caplog.text
    assert "GET /api/skills" in log
    assert "planted" not in page
    assert key["id"] not in page
    for secret in (
        key["key"],
        KEY,
        "planted-value",
        "planted-word",
        "planted-answer",
        "planted-query",
        "planted-input",
    ):
        assert secret not in page + log
