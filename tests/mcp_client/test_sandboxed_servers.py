"""Stdio servers in the sandbox: what they see, what they may use, and that they end."""

import json
import socket
from pathlib import Path

import pytest

from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.mcp_client.serving import FAKE_SERVER, connected, state_of, tools, until_state

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def sandboxed(*permissions: str) -> McpServerConfig:
    options = tools("look", "connect", "environment", "die")
    return McpServerConfig(
        name="fake",
        command="python3",
        args=("-I", "-S", str(FAKE_SERVER), json.dumps(options)),
        sandbox=True,
        permissions=(f"fs:ro:{FAKE_SERVER}", *permissions),
    )


async def test_a_server_in_the_sandbox_sees_only_what_is_granted(
    data_dir: Path, embedder: Embedder, tmp_path: Path
) -> None:
    granted, hidden = tmp_path / "granted", tmp_path / "hidden"
    granted.write_text("a")
    hidden.write_text("b")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = list(listener.getsockname())
        config = sandboxed(f"fs:ro:{granted}")
        async with connected(data_dir, embedder, config) as bridge:
            assert (await state_of(bridge)).last_error is None

            async def call(tool: str, **arguments: object) -> str:
                return (await bridge.tools.execute(f"fake_{tool}", arguments)).output

            assert await call("look", path=str(granted)) == "true"
            assert await call("look", path=str(hidden)) == "false"
            assert await call("look", path=str(data_dir)) == "false"
            assert await call("connect", address=address) != "connected"
            environment = json.loads(await call("environment"))
            assert environment["HOME"].startswith("/tmp/skill-workspace-")
        config = sandboxed(f"net:127.0.0.1:{address[1]}")
        async with connected(data_dir, embedder, config) as bridge:
            assert (await bridge.tools.execute("fake_connect", {"address": address})).output == "connected"


async def test_a_server_in_the_sandbox_comes_back_after_its_end(data_dir: Path, embedder: Embedder) -> None:
    async with connected(data_dir, embedder, sandboxed()) as bridge:
        with pytest.raises(Exception, match="not available"):
            await bridge.tools.execute("fake_die")
        view = await bridge.mcp.reconnect("fake", wait_seconds=60)
        view = await until_state(bridge, "connected")
        assert view.last_error == "it ended with exit code 9"
        assert (await bridge.tools.execute("fake_look", {"path": "/"})).output == "true"


async def test_a_path_that_is_never_shown_is_refused(data_dir: Path, embedder: Embedder) -> None:
    config = sandboxed(f"fs:ro:{data_dir.parent}")
    async with connected(data_dir, embedder, config) as bridge:
        assert "the server's own data are never shown" in str((await state_of(bridge)).last_error)
