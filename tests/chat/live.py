"""A bridge served over HTTP on a loopback socket, in a thread of the test process."""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.bridge import Bridge, Indexing
from apexbridge.llm.config import ToolMode
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings, UpstreamSettings
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.serve import bind
from apexbridge.surfaces.http.transport.protocol import LimitedProtocol
from tests.chat.upstream import KEY, Upstream
from tests.making import skill_zip

Json = dict[str, Any]
T = TypeVar("T")
UPSTREAM_KEY_VARIABLE = "TESTS_UPSTREAM_KEY"
TIMEOUT_SECONDS = 60
"""Guards against hanging; no test waits this long."""


class Live:
    """A running server and an HTTP client for it."""

    def __init__(self, bridge: Bridge, url: str, loop: asyncio.AbstractEventLoop, app: ASGIApp) -> None:
        self.bridge = bridge
        self.app = app
        self.url = url
        self._loop = loop
        self.http = httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_SECONDS)

    def install(self, name: str, files: dict[str, str] | None = None, **fields: Any) -> None:
        self.do(self.bridge.skills.install_skill(skill_zip(name, files=files or {}, **fields), overwrite=True))

    def post(self, model: str, messages: Any = "hello", **fields: Any) -> httpx.Response:
        """Send a chat request. A string as `messages` becomes one user message."""
        return self.http.post("/v1/chat/completions", json=request_of(model, messages, **fields))

    def ask(self, model: str, messages: Any = "hello", **fields: Any) -> Json:
        """Send a chat request that must succeed, and return its JSON."""
        answer: Json = self.post(model, messages, **fields).raise_for_status().json()
        return answer

    def stream(self, model: str, messages: Any = "hello", **fields: Any) -> "Streamed":
        """Request a stream, and read it to its end."""
        body = request_of(model, messages, stream=True, **fields)
        with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            return Streamed(response.status_code, response.headers, response.read())

    def answer(self, is_stream: bool, model: str, messages: Any = "hello", **fields: Any) -> Json:
        """Return the only choice, with usage and `x_bridge`, of a whole response or of a checked stream."""
        if is_stream:
            return self.stream(model, messages, stream_options={"include_usage": True}, **fields).whole()
        response = self.ask(model, messages, **fields)
        assert len(response["choices"]) == 1
        choice = response["choices"][0]
        return {
            "content": choice["message"]["content"] or "",
            "tool_calls": choice["message"].get("tool_calls", []),
            "finish_reason": choice["finish_reason"],
            "usage": response.get("usage"),
            "x_bridge": response.get("x_bridge"),
        }


def request_of(model: str, messages: Any = "hello", **fields: Any) -> Json:
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {"model": model, "messages": conversation, **fields}


