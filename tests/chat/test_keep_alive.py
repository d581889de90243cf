"""A silent stream sends keep-alive comments."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from apexbridge.agent.chat_events import Event, PassedThrough
from apexbridge.agent.request import read_request
from apexbridge.surfaces.http.chat import endpoint
from apexbridge.surfaces.http.chat.completions import CompletionExchange, CompletionsApi
from tests.chat.live import Live
from tests.chat.upstream import Step, Upstream, call


@pytest.mark.requirement("G1")
def test_a_stream_that_waits_sends_keep_alive_comments(
    bridge_server: Live, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "KEEP_ALIVE_SECONDS", 0.05)
    model = upstream.play(Step(calls=[call("datetime")]), Step(text="Now.", delay=0.4))
    streamed = bridge_server.stream(model)
    assert b": keep-alive\n\n" in streamed.data
    assert streamed.whole()["content"] == "Now."


@pytest.mark.anyio
async def test_no_keep_alive_comment_follows_the_end() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    response = endpoint.Reply(CompletionsApi(), send, "mine")

    async def events() -> AsyncGenerator[Event, None]:
        yield PassedThrough(chunks=[{"choices": []}])
        response._last_sent = -endpoint.KEEP_ALIVE_SECONDS
        response._check_keep_alive()  # the timer fires just after the last event

    request = read_request({"messages": [{"role": "user", "content": "hello"}], "stream": True})
    await response.stream(CompletionExchange(request), events())
    await asyncio.sleep(0)
    assert sent[-1]["body"] == b"data: [DONE]\n\n"
