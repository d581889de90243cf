"""The frame of the console: navigation, theme, language, shortcuts, the API key."""

import re

from playwright.sync_api import Page, expect

from tests.console.browser import enter_key
from tests.console.conftest import Console, OpenPage, StartConsole

_IS_ON_TOP = """
(element) => {
  const {x, y, width, height} = element.getBoundingClientRect();
  return element.contains(document.elementFromPoint(x + width / 2, y + height / 2));
}
"""


def test_the_first_view_is_the_skills(page: Page) -> None:
    expect(page.get_by_role("heading", name="Skills", level=1)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/#/skills$"))


def test_every_view_has_a_link_and_an_address(page: Page) -> None:
    for name in ("Search", "Run", "Chat", "Runs", "Insights", "System"):
        page.get_by_role("navigation").get_by_role("link", name=re.compile(rf"^{name}\b")).click()
        expect(page).to_have_url(re.compile(f"#/{name.lower()}"))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile("#/insights"))


def test_the_language_follows_the_browser_and_can_be_switched(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, locale="zh-CN").page
    expect(page.get_by_role("heading", name="技能", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", name="Skills", level=1)).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Skills", level=1)).to_be_visible()


def test_the_theme_follows_the_system_and_can_be_chosen(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, color_scheme="dark").page
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(ground) == "rgb(11, 12, 15)"
    page.get_by_role("button", name="Theme: as the system").click()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert page.evaluate(ground) == "rgb(246, 247, 249)"
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert page.evaluate(ground) == "rgb(246, 247, 249)"


def test_a_key_is_asked_for_once_and_stays_in_the_tab(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    watched = open_page(console)
    watched.expect_status(401)
    page = watched.page
    dialog = page.get_by_role("dialog", name="API key")
    enter_key(page, "apex_wrong")
    expect(dialog.get_by_text("The server refused this key.")).to_be_visible()
    enter_key(page, console.owner_key)
    expect(dialog).to_be_hidden()
    page.reload()
    expect(page.get_by_role("heading", name="Skills", level=1)).to_be_visible()
    expect(dialog).to_be_hidden()
    assert page.evaluate("localStorage.length") == 0
    assert all(console.owner_key not in request.url for request in watched.requests)


def test_texts_can_be_copied_where_the_browser_has_no_clipboard_for_the_page(
    open_page: OpenPage, console: Console
) -> None:
    """On plain http, `navigator.clipboard` exists only for this machine's own addresses."""
    page = open_page(console, "#/skills/csv-insights", permissions=["clipboard-read"]).page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_have_count(1)
    page.reload()
    assert page.evaluate("navigator.clipboard.readText()")


def test_a_key_with_characters_that_no_header_takes_is_refused_in_the_dialog(
    start_console: StartConsole, open_page: OpenPage
) -> None:
    """Such as a key that was copied together with an invisible character."""
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    watched = open_page(console)
    watched.expect_status(401)
    page = watched.page
    dialog = page.get_by_role("dialog", name="API key")
    enter_key(page, "\u5bc6\u94a5" + console.owner_key)
    expect(dialog.get_by_text("The server refused this key.")).to_be_visible()
    page.reload()
    enter_key(page, console.owner_key)
    expect(page.get_by_role("heading", name="Skills", level=1)).to_be_visible()


def test_a_message_is_seen_and_closed_while_a_dialog_is_open(console: Console, open_page: OpenPage) -> None:
    console.install("toast-skill")
    watched = open_page(console, "#/skills/toast-skill")
    watched.expect_status(500)
    page = watched.page
    body = '{"code": "INTERNAL", "message": "The disk made a noise."}'
    page.route("**/export", lambda route: route.fulfill(status=500, body=body, content_type="application/json"))
    page.get_by_role("button", name="More acts").click()
    page.get_by_role("menuitem", name="Uninstall…").click()
    dialog = page.get_by_role("dialog", name="Uninstall toast-skill?")
    dialog.get_by_role("button", name="Export first").click()
    message = page.get_by_role("status").filter(has_text="The disk made a noise.")
    text = message.get_by_text("The disk made a noise.")
    expect(text).to_be_visible()
    assert text.evaluate(_IS_ON_TOP)
    message.get_by_role("button", name="Close").click()
    expect(text).to_have_count(0)
    expect(dialog).to_be_visible()

    dialog.get_by_role("button", name="Export first").click()
    expect(text).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    expect(text).to_be_visible()  # it does not go with the dialog
    page.get_by_role("link", name="Search", exact=True).click()
    assert text.evaluate(_IS_ON_TOP)
    page.keyboard.press("Control+k")  # a dialog that is opened after it
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(text).to_be_visible()
    assert text.evaluate(_IS_ON_TOP)


def test_addresses_that_are_names_of_the_language_are_unknown_views(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/constructor").page
    expect(page.get_by_role("link", name="Go to the skills")).to_be_visible()
    page.goto(f"{console.url}/#/system/constructor")
    expect(page.get_by_role("heading", name="System", level=1)).to_be_visible()


def test_values_of_an_address_that_mean_nothing_do_no_harm(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/runs?since=constructor").page
    for address in ("#/runs?since=%2B275760-09-13", "#/runs?page=-1", "#/audit?page=1e300", "#/insights?days=abc"):
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator("main .skeleton")).to_have_count(0)
        page.goto(f"{console.url}/{address}")
    expect(page.get_by_text("in 30 days").first).to_be_visible()
    page.goto(f"{console.url}/#/insights?days=1")
    expect(page.get_by_text("in 1 day", exact=True).first).to_be_visible()


def test_a_page_beyond_the_end_of_a_list_leads_to_the_first_one(open_page: OpenPage, console: Console) -> None:
    console.install("leafed", {"scripts/execute.py": "print('done')\n"})
    console.ask("POST", "/api/skills/leafed/execute", json={})
    page = open_page(console).page
    for address in ("#/skills", "#/runs", "#/audit", "#/skills/leafed/runs"):
        page.goto(f"{console.url}/{address}?page=1e9")
        expect(page.get_by_text("This page of the list does not exist any more.")).to_be_visible()
        page.get_by_role("button", name="Go to the first page").click()
        expect(page.get_by_role("table").last).to_be_visible()
        assert "page" not in page.url


def test_every_view_has_a_title(page: Page) -> None:
    for name in ("System", "Search", "Insights", "Skills"):
        page.get_by_role("navigation").get_by_role("link", name=re.compile(rf"^{name}\b")).click()
        expect(page).to_have_title(f"{name} · apexbridge")


def test_a_selection_of_text_that_ends_beside_a_dialog_does_not_close_it(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/skills?install=1").page
    field = page.get_by_label("Or from a repository or an address")
    field.fill("owner/repository")
    box = field.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(3, 3, steps=4)
    page.mouse.up()
    expect(field).to_be_visible()
    page.mouse.click(3, 3)
    expect(field).to_be_hidden()
