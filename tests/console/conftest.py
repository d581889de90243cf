"""A real server with skills and a scripted model, and pages of a real browser."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page
from scripts.build_console import is_current

from tests.chat.upstream import KEY, Upstream, upstreams
from tests.console.browser import Watched, browsers, watched_page
from tests.making import skill_zip
from tests.surfaces.conftest import StartServer, servers

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples/skills"
TIMEOUT_SECONDS = 60
Json = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need a browser. Its event loop runs the tests' own code, so its steps are not measured."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.computes_in_loop)


@dataclass(frozen=True, kw_only=True)
class Console:
    """A server with its page."""

    url: str
    data_dir: Path
    upstream: Upstream

    @property
    def owner_key(self) -> str:
        """The key of the data directory's owner."""
        return str(json.loads((self.data_dir / "server.json").read_text())["key"])

    def attempt(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to the server, as the owner of its data directory."""
        headers = {"authorization": f"Bearer {self.owner_key}"}
        with httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            return client.request(method, path, **options)

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request that must succeed, and return its JSON."""
        answer = self.attempt(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def install(self, name: str, files: dict[str, str | bytes] | None = None, **fields: Any) -> Json:
        archive = skill_zip(name, files=files, **fields)
        headers = {"content-type": "application/zip"}
        answer: Json = self.ask("POST", "/api/skills/install?overwrite=true", content=archive, headers=headers)
        return answer


def expire_approvals(console: Console) -> None:
    """Let the approvals of a server expire now, instead of in ten minutes."""
    with closing(sqlite3.connect(console.data_dir / "apex.sqlite3", timeout=TIMEOUT_SECONDS)) as database, database:
        database.execute("UPDATE approvals SET expires_at = created_at")


StartConsole = Callable[..., Console]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with these tests: while it runs, no other event loop can be started in this process."""
    assert is_current(), "the page was not built from these sources: make console"
    with browsers() as started:
        yield started


def _start(start: StartServer, upstream: Upstream, *arguments: str, **settings: str) -> Console:
    model = {"APEX_LLM_BASE_URL": upstream.url, "APEX_LLM_API_KEY": KEY, "APEX_LLM_TOOL_MODE": "native"}
    server = start(*arguments, **{**model, **settings})
    return Console(url=server.url.rstrip("/"), data_dir=server.data_dir, upstream=upstream)


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A server with the example skills, shared by tests that add skills of their own and look for nothing else."""
    with upstreams() as upstream, servers(tmp_path_factory.mktemp("console")) as start:
        yield _start(start, upstream, "--examples", str(EXAMPLES))


@pytest.fixture
def start_console(data_dir: Path) -> Iterator[StartConsole]:
    """Start servers of a test's own, for settings and states that others must not see."""
    with upstreams() as upstream, servers(data_dir) as start:
        yield lambda *arguments, **settings: _start(start, upstream, *arguments, **settings)


OpenPage = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open pages of a server: `open_page(console, "#/skills", color_scheme="dark")`."""
    with ExitStack() as pages:

        def open_one(console: Console, address: str = "", **options: Any) -> Watched:
            watched = pages.enter_context(watched_page(browser, f"{console.url}/", **options))
            watched.page.goto(f"{console.url}/{address}")
            return watched

        yield open_one


@pytest.fixture
def page(open_page: OpenPage, console: Console) -> Page:
    """A page of the shared server, at the skills."""
    return open_page(console).page
