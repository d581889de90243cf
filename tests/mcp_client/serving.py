"""Configurations of fake servers, and bridges that are connected to them."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from apexbridge.bridge import Bridge
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.servers import McpServerView
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from tests.waiting import until

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
Json = dict[str, Any]


def fake(name: str = "fake", *, options: Json | None = None, **fields: Any) -> McpServerConfig:
    """The configuration of a fake server; `options` are its own."""
    args = ("-I", "-S", str(FAKE_SERVER), json.dumps(options or {}))
    return McpServerConfig(name=name, command=sys.executable, args=args, **fields)


def listed(name: str, description: str = "", **fields: Any) -> Json:
    """A tool as a server lists it."""
    text = description or f"The tool {name}."
    return {"name": name, "description": text, "inputSchema": {"type": "object"}, **fields}


READ_ONLY: Json = {"annotations": {"readOnlyHint": True}}


def tools(*names: str) -> Json:
    """Options of a fake server with these tools, none of which needs approval."""
    return {"tools": [listed(name, **READ_ONLY) for name in names]}


@asynccontextmanager
async def connected(
    data_dir: Path, embedder: Embedder, *servers: McpServerConfig, **settings: Any
) -> AsyncIterator[Bridge]:
    """A bridge whose servers have been tried, and whose tools are indexed."""
    async with Bridge.open(Settings(data_dir=data_dir, mcp=servers, **settings), embedder=embedder) as bridge:
        await bridge.mcp.views(wait_seconds=60)
        await bridge.mcp.index.sync()
        yield bridge


async def state_of(bridge: Bridge, name: str = "fake") -> McpServerView:
    return await bridge.mcp.view(name)


async def until_state(bridge: Bridge, state: str, name: str = "fake") -> McpServerView:
    async def is_reached() -> bool:
        return (await state_of(bridge, name)).state == state

    await until(is_reached)
    return await state_of(bridge, name)
