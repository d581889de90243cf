"""Installing skills: by chooser, drop and address, with a look at what is in a package before."""

import base64
import re
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from tests.console.accessibility import findings
from tests.console.browser import watched_page
from tests.console.conftest import Console, Json, OpenPage, StartConsole
from tests.making import MEGABYTE, skill_zip, zip_of
from tests.surfaces.conftest import servers

INSTALL = "#/skills?install=1"
_DROP = """
(files) => {
  const data = new DataTransfer();
  for (const {name, content} of files) {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    data.items.add(new File([bytes], name, {type: 'application/zip'}));
  }
  const target = document.querySelector('main');
  for (const type of ['dragenter', 'dragover'])
    target.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
  window.dropNow = () =>
    target.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
}
"""
_CHOOSE_LARGE = """
(input, size) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(size)], 'large.zip'));
  input.files = data.files;
  input.dispatchEvent(new Event('change', {bubbles: true}));
}
"""


def archive(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/zip", "buffer": content}


def choose(page: Page, *files: FilePayload) -> None:
    page.get_by_label("Choose ZIP files").set_input_files(list(files))


def item(page: Page, label: str) -> Locator:
    return page.get_by_role("list", name="Packages").get_by_role("listitem", name=label, exact=True)


def installed(console: Console, name: str) -> bool:
    page: Any = console.ask("GET", f"/api/skills?name={name}")
    return any(skill["name"] == name for skill in page["skills"])


def test_a_chosen_archive_is_checked_and_then_installed(console: Console, open_page: OpenPage) -> None:
    page = open_page(console).page
    page.get_by_role("button", name="Install…").click()
    assert "install=1" in page.url
    asked: Json = {"permissions": ["net:api.example.com:443"], "dangerous": True, "confirm": "Send the totals?"}
    content = skill_zip("chosen", {"scripts/main.py": "print(1)"}, description="Reads invoices.", **asked)
    choose(page, archive("chosen.zip", content))
    checked = item(page, "chosen.zip")
    for text in ("Reads invoices.", "net:api.example.com:443", "scripts/main.py", "Send the totals?", "2 files"):
        expect(checked.get_by_text(text).first).to_be_visible()
    assert not installed(console, "chosen")
    checked.get_by_role("button", name="Install", exact=True).click()
    expect(checked.get_by_role("status")).to_have_text("Installed")
    assert installed(console, "chosen")
    checked.get_by_role("link", name="chosen", exact=True).click()
    expect(page).to_have_url(re.compile("#/skills/chosen$"))


def test_several_archives_are_dropped_anywhere_and_installed_together(console: Console, open_page: OpenPage) -> None:
    page = open_page(console).page
    expect(page.get_by_role("table")).to_be_visible()
    names = ["dropped-a", "dropped-b"]
    files = [{"name": f"{name}.zip", "content": base64.b64encode(skill_zip(name)).decode()} for name in names]
    page.evaluate(_DROP, files)
    expect(page.get_by_text("Drop to check and install")).to_be_visible()
    page.evaluate("dropNow()")
    expect(page.get_by_text("Drop to check and install")).to_be_hidden()
    page.get_by_role("button", name="Install all 2").click()
    for name in names:
        expect(item(page, f"{name}.zip").get_by_role("status")).to_have_text("Installed")
        assert installed(console, name)


def test_many_archives_are_installed_by_a_button_that_stays_in_sight(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, INSTALL, viewport={"width": 390, "height": 780}).page
    expect(page.get_by_label("Choose ZIP files")).to_be_focused()
    names = [f"crowd-{number}" for number in range(30)]
    choose(page, *(archive(f"{name}.zip", skill_zip(name, description="Short.")) for name in names))
    button = page.get_by_role("button", name="Install all 30")
    expect(button).to_be_in_viewport(ratio=1)
    expect(item(page, "crowd-0.zip").get_by_text("description is shorter than 20 characters")).to_have_count(1)
    button.click()
    for name in names:
        expect(item(page, f"{name}.zip").get_by_role("status")).to_have_text("Installed")


def test_what_would_be_replaced_is_said_before(console: Console, open_page: OpenPage) -> None:
    console.install("replaceable", description="The old one.", version="1.2.3")
    page = open_page(console, INSTALL).page
    choose(page, archive("replaceable.zip", skill_zip("replaceable", description="The new one.")))
    checked = item(page, "replaceable.zip")
    expect(checked.get_by_text("version 1.2.3")).to_be_visible()
    checked.get_by_role("button", name="Replace").click()
    expect(checked.get_by_role("status")).to_have_text("Replaced")
    assert console.ask("GET", "/api/skills/replaceable")["description"] == "The new one."


def test_a_skill_that_somebody_installs_in_the_meantime_is_not_replaced_silently(
    console: Console, open_page: OpenPage
) -> None:
    watched = open_page(console, INSTALL)
    watched.expect_status(409)
    page = watched.page
    choose(page, archive("meantime.zip", skill_zip("meantime", description="Mine.")))
    checked = item(page, "meantime.zip")
    install = checked.get_by_role("button", name="Install", exact=True)
    expect(install).to_be_enabled()
    console.install("meantime", description="Theirs.")
    install.click()
    expect(checked.get_by_role("button", name="Replace")).to_be_enabled()
    assert console.ask("GET", "/api/skills/meantime")["description"] == "Theirs."


def test_archives_that_cannot_be_installed_say_why(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, INSTALL)
    watched.expect_status(400, 413)
    page = watched.page
    nameless = zip_of({"x/SKILL.md": "---\ndescription: No name.\n---\n"})
    hostile = "evil\u202epiz.zip"
    choose(page, archive("broken.zip", b"PK not a zip"), archive("nameless.zip", nameless), archive(hostile, b"PK"))
    for label in ("broken.zip", "nameless.zip", "evil‹U+202E›piz.zip"):
        expect(item(page, label).get_by_role("alert")).not_to_be_empty()
        expect(item(page, label).get_by_role("button", name="Install")).to_have_count(0)
    item(page, "broken.zip").get_by_role("button", name="Remove from this list").click()
    expect(item(page, "broken.zip")).to_have_count(0)


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, INSTALL)
    page = watched.page
    page.get_by_label("Choose ZIP files").evaluate(_CHOOSE_LARGE, 51 * MEGABYTE)
    expect(item(page, "large.zip")).to_contain_text("This file has 51 MB. The server accepts up to 50 MB.")
    choose(page, archive("empty.zip", b""))
    expect(item(page, "empty.zip")).to_contain_text("This file is empty.")
    assert not any("/validate" in request.url for request in watched.requests)


