"""CPU of the other wire formats of chat, compared with chat completions for the same stream of 22 events."""

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.chat.servers import Servers, result_of
from benchmarks.measuring import Comparison

CONNECTIONS, REQUESTS = 8, 150
GOAL = 1.3
WORDS = "Say something nice about the weather."


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    name: str
    path: str
    body: dict[str, Any]
    end: str = "data: [DONE]"
    """The last words of its streams."""


CHAT = WireFormat(
    name="chat completions",
    path="/v1/chat/completions",
    body={"stream": True, "messages": [{"role": "user", "content": WORDS}]},
)
FORMATS = (
    WireFormat(name="responses", path="/v1/responses", body={"stream": True, "input": WORDS}),
    WireFormat(
        name="responses, not stored", path="/v1/responses", body={"stream": True, "input": WORDS, "store": False}
    ),
    WireFormat(
        name="messages",
        path="/v1/messages",
        body={"stream": True, "max_tokens": 1000, "messages": [{"role": "user", "content": WORDS}]},
        end='data: {"type":"message_stop"}',
    ),
)


def measure(servers: Servers, *, rounds: int) -> list[Comparison]:
    """Alternate between the formats, so that noise affects all of them; events as fast as possible, and paced."""
    results = []
    for model in ("m", "paced"):
        figures: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for wire in (CHAT, *FORMATS):
                before = servers.ours.cpu_ms()
                result_of(
                    servers.load(
                        servers.ours,
                        {**wire.body, "model": model},
                        connections=CONNECTIONS,
                        requests=REQUESTS,
                        path=wire.path,
                        end=wire.end,
                    )
                )
                if number:  # the first round warms up
                    figures.setdefault(wire.name, []).append((servers.ours.cpu_ms() - before) / REQUESTS)
        kind = "paced stream" if model == "paced" else "stream"
        print(f"CPU of the process, ms per {kind} request, by wire format", flush=True)
        for name, values in figures.items():
            ratio = min(values) / min(figures[CHAT.name])
            print(
                f"    {name:22} {min(values):8.3f}  (median {statistics.median(values):.3f})  {ratio:.2f} x", flush=True
            )
        results += [
            _compared(f"CPU of a {kind} in {wire.name}", figures[wire.name], figures[CHAT.name]) for wire in FORMATS
        ]
    return results


def _compared(what: str, ours: list[float], chat: list[float]) -> Comparison:
    return Comparison(
        what=what,
        ours_ms=min(ours),
        baseline="chat completions",
        baseline_ms=min(chat),
        goal=GOAL,
        spread=max(ours) / statistics.median(ours),
    )
