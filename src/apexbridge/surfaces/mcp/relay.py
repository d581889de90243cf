"""Relays MCP between stdio and a server's `/mcp`. It does not need the package `mcp`.

Requests of 2026-07-28 are one POST each; the headers repeat what their body says. Earlier revisions have a session,
which is opened again if the server was restarted.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.errors import ApexBridgeError, ServerError
from apexbridge.surfaces.cli.transport import NoConnectionError, Request, Response, Transport, TransportError
from apexbridge.surfaces.mcp.opening import VERSION_KEY, opening_result

PATH = "/mcp"
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_IN_FLIGHT = 256
END_SECONDS = 10
"""After the end of the input, requests that are still in progress get this time."""
CLOSE_SECONDS = 1
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32602, -32603
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Methods whose header `Mcp-Name` repeats a parameter."""
_VERSION = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")
_ENCODED = re.compile(r"=\?base64\?.*\?=\Z", re.DOTALL)
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\\\]{0,128}")'
_TEXT_FIELDS = rb'"(?:jsonrpc|method)"\s*:\s*"[^"\\\\]{0,256}"'
_FIRST_ID = re.compile(rb"\s*\{(?:\s*" + _TEXT_FIELDS + rb"\s*,)*\s*" + _ID + rb"\s*,")
_LAST_ID = re.compile(_ID + rb"(?:\s*,\s*" + _TEXT_FIELDS + rb")*\s*\}\s*\Z")
"""The id of a message that is not parsed. Clients write it before the parameters or after them."""
END_BYTES = 1024
Message = dict[str, Any]


class LongLine(NamedTuple):
    """The beginning and the end of a line that is too long, up to END_BYTES each."""

    first: bytes
    last: bytes


class Link(Protocol):
    """Finds the server."""

    async def transport(self) -> Transport:
        """The connection to the server; waits until there is one. Raises ApexBridgeError."""

    def lost(self, transport: Transport) -> None:
        """Forget a server that does not answer, so that the next call finds another one."""


class _Session:
    """The session of a client that uses a revision with a handshake."""

    def __init__(self, initialize: Message) -> None:
        self.initialize = initialize
        self.id: str | None = None
        self.version = ""
        self.transport: Transport | None = None
        self.lock = asyncio.Lock()
        self.is_initialized = False
        self.listening: asyncio.Task[None] | None = None


