"""A server whose metrics are read before and after an act, and a scripted model server behind it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import UpstreamSettings
from tests.chat.live import UPSTREAM_KEY_VARIABLE, Live, live
from tests.chat.upstream import Step, Upstream, call
from tests.mcp_client.serving import READ_ONLY, fake, listed
from tests.waiting import wait_until

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
SCRIPT = "import json, sys\nprint(json.load(sys.stdin).get('what'))\n"


@dataclass
class MetricsServer:
    live: Live
    upstream: Upstream
    model: str
    """A configured name. The model calculates, and then answers."""
    failing: str
    """A configured name. The server of this model answers 503."""

    def text(self) -> str:
        return self.live.http.get("/metrics").raise_for_status().text

    def series(self) -> Series:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.series().get((name, frozenset(labels.items())), 0.0)

    def counts(self, act: Callable[[], object], name: str, **labels: str) -> float:
        """By how much an act increases a series."""
        before = self.value(name, **labels)
        act()
        wait_until(lambda: self.value(name, **labels) != before)  # the response comes a moment before
        return self.value(name, **labels) - before

    def answer(self) -> None:
        self.live.ask(self.model, "Calculate.")


@contextmanager
def metrics_server(folder: Path, upstream: Upstream, embedder: Embedder, **settings: Any) -> Iterator[MetricsServer]:
    def play(body: dict[str, object]) -> Step:
        messages = body["messages"]
        assert isinstance(messages, list)
        is_second = messages[-1]["role"] == "tool"
        return Step(text="42") if is_second else Step(calls=[call("calculate", {"expression": "6 * 7"})])

    model, failing = upstream.play(play), upstream.play(Step(status=400, body={"error": {"message": "no"}}))
    table = UpstreamSettings(
        name="main", base_url=upstream.url, api_key_env=UPSTREAM_KEY_VARIABLE, models=(model, failing, "native-*")
    )
    tools = [listed("echo", **READ_ONLY)]
    with live(
        folder, None, embedder, llm=(table,), mcp=(fake("maps", options={"tools": tools}),), **settings
    ) as opened:
        opened.do(opened.bridge.mcp.views(wait_seconds=60))
        opened.install("speak", {"scripts/execute.py": SCRIPT}, description="Speaks a text aloud.")
        opened.install("wipe", {"scripts/execute.py": SCRIPT}, dangerous=True)
        yield MetricsServer(opened, upstream, model, failing)
