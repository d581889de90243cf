"""MCP servers over HTTP: the newest revision, credentials, lost connections, and hostile responses."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from apexbridge.errors import ToolError
from apexbridge.mcp_client import server as server_module
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.mcp_client.http_server import TOKEN, ModernServer, hostile_app, served
from tests.mcp_client.serving import connected, fake, state_of, until_state
from tests.waiting import until

pytestmark = pytest.mark.anyio
HEADERS = {"Authorization": "Bearer ${secret:TOKEN}"}


@pytest.fixture
def modern() -> ModernServer:
    return ModernServer()


@pytest.fixture
def address(modern: ModernServer) -> Iterator[str]:
    with served(modern.app()) as url:
        yield f"{url}/mcp"


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    with served(hostile_app()) as url:
        yield url


@pytest.fixture(autouse=True)
def _secret(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "secrets.json").write_text(json.dumps({"TOKEN": TOKEN}))


async def test_a_server_of_the_newest_revision_is_used_with_a_secret(
    data_dir: Path, embedder: Embedder, modern: ModernServer, address: str
) -> None:
    config = McpServerConfig(name="modern", url=address, headers=HEADERS, approval="never")
    async with connected(data_dir, embedder, config) as bridge:
        view = await state_of(bridge, "modern")
        assert (view.state, view.era, view.protocol_version) == ("connected", "modern", "2026-07-28")
        assert view.headers == HEADERS
        result = await bridge.tools.execute("modern_add", {"a": 1, "b": 2})
        assert (result.output, result.data["structuredContent"]) == ("3", {"result": 3})
        found = (await bridge.retrieval.search("sum of two numbers")).results
        assert (found[0].kind, found[0].name) == ("tool", "modern_add")
        call = asyncio.ensure_future(bridge.tools.execute("modern_wait"))
        await until(lambda: modern.waiting == 1)
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: modern.cancelled == 1)


async def test_a_server_that_refuses_and_comes_back(
    data_dir: Path, embedder: Embedder, modern: ModernServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_PAUSE_SECONDS", 0.01)
    config = McpServerConfig(name="modern", url=address, headers=HEADERS, approval="never")
    async with connected(data_dir, embedder, config) as bridge:
        modern.is_open = False
        with pytest.raises(ToolError) as lost:
            await bridge.tools.execute("modern_add", {"a": 1, "b": 2})
        assert lost.value.code == "MCP_UNAVAILABLE"
        await until_state(bridge, "waiting", "modern")
        assert TOKEN not in str((await state_of(bridge, "modern")).last_error)
        modern.is_open = True
        await until_state(bridge, "connected", "modern")
        assert (await bridge.tools.execute("modern_add", {"a": 1, "b": 2})).output == "3"


@pytest.mark.parametrize(
    "kind", ["huge", "html", "nonsense", "deep", "redirect", "bomb", "endless", "wrong-id", "error", "never"]
)
async def test_a_hostile_response_is_bounded_and_reported(
    data_dir: Path, embedder: Embedder, hostile: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(__import__, "apexbridge.mcp_client.connection")
    monkeypatch.setattr("apexbridge.mcp_client.connection.CONNECT_SECONDS", 3.0)
    config = McpServerConfig(name="hostile", url=f"{hostile}/{kind}", headers=HEADERS)
    async with connected(data_dir, embedder, config, fake("good")) as bridge:
        view = await state_of(bridge, "hostile")
        assert (view.state, view.tools) in {("waiting", 0), ("connecting", 0)}
        assert view.last_error is not None
        assert len(view.last_error) <= 500
        assert TOKEN not in view.last_error
        assert (await bridge.tools.execute("good_echo")).output == "{}"


async def test_an_address_without_a_server_is_reported(data_dir: Path, embedder: Embedder) -> None:
    config = McpServerConfig(name="nobody", url="http://127.0.0.1:9/mcp?team=1")
    async with connected(data_dir, embedder, config) as bridge:
        view = await state_of(bridge, "nobody")
        assert (view.state, view.url) == ("waiting", "http://127.0.0.1:9/mcp")
        assert view.last_error == "nothing answers at its address"
