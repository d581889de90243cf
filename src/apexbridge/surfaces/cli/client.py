"""Client of the HTTP API, for a running server or for the same application in this process."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NamedTuple, NoReturn
from urllib.parse import quote, urlencode

from apexbridge.errors import ApexBridgeError, InvalidArchiveError, InvalidInputError, ServerError, SkillNotFoundError
from apexbridge.skills import RESERVED_NAMES, SERVED_NAME_PATTERN
from apexbridge.skills.package.archive import MAX_ARCHIVE_BYTES, MEGABYTE
from apexbridge.storage.directory import SERVER_FILE, is_data_dir, is_owned
from apexbridge.surfaces.cli.connection import Connection, find_connection
from apexbridge.surfaces.cli.transport import (
    CONNECT_SECONDS,
    HttpTransport,
    Request,
    Response,
    Transport,
    TransportError,
)

WAIT_SECONDS = 20
"""How long to wait for another command that holds the data directory."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Limit for one response or one event stream."""
SEND_BYTES = 256 * 1024
CHAT_PATH = "/v1/chat/completions"


class AnsweredError(ApexBridgeError):
    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(str(answer.get("message")), code=str(answer.get("code")), **(answer.get("details") or {}))
        self._answer = dict(answer)

    def to_json(self) -> dict[str, Any]:
        """The server's error object, unchanged."""
        return self._answer


class TooLargeError(ServerError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A complete response."""

    status: int
    body: bytes
    address: str

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """The HTTP API of a remote or in-process server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON of the response."""
        async with self._stream(method, path, **options) as response:
            return _checked(await self._whole(path, response))

    async def ask_skill(self, method: str, name: str, *segments: str, **options: Any) -> Any:
        return await self.ask(method, skill_path(name, *segments), **options)

    async def upload(self, path: str, file: BinaryIO, **query: Any) -> Any:
        """Upload an archive. `query` values that are None are omitted."""
        params = {key: value for key, value in query.items() if value is not None}
        headers = {"content-type": "application/zip"}
        with _sized(str(query.get("filename") or "the archive"), file, "Archive"):
            return await self.ask("POST", path, body=_file_chunks(file), params=params, headers=headers)

    async def send_file(self, path: str, source: Path) -> Any:
        """Upload a file of any kind as multipart/form-data."""
        boundary = token_hex(16)
        # The rules of HTML for file names in form data.
        name = source.name.replace("\n", "%0A").replace("\r", "%0D").replace('"', "%22")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'

        async def body(file: BinaryIO) -> AsyncIterator[bytes]:
            yield f"{head}Content-Type: application/octet-stream\r\n\r\n".encode("utf-8", "surrogateescape")
            async for chunk in _file_chunks(file):
                yield chunk
            yield f"\r\n--{boundary}--\r\n".encode()

        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        try:
            with source.open("rb") as file, _sized(str(source), file, "File"):
                return await self.ask("POST", path, body=body(file), headers=headers)
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
            return (await self._whole(CHAT_PATH, response)).json()

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

    async def receive(
        self, method: str, path: str, target: BinaryIO, *, json: Any, on_chunk: Callable[[bytes, str | None], None]
    ) -> None:
        """Write the body of a response, of any size, to a file. `on_chunk` gets each part, and `X-Backup-Bytes`."""
        async with self._stream(method, path, json=json) as response:
            size = response.headers.get("x-backup-bytes")
            async for chunk in _chunks(response, sys.maxsize):
                await asyncio.to_thread(target.write, chunk)
                on_chunk(chunk, size)

    async def download_skill(self, name: str, target: BinaryIO, *, version: int | None = None) -> int:
        segments = ("export",) if version is None else ("versions", str(version), "export")
        return await self.download(skill_path(name, *segments), target)

    @asynccontextmanager
    async def _stream(
        self,
        method: str,
        path: str,
        *,
        check: Callable[[_Answer], Any] | None = None,
        json: Any = None,
        body: bytes | AsyncIterator[bytes] = b"",
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request and yield the response. `check` raises for an error response."""
        own_headers = dict(headers or {})
        if json is not None:
            body, own_headers["content-type"] = _encoded(json), "application/json"
        target = f"{path}?{urlencode(params, doseq=True)}" if params else path
        request = Request(method=method, target=target, headers=own_headers, body=body)
        try:
            async with self._transport.send(request) as response:
                if response.status >= 400:
                    (check or _checked)(await self._whole(path, response))
                yield response
        except TransportError as error:
            raise ServerError(
                f"No answer from {self._transport.address}: {error}. Is the server running? Start it with: apex serve",
                code="NOT_READY",
            ) from error

    async def _whole(self, path: str, response: Response) -> _Answer:
        body = b"".join([chunk async for chunk in _chunks(response)])
        return _Answer(status=response.status, body=body, address=f"{self._transport.address}{path}")


@contextmanager
def _sized(name: str, file: BinaryIO, kind: str) -> Iterator[None]:
    """Name a file that is too large, and its size, in the server's error.

    A server closes the connection to a client that continues to send, so a file above the limit is not sent at all.
    """
    size = os.fstat(file.fileno()).st_size
    if size > MAX_ARCHIVE_BYTES:
        problem = f"{kind} too large: at most {MAX_ARCHIVE_BYTES // MEGABYTE} MB are accepted"
        raise InvalidArchiveError(f"{name} ({size:,} bytes): {problem}", code="ARCHIVE_TOO_LARGE")
    try:
        yield
    except AnsweredError as error:
        if error.code not in ("ARCHIVE_TOO_LARGE", "PAYLOAD_TOO_LARGE"):
            raise
        message = f"{name} ({file.seek(0, 2):,} bytes): {error.message}"
        raise AnsweredError({**error.to_json(), "message": message}) from error


async def _file_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, SEND_BYTES):
        yield chunk


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