class Streamed:
    """A stream, read to its end."""

    def __init__(self, status: int, headers: httpx.Headers, data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data

    @property
    def events(self) -> list[str]:
        """The data of each event, without comments."""
        blocks = [block for block in self.data.decode().split("\n\n") if block and not block.startswith(":")]
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks), self.data
        return [block.removeprefix("data: ") for block in blocks]

    @property
    def chunks(self) -> list[Json]:
        """The parsed events, without `[DONE]`."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def deltas(self) -> list[Json]:
        return [chunk["choices"][0]["delta"] for chunk in self.chunks if chunk.get("choices")]

    def whole(self) -> Json:
        """Check everything that clients rely on, and join the chunks as a client does."""
        assert self.status == 200, self.data
        assert self.headers["content-type"].startswith("text/event-stream")
        assert (self.headers["cache-control"], self.headers["x-accel-buffering"]) == ("no-cache", "no")
        assert self.events[-1] == "[DONE]", self.data
        chunks = self.chunks
        assert all(isinstance(chunk.get("choices"), list) for chunk in chunks)
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
        assert self.deltas[0] == {"role": "assistant", "content": ""}
        assert sum("role" in delta for delta in self.deltas) == 1
        finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
        assert [finish is None for finish in finishes] == [True] * (len(finishes) - 1) + [False]
        usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
        assert len(usages) <= 1
        assert not usages or ("usage" in chunks[-1] and chunks[-1]["choices"] == [])
        return {
            "content": "".join(delta.get("content") or "" for delta in self.deltas),
            "tool_calls": _calls(self.deltas),
            "finish_reason": finishes[-1],
            "usage": usages[0] if usages else None,
            "x_bridge": next((chunk["x_bridge"] for chunk in chunks if "turns" in chunk.get("x_bridge", {})), None),
        }


def _calls(deltas: list[Json]) -> list[Json]:
    calls: list[Json] = []
    for chunk in [chunk for delta in deltas for chunk in delta.get("tool_calls", ())]:
        if chunk["index"] == len(calls):
            assert {"id", "type", "function"} <= set(chunk)
            assert chunk["function"]["name"]
            calls.append({"id": chunk["id"], "type": chunk["type"], "function": {**chunk["function"]}})
        else:
            calls[chunk["index"]]["function"]["arguments"] += chunk["function"]["arguments"]
    return calls


@dataclass
class _Box:
    """Results of the server thread."""

    live: Live | None = None
    server: uvicorn.Server | None = None
    error: BaseException | None = None


@contextmanager
def environment_of_servers(cwd: Path) -> Iterator[None]:
    """No settings of this machine, until the block ends.

    Servers outlive single tests, so the function-scoped fixture for this runs too late for them.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("APEX_", "OPENAI_", "LANGSMITH_", "LANGCHAIN_"))]:
            patch.delenv(name)
        patch.setenv(UPSTREAM_KEY_VARIABLE, KEY)
        patch.chdir(cwd)
        yield


@contextmanager
def live(
    data_dir: Path,
    upstream: Upstream | None,
    embedder: Embedder | None = None,
    *,
    indexing: Indexing = "wait",
    app: Callable[[Bridge], ASGIApp] = create_app,
    tracer: Tracer = NO_TRACER,
    **settings: Any,
) -> Iterator[Live]:
    """Run a server until the block ends. The prefix of a model name is its tool mode: native, schema, text, auto."""
    is_ready, box, loop = threading.Event(), _Box(), asyncio.new_event_loop()
    if upstream is not None:
        settings = {"llm": _tables(upstream), **settings}

    async def serve() -> None:
        try:
            configured = Settings(data_dir=data_dir, **settings)
            async with Bridge.open(
                configured, watch=False, embedder=embedder, indexing=indexing, tracer=tracer
            ) as bridge:
                listener = bind("127.0.0.1", 0)
                served = app(bridge)
                config = uvicorn.Config(served, loop="none", http=LimitedProtocol, log_config=None, access_log=False)
                box.server = uvicorn.Server(config)
                box.live = Live(bridge, f"http://127.0.0.1:{listener.getsockname()[1]}", loop, served)
                is_ready.set()
                await box.server.serve(sockets=[listener])
        except BaseException as error:
            box.error = error
            is_ready.set()
            raise

    def run() -> None:
        loop.run_until_complete(serve())
        left = asyncio.all_tasks(loop)  # such as tasks that libraries start for the life of the process
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert is_ready.wait(TIMEOUT_SECONDS)
        if box.error is not None:
            raise box.error
        assert box.live is not None
        yield box.live
    finally:
        if box.live is not None and box.server is not None:
            box.live.http.close()
            box.server.should_exit = True
        thread.join(TIMEOUT_SECONDS)
        loop.close()


def _tables(upstream: Upstream) -> tuple[UpstreamSettings, ...]:
    modes: tuple[ToolMode, ...] = ("native", "schema", "text", "auto")
    return tuple(
        UpstreamSettings(
            name=mode, base_url=upstream.url, api_key_env=UPSTREAM_KEY_VARIABLE, models=(f"{mode}-*",), tool_mode=mode
        )
        for mode in modes
    )


@contextlib.contextmanager
def request_until_disconnect(
    server: Live, model: str, *, path: str = "/v1/chat/completions", **fields: object
) -> Iterator[None]:
    """Send a request whose client disconnects at the end of the block."""
    address = urlsplit(server.url)
    body = json.dumps(request_of(model, **fields)).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), TIMEOUT_SECONDS) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield
