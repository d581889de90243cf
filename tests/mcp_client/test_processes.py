"""Processes of stdio servers."""

import asyncio
import subprocess
import threading
from typing import Any

import pytest

from apexbridge.mcp_client import processes
from apexbridge.mcp_client.config import McpServerConfig
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_process_that_starts_while_the_caller_is_cancelled_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    is_spawning, may_spawn = threading.Event(), threading.Event()
    spawned: list[subprocess.Popen[bytes]] = []
    spawn = processes._spawn

    def slow_spawn(*args: Any) -> subprocess.Popen[bytes]:
        is_spawning.set()
        may_spawn.wait(60)
        spawned.append(spawn(*args))
        return spawned[0]

    monkeypatch.setattr(processes, "_spawn", slow_spawn)

    async def use() -> None:
        async with processes.own_process(McpServerConfig(name="one", command="sleep", args=("600",)), {}):
            raise AssertionError("the caller was cancelled")

    task = asyncio.ensure_future(use())
    await until(is_spawning.is_set)
    task.cancel()
    may_spawn.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spawned[0].returncode is not None
    assert all(pipe is not None and pipe.closed for pipe in (spawned[0].stdin, spawned[0].stdout, spawned[0].stderr))
