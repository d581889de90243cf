# Generated from _async by scripts/unasync.py. Do not edit.
"""A client of a running server."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from apexbridge.client._sync.chat import Chat
from apexbridge.client._sync.runs import Approvals, Runs
from apexbridge.client._sync.skills import Skills
from apexbridge.client._sync.tools import Code, Tools
from apexbridge.client._sync.workspaces import Uploads, Workspaces
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


class SyncClient:
    """Skills, tools, runs, workspaces and chat of a server, over HTTP.

    The address comes from `url`, or else from `APEX_URL`, or is that of `apex serve` on this machine. The key comes
    from `api_key`, or else from `APEX_API_KEY`. Use it as a context manager, or call `close`.

    Every method raises `ApexBridgeError` with the code of the server, or NOT_READY if it cannot be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float | None = READ_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`timeout` is for the time without an answer, in seconds. `transport` replaces the network."""
        self.url = address_of(url)
        self._http = httpx.Client(
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request to any route, and return the JSON of the response. `options` are those of httpx."""
        body = self.fetch(method, path, **options)
        try:
            return json.loads(body)
        except ValueError as error:
            raise unexpected(self.url, error) from error

    def read(self, kind: type[Model], method: str, path: str, **options: Any) -> Model:
        """Send a request, and return the response as a model."""
        body = self.fetch(method, path, **options)
        try:
            return kind.model_validate_json(body)
        except ValueError as error:
            raise unexpected(self.url, error) from error

    def fetch(self, method: str, path: str, **options: Any) -> bytes:
        """Send a request, and return the body of the response."""
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if not response.is_success:
            raise error_of(response.status_code, response.content, self.url)
        return response.content

    def events(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Iterator[tuple[str, str, str]]:
        """Yield id, kind and data of server-sent events. Closing the iterator closes the connection."""
        reader = EventReader()
        with self._streamed(method, path, headers=headers, **options) as response:
            try:
                for chunk in response.iter_bytes():
                    for kind, data in reader.feed(chunk):
                        yield reader.last_id, kind, data
            except httpx.HTTPError as error:
                raise unreachable(self.url, error) from error

    @contextmanager
    def _streamed(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        request = self._http.build_request(method, path, **options)
        try:
            response = self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        try:
            if not response.is_success:
                raise error_of(response.status_code, response.read(), self.url)
            yield response
        finally:
            response.close()
