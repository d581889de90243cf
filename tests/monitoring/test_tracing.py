"""Traces: a span for each request, turn of a model, call and run, without any content."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apexbridge._tracing import NO_TRACER
from apexbridge.errors import ServerError
from apexbridge.monitoring.otel import OtelTracer
from apexbridge.monitoring.tracing import tracing
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import environment_of_servers, request_of
from tests.chat.upstream import KEY, Step, call, refusal, upstreams
from tests.monitoring.metrics_server import MetricsServer, metrics_server
from tests.surfaces.conftest import APEX, environment
from tests.waiting import wait_until

PARENT = "b7ad6b7169203331"


class Traced:
    """A server with a tracer, and the spans that have ended."""

    def __init__(self, served: MetricsServer, exporter: InMemorySpanExporter) -> None:
        self.http = served.live.http
        self.live = served.live
        self.upstream = served.upstream
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def spans(self, trace: str, count: int) -> list[ReadableSpan]:
        """The spans of a trace, once there are that many. The span of a request ends after its response."""
        wait_until(lambda: len(self._of(trace)) >= count)
        return sorted(self._of(trace), key=lambda span: span.start_time or 0)

    def _of(self, trace: str) -> list[ReadableSpan]:
        return [span for span in self.all() if f"{span.context.trace_id:032x}" == trace]


@pytest.fixture(scope="module")
def traced(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with (
        environment_of_servers(tmp_path_factory.mktemp("cwd")),
        upstreams() as upstream,
        metrics_server(
            tmp_path_factory.mktemp("served") / "data", upstream, embedder, tracer=OtelTracer(provider)
        ) as served,
    ):
        yield Traced(served, exporter)


def client_trace(number: int) -> tuple[str, dict[str, str]]:
    """A trace of the client, and the headers for it."""
    trace = f"{number:032x}"
    return trace, {"traceparent": f"00-{trace}-{PARENT}-01", "tracestate": "vendor=value"}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_chat_is_a_trace_of_turns_calls_and_runs(traced: Traced, is_stream: bool) -> None:
    run = call("run_skill", {"name": "speak", "input": {"what": "hi"}})
    model = traced.upstream.play(Step(calls=[run]), Step(text="It said hi."))
    trace, headers = client_trace(100 + is_stream)
    body = request_of(model, "Speak.", stream=is_stream)
    traced.http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
    spans = request, first, tool, script, second = traced.spans(trace, 5)
    assert [span.name for span in spans] == [
        "POST /v1/chat/completions",
        f"chat {model}",
        "execute_tool run-skill",
        "run speak",
        f"chat {model}",
    ]
    assert parent(request) == int(PARENT, 16)
    assert {parent(first), parent(tool), parent(second)} == {request.context.span_id}
    assert parent(script) == tool.context.span_id
    expected: dict[ReadableSpan, dict[str, Any]] = {
        request: {"http.route": "/v1/chat/completions", "http.response.status_code": 200},
        first: {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "main",
            "gen_ai.request.model": model,
            "gen_ai.request.stream": is_stream,
            "gen_ai.response.model": f"{model}-2026",
            "gen_ai.response.finish_reasons": ("tool_calls",),
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 5,
            "server.address": "127.0.0.1",
        },
        tool: {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "run-skill"},
        script: {"apexbridge.skill": "speak"},
    }
    for span, some in expected.items():
        assert some.items() <= attributes(span).items(), attributes(span)
    for seen, span in zip(traced.upstream.seen(model), (first, second), strict=True):
        sent = {name.lower(): value for name, value in seen.headers.items()}
        assert sent["traceparent"] == f"00-{trace}-{span.context.span_id:016x}-01"
        assert sent["tracestate"] == "vendor=value"


def test_an_answer_that_passes_unchanged_is_a_turn(traced: Traced) -> None:
    model = traced.upstream.play(Step(text="Hello."))
    trace, headers = client_trace(200)
    body = request_of(model, x_bridge={"tools": False})
    traced.http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
    _, turn = traced.spans(trace, 2)
    assert attributes(turn)["gen_ai.usage.output_tokens"] == 5
    assert attributes(turn)["gen_ai.response.finish_reasons"] == ("stop",)


def test_errors_are_marked_by_their_kind(traced: Traced) -> None:
    model = traced.upstream.play(refusal(400, "planted-message", code="planted_code"))
    trace, headers = client_trace(300)
    traced.http.post("/v1/chat/completions", json=request_of(model), headers=headers)
    _, turn = traced.spans(trace, 2)
    assert (attributes(turn)["error.type"], turn.status.is_ok) == ("refused", False)
    assert turn.events == ()
    trace, headers = client_trace(301)
    traced.live.install("breaks", {"scripts/execute.sh": "exit 3\n"})
    traced.http.post("/api/skills/breaks/execute", headers=headers)
    _, run = traced.spans(trace, 2)
    assert attributes(run)["error.type"] == "EXIT_NONZERO"
    trace, headers = client_trace(302)
    traced.http.post("/api/tools/planted-tool/execute", json={"input": {}}, headers=headers)
    request, *tools = traced.spans(trace, 2)
    assert request.name == "POST /api/tools/{id}/execute"
    assert [span.name for span in tools] == ["execute_tool unknown"]
    assert attributes(tools[0])["error.type"] == "TOOL_NOT_FOUND"
    assert "planted" not in str(attributes(tools[0]))


def test_without_a_valid_header_each_request_begins_a_trace(traced: Traced) -> None:
    before = len(traced.all())
    for _ in range(2):
        traced.http.get("/api/skills/speak", headers={"traceparent": "garbage"}).raise_for_status()
    wait_until(lambda: len(traced.all()) == before + 2)
    one, other = traced.all()[before:]
    assert one.context.trace_id != other.context.trace_id
    assert (one.parent, one.name) == (None, "GET /api/skills/{name}")


def test_a_request_without_a_route_has_only_its_method_and_a_probe_no_span(traced: Traced) -> None:
    before = len(traced.all())
    traced.http.get("/healthz").raise_for_status()
    traced.http.get("/no/such/planted-path")
    wait_until(lambda: len(traced.all()) > before)
    (span,) = traced.all()[before:]
    assert span.name == "GET"
    assert "planted" not in str(attributes(span))


def test_no_span_has_content_or_secrets(traced: Traced) -> None:
    key = traced.http.post("/api/keys", json={"name": "planted-name", "scopes": ["admin"]}).json()["key"]
    traced.http.put("/api/secrets/PLANTED", json={"value": "planted-value"}).raise_for_status()
    said = call("run_skill", {"name": "speak", "input": {"what": "planted-argument"}})
    model = traced.upstream.play(Step(text="planted-answer", calls=[said]), Step(text="planted-end"))
    trace, context = client_trace(500)
    headers = {"authorization": f"Bearer {key}", **context}
    body = request_of(model, "planted-word")
    traced.http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
    traced.http.post("/api/skills/search", json={"query": "planted-query"}, headers=headers).raise_for_status()
    traced.http.get("/api/skills", params={"name": "planted-filter"}, headers=headers).raise_for_status()
    traced.spans(trace, 7)
    text = " ".join(span.to_json() for span in traced.all())
    assert "planted" not in text
    assert key not in text
    assert KEY not in text


def test_names_from_outside_are_bounded(traced: Traced) -> None:
    trace, headers = client_trace(400)
    model = "native-\n" + "x" * 240
    traced.http.post("/v1/chat/completions", json=request_of(model), headers=headers)
    for span in traced.spans(trace, 2):
        assert len(span.name) <= 210
        assert span.name.isprintable()
        assert all(len(value) <= 210 for value in attributes(span).values() if isinstance(value, str))


# --------------------------------------------------------------------------------------------------------- settings
@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A receiver of OTLP over HTTP."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("variable", ["APEX_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_a_server_sends_its_traces_to_a_collector(data_dir: Path, variable: str) -> None:
    trace, headers = client_trace(1)
    with collector() as (endpoint, received):
        command = [*APEX, "serve", "--port", "0", "--data-dir", str(data_dir), "--log-format", "json"]
        env = environment(**{variable: endpoint, "OTEL_SERVICE_NAME": "mine"})
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
            assert process.stderr is not None
            url = json.loads(process.stderr.readline())["url"]
            body = request_of("apex-offline")
            with httpx.Client(trust_env=False, timeout=60) as client:
                client.post(f"{url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
            process.terminate()
            process.communicate(timeout=60)
    resources = [resource for request in received for resource in request.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in spans} >= {"POST /v1/chat/completions", "chat apex-offline"}
    assert {span.trace_id.hex() for span in spans} == {trace}
    names = {one.value.string_value for one in resources[0].resource.attributes if one.key == "service.name"}
    assert names == {"mine"}


@pytest.mark.anyio
async def test_without_the_packages_a_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "apexbridge.monitoring.otel", raising=False)
    with pytest.raises(ServerError) as caught:
        async with tracing("http://127.0.0.1:4318", {}, "1"):
            pass
    assert caught.value.code == "INVALID_SETTING"
    assert "pip install 'apexbridge[otel]'" in caught.value.message
    async with tracing(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "1") as tracer:
        assert tracer is NO_TRACER
    assert "pip install 'apexbridge[otel]'" in caplog.text


@pytest.mark.anyio
async def test_without_a_setting_nothing_is_recorded() -> None:
    async with tracing(None, {}, "1") as tracer:
        assert tracer is NO_TRACER


def test_without_a_setting_the_sdk_is_not_imported(data_dir: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from apexbridge import Bridge, Settings
from apexbridge.surfaces.cli.commands import serve
from apexbridge.surfaces.http.app import create_app

async def main():
    async with Bridge.open(Settings(data_dir=Path(sys.argv[1])), indexing="on-demand") as bridge:
        create_app(bridge)

asyncio.run(main())
found = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
assert not found and "apexbridge.monitoring.otel" not in sys.modules, found
"""
    subprocess.run([sys.executable, "-c", program, str(data_dir)], check=True, env=environment())
