"""The dashboard and the alerts refer to metrics and labels of a server that has done some work."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.metrics_server import MetricsServer
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "deploy/grafana/apexbridge.json"
RULES = ROOT / "deploy/prometheus/apexbridge.rules.yml"
_METRIC = re.compile(r"\b((?:apex|process)_[a-z_]+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"le", "job", "instance"}


def expressions_of_dashboard() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.fixture(scope="module")
def labels_by_metric(served: MetricsServer) -> dict[str, set[str]]:
    """The metrics of a server after some work, with their labels."""
    http = served.live.http
    served.answer()
    served.live.post(served.failing)
    http.post("/api/skills/search", json={"query": "speak"}).raise_for_status()
    http.post("/api/skills/speak/execute", json={"input": {"what": "hi"}}).raise_for_status()
    http.post("/api/tools/maps_echo/execute", json={"input": {}}).raise_for_status()
    wait_until(lambda: served.value("apex_upstream_errors_total", upstream="main", kind="refused"))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(served.text()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("source", ["dashboard", "alerts"])
def test_every_metric_and_label_exists(labels_by_metric: dict[str, set[str]], source: str) -> None:
    expressions = list(expressions_of_dashboard()) if source == "dashboard" else [rule["expr"] for rule in rules()]
    assert len(expressions) > 5
    for expression in expressions:
        used = _METRIC.findall(expression)
        assert used, expression
        grouped = {label.strip() for by in _GROUPING.findall(expression) for label in by.split(",")}
        known = set(OF_PROMETHEUS)
        for name, matchers in used:
            assert name in labels_by_metric, name
            known |= labels_by_metric[name]
            matched = set(re.findall(r"(\w+)\s*=", matchers))
            assert matched <= labels_by_metric[name] | OF_PROMETHEUS, expression
        assert grouped <= known, expression
        assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric_of_this_server(labels_by_metric: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions_of_dashboard() for name, _ in _METRIC.findall(expression)}
    ends = r"_(?:bucket|sum|count)$"
    families = {re.sub(ends, "", name) for name in labels_by_metric if name.startswith("apex_")}
    assert families == {re.sub(ends, "", name) for name in shown if name.startswith("apex_")}


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = [
        (x, y)
        for area in (panel["gridPos"] for panel in panels)
        for x in range(area["x"], area["x"] + area["w"])
        for y in range(area["y"], area["y"] + area["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert all(rule["annotations"][name] for name in ("summary", "description"))
