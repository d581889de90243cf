"""An HTTP client for MCP servers with a limit for each response and for the rate of streams."""

from collections.abc import AsyncIterator, Mapping

import httpx2

from apexbridge._json import JsonShapeError, check_shape
from apexbridge.mcp_client.limits import CONNECT_SECONDS, MAX_MESSAGE_BYTES
from apexbridge.mcp_client.throttle import Throttle

READ_SECONDS = 3_600.0
"""Streams of notifications may be silent for long. Calls have deadlines of their own."""
MAX_VALUES = 200_000
MAX_CONNECTIONS = 64


class TooLargeError(httpx2.StreamError):
    """A response is larger than allowed."""


def http_client(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client that sends these headers. Proxies of the environment are not used: the operator named the address."""
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS)
    return httpx2.AsyncClient(
        headers=dict(headers),
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS),
        transport=_LimitedTransport(httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)),
        trust_env=False,
    )


class _LimitedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport
        self._throttle = Throttle()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A compressed response could become a thousand times as large after the limit.
        request.headers["accept-encoding"] = "identity"
        response = await self._transport.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise TooLargeError("the server compresses its response, which was not asked for")
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101  # an async transport
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _Events(stream, self._throttle) if is_events else _Document(stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Events(httpx2.AsyncByteStream):
    """A stream of events. The SDK limits each event."""

    def __init__(self, stream: httpx2.AsyncByteStream, throttle: Throttle) -> None:
        self._stream = stream
        self._throttle = throttle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            await self._throttle.take(len(chunk), messages=1 + chunk.count(b"\ndata:"))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Document(httpx2.AsyncByteStream):
    """A whole response, checked before it is parsed."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in self._stream:
            body.extend(chunk)
            if len(body) > MAX_MESSAGE_BYTES:
                raise TooLargeError(f"the response has more than {MAX_MESSAGE_BYTES} bytes")
        try:
            check_shape(bytes(body), max_values=MAX_VALUES)
        except JsonShapeError as error:
            raise TooLargeError(f"the response is too large: {error}") from error
        yield bytes(body)

    async def aclose(self) -> None:
        await self._stream.aclose()
