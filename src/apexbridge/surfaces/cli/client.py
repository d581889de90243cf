"""Client of the HTTP API, for a running server or for the same application in this process."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn
from urllib.parse import quote

import httpx

from apexbridge.errors import ApexBridgeError, InvalidInputError, ServerError, SkillNotFoundError
from apexbridge.settings import Settings, load_settings
from apexbridge.skills.models import NAME_PATTERN, RESERVED_NAMES
from apexbridge.storage.directory import SERVER_FILE, is_owned

WAIT_SECONDS = 20
"""How long to wait for another command that holds the data directory."""
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 3600.0
"""Longest wait for data. It is long because a run may be queued or work without output for a long time."""
TIMEOUT = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Limit for one response or one event stream."""
SEND_BYTES = 256 * 1024
CHAT_PATH = "/v1/chat/completions"
MAX_PORT = 65535


class AnsweredError(ApexBridgeError):
    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(str(answer.get("message")), code=str(answer.get("code")), **(answer.get("details") or {}))
        self._answer = dict(answer)

    def to_json(self) -> dict[str, Any]:
        """The server's error object, unchanged."""
        return self._answer


class TooLargeError(ServerError):
    pass


class Api:
    """The HTTP API of a remote or in-process server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON of the response."""
        async with self._stream(method, path, **options) as response:
            return _checked(await _whole(response))

    async def ask_skill(self, method: str, name: str, *segments: str, **options: Any) -> Any:
        return await self.ask(method, skill_path(name, *segments), **options)

    async def upload(self, path: str, file: BinaryIO, **query: Any) -> Any:
        """Upload an archive. `query` values that are None are omitted."""

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await asyncio.to_thread(file.read, SEND_BYTES):
                yield chunk

        params = {key: value for key, value in query.items() if value is not None}
        headers = {"content-type": "application/zip"}
        return await self.ask("POST", path, content=chunks(), params=params, headers=headers)

    async def send_file(self, path: str, source: Path) -> Any:
        """Upload a file of any kind as multipart/form-data."""
        try:
            with source.open("rb") as file:
                return await self.ask("POST", path, files={"file": (source.name, file)})
        except OSError as error:
            raise InvalidInputError(f"{source} cannot be read: {error.strerror}") from error

    async def events(self, path: str) -> AsyncIterator[tuple[str, Any]]:
        """Yield server-sent events, each with its kind and its data."""
        async with self._stream("GET", path) as response:
            async for kind, data in _events(response):
                yield kind, json.loads(data)

    async def complete(self, body: dict[str, Any]) -> Any:
        """Request a chat completion without streaming."""
        async with self._stream("POST", CHAT_PATH, check=_check_chat, json=body) as response:
            return (await _whole(response)).json()

    async def completion_chunks(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Request a chat completion and yield its chunks."""
        async with self._stream("POST", CHAT_PATH, check=_check_chat, json=body) as response:
            async for _, data in _events(response):
                if data != "[DONE]":
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise ServerError(str(chunk["error"].get("message")), code="NOT_READY")
                    yield chunk

    async def download(self, path: str, target: BinaryIO, *, limit: int | None = None) -> int:
        """Download a file of at most `limit` bytes (default: MAX_ANSWER_BYTES) and return its size."""
        async with self._stream("GET", path) as response:
            return sum([target.write(chunk) async for chunk in _chunks(response, limit)])

    async def download_skill(self, name: str, target: BinaryIO) -> int:
        return await self.download(skill_path(name, "export"), target)

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, *, check: Callable[[httpx.Response], Any] | None = None, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the response. `check` raises for an error response."""
        try:
            async with self._client.stream(method, path, **options) as response:
                if response.is_error:
                    (check or _checked)(await _whole(response))
                yield response
        except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
            raise ServerError(
                f"No answer from {self._client.base_url}: {error}. Is the server running? Start it with: apex serve",
                code="NOT_READY",
            ) from error


async def _chunks(response: httpx.Response, limit: int | None = None) -> AsyncIterator[bytes]:
    """Yield the raw body up to a limit. It is never decompressed, which avoids decompression bombs."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ServerError("The server compressed its answer, which was not requested. Check --url.", code="NOT_READY")
    max_bytes = MAX_ANSWER_BYTES if limit is None else limit
    received = 0
    async for chunk in response.aiter_raw():
        received += len(chunk)
        if received > max_bytes:
            raise TooLargeError(f"The answer is larger than {max_bytes:,} bytes.", code="NOT_READY")
        yield chunk


async def _whole(response: httpx.Response) -> httpx.Response:
    body = b"".join([chunk async for chunk in _chunks(response)])
    return httpx.Response(response.status_code, content=body, request=response.request)


async def _events(response: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Yield the kind and the data of server-sent events. This server writes the data of an event on one line."""
    kind = ""
    begun: list[bytes] = []
    async for chunk in _chunks(response):
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            line = b"".join([*begun, end]).rstrip(b"\r").decode("utf-8", "replace")
            begun = []
            field, _, value = line.partition(": ")
            if field == "event":
                kind = value
            elif field == "data":
                yield kind, value
        begun.append(tail)


def _check_chat(response: httpx.Response) -> NoReturn:
    """Raise the error of a response below `/v1`, which has OpenAI's shape."""
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"The server answered {response.status_code}"
    code = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 429: "RATE_LIMITED"}.get(response.status_code, "NOT_READY")
    raise ServerError(message, code=code)


