"""A model that always says the same, at once or word by word."""

import asyncio
import json
import sys

from aiohttp import web

HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m"}


async def answer(request: web.Request) -> web.StreamResponse:
    """One completion, or its chunks."""
    body = await request.json()
    words = [f"weather{number} " for number in range(int(sys.argv[1]))]
    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 29}
        return web.json_response({**HEAD, "object": "chat.completion", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    for delta in deltas:
        await _send(response, {"index": 0, "delta": delta, "finish_reason": None})
    await _send(response, {"index": 0, "delta": {}, "finish_reason": "stop"})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, choice: object) -> None:
    chunk = {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await asyncio.sleep(0)


async def main() -> None:
    """Serve on a free port, and say which."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