async def _chunks(response: Response, limit: int | None = None) -> AsyncIterator[bytes]:
    """Yield the raw body up to a limit. It is never decompressed, which avoids decompression bombs."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ServerError("The server compressed its answer, which was not requested. Check --url.", code="NOT_READY")
    max_bytes = MAX_ANSWER_BYTES if limit is None else limit
    received = 0
    async for chunk in response.chunks:
        received += len(chunk)
        if received > max_bytes:
            raise TooLargeError(f"The answer is larger than {max_bytes:,} bytes.", code="NOT_READY")
        yield chunk


async def _events(response: Response) -> AsyncIterator[tuple[str, str]]:
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


def _check_chat(answer: _Answer) -> NoReturn:
    """Raise the error of a response below `/v1`, which has OpenAI's shape."""
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"The server answered {answer.status}"
    code = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 429: "RATE_LIMITED"}.get(answer.status, "NOT_READY")
    raise ServerError(message, code=code)


def skill_path(name: str, *segments: str) -> str:
    if name in RESERVED_NAMES or not SERVED_NAME_PATTERN.match(name):  # it would lead to another route
        raise SkillNotFoundError(name)
    return "/".join(["/api/skills", quote(name, safe=""), *segments])


@asynccontextmanager
async def connected(*, data_dir: str | None, url: str | None, creates: bool = True) -> AsyncIterator[Api]:
    """Connect to the running server. Without one, open the data directory in this process until the block ends.

    With `creates=False`, a missing data directory is an error.
    """
    connection = find_connection(data_dir=data_dir, url=url)
    key = connection.api_key
    if connection.url is not None:
        yield Api(_transport(connection.url, key, trust_env=True))
        return
    async with AsyncExitStack() as stack:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            server = await _running_server(connection.data_dir, deadline)
            if server is not None:
                yield Api(_transport(server.address, key or server.key, trust_env=False))
                return
            try:
                transport = await stack.enter_async_context(_opened(connection.data_dir, creates=creates))
                break
            except ServerError as error:  # another command opened the directory first: wait for it
                if error.code != "DATA_DIR_IN_USE" or time.monotonic() > deadline:
                    raise
        yield Api(transport)


async def attached(connection: Connection) -> HttpTransport | None:
    """The server that a command uses; None if no process has the data directory. Waits while another command has it."""
    if connection.url is not None:
        return _transport(connection.url, connection.api_key, trust_env=True)
    server = await _running_server(connection.data_dir, time.monotonic() + WAIT_SECONDS)
    return server and _transport(server.address, connection.api_key or server.key, trust_env=False)


async def running_api(connection: Connection) -> Api | None:
    """The server that a command would use, without waiting; None if none answers."""
    if connection.url is not None:
        return Api(_transport(connection.url, connection.api_key, trust_env=True))
    server = _announced(connection.data_dir) if is_owned(connection.data_dir) else None
    if server is None or not await _answers(server):
        return None
    return Api(_transport(server.address, connection.api_key or server.key, trust_env=False))


@asynccontextmanager
async def _opened(data_dir: Path, *, creates: bool) -> AsyncIterator[Transport]:
    """Open the data directory in this process."""
    from apexbridge.settings import load_settings  # these import the whole application

    settings = load_settings(data_dir=data_dir)
    if not creates and _is_missing(data_dir):
        raise ServerError(
            f"No data directory at {data_dir}. apex serve or apex skills install creates it; "
            "--data-dir or APEX_DATA_DIR names another one.",
            code="DATA_DIR_NOT_FOUND",
            path=str(data_dir),
        )
    from apexbridge.surfaces.cli.in_process import in_process_server

    async with in_process_server(settings) as transport:
        yield transport


def _is_missing(data_dir: Path) -> bool:
    is_new = not data_dir.exists() or (data_dir.is_dir() and not is_data_dir(data_dir))
    return is_new and not (data_dir / "skills").is_dir()


def _transport(address: str, key: str | None, *, trust_env: bool) -> HttpTransport:
    """`trust_env` is false for local servers, which must not be reached through a proxy."""
    try:
        return HttpTransport(address, key, trust_env=trust_env)
    except ValueError as error:
        raise ServerError(
            f"{address} is not the address of a server. Check --url and APEX_URL.", code="NOT_READY"
        ) from error


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
        async with asyncio.timeout(CONNECT_SECONDS):
            answer = await Api(HttpTransport(server.address)).ask("GET", "/healthz")
            return isinstance(answer, dict) and answer.get("instance") == server.instance
    except (ApexBridgeError, ValueError, TimeoutError):
        return False


def _checked(answer: _Answer) -> Any:
    try:
        data = answer.json()
    except ValueError:
        data = None
    if not answer.is_error and data is not None:
        return data
    if isinstance(data, dict) and "code" in data:
        raise AnsweredError(data)
    raise ServerError(
        f"{answer.address} answered {answer.status}; that is not an apexbridge server. Check --url.",
        code="NOT_READY",
    )
