"""A client of a running server."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from apexbridge.client._async.chat import Chat
from apexbridge.client._async.runs import Approvals, Runs
from apexbridge.client._async.skills import Skills
from apexbridge.client._async.tools import Code, Tools
from apexbridge.client._async.workspaces import Uploads, Workspaces
from apexbridge.client.protocol import (
    CONNECT_SECONDS,
    READ_SECONDS,
    EventReader,
    address_of,
    error_of,
    headers_of,
    unexpected,
    unreachable,
    uses_proxies,
)
from apexbridge.wire import WireModel

Model = TypeVar("Model", bound=WireModel)


class Client:
    """Skills, tools, runs, workspaces and chat of a server, over HTTP.

    The address comes from `url`, or else from `APEX_URL`, or is that of `apex serve` on this machine. The key comes
    from `api_key`, or else from `APEX_API_KEY`. Use it as a context manager, or call `aclose`.

    Every method raises `ApexBridgeError` with the code of the server, or NOT_READY if it cannot be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float | None = READ_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout` is for the time without an answer, in seconds. `transport` replaces the network."""
        self.url = address_of(url)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers_of(api_key),
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            transport=transport,
            trust_env=uses_proxies(self.url),
        )
        self.skills = Skills(self)
        self.runs = Runs(self)
        self.approvals = Approvals(self)
        self.tools = Tools(self)
        self.code = Code(self)
        self.workspaces = Workspaces(self)
        self.uploads = Uploads(self)
        self.chat = Chat(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request to any route, and return the JSON of the response. `options` are those of httpx."""
        body = await self.fetch(method, path, **options)
        try:
            return json.loads(body)
        except ValueError as error:
            raise unexpected(self.url, error) from error

    async def read(self, kind: type[Model], method: str, path: str, **options: Any) -> Model:
        """Send a request, and return the response as a model."""
        body = await self.fetch(method, path, **options)
        try:
            return kind.model_validate_json(body)
        except ValueError as error:
            raise unexpected(self.url, error) from error

    async def fetch(self, method: str, path: str, **options: Any) -> bytes:
        """Send a request, and return the body of the response."""
        try:
            response = await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if not response.is_success:
            raise error_of(response.status_code, response.content, self.url)
        return response.content

    async def events(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncIterator[tuple[str, str, str]]:
        """Yield id, kind and data of server-sent events. Closing the iterator closes the connection."""
        reader = EventReader()
        async with self._streamed(method, path, headers=headers, **options) as response:
            try:
                async for chunk in response.aiter_bytes():
                    for kind, data in reader.feed(chunk):
                        yield reader.last_id, kind, data
            except httpx.HTTPError as error:
                raise unreachable(self.url, error) from error

    @asynccontextmanager
    async def _streamed(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        request = self._http.build_request(method, path, **options)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        try:
            if not response.is_success:
                raise error_of(response.status_code, await response.aread(), self.url)
            yield response
        finally:
            await response.aclose()
