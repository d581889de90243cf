"""Progress notifications of a call, if the client asked for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apexbridge.surfaces.mcp.calls import Context
from apexbridge.tools.tool import Progress, ignore_progress

MAX_UNSENT = 100
"""Messages that wait for a slow client; further ones are dropped."""


@asynccontextmanager
async def reporting(context: Context) -> AsyncIterator[Progress]:
    """Yield a callback whose messages are sent to the client while the block lasts, and at its end."""
    if not context.meta or context.meta.get("progress_token") is None:
        yield ignore_progress
        return
    messages: asyncio.Queue[str | None] = asyncio.Queue(MAX_UNSENT + 1)

    def report(message: str, share: float | None = None) -> None:
        if messages.qsize() < MAX_UNSENT:  # one more than that fits: the end
            messages.put_nowait(message)

    async def send() -> None:
        number = 0
        while (message := await messages.get()) is not None:
            number += 1  # must increase with each notification
            await context.session.report_progress(number, None, message)

    sending = asyncio.ensure_future(send())
    try:
        yield report
        messages.put_nowait(None)
        await sending
    finally:
        sending.cancel()
