"""A cheap model server with fixed responses. The `model` of a request selects the behaviour.

- `m`: immediately; a stream sends its events as fast as the event loop allows.
- `paced`: an event per millisecond, so that no two arrive together.
- `slow`: an event per second.
- `hold`: a stream never ends; without streaming there is no response.
- `skill`: calls a skill.
- `article`, `code`: a long stream of Markdown, an event per millisecond.

`GET /state` returns the open requests, and the times at which others were disconnected.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator

HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m"}
PAUSES = {"paced": 0.001, "article": 0.001, "code": 0.001, "slow": 1.0, "hold": 0.05}
WORDS = int(sys.argv[1])
SLOW_WORDS = int(sys.argv[2])
SKILL = sys.argv[3]
MODEL = re.compile(rb'"model"\s*:\s*"([a-z]+)"')
USER = re.compile(rb'"user"\s*:\s*"([^"]+)"')
STREAM = re.compile(rb'"stream"\s*:\s*true')
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
opened: dict[str, float] = {}
disconnected: dict[str, float] = {}


def chunk(data: bytes) -> bytes:
    """Encode a chunk for chunked transfer encoding. The last chunk is empty."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(delta: object, finish_reason: str | None = None) -> bytes:
    """One event of a streamed completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    body = {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


def json_response(value: object) -> bytes:
    """A response with a JSON body."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def completion(message: object, finish_reason: str) -> bytes:
    """A completion without streaming."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 29}
    return json_response({**HEAD, "object": "chat.completion", "choices": [choice], "usage": usage})


def call() -> dict[str, object]:
    """A call of the skill."""
    arguments = json.dumps({"name": SKILL})
    return {"id": "call_1", "index": 0, "type": "function", "function": {"name": "run_skill", "arguments": arguments}}


BEGIN = event({"role": "assistant", "content": ""})
TEXT_EVENTS = [event({"content": f"weather{number} "}) for number in range(WORDS)]
END = [event({}, "stop"), chunk(DONE) + chunk(b"")]
TEXT = "".join(f"weather{number} " for number in range(WORDS))
PLAIN = completion({"role": "assistant", "content": TEXT}, "stop")
CALL = completion({"role": "assistant", "content": None, "tool_calls": [call()]}, "tool_calls")
CALL_EVENTS = [event({"role": "assistant", "tool_calls": [call()]}), event({}, "tool_calls"), chunk(DONE) + chunk(b"")]


def long_text(model: str) -> Iterator[bytes]:
    """Parts of 80 characters on average, as a fast model sends them."""
    if model == "code":
        lines = [
            f"value_{number} = compute(first={number}, second='text')  # line {number}\n" for number in range(1500)
        ]
        parts = ["```python\n", *lines, "```\n"]
    else:
        parts = [
            text
            for number in range(85)
            for text in (
                f"## Part {number}\n\n",
                *(
                    f"Sentence {index} has **some** words, `code` and a [link](https://example.org). "
                    for index in range(12)
                ),
                "\n\n- first point\n- second point\n\n",
                "| name | size |\n|---|---|\n| Ada | 1 |\n\n" if number % 10 == 0 else "",
                "```python\nprint('hello')\n```\n\n" if number % 7 == 0 else "",
            )
        ]
    for part in [*parts, "\n\nThat was all."]:
        yield event({"content": part})


def events(model: str) -> Iterator[bytes]:
    """The chunks of a stream."""
    if model == "skill":
        yield from CALL_EVENTS
        return
    yield BEGIN
    if model in ("article", "code"):
        yield from long_text(model)
        yield from END
        return
    while model == "hold":
        yield from TEXT_EVENTS
    yield from TEXT_EVENTS if model != "slow" else TEXT_EVENTS[:1] * SLOW_WORDS
    yield from END


class Connection(asyncio.Protocol):
    """One connection with sequential requests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._user: str | None = None
        self._next: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Record a disconnect if a response was still in progress."""
        if self._next is not None:
            self._next.cancel()
        if self._user is not None and opened.pop(self._user, None) is not None:
            disconnected[self._user] = time.monotonic()

    def data_received(self, data: bytes) -> None:
        """Answer when a request is complete."""
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not separator or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        if head.startswith(b"GET /state"):
            self._transport.write(json_response({"open": list(opened), "disconnected": disconnected}))
            return
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        named, user = MODEL.search(body), USER.search(body)
        model = named[1].decode() if named else "m"
        if user is not None:
            self._user = user[1].decode()
            opened[self._user] = time.monotonic()
        if STREAM.search(body) is not None:
            self._transport.write(STREAM_HEAD)
            self._send_next(events(model), PAUSES.get(model, 0.0))
        elif model != "hold":
            self._transport.write(CALL if model == "skill" else PLAIN)
            self._end()

    def _send_next(self, chunks: Iterator[bytes], pause: float) -> None:
        data = next(chunks, None)
        if data is None:
            self._next = None
            self._end()
            return
        self._transport.write(data)
        later = self._loop.call_later(pause, self._send_next, chunks, pause) if pause else None
        self._next = later or self._loop.call_soon(self._send_next, chunks, pause)

    def _end(self) -> None:
        if self._user is not None:
            opened.pop(self._user, None)
        self._user = None


async def main() -> None:
    """Serve on a free port and print the URL."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
