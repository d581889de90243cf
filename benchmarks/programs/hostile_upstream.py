"""A model server whose responses are expensive to parse. The name of the model selects one. Prints its port."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """One event of a stream."""
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"
    )


def call(**function: str) -> bytes:
    """A fragment of one call."""
    return chunk({"tool_calls": [{"id": "c1", "function": function}]})


def chunks(model: str) -> Iterator[bytes]:
    """The body of a response."""
    if model == "arguments":
        yield call(name="calculate", arguments='"')
        for _ in range(4):
            yield call(arguments="a" * 1_000_000)
        for _ in range(20):
            yield call(name="calculate") * 500
    elif model == "named":
        yield call(name="calculate", arguments='"' + "a" * 500_000)
        for _ in range(40):
            yield call(name="calculate", arguments="a") * 500
    elif model == "thoughts":
        for _ in range(600):
            yield chunk({"reasoning_content": "x" * 20}) * 1000
    yield chunk({"content": "done"}, "stop") + DONE


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    model = json.loads(await reader.readexactly(length))["model"]
    if model == "crowd":
        body = b'{"choices":[' + b"[]," * 5_000_000 + b"0]}"
        kind = b"application/json\r\ncontent-length: %d" % len(body)
        body_chunks: Iterator[bytes] = iter([body])
    else:
        kind, body_chunks = b"text/event-stream", chunks(model)
    try:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\nconnection: close\r\n\r\n")
        for data in body_chunks:
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until terminated."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
