"""Notifications of changes, and clients that do not read them."""

import asyncio
from typing import Any, cast

import pytest
from mcp.server.subscriptions import InMemorySubscriptionBus

from apexbridge.surfaces.mcp.changes import ChangeNotices, OpenSessions, _Session
from apexbridge.tools.registry import ToolRegistry
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Client:
    """The connection of a session; one that is stuck never takes a notification."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.heard: list[str] = []
        self._is_stuck = is_stuck

    async def send_resource_list_changed(self) -> None:
        if self._is_stuck:
            await asyncio.Event().wait()
        self.heard.append("resources")

    async def send_prompt_list_changed(self) -> None:
        self.heard.append("prompts")


async def test_clients_that_do_not_read_do_not_delay_the_others() -> None:
    sessions = OpenSessions()
    clients = [*(Client(is_stuck=True) for _ in range(50)), Client()]
    for client in clients:
        connection = cast(Any, client)
        sessions._sessions[connection] = _Session(connection, "")
    notices = ChangeNotices(ToolRegistry(), InMemorySubscriptionBus(), sessions)
    publishing = asyncio.ensure_future(notices._publish(["made"]))
    await until(lambda: clients[-1].heard == ["resources", "prompts"])
    publishing.cancel()
    await asyncio.wait([publishing])