def test_nothing_is_lost_when_the_connection_breaks(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, INSTALL)
    watched.expect_server_away()
    page = watched.page
    page.route("**/api/skills/validate?*", lambda route: route.abort())
    choose(page, archive("cut-off.zip", skill_zip("cut-off")))
    row = item(page, "cut-off.zip")
    expect(row.get_by_role("alert")).to_contain_text("The server closed the connection.")
    page.unroute("**/api/skills/validate?*")
    page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("link", name="Search", exact=True).click()
    page.get_by_role("link", name="Skills", exact=True).click()
    page.get_by_role("button", name="Install…").click()
    row.get_by_role("button", name="Try again").click()
    row.get_by_role("button", name="Install", exact=True).click()
    expect(row.get_by_role("status")).to_have_text("Installed")


def test_an_install_that_is_cut_off_can_be_made_again(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, INSTALL)
    watched.expect_server_away()
    page = watched.page
    choose(page, archive("interrupted.zip", skill_zip("interrupted")))
    install = item(page, "interrupted.zip").get_by_role("button", name="Install", exact=True)
    expect(install).to_be_enabled()
    page.route("**/api/skills/install", lambda route: route.abort())
    install.click()
    expect(item(page, "interrupted.zip").get_by_role("alert")).to_be_visible()
    page.unroute("**/api/skills/install")
    item(page, "interrupted.zip").get_by_role("button", name="Try again").click()
    install.click()
    expect(item(page, "interrupted.zip").get_by_role("status")).to_have_text("Installed")


