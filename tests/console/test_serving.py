"""The page works below a path of a reverse proxy."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import expect

from tests.console.conftest import Console, OpenPage

PREFIX = "/tools/apex"
_OF_CONNECTIONS = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@pytest.fixture
def prefixed(console: Console) -> Iterator[Console]:
    """The server behind a reverse proxy, below a path that the proxy removes."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTIONS}
            size = int(self.headers.get("content-length", 0))
            with (
                suppress(OSError, httpx.TransportError),  # the browser or the server is gone
                httpx.Client(base_url=console.url, trust_env=False, timeout=None) as client,
                client.stream(
                    self.command, self.path.removeprefix(PREFIX), headers=headers, content=self.rfile.read(size)
                ) as answer,
            ):
                self.send_response_only(answer.status_code)
                for name, value in answer.headers.multi_items():
                    if name not in _OF_CONNECTIONS:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                for chunk in answer.iter_raw():
                    self.wfile.write(chunk)
                    self.wfile.flush()

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}{PREFIX}"
        yield Console(url=url, data_dir=console.data_dir, upstream=console.upstream)
        server.shutdown()


def test_the_page_works_below_a_path_of_a_reverse_proxy(prefixed: Console, open_page: OpenPage) -> None:
    watched = open_page(prefixed)
    page = watched.page
    expect(page.get_by_role("heading", name="Skills", level=1)).to_be_visible()
    expect(page.get_by_text("markdown-toolkit").first).to_be_visible()
    page.get_by_role("navigation").get_by_role("link", name="Search", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_be_attached()
    page.wait_for_url("**/#/search")
    assert page.url.startswith(f"{prefixed.url}/#/search")
    assert watched.requests
    assert all(request.url.startswith(f"{prefixed.url}/") for request in watched.requests)
