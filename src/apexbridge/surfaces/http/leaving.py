"""A client that goes away takes its run with it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.ports import StartedRun

T = TypeVar("T")


async def result_unless_left(request: Request, run: StartedRun) -> ExecutionResult:
    """Wait for a run; where the client leaves before its end, end it."""
    waiting = asyncio.ensure_future(run.result())
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([waiting, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            run.cancel()
        return await waiting
    finally:
        leaving.cancel()
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do something for a client; where it leaves before the end, stop."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])


async def _left(request: Request) -> None:
    """Comes back when the client has gone; the body was read before, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
