"""A thousand streams open at once: memory at the peak, every one served, and nothing left."""

import time

from benchmarks.chat.places import SLOW_EVENTS, Places, Process, told
from benchmarks.measuring import Comparison, promise

STREAMS = 1_000
RAMP_SECONDS = 2.0
OPEN_SECONDS = 10
MOST_MB = 1_000
MOST_DESCRIPTORS = 5
IDLE_SECONDS = 40
"""For so long an idle connection to the model's server may be kept for the next request."""
LOOK_SECONDS = 0.25
BODY = {"model": "slow", "stream": True, "messages": [{"role": "user", "content": "Say something, slowly."}]}


def measure(places: Places, *, bare: bool) -> list[Comparison]:
    """Through ours, and where that is asked through a bare pass-through as well."""
    ours = places.ours
    before = ours.descriptors()
    print(f"{STREAMS:,} open streams with an event a second, {SLOW_EVENTS} of them")
    peak, together = _hold("ours", places, ours)
    begun = time.monotonic()
    if bare:
        _hold("bare", places, places.bare)
    while ours.descriptors() > before and time.monotonic() - begun < IDLE_SECONDS:
        time.sleep(1)
    after = ours.descriptors()
    print(f"    ours afterwards  memory {ours.rss_mb():.0f} MB, descriptors {after} of {before} before", flush=True)
    return [
        Comparison(
            what=f"seconds for which {STREAMS:,} streams are to be open together",
            ours_ms=OPEN_SECONDS,
            baseline="those they were",
            baseline_ms=together,
            goal=1.0,
            spread=1.0,
            unit="s",
        ),
        promise(f"memory at {STREAMS:,} open streams", peak, MOST_MB, unit="MB"),
        promise(f"descriptors left by {STREAMS:,} streams", max(0, after - before), MOST_DESCRIPTORS, unit="more"),
    ]


def _hold(name: str, places: Places, place: Process) -> tuple[float, float]:
    """Open them all, to their good end; gives the peak of memory, and for how long all were open."""
    memory, descriptors = place.rss_mb(), place.descriptors()
    cpu, begun = place.cpu_ms(), time.monotonic()
    clients = places.load(place, BODY, connections=STREAMS, requests=STREAMS, ramp=RAMP_SECONDS)
    peak, most = memory, descriptors
    while clients.poll() is None:
        peak, most = max(peak, place.rss_mb()), max(most, place.descriptors())
        time.sleep(LOOK_SECONDS)
    answer = told(clients)
    used = (place.cpu_ms() - cpu) / (time.monotonic() - begun) / 10
    print(
        f"    {name:16} memory {memory:.0f} MB before, {peak:.0f} at the peak, "
        f"{(peak - memory) * 1024 / STREAMS:.0f} KB a stream; descriptors {descriptors} before, {most} at the peak; "
        f"all {answer['answered']:,} open for {answer['allOpenSeconds']:.1f} s and ended well; {used:.0f} % of a core",
        flush=True,
    )
    return peak, answer["allOpenSeconds"]
