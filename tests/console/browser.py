"""A page in a real browser that fails its test for every error, policy violation and request to another host."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS: Final = 30_000
"""Guards against hanging on a loaded machine; nothing takes this long."""
_REPORT_VIOLATIONS = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
  window.violations.push(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
"""
_FAILED_RESPONSE = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
_NO_RESPONSE = re.compile(r"net::ERR_")


class Watched:
    """What went wrong on a page. Tests name the failures that they provoke."""

    def __init__(self, page: Page, host: str) -> None:
        self.page = page
        self.requests: list[Request] = []
        self._host = host
        self._problems: list[str] = []
        self._statuses: set[int] = set()
        self._is_server_away = False
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self._problems.append(f"exception: {error}"))
        page.on("request", self._requested)
        page.on("response", self._answered)

    def expect_status(self, *statuses: int) -> None:
        """Answers with these statuses are part of the test."""
        self._statuses |= set(statuses)

    def expect_server_away(self) -> None:
        """The test stops the server, so requests fail."""
        self._is_server_away = True

    def check(self) -> None:
        if not self.page.is_closed():
            self._problems += self.page.evaluate("window.violations ?? []")
        assert self._problems == [], self._problems

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if _FAILED_RESPONSE.match(message.text):  # judged by its status
            return
        if self._is_server_away and _NO_RESPONSE.search(message.text):
            return
        self._problems.append(f"console {message.type}: {message.text}")

    def _requested(self, request: Request) -> None:
        self.requests.append(request)
        address = urlsplit(request.url)
        if address.scheme not in ("blob", "data") and address.netloc != self._host:
            self._problems.append(f"request to another host: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self._statuses:
            self._problems.append(f"{response.status} of {response.request.method} {response.url}")


@contextmanager
def browsers() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "the tests of the console need a Chromium browser: scripts/system-parts.sh"
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A page in a fresh profile; `options` are those of a browser context, such as `color_scheme` and `locale`."""
    options = {"locale": "en-US", "viewport": {"width": 1280, "height": 800}, **options}
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(_REPORT_VIOLATIONS)
    try:
        watched = Watched(context.new_page(), urlsplit(url).netloc)
        yield watched
        watched.check()
    finally:
        context.close()


def enter_key(page: Page, key: str) -> None:
    """Type an API key where the page asks for one."""
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("API key", exact=True).fill(key)
    dialog.get_by_role("button", name="Use this key").click()
