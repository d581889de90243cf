"""A thousand concurrent streams: peak memory, all streams complete, no leaked descriptors."""

import time

from benchmarks.chat.servers import SLOW_EVENTS, Process, Servers, result_of
from benchmarks.measuring import Comparison, within_limit

STREAMS = 1_000
RAMP_SECONDS = 2.0
OPEN_SECONDS = 10
MAX_MB = 1_000
MAX_DESCRIPTORS = 5
IDLE_SECONDS = 40
"""Idle connections to the model server may be reused for this time."""
SAMPLE_SECONDS = 0.25
BODY = {"model": "slow", "stream": True, "messages": [{"role": "user", "content": "Say something, slowly."}]}


def measure(servers: Servers, *, bare: bool) -> list[Comparison]:
    """Measure apexbridge, and with `bare` also a plain pass-through."""
    ours = servers.ours
    before = ours.descriptors()
    print(f"{STREAMS:,} open streams with an event per second, {SLOW_EVENTS} events each")
    peak, concurrent = _hold("ours", servers, ours)
    begun = time.monotonic()
    if bare:
        _hold("bare", servers, servers.bare)
    while ours.descriptors() > before and time.monotonic() - begun < IDLE_SECONDS:
        time.sleep(1)
    after = ours.descriptors()
    print(f"    ours, afterwards memory {ours.rss_mb():.0f} MB, descriptors {after}, before {before}", flush=True)
    return [
        Comparison(
            what=f"required seconds with {STREAMS:,} concurrent streams",
            ours_ms=OPEN_SECONDS,
            baseline="measured",
            baseline_ms=concurrent,
            goal=1.0,
            spread=1.0,
            unit="s",
        ),
        within_limit(f"memory at {STREAMS:,} open streams", peak, MAX_MB, unit="MB"),
        within_limit(
            f"descriptors leaked by {STREAMS:,} streams", max(0, after - before), MAX_DESCRIPTORS, unit="more"
        ),
    ]


def _hold(name: str, servers: Servers, server: Process) -> tuple[float, float]:
    """Open all streams and wait until they end; returns the peak memory, and for how long all were open."""
    memory, descriptors = server.rss_mb(), server.descriptors()
    cpu, begun = server.cpu_ms(), time.monotonic()
    clients = servers.load(server, BODY, connections=STREAMS, requests=STREAMS, ramp=RAMP_SECONDS)
    peak, most = memory, descriptors
    while clients.poll() is None:
        peak, most = max(peak, server.rss_mb()), max(most, server.descriptors())
        time.sleep(SAMPLE_SECONDS)
    result = result_of(clients)
    used = (server.cpu_ms() - cpu) / (time.monotonic() - begun) / 10
    print(
        f"    {name:16} memory {memory:.0f} MB before, {peak:.0f} at the peak, "
        f"{(peak - memory) * 1024 / STREAMS:.0f} KB per stream; descriptors {descriptors} before, {most} at the peak; "
        f"all {result['answered']:,} open for {result['allOpenSeconds']:.1f} s and complete; {used:.0f} % of a core",
        flush=True,
    )
    return peak, result["allOpenSeconds"]
