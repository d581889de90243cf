"""Calls in progress: progress, cancellation, clients that vanish, and notifications about changes."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.chat.live import TIMEOUT_SECONDS, Live
from tests.surfaces.mcp.conftest import ERAS, connect
from tests.waiting import until, wait_until

pytestmark = pytest.mark.anyio
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def _runs(served: Live, state: str) -> int:
    answer = served.http.get("/api/executions", params={"skill": "sleeper", "state": state})
    return int(answer.json()["total"])


def _cancelled(served: Live) -> int:
    runs = served.http.get("/api/executions", params={"skill": "sleeper", "limit": 500}).json()["executions"]
    return sum(run.get("status") == "error" for run in runs)


@pytest.mark.parametrize("era", ERAS)
async def test_progress_reports_the_state_and_the_output_of_a_run(served: Live, era: str) -> None:
    seen: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with connect(served, era) as client:
        code = "print('first', flush=True)\nimport time; time.sleep(0.3)\nprint('second')"
        await client.call_tool("run_code", {"language": "python", "code": code}, progress_callback=note)
        await until(lambda: any(message == "completed" for _, message in seen))
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers))
    messages = [message for _, message in seen]
    assert [message for message in messages if message in ("running", "first", "second", "completed")] == [
        "running",
        "first",
        "second",
        "completed",
    ]


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_ends_its_run(served: Live, era: str) -> None:
    before = _cancelled(served)
    async with connect(served, era) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_call, client)
                await until(lambda: asyncio.to_thread(_runs, served, "running"))
                scope.cancel()
        await until(lambda: asyncio.to_thread(lambda: _cancelled(served) > before))
        assert (await client.call_tool("run_skill", {"name": "shouter"})).structured_content["stdout"] == "LOUD\n"


async def _call(client: Client) -> None:
    await client.call_tool("run_skill", {"name": "sleeper"})


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_vanishes_ends_its_run(served: Live, era: str) -> None:
    before = await asyncio.to_thread(_cancelled, served)
    await asyncio.to_thread(_vanish, served, era)
    await until(lambda: asyncio.to_thread(lambda: _cancelled(served) > before))
    async with connect(served, era) as client:
        assert len((await client.list_tools()).tools) > 0


def _vanish(served: Live, era: str) -> None:
    params: dict[str, Any] = {"name": "run_skill", "arguments": {"name": "sleeper"}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "run_skill"}
    if era == "legacy":
        headers = _open_session(served)
    else:
        params["_meta"] = META
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    with _connection(served, "POST", headers, body):
        wait_until(lambda: _runs(served, "running"))


def _open_session(served: Live) -> dict[str, str]:
    accept = {"accept": "application/json, text/event-stream"}
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}
    opened = served.http.post("/mcp", json=request, headers=accept)
    headers = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert served.http.post("/mcp", json=done, headers={**accept, **headers}).status_code == 202
    return headers


@contextmanager
def _connection(served: Live, method: str, headers: dict[str, str], body: bytes) -> Iterator[socket.socket]:
    address = urlsplit(served.url)
    own = {
        "host": address.netloc,
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    head = f"{method} /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in own.items()) + "\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), TIMEOUT_SECONDS) as connection:
        connection.sendall(head.encode() + body)
        yield connection


async def test_subscribers_hear_of_installed_and_removed_skills(served: Live) -> None:
    heard: list[str] = []
    async with (
        connect(served) as client,
        client.listen(
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=["skill://announced/SKILL.md"],
        ) as events,
        anyio.create_task_group() as group,
    ):

        async def follow() -> None:
            async for event in events:
                heard.append(type(event).__name__)  # noqa: PERF401  # the list is read meanwhile

        group.start_soon(follow)
        await asyncio.to_thread(served.install, "announced")
        expected = {"PromptsListChanged", "ResourcesListChanged", "ResourceUpdated"}
        await until(lambda: set(heard) == expected)
        heard.clear()
        served.do(served.bridge.skills.uninstall_skill("announced"))
        await until(lambda: set(heard) == expected)
        group.cancel_scope.cancel()


async def test_sessions_hear_of_installed_skills(served: Live) -> None:
    heard: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, types.JSONRPCNotification | types.Notification):
            heard.append(message.method)

    async with connect(served, "legacy", message_handler=note) as client:
        with pytest.warns(MCPDeprecationWarning):
            await client.subscribe_resource("skill://announced/SKILL.md")
        # The stream for notifications is opened in the background: change until one arrives.
        for number in range(1000):
            await asyncio.to_thread(served.install, "announced", description=f"Version {number}.")
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await until(lambda: len(set(heard)) == 3)
                break
    assert set(heard) == {
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/updated",
    }
    served.do(served.bridge.skills.uninstall_skill("announced"))
