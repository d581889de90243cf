"""The reference server of the protocol as a foreign server: found by meaning, called, cancelled, killed and back."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ToolError
from apexbridge.mcp_client import server
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.surfaces.http.serve import bind
from tests.clients.install import script
from tests.mcp_client.serving import connected, state_of, until_state
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def everything() -> list[str]:
    return script("@modelcontextprotocol/server-everything", "dist/index.js")


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server over HTTP, until the block ends."""
    process = subprocess.Popen(
        [*everything(), "streamableHttp"],
        env={"PORT": str(port), "PATH": os.environ["PATH"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def own_children() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, parent = path.read_text(), (path.parent / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if "server-everything" in words and int(parent) == os.getpid():
            found.append(int(path.parent.name))
    return found


async def check_use(bridge: Bridge) -> None:
    """Find tools by meaning, call them, and cancel a call."""
    found = (await bridge.retrieval.search("add two numbers")).results
    assert (found[0].kind, found[0].name) == ("tool", "everything_get-sum")
    assert (await bridge.tools.execute("everything_get-sum", {"a": 2, "b": 3})).output == "The sum of 2 and 3 is 5."
    structured = await bridge.tools.execute("everything_get-structured-content", {"location": "New York"})
    assert isinstance(structured.data["structuredContent"], dict)
    picture = await bridge.tools.execute("everything_get-tiny-image")
    assert "[image: image/png, " in picture.output
    declined = await bridge.tools.execute("everything_trigger-elicitation-request")
    assert "declined" in declined.output.lower()
    reports: list[float | None] = []
    slow = bridge.tools.execute(
        "everything_trigger-long-running-operation",
        {"duration": 60, "steps": 600},
        progress=lambda message, share: reports.append(share),
    )
    call = asyncio.ensure_future(slow)
    await until(lambda: len(reports) >= 2)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert (await bridge.tools.execute("everything_echo", {"message": "hi"})).output == "Echo: hi"


async def test_the_reference_server_over_stdio(
    data_dir: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE_SECONDS", 0.01)
    command, *args = everything()
    config = McpServerConfig(name="everything", command=command, args=tuple(args))
    async with connected(data_dir, embedder, config) as bridge:
        assert (await state_of(bridge, "everything")).tools >= 10
        await check_use(bridge)
        (child,) = own_children()
        os.kill(child, signal.SIGKILL)
        await until(lambda: own_children() not in ([], [child]))
        await until_state(bridge, "connected", "everything")
        assert (await bridge.tools.execute("everything_echo", {"message": "back"})).output == "Echo: back"
    assert own_children() == []


async def test_the_reference_server_over_http(
    data_dir: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(server, "LONGEST_PAUSE_SECONDS", 0.5)
    port = free_port()
    config = McpServerConfig(name="everything", url=f"http://127.0.0.1:{port}/mcp")
    with serving(port):
        async with connected(data_dir, embedder) as bridge:
            await bridge.mcp.add(config)
            await until_state(bridge, "connected", "everything")
            await bridge.mcp.index.sync()
            await check_use(bridge)
    async with connected(data_dir, embedder) as bridge:
        with serving(port):
            await until_state(bridge, "connected", "everything")
        with pytest.raises(ToolError) as gone:
            await bridge.tools.execute("everything_echo", {"message": "gone"})
        assert gone.value.code == "MCP_UNAVAILABLE"
        await until_state(bridge, "waiting", "everything")
        with serving(port):
            await until_state(bridge, "connected", "everything")
            assert (await bridge.tools.execute("everything_echo", {"message": "back"})).output == "Echo: back"
