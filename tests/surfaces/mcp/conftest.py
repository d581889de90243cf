"""A live server with skills, and the official Python client in both eras of the protocol."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live

ERAS = ("2026-07-28", "legacy")
ECHO = "import json, os\nprint('said', json.loads(os.environ.get('APEX_INPUT', '{}')).get('text', 'nothing'))\n"
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(300)\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("mcp") / "data", None, embedder) as server:
        server.install("shouter", {"scripts/execute.py": "print('LOUD')\n"}, description="Says things loudly.")
        server.install("sleeper", {"scripts/execute.py": SLEEP}, description="Waits for a long time.")
        server.install(
            "writer",
            {"scripts/execute.py": "open('output/made.txt', 'w').write('made')\nprint('done')\n"},
            description="Writes a file.",
        )
        server.install(
            "eraser", {"scripts/execute.py": "print('ERASED')\n"}, description="Deletes things.", dangerous=True
        )
        server.install(
            "guide",
            {"references/more.md": "# More\n", "assets/data.bin": "\0"},
            description="Explains how to greet.",
            body="# Greeting\nGreet {{input.name}} kindly.\n",
            parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        )
        server.install("hidden", description="Only for programs.", user_invocable=False)
        yield server


@asynccontextmanager
async def connect(
    server: Live, mode: str = "2026-07-28", key: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode, **options) as client,
    ):
        yield client


def new_key(server: Live, *scopes: str) -> str:
    return server.do(server.bridge.keys.create("made", scopes))[1]


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")
