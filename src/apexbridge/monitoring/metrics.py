"""Metrics for Prometheus: what happened, counted where each act ends.

Each bridge has its own registry. The values of labels are bounded: templates of routes, configured names and constants,
never a path, a key, or text of a client or a model. See decision 0099.
"""

import platform
from collections.abc import Collection
from http import HTTPStatus
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from apexbridge.agent.records.recorder import ChatEnd
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.retrieval.matches import SearchAnswer
from apexbridge.sandbox.runtimes import runtime_name
from apexbridge.storage.run_store import RunRow
from apexbridge.tools.naming import MCP_CATEGORY, SKILL_PREFIX
from apexbridge.tools.registry import BUILTIN
from apexbridge.tools.tool import Tool

ApprovalChange = Literal["requested", "approved", "denied", "expired", "removed"]
SearchOutcome = Literal["found", "nothing", "degraded"]
OTHER = "other"
"""In place of a value that is not among the known ones."""
DISCONNECTED = "disconnected"
"""In place of a status: the client left before the response."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES = {int(status): str(int(status)) for status in HTTPStatus}
REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TURN_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
CALL_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
SEARCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
MS_PER_SECOND = 1000


class Metrics:
    """The metrics of one bridge."""

    def __init__(self, *, version: str, models: Collection[str]) -> None:
        """`models` are the configured names. All others are counted together."""
        self.registry = registry = CollectorRegistry()
        self._models = frozenset(models)
        ProcessCollector(registry=registry)
        build = Gauge("apex_build_info", "The running version; always 1.", ("version", "python"), registry=registry)
        build.labels(version, platform.python_version()).set(1)

        self._requests = Counter(
            "apex_http_requests", "HTTP requests.", ("route", "method", "status"), registry=registry
        )
        self._request_seconds = Histogram(
            "apex_http_request_duration_seconds",
            "Time until the last byte of the response.",
            ("route", "method"),
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self._chats = Counter("apex_chat_requests", "Chat requests.", ("model", "outcome"), registry=registry)
        self._turn_seconds = Histogram(
            "apex_model_turn_duration_seconds",
            "Completed turns of models.",
            ("model",),
            buckets=TURN_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "apex_model_tokens", "Tokens that model servers reported.", ("model", "type"), registry=registry
        )
        self._upstream_errors = Counter(
            "apex_upstream_errors", "Chat requests that model servers failed.", ("upstream", "kind"), registry=registry
        )
        self._calls = Counter("apex_tool_calls", "Calls of tools that ran.", ("kind", "outcome"), registry=registry)
        self._call_seconds = Histogram(
            "apex_tool_call_duration_seconds",
            "Calls of tools that ran.",
            ("kind",),
            buckets=CALL_SECONDS,
            registry=registry,
        )
        self._mcp_calls = Counter(
            "apex_mcp_calls", "Calls of tools of MCP servers.", ("server", "outcome"), registry=registry
        )
        self._searches = Counter("apex_searches", "Searches for skills and tools.", ("outcome",), registry=registry)
        self._search_seconds = Histogram(
            "apex_search_duration_seconds", "Searches.", buckets=SEARCH_SECONDS, registry=registry
        )
        self._runs = Counter("apex_runs", "Ended runs.", ("runtime", "outcome"), registry=registry)
        self._run_seconds = Histogram(
            "apex_run_duration_seconds",
            "Runs, without the time in the queue.",
            ("runtime",),
            buckets=CALL_SECONDS,
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "apex_run_queue_seconds", "How long runs waited for their turn.", buckets=CALL_SECONDS, registry=registry
        )
        self._approvals = Counter("apex_approvals", "Approvals that came into a state.", ("state",), registry=registry)
        # From the beginning, so that the first act is an increase.
        for change in get_args(ApprovalChange):
            self._approvals.labels(change)
        for outcome in get_args(SearchOutcome):
            self._searches.labels(outcome)
        self._known_requests: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        """A lookup by labels takes three times as long as counting."""
        self._known_models: dict[str, _ModelSeries] = {}

    # ------------------------------------------------------------------------------------------------------ requests
    def request_ended(self, route: str | None, method: str, status: int | None, seconds: float) -> None:
        """Count a request. `route` is the template of its path; None if it reached no route."""
        key = (
            route or OTHER,
            method if method in METHODS else OTHER,
            DISCONNECTED if status is None else STATUSES.get(status, OTHER),
        )
        series = self._known_requests.get(key)
        if series is None:
            series = self._requests.labels(*key), self._request_seconds.labels(*key[:2])
            self._known_requests[key] = series
        series[0].inc()
        series[1].observe(seconds)

    # --------------------------------------------------------------------------------------------------------- chats
    def chat_ended(self, end: ChatEnd) -> None:
        name = end.model if end.model in self._models else OTHER
        series = self._known_models.get(name)
        if series is None:
            series = self._known_models[name] = _ModelSeries(self, name)
        series.add(end)
        if isinstance(end.error, UpstreamError):
            self._upstream_errors.labels(end.upstream, end.error.kind).inc()

    # --------------------------------------------------------------------------------------------------------- tools
    def tool_called(self, tool: Tool | None, *, success: bool, duration_ms: int) -> None:
        """Count a call; of a tool that is None, because it was removed meanwhile, too."""
        kind, outcome = _kind_of(tool), "success" if success else "error"
        self._calls.labels(kind, outcome).inc()
        self._call_seconds.labels(kind).observe(duration_ms / MS_PER_SECOND)
        if tool is not None and kind == MCP_CATEGORY:
            server = next(iter(tool.metadata.tags), OTHER)
            self._mcp_calls.labels(server, outcome).inc()

    # -------------------------------------------------------------------------------------------------------- search
    def search_ended(self, answer: SearchAnswer) -> None:
        outcome: SearchOutcome = "degraded" if answer.degraded else "found" if answer.results else "nothing"
        self._searches.labels(outcome).inc()
        self._search_seconds.observe(answer.took / MS_PER_SECOND)

    # ---------------------------------------------------------------------------------------------------------- runs
    def run_ended(self, row: RunRow) -> None:
        runtime = _runtime_of(row.script)
        outcome = "success" if row.status == "success" else (row.error_code or OTHER).lower()
        self._runs.labels(runtime, outcome).inc()
        if row.started_at is not None:
            self._run_seconds.labels(runtime).observe((row.duration_ms or 0) / MS_PER_SECOND)
            self._queue_seconds.observe(max(0, row.started_at - row.created_at) / MS_PER_SECOND)

    # ----------------------------------------------------------------------------------------------------- approvals
    def approval_changed(self, state: ApprovalChange) -> None:
        self._approvals.labels(state).inc()


class _ModelSeries:
    """The series of one model."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._outcomes = {
            outcome: metrics._chats.labels(name, outcome) for outcome in ("answered", "failed", "cancelled")
        }
        self._turns = metrics._turn_seconds.labels(name)
        self._input = metrics._tokens.labels(name, "input")
        self._output = metrics._tokens.labels(name, "output")

    def add(self, end: ChatEnd) -> None:
        self._outcomes[end.outcome].inc()
        for milliseconds in end.turns_ms:
            self._turns.observe(milliseconds / MS_PER_SECOND)
        if end.prompt_tokens:
            self._input.inc(end.prompt_tokens)
        if end.completion_tokens:
            self._output.inc(end.completion_tokens)


def _runtime_of(script: str) -> str:
    try:
        return runtime_name(script)
    except KeyError:
        return OTHER


def _kind_of(tool: Tool | None) -> str:
    if tool is None:
        return OTHER
    if tool.id.startswith(SKILL_PREFIX):
        return "skill"
    return tool.metadata.category if tool.metadata.category in (BUILTIN, MCP_CATEGORY) else OTHER
