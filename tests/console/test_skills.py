"""The list of skills: filters, sorting, switches, changes of several, problems, removed ones."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.console.accessibility import findings
from tests.console.conftest import Console, OpenPage, StartConsole
from tests.making import write_skill
from tests.waiting import wait_until

HOSTILE = "<script>document.title = 'taken'</script> \u202egnp.exe\u202c [x](javascript:alert(1)) " + "w" * 400
LIBRARY = 1_200
"""Enough for many pages. `benchmarks/page.py` measures the page with 10,000."""


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def is_enabled(console: Console, name: str) -> bool:
    return bool(console.ask("GET", f"/api/skills/{name}")["enabled"])


def test_a_row_shows_what_a_skill_is_and_how_it_fares(console: Console, open_page: OpenPage) -> None:
    fields = {"tags": ["row-tag", "second"], "dangerous": True, "permissions": ["net:example.com:443"]}
    console.install("row-skill", {"scripts/main.py": "print(1)"}, description="Counts the rows of a table.", **fields)
    page = open_page(console, "#/skills?q=row-skill").page
    shown = row(page, "row-skill")
    expect(shown).to_contain_text("Counts the rows of a table.")
    for text in ("row-tag", "second", "asks first", "wants access", "never"):
        expect(shown.get_by_text(text, exact=True)).to_be_visible()
    expect(shown.get_by_role("switch")).to_be_checked()
    shown.get_by_role("link", name="row-skill", exact=True).click()
    expect(page).to_have_url(re.compile("#/skills/row-skill$"))


def test_calls_and_their_success_are_shown_and_lead_to_the_runs(console: Console, open_page: OpenPage) -> None:
    console.install("called-skill", {"scripts/execute.py": "print(1)"})
    console.ask("POST", "/api/skills/called-skill/execute", json={})
    page = open_page(console, "#/skills?q=called-skill").page
    link = row(page, "called-skill").get_by_role("link", name="1 call")
    expect(link).to_contain_text("100%")
    assert (link.get_attribute("href") or "").endswith("#/runs?skill=called-skill")


def test_the_filter_works_as_one_types_and_is_in_the_address(console: Console, open_page: OpenPage) -> None:
    console.install("filter-pears", description="About fruit that hangs on a tree.")
    console.install("filter-plums", description="About fruit as well.")
    page = open_page(console).page
    field = page.get_by_role("searchbox", name="Filter skills")
    expect(field).to_be_visible()
    page.keyboard.press("/")
    expect(field).to_be_focused()
    field.press_sequentially("FRUIT tree")
    expect(row(page, "filter-pears")).to_be_visible()
    expect(row(page, "filter-plums")).to_have_count(0)
    assert parse_qs(urlsplit(page.url).fragment.partition("?")[2]) == {"q": ["FRUIT tree"]}
    page.reload()
    expect(field).to_have_value("FRUIT tree")
    expect(row(page, "filter-pears")).to_be_visible()
    field.fill("")
    expect(page).to_have_url(re.compile("#/skills$"))


def test_tags_mode_state_and_health_narrow_the_list(console: Console, open_page: OpenPage) -> None:
    for number in range(3):  # more than any other tag
        console.install(f"narrow-{number}", description="Narrow.", tags=["narrow-tag", *(["rare-narrow"][number:])])
    console.install("narrow-script", {"scripts/execute.py": "1"}, description="Narrow.")
    console.ask("POST", "/api/skills/narrow-1/disable")
    page = open_page(console, "#/skills?q=narrow").page
    page.get_by_role("group", name="Tags").get_by_role("button", name="narrow-tag").click()
    expect(row(page, "narrow-script")).to_have_count(0)
    expect(row(page, "narrow-2")).to_be_visible()
    page.get_by_label("State").select_option("Off")
    expect(row(page, "narrow-1")).to_be_visible()
    expect(row(page, "narrow-2")).to_have_count(0)
    expect(row(page, "narrow-1").get_by_text("off", exact=True)).to_be_visible()
    page.go_back()
    expect(row(page, "narrow-2")).to_be_visible()
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_role("searchbox", name="Filter skills").fill("narrow")
    page.get_by_label("Mode").select_option("sandbox")
    expect(row(page, "narrow-script")).to_be_visible()
    expect(row(page, "narrow-2")).to_have_count(0)
    page.get_by_label("Health").select_option("needs packages")
    expect(page.get_by_text("No skill fits these filters")).to_be_visible()
    search = page.get_by_role("link", name="Search for “narrow”")
    assert (search.get_attribute("href") or "").endswith("#/search?q=narrow")


def test_a_rare_tag_is_found_by_typing(console: Console, open_page: OpenPage) -> None:
    console.install("rare-skill", tags=["zz-rare-tag"])
    page = open_page(console, "#/skills").page
    field = page.get_by_role("combobox", name="Find a tag")
    field.fill("zz-ra")
    expect(page.locator("datalist option[value='zz-rare-tag']")).to_be_attached()
    field.fill("zz-rare-tag")
    field.press("Enter")
    expect(row(page, "rare-skill")).to_be_visible()
    expect(page.get_by_role("button", name="zz-rare-tag")).to_have_attribute("aria-pressed", "true")
    assert "tags=zz-rare-tag" in page.url


def test_columns_sort_the_list(console: Console, open_page: OpenPage) -> None:
    for name in ("sorted-a", "sorted-b"):
        console.install(name, {"scripts/execute.py": "print(1)"}, description="For sorting.")
    console.ask("POST", "/api/skills/sorted-b/execute", json={})
    page = open_page(console, "#/skills?q=sorted-").page
    links = page.get_by_role("table").get_by_role("link", name=re.compile("^sorted-"))
    expect(links).to_have_text(["sorted-a", "sorted-b"])
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="Name").click()
    expect(links).to_have_text(["sorted-b", "sorted-a"])
    page.get_by_role("button", name="Calls").click()
    expect(links).to_have_text(["sorted-b", "sorted-a"])
    expect(page.get_by_role("columnheader", name="Calls")).to_have_attribute("aria-sort", "descending")
    page.go_back()
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "descending")


def test_a_switch_turns_a_skill_off_and_on(console: Console, open_page: OpenPage) -> None:
    console.install("switched")
    page = open_page(console, "#/skills?q=switched").page
    switch = page.get_by_role("switch", name="switched is on")
    switch.click()
    expect(switch).not_to_be_checked()
    expect(row(page, "switched").get_by_text("off", exact=True)).to_be_visible()
    wait_until(lambda: not is_enabled(console, "switched"))
    expect(switch).to_be_enabled()  # unlike a click, a key does not wait for the answer of the server
    switch.press("Space")
    expect(switch).to_be_checked()
    wait_until(lambda: is_enabled(console, "switched"))


def test_a_switch_that_fails_goes_back_and_says_why(console: Console, open_page: OpenPage) -> None:
    console.install("vanishing")
    watched = open_page(console, "#/skills?q=vanishing")
    watched.expect_status(404)
    watched.expect_server_away()
    page = watched.page
    expect(row(page, "vanishing")).to_be_visible()
    page.route("**/api/events", lambda route: route.abort())  # so that the row stays until it is switched

    def remove_first(route: Route) -> None:
        console.ask("DELETE", "/api/skills/vanishing")
        route.continue_()

    page.route("**/api/skills/vanishing/disable", remove_first)

    page.get_by_role("switch", name="vanishing is on").click()
    expect(page.get_by_role("status").filter(has_text="vanishing")).to_be_visible()
    expect(row(page, "vanishing")).to_have_count(0)


def test_several_skills_are_switched_off_and_uninstalled_with_undo(console: Console, open_page: OpenPage) -> None:
    several = ["several-a", "several-b", "several-c"]
    for name in several:
        console.install(name)
    page = open_page(console, "#/skills?q=several-").page
    page.get_by_role("checkbox", name="Select several-a").check()
    page.get_by_role("checkbox", name="Select several-b").check()
    bar = page.get_by_role("toolbar", name="2 selected")
    bar.get_by_role("button", name="Switch off").click()
    expect(page.get_by_text("2 skills switched off.")).to_be_visible()
    assert [is_enabled(console, name) for name in several] == [False, False, True]
    page.get_by_role("checkbox", name="Select all on this page").check()
    page.get_by_role("toolbar", name="3 selected").get_by_role("button", name="Uninstall").click()
    dialog = page.get_by_role("dialog", name="Uninstall 3 skills?")
    for name in several:
        expect(dialog.get_by_text(name)).to_be_visible()
    dialog.get_by_role("button", name="Uninstall", exact=True).click()
    expect(page.get_by_text("No skill fits these filters")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("3 skills restored.")).to_be_visible()
    for name in several:
        expect(row(page, name)).to_be_visible()


def test_what_failed_of_several_is_named(console: Console, open_page: OpenPage) -> None:
    for name in ("partly-a", "partly-b"):
        console.install(name)
    watched = open_page(console, "#/skills?q=partly-")
    watched.expect_server_away()
    page = watched.page
    page.route("**/api/events", lambda route: route.abort())
    page.get_by_role("checkbox", name="Select all on this page").check()
    console.ask("DELETE", "/api/skills/partly-b")
    page.get_by_role("toolbar").get_by_role("button", name="Switch off").click()
    expect(page.get_by_text("1 skill switched off.")).to_be_visible()
    expect(page.get_by_text(re.compile("1 failed:\\s+partly-b: "))).to_be_visible()


def test_a_removed_skill_is_restored_from_the_list(console: Console, open_page: OpenPage) -> None:
    console.install("brought-back")
    console.ask("DELETE", "/api/skills/brought-back")
    page = open_page(console, "#/skills?q=brought-back").page
    page.get_by_text("Removed skills").click()
    page.get_by_role("button", name="Restore brought-back").first.click()
    expect(page.get_by_text("brought-back is restored.")).to_be_visible()
    expect(row(page, "brought-back")).to_be_visible()


def test_changes_of_others_appear_without_a_reload(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/skills?q=by-others").page
    expect(page.get_by_text("No skill fits these filters")).to_be_visible()
    console.install("by-others", description="First.")
    expect(row(page, "by-others")).to_be_visible()
    console.install("by-others", description="Second.")
    expect(row(page, "by-others")).to_contain_text("Second.")
    console.ask("DELETE", "/api/skills/by-others")
    expect(row(page, "by-others")).to_have_count(0)


def test_hostile_text_is_shown_as_text(console: Console, open_page: OpenPage) -> None:
    console.install("hostile-text", description=HOSTILE, tags=["<b>bold</b>"])
    page = open_page(console, "#/skills?q=hostile-text").page
    expect(row(page, "hostile-text")).to_contain_text("<script>document.title")
    assert "taken" not in page.title()
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert page.get_by_role("table").locator("script, b").count() == 0


def test_reindex_says_what_it_found(console: Console, open_page: OpenPage) -> None:
    page = open_page(console).page
    page.get_by_role("button", name="Reindex").click()
    expect(page.get_by_text(re.compile(r"Reindexed: \d+ read anew"))).to_be_visible()


def test_an_empty_library_says_what_to_do(start_console: StartConsole, open_page: OpenPage) -> None:
    page = open_page(start_console()).page
    expect(page.get_by_text("No skills yet")).to_be_visible()
    expect(page.get_by_text("name: haiku")).to_be_visible()
    page.get_by_role("main").get_by_role("button", name="Install…").last.click()
    expect(page.get_by_role("dialog", name="Install skills")).to_be_visible()
    assert findings(page) == []


def test_folders_that_are_not_served_are_one_quiet_line(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console()
    write_skill(console.data_dir / "skills", "broken-one", markdown="---\nname: [\n---\n")
    console.ask("POST", "/api/skills/reindex")
    page = open_page(console).page
    line, name = page.get_by_text("1 folder is not served"), page.get_by_text("broken-one", exact=True)
    expect(line).to_be_visible()
    expect(name).to_be_hidden()
    line.click()
    expect(name).to_be_visible()


def test_a_key_that_may_only_read_is_offered_no_changes(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    console.install("read-only")
    key = console.ask("POST", "/api/keys", json={"name": "reader", "scopes": ["read"]})["key"]
    watched = open_page(console)
    watched.expect_status(401, 403)
    page = watched.page
    page.get_by_role("textbox", name="API key").fill(key)
    page.get_by_role("button", name="Use this key").click()
    expect(row(page, "read-only")).to_be_visible()
    expect(page.get_by_role("switch", name="read-only is on")).to_be_disabled()
    for name in ("Install…", "Reindex"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)


def test_an_error_is_shown_in_place_and_the_old_list_stays(console: Console, open_page: OpenPage) -> None:
    console.install("still-there")
    watched = open_page(console, "#/skills?q=still-there")
    watched.expect_status(500)
    page = watched.page
    expect(row(page, "still-there")).to_be_visible()
    body = '{"code": "INTERNAL", "message": "The disk made a noise."}'
    page.route("**/api/skills?*", lambda route: route.fulfill(status=500, body=body, content_type="application/json"))
    page.get_by_label("Mode").select_option("direct")
    expect(page.get_by_role("alert")).to_contain_text("The disk made a noise.")
    expect(row(page, "still-there")).to_be_visible()
    page.unroute("**/api/skills?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_the_list_has_no_serious_barriers(console: Console, open_page: OpenPage, theme: str, language: str) -> None:
    page = open_page(console, "#/skills", color_scheme=theme, locale=language).page
    expect(row(page, "checksums")).to_be_visible()
    page.get_by_role("checkbox").nth(1).check()
    assert findings(page) == []


def test_a_phone_shows_cards_without_scrolling_sideways(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/skills", viewport={"width": 390, "height": 844}, has_touch=True).page
    expect(page.get_by_role("link", name="checksums", exact=True)).to_be_visible()
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    page.get_by_role("button", name="Filters").click()
    sort = page.get_by_label("Sort by")
    box = sort.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    sort.select_option("Name, Z to A")
    expect(page).to_have_url(re.compile("sort=-name"))


def test_a_large_library_is_shown_by_pages(start_console: StartConsole, open_page: OpenPage, tmp_path: Path) -> None:
    for number in range(LIBRARY):
        tags = [f"group-{number % 100:02}"]
        write_skill(tmp_path / "large", f"skill-{number:05}", description=f"Does task {number} of many.", tags=tags)
    console = start_console(APEX_SKILL_ROOTS=str(tmp_path / "large"))
    wait_until(lambda: console.ask("GET", "/api/skills?limit=1")["total"] == LIBRARY)
    watched = open_page(console)
    page = watched.page
    expect(page.get_by_text("1–50 of 1,200")).to_be_visible()
    assert page.get_by_role("table").get_by_role("row").count() == 51
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51–100 of 1,200")).to_be_visible()
    page.get_by_role("searchbox", name="Filter skills").press_sequentially("task 1199")
    expect(row(page, "skill-01199")).to_be_visible()
    lists = [request for request in watched.requests if "/api/skills?" in request.url]
    assert len(lists) <= 2 + len("task 1199")
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Sort by").select_option("Name, Z to A")
    expect(row(page, "skill-01199")).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    page.goto(f"{console.url}/#/skills?page=999")
    expect(page.get_by_text("This page of the list does not exist any more.")).to_be_visible()
    page.get_by_role("button", name="Go to the first page").click()
    expect(row(page, "skill-00000")).to_be_visible()
