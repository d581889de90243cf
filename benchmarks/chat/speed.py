"""CPU, latency and throughput: each way in turn, round after round, so that noise meets all of them."""

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.chat.places import Places, Process, told
from benchmarks.measuring import Comparison, promise

Figures = dict[str, list[float]]
"""For each way, a figure a round."""
Body = dict[str, Any]
ASKED: Body = {"model": "m", "messages": [{"role": "user", "content": "Say something nice about the weather."}]}
# Events that come as fast as they can reach a proxy several at a time, and then favour whoever does not look at them;
# where an event comes a millisecond, as models send them, each has its own way through.
KINDS: dict[str, Body] = {
    "plain": ASKED,
    "stream": {**ASKED, "stream": True},
    "paced stream": {**ASKED, "stream": True, "model": "paced"},
}
OURS = ("ours, tools off", "ours")
CPU_AT_ONCE, CPU_REQUESTS = 8, {"plain": 300, "stream": 200, "paced stream": 150}
CPU_GOALS = {"plain": (2.1, 0.5), "stream": (2.0, 1.2), "paced stream": (2.0, 1.2)}
"""Times a bare pass-through, and milliseconds on a machine where that one needs about 0.24 and 0.62."""
LATENCY_REQUESTS, LATENCY_GOALS = {"plain": 250, "stream": 120}, {"plain": 1.0, "stream": 2.0}
RATE_CONNECTIONS, RATE_REQUESTS = 32, {"plain": 800, "stream": 400}
RATE_GOALS = {"plain": 1_500, "stream": 700}
"""Requests a second, on a quiet machine with cores for clients, model and server."""


def measure(places: Places, *, rounds: int) -> list[Comparison]:
    """All three."""
    return [*_cpu(places, rounds), *_latency(places, rounds), *_rate(places, rounds)]


def _cpu(places: Places, rounds: int) -> list[Comparison]:
    results = []
    for kind, count in CPU_REQUESTS.items():
        figures: Figures = {}
        pieces: dict[str, float] = {}
        for way, (place, body) in _rounds(places, KINDS[kind], rounds):
            before = place.cpu_ms()
            answer = told(places.load(place, body, connections=CPU_AT_ONCE, requests=count))
            figures.setdefault(way, []).append((place.cpu_ms() - before) / count)
            pieces[way] = answer["pieces"]
        _show(f"CPU of the process, ms a {kind} request, {CPU_AT_ONCE} at once", figures, beside="bare")
        if kind != "plain":
            print("    came in pieces:", ", ".join(f"{way} {number:.0f}" for way, number in pieces.items()))
        times, about = CPU_GOALS[kind]
        results += [
            _compared(f"CPU of a {kind} request, {way} (about {about} ms)", figures[way], figures["bare"], times)
            for way in OURS
        ]
    return results


def _latency(places: Places, rounds: int) -> list[Comparison]:
    results = []
    for kind, count in LATENCY_REQUESTS.items():
        middle: Figures = {}
        late: Figures = {}
        first: Figures = {}
        for way, (place, body) in _rounds(places, KINDS[kind], rounds):
            answer = told(places.load(place, body, connections=1, requests=count))
            times = sorted(answer["times"])
            middle.setdefault(way, []).append(statistics.median(times))
            late.setdefault(way, []).append(times[int(len(times) * 0.99)])
            first.setdefault(way, []).append(statistics.median(answer["firsts"]))
        _show(f"latency of a {kind} request, ms, median of one after the other", middle, beside="direct")
        _show("  99th percentile", late, beside="direct")
        if kind == "stream":
            _show("  first event, median", first, beside="direct")
        results += [
            promise(
                f"added to the median of a {kind} request, {way} (to the 99th percentile "
                f"{min(late[way]) - min(late['direct']):.2f} ms)",
                min(middle[way]) - min(middle["direct"]),
                LATENCY_GOALS[kind],
            )
            for way in OURS
        ]
    return results


def _rate(places: Places, rounds: int) -> list[Comparison]:
    results = []
    for kind, count in RATE_REQUESTS.items():
        figures: Figures = {}
        for way, (place, body) in _rounds(places, KINDS[kind], rounds):
            answer = told(places.load(place, body, connections=RATE_CONNECTIONS, requests=count))
            figures.setdefault(way, []).append(answer["seconds"] * 1000 / count)
        _show(f"{RATE_CONNECTIONS} connections, ms for each {kind} request", figures, beside="bare")
        results += [
            promise(
                f"{kind} requests over {RATE_CONNECTIONS} connections, {way}: {1000 / min(figures[way]):,.0f} a second "
                f"({min(figures['bare']) / min(figures[way]):.2f} x a bare pass-through), each",
                min(figures[way]),
                1000 / RATE_GOALS[kind],
            )
            for way in OURS
        ]
    return results


def _rounds(places: Places, body: Body, rounds: int) -> Iterator[tuple[str, tuple[Process, Body]]]:
    """Every way in turn, so many times; each is warm."""
    ways = {
        "direct": (places.model, body),
        "bare": (places.bare, body),
        "bare on uvloop": (places.bare_uvloop, body),
        "ours, tools off": (places.ours, {**body, "x_bridge": {"tools": False}}),
        "ours": (places.ours, body),
    }
    for place, own in ways.values():
        told(places.load(place, own, connections=CPU_AT_ONCE, requests=50))
    for _ in range(rounds):
        yield from ways.items()


def _show(title: str, figures: Figures, *, beside: str) -> None:
    """The least of all rounds, the median, and the ratio of the least to another's."""
    print(title, flush=True)
    for way, values in figures.items():
        ratio = f"{min(values) / min(figures[beside]):.2f} x {beside}" if way != beside else ""
        print(f"    {way:16} {min(values):8.3f}  (median {statistics.median(values):.3f})  {ratio}", flush=True)


def _compared(what: str, ours: list[float], bare: list[float], goal: float) -> Comparison:
    return Comparison(
        what=what,
        ours_ms=min(ours),
        baseline="a bare pass-through",
        baseline_ms=min(bare),
        goal=goal,
        spread=max(ours) / statistics.median(ours),
    )
