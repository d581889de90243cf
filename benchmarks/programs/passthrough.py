"""A minimal proxy that forwards every byte between client and model. The argument `uvloop` selects that event loop."""

import asyncio
import sys

import aiohttp
from aiohttp import web


async def answer(request: web.Request) -> web.StreamResponse:
    """Forward a request."""
    session: aiohttp.ClientSession = request.app["session"]
    data = await request.read()
    url = f"{sys.argv[1]}{request.path}"
    async with session.post(url, data=data, headers={"content-type": "application/json"}) as upstream:
        if "event-stream" not in upstream.headers.get("content-type", ""):
            return web.Response(body=await upstream.read(), status=upstream.status, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        return response


async def main() -> None:
    """Serve on a free port and print the URL."""
    app = web.Application()
    app["session"] = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if sys.argv[2:] == ["uvloop"]:
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
