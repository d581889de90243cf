"""CPU, latency and throughput: all routes alternate in each round, so that noise affects all of them."""

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.chat.servers import Process, Servers, result_of
from benchmarks.measuring import Comparison, within_limit

Figures = dict[str, list[float]]
"""For each route, a figure per round."""
Body = dict[str, Any]
REQUEST: Body = {
    "model": "m",
    "messages": [{"role": "user", "content": "Say something nice about the weather."}],
}
# Events that are sent as fast as possible reach a proxy several at a time, which favours a proxy that does not parse
# them. With an event per millisecond, as from a real model, each event is forwarded separately.
KINDS: dict[str, Body] = {
    "plain": REQUEST,
    "stream": {**REQUEST, "stream": True},
    "paced stream": {**REQUEST, "stream": True, "model": "paced"},
}
OURS = ("ours, tools off", "ours")
CPU_CONNECTIONS, CPU_REQUESTS = 8, {"plain": 300, "stream": 200, "paced stream": 150}
CPU_GOALS = {"plain": (2.1, 0.5), "stream": (2.0, 1.2), "paced stream": (2.0, 1.2)}
"""Maximum ratio to a plain pass-through, and milliseconds on a machine where that needs about 0.24 and 0.62."""
LATENCY_REQUESTS, LATENCY_GOALS = {"plain": 250, "stream": 120}, {"plain": 1.0, "stream": 2.0}
RATE_CONNECTIONS, RATE_REQUESTS = 32, {"plain": 800, "stream": 400}
RATE_GOALS = {"plain": 1_500, "stream": 700}
"""Requests per second, on an idle machine with cores for clients, model and server."""


def measure(servers: Servers, *, rounds: int) -> list[Comparison]:
    """Measure CPU, latency and throughput."""
    return [*_cpu(servers, rounds), *_latency(servers, rounds), *_rate(servers, rounds)]


def _cpu(servers: Servers, rounds: int) -> list[Comparison]:
    results = []
    for kind, count in CPU_REQUESTS.items():
        figures: Figures = {}
        reads: dict[str, float] = {}
        for route, (server, body) in _rounds(servers, KINDS[kind], rounds):
            before = server.cpu_ms()
            result = result_of(servers.load(server, body, connections=CPU_CONNECTIONS, requests=count))
            figures.setdefault(route, []).append((server.cpu_ms() - before) / count)
            reads[route] = result["reads"]
        _show(f"CPU of the process, ms per {kind} request, {CPU_CONNECTIONS} connections", figures, baseline="bare")
        if kind != "plain":
            print(
                "    reads of a client per response:",
                ", ".join(f"{route} {number:.0f}" for route, number in reads.items()),
            )
        times, milliseconds = CPU_GOALS[kind]
        results += [
            _compared(
                f"CPU of a {kind} request, {route} (about {milliseconds} ms)",
                figures[route],
                figures["bare"],
                times,
            )
            for route in OURS
        ]
    return results


def _latency(servers: Servers, rounds: int) -> list[Comparison]:
    results = []
    for kind, count in LATENCY_REQUESTS.items():
        medians: Figures = {}
        p99: Figures = {}
        first: Figures = {}
        for route, (server, body) in _rounds(servers, KINDS[kind], rounds):
            result = result_of(servers.load(server, body, connections=1, requests=count))
            times = sorted(result["times"])
            medians.setdefault(route, []).append(statistics.median(times))
            p99.setdefault(route, []).append(times[int(len(times) * 0.99)])
            first.setdefault(route, []).append(statistics.median(result["firsts"]))
        _show(f"latency of a {kind} request, ms, median of sequential requests", medians, baseline="direct")
        _show("  99th percentile", p99, baseline="direct")
        if kind == "stream":
            _show("  first event, median", first, baseline="direct")
        results += [
            within_limit(
                f"added to the median of a {kind} request, {route} (to the 99th percentile "
                f"{min(p99[route]) - min(p99['direct']):.2f} ms)",
                min(medians[route]) - min(medians["direct"]),
                LATENCY_GOALS[kind],
            )
            for route in OURS
        ]
    return results


def _rate(servers: Servers, rounds: int) -> list[Comparison]:
    results = []
    for kind, count in RATE_REQUESTS.items():
        figures: Figures = {}
        for route, (server, body) in _rounds(servers, KINDS[kind], rounds):
            result = result_of(servers.load(server, body, connections=RATE_CONNECTIONS, requests=count))
            figures.setdefault(route, []).append(result["seconds"] * 1000 / count)
        _show(f"{RATE_CONNECTIONS} connections, ms per {kind} request", figures, baseline="bare")
        results += [
            within_limit(
                f"{kind} requests over {RATE_CONNECTIONS} connections, {route}: "
                f"{1000 / min(figures[route]):,.0f} per second "
                f"({min(figures['bare']) / min(figures[route]):.2f} x a plain pass-through), each",
                min(figures[route]),
                1000 / RATE_GOALS[kind],
            )
            for route in OURS
        ]
    return results


def _rounds(servers: Servers, body: Body, rounds: int) -> Iterator[tuple[str, tuple[Process, Body]]]:
    """All routes in turn, `rounds` times, after a warm-up."""
    routes = {
        "direct": (servers.model, body),
        "bare": (servers.bare, body),
        "bare on uvloop": (servers.bare_uvloop, body),
        "ours, tools off": (servers.ours, {**body, "x_bridge": {"tools": False}}),
        "ours": (servers.ours, body),
    }
    for server, own_body in routes.values():
        result_of(servers.load(server, own_body, connections=CPU_CONNECTIONS, requests=50))
    for _ in range(rounds):
        yield from routes.items()


def _show(title: str, figures: Figures, *, baseline: str) -> None:
    """Print the minimum of all rounds, the median, and the ratio of the minimum to that of `baseline`."""
    print(title, flush=True)
    for route, values in figures.items():
        ratio = f"{min(values) / min(figures[baseline]):.2f} x {baseline}" if route != baseline else ""
        print(f"    {route:16} {min(values):8.3f}  (median {statistics.median(values):.3f})  {ratio}", flush=True)


def _compared(what: str, ours: list[float], bare: list[float], goal: float) -> Comparison:
    return Comparison(
        what=what,
        ours_ms=min(ours),
        baseline="a plain pass-through",
        baseline_ms=min(bare),
        goal=goal,
        spread=max(ours) / statistics.median(ours),
    )
