"""When a client disconnects, the request to the upstream and the running skill are cancelled."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live, request_until_disconnect
from tests.chat.upstream import Step, Upstream, call
from tests.waiting import wait_until

pytestmark = pytest.mark.requirement("G1")
NAME = "sound-sleeper"
SLEEP = f"""\
import ctypes, time
ctypes.CDLL(None).prctl(15, b"{NAME}")  # the name that the process goes by
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        opened.install(NAME, {"scripts/execute.py": SLEEP})
        yield opened


def sleepers() -> list[str]:
    """The ids of the skill's processes."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (folder / "comm").read_text().strip() == NAME:
                found.append(folder.name)
    return found


def running(server: Live) -> bool:
    answer = server.http.get("/api/executions", params={"state": "running"}).json()
    return bool(answer["executions"])


@pytest.mark.parametrize("more", [{}, {"x_bridge": {"tools": False}}], ids=["loop", "plain"])
def test_a_disconnect_cancels_the_request_to_the_upstream(
    server: Live, upstream: Upstream, is_stream: bool, more: dict[str, Any]
) -> None:
    model = upstream.play(Step(text="a text that never ends", hang_after=3 if is_stream else -1))
    with request_until_disconnect(server, model, stream=is_stream, **more):
        wait_until(lambda: bool(upstream.seen(model)))
    wait_until(lambda: upstream.seen(model)[0].is_over)
    assert upstream.seen(model)[0].was_disconnected


def test_a_disconnect_cancels_a_running_skill(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Wait.", calls=[call("run_skill", {"name": NAME})]), Step(text="Never."))
    with request_until_disconnect(server, model, stream=is_stream):
        wait_until(lambda: running(server))
        wait_until(lambda: bool(sleepers()))
    wait_until(lambda: not running(server))
    wait_until(lambda: not sleepers())
    assert len(upstream.seen(model)) == 1
    assert server.ask(upstream.play(Step(text="Still here.")))["choices"][0]["message"]["content"] == "Still here."


def test_a_disconnect_between_two_attempts_prevents_the_second(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(status=429, body={"error": {}}, headers={"retry-after": "15"}), Step(text="Never."))
    with request_until_disconnect(server, model):
        wait_until(lambda: bool(upstream.seen(model)))
    assert server.ask(upstream.play(Step(text="Still here.")))["choices"][0]["message"]["content"] == "Still here."
    assert len(upstream.seen(model)) == 1


def test_many_disconnects_cancel_all_requests_to_the_upstream(server: Live, upstream: Upstream) -> None:
    models = [upstream.play(Step(text="a text", hang_after=2)) for _ in range(50)]
    with contextlib.ExitStack() as stack:
        for model in models:
            stack.enter_context(request_until_disconnect(server, model, stream=True))
        wait_until(lambda: all(upstream.seen(model) for model in models))
    wait_until(lambda: all(upstream.seen(model)[0].is_over for model in models))
    assert all(upstream.seen(model)[0].was_disconnected for model in models)
