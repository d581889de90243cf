"""The view "System": health, model servers, MCP servers, keys, settings, storage."""

import pytest
from playwright.sync_api import Page, expect

from tests.console.accessibility import findings
from tests.console.browser import Watched
from tests.console.conftest import Console, OpenPage, StartConsole

_NOTE_BUTTONS = """
window.buttons = [];
new MutationObserver(() => {
  const texts = [...document.querySelectorAll('main .summary button')].map((button) => button.textContent.trim());
  window.buttons.push(...texts);
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
PARTS = ("", "models", "mcp", "keys", "settings", "storage")


def test_the_check_says_what_the_sandbox_enforces(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system").page
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="Scripts run")).to_be_visible()
    for name in ("Files", "Network", "Memory", "System calls"):
        expect(page.get_by_role("listitem").filter(has_text=name).first).to_be_visible()
    expect(page.get_by_role("button", name="Check again")).to_be_enabled()


def test_a_check_that_somebody_else_starts_is_shown_without_polling(
    start_console: StartConsole, open_page: OpenPage
) -> None:
    console = start_console()
    watched = open_page(console, "#/system")
    page = watched.page
    page.add_init_script(_NOTE_BUTTONS)
    page.reload()
    expect(page.get_by_role("button", name="Check now")).to_be_enabled()
    before = asked_for_checks(watched)
    console.ask("POST", "/api/doctor")
    expect(page.get_by_role("heading", name="Scripts run")).to_be_visible()
    expect(page.get_by_role("button", name="Check again")).to_be_enabled()
    assert "Checking…" in page.evaluate("window.buttons")
    assert asked_for_checks(watched) - before <= 2  # when it began, and when it ended


def asked_for_checks(watched: Watched) -> int:
    return sum(request.url.endswith("/api/doctor") for request in watched.requests)


def test_a_weaker_sandbox_gets_remedies(start_console: StartConsole, open_page: OpenPage) -> None:
    page = open_page(start_console(APEX_SANDBOX_BACKEND="plain"), "#/system").page
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("not enforced").first).to_be_visible()
    expect(page.get_by_text("What to do:").first).to_be_visible()


def test_model_servers_are_checked_on_request(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system/models").page
    expect(page.get_by_text(console.upstream.url)).to_be_visible()
    page.get_by_role("button", name="Check now").click()
    expect(page.get_by_text("reachable", exact=True)).to_be_visible()


def test_the_index_can_be_built_again(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system/models").page
    expect(page.get_by_text("Every skill can be found by meaning.")).to_be_visible()
    page.get_by_role("button", name="Reindex").click()
    expect(page.get_by_text("Reindexed:")).to_be_visible()


def test_a_key_is_created_shown_once_and_revoked(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system/keys").page
    page.get_by_role("button", name="Create a key").click()
    page.get_by_label("What is it for?").fill("<b>night job</b>")
    page.get_by_role("checkbox", name="admin").check()
    page.get_by_label("Expires").select_option("in 7 days")
    page.get_by_role("button", name="Create", exact=True).click()
    dialog = page.get_by_role("dialog", name="Create a key")
    expect(dialog.get_by_text("it is not shown again")).to_be_visible()
    key = dialog.locator("code").inner_text()
    assert key.startswith("apex_")
    dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="<b>night job</b>")
    expect(row).to_contain_text("valid")
    expect(page.get_by_text(key)).to_have_count(0)
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    (created,) = [each for each in console.ask("GET", "/api/keys") if each["name"] == "<b>night job</b>"]
    assert sorted(created["scopes"]) == ["admin", "chat", "read", "run"]


def test_an_mcp_server_that_is_refused_keeps_the_form(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, "#/system/mcp")
    watched.expect_status(422)
    page = watched.page
    page.get_by_role("button", name="Add a server").click()
    page.get_by_label("Name", exact=True).fill("calendar")
    page.get_by_label("Address (http or https)").fill("nonsense")
    dialog = page.get_by_role("dialog", name="Add a server")
    dialog.get_by_role("button", name="Add a server").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("calendar")
    page.get_by_label("Address (http or https)").fill("http://127.0.0.1:9/mcp")
    dialog.get_by_role("button", name="Add a server").click()
    entry = page.get_by_role("listitem").filter(has_text="calendar")
    expect(entry).to_contain_text("http://127.0.0.1:9/mcp")
    entry.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(entry).to_have_count(0)


def test_a_quoted_argument_of_an_mcp_server_arrives_as_one(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system/mcp").page
    page.get_by_role("button", name="Add a server").click()
    page.get_by_label("Name", exact=True).fill("quoted")
    page.get_by_label("Connect by").select_option(label="Command in the sandbox")
    page.get_by_label("Command with its arguments").fill("""python3 'my server.py' --title "a \\"b\\" c" ''""")
    dialog = page.get_by_role("dialog", name="Add a server")
    dialog.get_by_role("button", name="Add a server").click()
    entry = page.get_by_role("listitem").filter(has_text="quoted")
    expect(entry).to_contain_text("""python3 'my server.py' --title 'a "b" c' ''""")
    server = console.ask("GET", "/api/mcp/servers/quoted")
    assert (server["command"], server["args"]) == ("python3", ["my server.py", "--title", 'a "b" c', ""])
    console.ask("DELETE", "/api/mcp/servers/quoted")
    expect(entry).to_have_count(0)


def test_settings_show_their_source_and_no_secrets(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system/settings").page
    page.get_by_label("Filter settings").fill("LLM_API_KEY")
    entry = page.get_by_role("listitem").filter(has_text="APEX_LLM_API_KEY")
    expect(entry).to_contain_text("environment")
    expect(entry).to_contain_text("set")
    page.get_by_label("Filter settings").fill("no such setting")
    expect(page.get_by_text("No setting fits.")).to_be_visible()
    page.get_by_label("Filter settings").fill("")
    page.get_by_label("Only those that differ from the default").check()
    expect(page.get_by_text("APEX_RATE_LIMIT")).to_have_count(0)
    expect(page.get_by_text("APEX_DATA_DIR")).to_be_visible()


def test_storage_shows_what_uses_the_disk(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/system/storage").page
    expect(page.get_by_role("row").filter(has_text="Database")).to_be_visible()
    expect(page.get_by_text("free of")).to_be_visible()
    expect(page.get_by_text("lancedb")).to_be_visible()


def test_a_key_without_admin_learns_what_it_needs(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    key = console.ask("POST", "/api/keys", json={"name": "reader", "scopes": ["read"]})["key"]
    watched = open_page(console)
    enter_key(watched.page, key)
    watched.page.goto(f"{console.url}/#/system/keys")
    expect(watched.page.get_by_text("This part needs a key with the scope admin.")).to_be_visible()
    expect(watched.page.get_by_role("button", name="Create a key")).to_have_count(0)


def enter_key(page: Page, key: str) -> None:
    page.get_by_role("dialog", name="API key").get_by_label("API key", exact=True).fill(key)
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("dialog", name="API key")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_everyone_can_read_it(console: Console, open_page: OpenPage, scheme: str, locale: str) -> None:
    page = open_page(console, "#/system", color_scheme=scheme, locale=locale).page
    for part in PARTS:
        page.goto(f"{console.url}/#/system/{part}")
        expect(page.locator("main .card").first).to_be_visible()
        expect(page.locator("main .skeleton")).to_have_count(0)
        assert findings(page) == [], part


def test_a_phone_shows_the_chosen_part_and_its_acts(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console()
    console.ask("POST", "/api/keys", json={"name": "night build", "scopes": ["chat", "read", "run"]})
    page = open_page(console, "#/system/keys", viewport={"width": 390, "height": 780}).page
    expect(page.get_by_role("button", name="Revoke “night build”?")).to_be_in_viewport(ratio=1)
    for name in ("API keys", "Storage", "Health"):
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("link", name=name)).to_be_in_viewport(ratio=0.9)
    page.goto(f"{console.url}/#/system/storage")
    page.reload()
    expect(page.get_by_role("link", name="Storage")).to_be_in_viewport(ratio=0.9)
