"""While nothing is said for a while, the stream says that it is not dead."""

import pytest

from apexbridge.surfaces.http import reply
from tests.chat.live import Live
from tests.chat.upstream import Step, Upstream, call


@pytest.mark.requirement("G1")
def test_a_stream_that_waits_is_kept_alive_by_comments(
    bridge_server: Live, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "KEEP_ALIVE_SECONDS", 0.05)
    model = upstream.play(Step(calls=[call("datetime")]), Step(text="Now.", delay=0.4))
    streamed = bridge_server.stream(model)
    assert b": keep-alive\n\n" in streamed.data
    assert streamed.whole()["content"] == "Now."