def test_a_server_that_restarts_during_an_install_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    with servers(tmp_path / "data") as start:
        server = start()
        with watched_page(browser, server.url) as watched:
            watched.expect_server_away()
            page = watched.page
            page.goto(f"{server.url}{INSTALL}")
            choose(page, archive("restarted.zip", skill_zip("restarted")))
            row = item(page, "restarted.zip")
            install = row.get_by_role("button", name="Install", exact=True)
            expect(install).to_be_enabled()
            server.process.send_signal(signal.SIGSTOP)  # so that the requests are there, and have no answer
            with page.expect_request("**/api/skills/install"):
                install.click()
            with page.expect_request("**/api/skills/validate?*"):
                choose(page, archive("uploading.zip", skill_zip("uploading")))
            server.stop(signal.SIGKILL)
            other = item(page, "uploading.zip")
            expect(row.get_by_role("alert")).to_contain_text(re.compile("The server (closed|does not answer)"))
            expect(other.get_by_role("alert")).to_contain_text("The server closed the connection.")
            for each in (row, other):
                expect(each.get_by_role("button", name="Try again")).to_be_visible()

            start("--port", str(urlsplit(server.url).port))
            for each in (row, other):  # checked again automatically
                each.get_by_role("button", name="Install", exact=True).click()
                expect(each.get_by_role("status")).to_have_text("Installed")
            row.get_by_role("link", name="restarted", exact=True).click()
            expect(page.get_by_role("heading", name="restarted", level=1)).to_be_visible()


@pytest.fixture
def published() -> Iterator[str]:
    """The address of an archive on a server of this machine."""
    content = skill_zip("from-address", description="Fetched from an address.")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/zip")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/from-address.zip"
        server.shutdown()


def test_a_skill_is_installed_from_an_address(start_console: StartConsole, open_page: OpenPage, published: str) -> None:
    console = start_console(APEX_INSTALL_PRIVATE_ADDRESSES="true")
    page = open_page(console, INSTALL).page
    page.get_by_label("Or from a repository or an address").fill(published)
    page.get_by_role("button", name="Fetch and check").click()
    row = item(page, published)
    expect(row.get_by_text("Fetched from an address.")).to_be_visible()
    row.get_by_role("button", name="Install", exact=True).click()
    expect(row.get_by_role("status")).to_have_text("Installed")
    assert installed(console, "from-address")


def test_a_source_that_is_refused_says_why_and_can_be_tried_again(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, INSTALL)
    watched.expect_status(400, 403, 404, 422, 502)
    page = watched.page
    field = page.get_by_label("Or from a repository or an address")
    field.fill("http://127.0.0.1:9/x.zip")
    page.reload()  # what was typed survives
    expect(field).to_have_value("http://127.0.0.1:9/x.zip")
    field.press("Enter")
    row = item(page, "http://127.0.0.1:9/x.zip")
    expect(row.get_by_role("alert")).not_to_be_empty()
    expect(row.get_by_role("button", name="Try again")).to_be_visible()


def test_the_dialog_stays_open_when_the_file_chooser_is_cancelled(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, INSTALL).page
    chooser = page.locator("input[type=file]")
    chooser.dispatch_event("cancel", {"bubbles": True})
    expect(chooser).to_be_attached()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_skill_is_installed_by_keyboard_alone(console: Console, open_page: OpenPage) -> None:
    page = open_page(console).page
    chooser = page.get_by_label("Choose ZIP files")
    with page.expect_file_chooser() as opened:  # from the start: it may take effect later than a key that follows
        page.get_by_role("button", name="Install…").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        chooser.focus()
        expect(chooser).to_be_focused()
        page.keyboard.press("Enter")
    opened.value.set_files([archive("by-keyboard.zip", skill_zip("by-keyboard"))])
    install = item(page, "by-keyboard.zip").get_by_role("button", name="Install", exact=True)
    expect(install).to_be_enabled()
    for _ in range(10):
        if install.evaluate("node => node === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(install).to_be_focused()
    page.keyboard.press("Enter")
    expect(item(page, "by-keyboard.zip").get_by_role("status")).to_have_text("Installed")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_the_install_dialog_has_no_serious_barriers(
    console: Console, open_page: OpenPage, theme: str, language: str
) -> None:
    page = open_page(console, INSTALL, color_scheme=theme, locale=language).page
    asked: Json = {"permissions": ["env:TOKEN"], "dangerous": True}
    page.locator("input[type=file]").set_input_files([archive("barriers.zip", skill_zip("barriers", **asked))])
    expect(page.get_by_text("env:TOKEN")).to_be_visible()
    assert findings(page) == []