class Relay:
    def __init__(self, link: Link, write: Callable[[bytes], Awaitable[None]]) -> None:
        """`write` writes one line of output."""
        self._link = link
        self._write = write
        self._tasks: dict[asyncio.Task[None], Any] = {}
        """Messages in progress, with the id of a request of 2026-07-28."""
        self._session: _Session | None = None

    async def run(self, lines: AsyncIterator[bytes | LongLine]) -> None:
        """Relay until the input ends."""
        async for line in lines:
            if isinstance(line, LongLine):
                problem = f"A message has at most {MAX_LINE_BYTES} bytes."
                await self._refuse(_unparsed_id(*line), INVALID_REQUEST, problem)
            elif line.strip():
                await self._take(line)

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    async def settle(self, seconds: float) -> None:
        """Wait until everything that was read is answered, but not longer than this."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    # ------------------------------------------------------------------------------------------------------- input
    async def _take(self, line: bytes) -> None:
        try:
            check_shape(line)
            message = json.loads(line)
        except JsonShapeError as error:
            id = _unparsed_id(line[:END_BYTES], line[-END_BYTES:])
            await self._refuse(id, INVALID_REQUEST, f"The message is refused: {error}")
            return
        except (ValueError, RecursionError):
            await self._refuse(None, PARSE_ERROR, "This is not JSON; send one message on each line.")
            return
        if isinstance(message, list):
            await self._refuse(None, INVALID_REQUEST, "Batches are not supported; send one message on each line.")
            return
        problem = _problem(message)
        if problem is not None:
            await self._refuse(message.get("id") if isinstance(message, dict) else None, INVALID_REQUEST, problem)
            return
        id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        version = _modern_version(params)
        if id is not None and method is not None and (opening := opening_result(method, params)) is not None:
            await self._send({"jsonrpc": "2.0", "id": id, "result": opening})
            if method == "initialize":
                await self._end_session()
                self._session = _Session(message)
            self._start(self._prepare(), None)
            return
        if method == "notifications/cancelled" and self._cancel(params.get("requestId")):
            return
        if len(self._tasks) >= MAX_IN_FLIGHT:
            if id is not None and method is not None:
                await self._refuse(id, INTERNAL_ERROR, f"{MAX_IN_FLIGHT} requests are in progress; wait for answers.")
            return
        if version is not None and method is not None:
            self._start(self._relay_modern(message, version), id)
        else:
            self._start(self._relay_in_session(message), None)

    def _start(self, work: Any, id: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = id
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # a broken output ends the relay elsewhere

    def _cancel(self, id: Any) -> bool:
        """Cancel a request of 2026-07-28 by closing its connection; False if there is none with this id."""
        tasks = [task for task, own in self._tasks.items() if own is not None and own == id]
        for task in tasks:
            task.cancel()
        return bool(tasks)

    # ------------------------------------------------------------------------------------------------------ relaying
    async def _prepare(self) -> None:
        """Find the server, and open the session, before the client needs them."""
        with suppress(ApexBridgeError, TransportError):
            transport = await self._link.transport()
            if self._session is not None:
                await self._open_session(self._session, transport)

    async def _relay_modern(self, message: Message, version: str) -> None:
        method, params = str(message["method"]), message.get("params") or {}
        headers = {"mcp-protocol-version": version, "mcp-method": _header(method)}
        name = params.get(_NAMED.get(method, ""))
        if isinstance(name, str):
            headers["mcp-name"] = _header(name)
        await self._exchange(message, lambda transport: _Prepared(headers))

    async def _relay_in_session(self, message: Message) -> None:
        session = self._session
        if session is None:
            await self._exchange(message, lambda transport: _Prepared({}))
            return

        async def prepare(transport: Transport) -> "_Prepared":
            await self._open_session(session, transport)
            return _Prepared(_session_headers(session), session)

        is_initialized = message.get("method") == "notifications/initialized"
        await self._exchange(message, prepare)
        if is_initialized:
            session.is_initialized = True
            self._listen(session)

    async def _exchange(self, message: Message, prepare: Callable[[Transport], Any]) -> None:
        """Send a message and write its answers. Send it again if it certainly did not reach a server."""
        id = message.get("id") if "method" in message else None
        problem = "The server does not answer."
        for _ in range(2):
            transport: Transport | None = None
            try:
                transport = await self._link.transport()
                prepared = prepare(transport)
                if not isinstance(prepared, _Prepared):
                    prepared = await prepared
                if await self._post(transport, message, prepared):
                    return
                problem = "The session was lost, and could not be opened again."
            except NoConnectionError as error:
                problem = f"The server does not answer: {error}."
                if transport is not None:
                    self._link.lost(transport)
            except TransportError as error:
                if transport is not None:
                    self._link.lost(transport)
                problem = (
                    f"The connection to the server was lost ({error}). It may have run the call; check, then retry."
                )
                break
            except ApexBridgeError as error:
                problem = error.message
                break
        if id is not None:
            await self._refuse(id, INTERNAL_ERROR, problem)

    async def _post(self, transport: Transport, message: Message, prepared: "_Prepared") -> bool:
        """Returns False if the session does not exist any more."""
        id = message.get("id") if "method" in message else None
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        async with transport.send(_request("POST", prepared.headers, body)) as response:
            if response.status == 404 and prepared.session is not None:
                if prepared.session.id == prepared.headers["mcp-session-id"]:  # not opened again meanwhile
                    prepared.session.id = None
                return False
            if response.status >= 400:
                answer = await _whole(response)
                if id is not None:
                    await self._send({"jsonrpc": "2.0", "id": id, "error": _error(response.status, answer)})
                return True
            has_answer = False
            async for answer in _messages(response):
                has_answer = has_answer or _is_answer(answer, id)
                await self._write(_line(answer))
            if id is not None and not has_answer:
                raise TransportError("no answer came")
        return True

    # ------------------------------------------------------------------------------------------------------- session
    async def _open_session(self, session: _Session, transport: Transport) -> None:
        """Open the session at the server, if this server has not got it. The client has its answer already."""
        async with session.lock:
            if session.id is not None and session.transport is transport:
                return
            body = json.dumps(session.initialize, ensure_ascii=False).encode("utf-8", "replace")
            async with transport.send(_request("POST", {}, body)) as response:
                answers = [_parsed(answer) async for answer in _messages(response)]
                result = answers[-1].get("result") if answers else None
                id = response.headers.get("mcp-session-id")
            if not isinstance(result, dict) or id is None:
                reason = f"The server refused the session with {response.status}: {_text_of(answers)}"
                raise ServerError(reason, code="NOT_READY")
            session.id, session.transport = id, transport
            session.version = str(result.get("protocolVersion"))
            if session.is_initialized:  # the client has said so to a server before
                done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                async with transport.send(
                    _request("POST", _session_headers(session), json.dumps(done).encode())
                ) as response:
                    await _whole(response)
                self._listen(session)

    def _listen(self, session: _Session) -> None:
        """Relay the notifications that belong to no request."""
        if session.listening is not None:
            session.listening.cancel()
        session.listening = asyncio.ensure_future(self._follow(session))

    async def _follow(self, session: _Session) -> None:
        transport = session.transport
        if transport is None:
            return
        with suppress(TransportError):
            async with transport.send(_request("GET", _session_headers(session), b"")) as response:
                if response.status == 200:
                    async for message in _messages(response):
                        await self._write(_line(message))

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if session.listening is not None:
            session.listening.cancel()
        if session.id is not None and session.transport is not None:
            with suppress(TransportError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    request = _request("DELETE", _session_headers(session), b"")
                    async with session.transport.send(request) as response:
                        await _whole(response)

    async def close(self) -> None:
        """Cancel what is in progress, and end the session."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._end_session()

    # -------------------------------------------------------------------------------------------------------- output
    async def _send(self, message: Message) -> None:
        await self._write(_line(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")))

    async def _refuse(self, id: Any, code: int, problem: str) -> None:
        is_id = isinstance(id, str | int) and not isinstance(id, bool)
        error = {"code": code, "message": problem}
        await self._send({"jsonrpc": "2.0", "id": id if is_id else None, "error": error})


class _Prepared:
    """The headers of a message, and its session."""

    def __init__(self, headers: Mapping[str, str], session: _Session | None = None) -> None:
        self.headers = headers
        self.session = session


def _problem(message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return 'This is not a JSON-RPC message: an object with "jsonrpc": "2.0".'
    id, method = message.get("id"), message.get("method")
    if "method" not in message:
        return None if id is not None and ("result" in message or "error" in message) else "The method is missing."
    if not isinstance(method, str) or not isinstance(message.get("params", {}), dict | None):
        return "method must be text, and params an object."
    if "id" in message and (not isinstance(id, str | int) or isinstance(id, bool)):
        return "id must be text or a whole number."
    return None


def _unparsed_id(first: bytes, last: bytes) -> str | int | None:
    """The id of a request, from the two ends of its line: a client waits for an answer with this id."""
    found = _FIRST_ID.match(first) or _LAST_ID.search(last)
    if found is None or (b'"method"' not in first and b'"method"' not in last):
        return None
    with suppress(ValueError):
        id: str | int = json.loads(found[1])
        return id
    return None


def _modern_version(params: Mapping[str, Any]) -> str | None:
    """The revision that a request names; those with a handshake do not name it in requests."""
    meta = params.get("_meta")
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    return version if isinstance(version, str) and _VERSION.match(version) else None


def _header(value: str) -> str:
    """A value as a header: unchanged if it is plain text, else in base64."""
    if _PLAIN.match(value) and value == value.strip() and not _ENCODED.match(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode('ascii')}?="


def _session_headers(session: _Session) -> dict[str, str]:
    return {"mcp-session-id": session.id or "", "mcp-protocol-version": session.version}


def _request(method: str, headers: Mapping[str, str], body: bytes) -> Request:
    accept = "text/event-stream" if method == "GET" else "application/json, text/event-stream"
    own = {"accept": accept, **({"content-type": "application/json"} if body else {})}
    return Request(method=method, target=PATH, headers={**own, **headers}, body=body)


async def _messages(response: Response) -> AsyncIterator[bytes]:
    """The messages of a response, as they arrive."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        if whole := await _whole(response):
            yield _checked(whole)
        return
    begun: list[bytes] = []
    data: list[bytes] = []
    size = 0
    async for chunk in response.chunks:
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise TransportError(f"an answer is larger than {MAX_ANSWER_BYTES} bytes")
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            line = b"".join([*begun, end]).rstrip(b"\r")
            begun = []
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield _checked(b"\n".join(data))
                data, size = [], 0
        begun.append(tail)


async def _whole(response: Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.chunks:
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise TransportError(f"an answer is larger than {MAX_ANSWER_BYTES} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _checked(message: bytes) -> bytes:
    """Raise TransportError unless this is a message: a proxy may send a page, and only messages may be written."""
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(message), dict):
            return message
    raise TransportError("it sent something that is not MCP")


def _line(message: bytes) -> bytes:
    """A message on one line."""
    if b"\n" in message or b"\r" in message:
        message = json.dumps(json.loads(message), ensure_ascii=False).encode("utf-8", "replace")
    return message + b"\n"


def _is_answer(message: bytes, id: Any) -> bool:
    if b'"result"' not in message and b'"error"' not in message:
        return False
    with suppress(ValueError):
        parsed = json.loads(message)
        return isinstance(parsed, dict) and "method" not in parsed and parsed.get("id") == id
    return False


def _error(status: int, answer: bytes) -> dict[str, Any]:
    """The error in a response with an error status."""
    with suppress(ValueError):
        parsed = json.loads(answer)
        if isinstance(parsed, dict) and isinstance(error := parsed.get("error"), dict) and "code" in error:
            return error
    return {"code": INTERNAL_ERROR, "message": f"The server answered {status}; is it an apexbridge server?"}


def _parsed(answer: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        parsed = json.loads(answer)
        if isinstance(parsed, dict):
            return parsed
    return {}


def _text_of(answers: list[Any]) -> str:
    error = answers[-1].get("error") if answers and isinstance(answers[-1], dict) else None
    return str(error.get("message"))[:500] if isinstance(error, dict) else "no reason"