def skill_path(name: str, *segments: str) -> str:
    if name in RESERVED_NAMES or not NAME_PATTERN.match(name):  # it would lead to another route
        raise SkillNotFoundError(name)
    return "/".join(["/api/skills", quote(name, safe=""), *segments])


@asynccontextmanager
async def connected(*, data_dir: str | None, url: str | None) -> AsyncIterator[Api]:
    """Connect to the running server. Without one, open the data directory in this process until the block ends."""
    settings = load_settings(data_dir=data_dir, url=url)
    # --data-dir takes precedence over a URL from the environment or apex.toml.
    remote = settings.url if url is not None or data_dir is None else None
    async with AsyncExitStack() as stack:
        yield Api(await _enter(settings, remote, stack))


async def _enter(settings: Settings, remote: str | None, stack: AsyncExitStack) -> httpx.AsyncClient:
    key = settings.api_key.get_secret_value() if settings.api_key else None
    if remote is not None:
        return await stack.enter_async_context(_client(remote, key, trust_env=True))
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        server = await _running_server(settings.data_dir, deadline)
        if server is not None:
            return await stack.enter_async_context(_client(server.address, key or server.key, trust_env=False))
        from apexbridge.surfaces.cli.in_process import in_process_client  # the bridge and the whole HTTP application

        try:
            return await stack.enter_async_context(in_process_client(settings, timeout=TIMEOUT))
        except ServerError as error:  # another command opened the directory first: wait for it
            if error.code != "DATA_DIR_IN_USE" or time.monotonic() > deadline:
                raise


def _client(address: str, key: str | None, *, trust_env: bool) -> httpx.AsyncClient:
    """Create the HTTP client. `trust_env` is false for local servers, which must not be reached through a proxy."""
    try:
        url = httpx.URL(address)
        is_valid = url.scheme in ("http", "https") and bool(url.host) and (url.port or 0) <= MAX_PORT
    except (httpx.InvalidURL, ValueError):
        is_valid = False
    if not is_valid:
        raise ServerError(f"{address} is not the address of a server. Check --url and APEX_URL.", code="NOT_READY")
    headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=trust_env, headers=headers)


class _Server(NamedTuple):
    """The contents of `server.json` in a data directory."""

    address: str
    instance: str
    key: str | None
    """Authenticates the owner of the data directory."""


async def _running_server(data_dir: Path, deadline: float) -> _Server | None:
    """The server that owns the data directory; None if it has no owner. Waits while another command owns it."""
    has_warned = False
    while is_owned(data_dir):
        server = _announced(data_dir)
        if server is not None and await _answers(server):
            return server
        if time.monotonic() > deadline:
            raise ServerError(
                "The data directory is in use and its server does not answer. Stop that process, then try again.",
                code="DATA_DIR_IN_USE",
            )
        if not has_warned:
            has_warned = True
            sys.stderr.write("waiting for another command that is using the data directory\n")
        await asyncio.sleep(0.1)
    return None


def _announced(data_dir: Path) -> _Server | None:
    """Read `server.json`; None if it is missing or invalid."""
    try:
        announced = json.loads((data_dir / SERVER_FILE).read_bytes())
        return _Server(str(announced["url"]), str(announced["instance"]), announced.get("key"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def _answers(server: _Server) -> bool:
    """Whether this server instance answers, and not another process that now uses its port."""
    try:
        async with httpx.AsyncClient(base_url=server.address, timeout=CONNECT_SECONDS, trust_env=False) as client:
            answer = (await client.get("/healthz")).json()
            return isinstance(answer, dict) and answer.get("instance") == server.instance
    except (httpx.TransportError, httpx.InvalidURL, ValueError):
        return False


def _checked(response: httpx.Response) -> Any:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.is_success and answer is not None:
        return answer
    if isinstance(answer, dict) and "code" in answer:
        raise AnsweredError(answer)
    raise ServerError(
        f"{response.request.url} answered {response.status_code}; that is not an apexbridge server. Check --url.",
        code="NOT_READY",
    )
