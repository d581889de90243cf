"""Search: reasons, two wordings, teaching and forgetting."""

import re

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.console.accessibility import findings
from tests.console.conftest import Console, Json, OpenPage, StartConsole

REQUEST = "verify the checksum of a download"


def field(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="What do you want done?")


def hit(page: Page, name: str) -> Locator:
    return page.get_by_role("listitem").filter(has=page.get_by_role("link", name=name, exact=True))


def test_hits_come_as_one_types_with_their_reasons(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, "#/search")
    page = watched.page
    expect(field(page)).to_be_focused()
    field(page).press_sequentially(REQUEST)
    first = page.get_by_role("listitem").first
    expect(first.get_by_role("link", name="checksums", exact=True)).to_be_visible()
    for reason in ("confidence", "meaning", "words"):
        expect(first.get_by_text(reason, exact=True)).to_be_visible()
    expect(first.get_by_text("#1", exact=True).first).to_be_visible()
    expect(first.get_by_text("checksum", exact=True)).to_be_visible()
    searches = [request for request in watched.requests if request.url.endswith("/api/skills/search")]
    assert len(searches) < len(REQUEST)
    page.reload()
    expect(field(page)).to_have_value(REQUEST)
    expect(hit(page, "checksums")).to_be_visible()


def test_a_hit_leads_to_the_skill_a_run_and_a_chat(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/search?q=checksum").page
    found = hit(page, "checksums")
    assert (found.get_by_role("link", name="checksums", exact=True).get_attribute("href")) == "#/skills/checksums"
    assert (found.get_by_role("link", name="Run checksums").get_attribute("href")) == "#/run/checksums"
    chat = found.get_by_role("link", name="Chat with checksums").get_attribute("href")
    assert chat == "#/chat?skill=checksums&text=checksum"


def test_samples_are_offered_and_nothing_found_says_so(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/search").page
    samples = page.get_by_role("region", name="Try one of these").get_by_role("button")
    expect(samples).to_have_count(3)
    samples.first.click()
    expect(hit(page, "checksums")).to_be_visible()
    page.go_back()
    expect(samples).to_have_count(3)
    page.goto(f"{console.url}/#/search?q=checksum&tags=no-such-tag")
    expect(page.get_by_text("Nothing found")).to_be_visible()
    page.get_by_role("button", name="Without filters").click()
    expect(hit(page, "checksums")).to_be_visible()


def test_two_wordings_are_compared_side_by_side(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/search?q=checksum").page
    page.get_by_role("button", name="Compare with another wording").click()
    other = page.get_by_role("searchbox", name="The same in other words")
    expect(other).to_be_focused()
    other.fill("commit message")
    first = page.get_by_role("region", name="Results for “checksum”")
    second = page.get_by_role("region", name="Results for “commit message”")
    in_first, in_second = (
        column.get_by_role("listitem").filter(has=page.get_by_role("link", name="checksums", exact=True))
        for column in (first, second)
    )
    expect(first.get_by_role("listitem").first).to_contain_text("checksums")
    expect(second.get_by_role("listitem").first).to_contain_text("commit-message")
    expect(first.get_by_role("listitem").first.get_by_text(re.compile("▲|=|only here"))).to_be_visible()
    if in_second.count() > 0:
        in_first.get_by_role("link", name="checksums", exact=True).focus()
        grounds = [each.evaluate("node => getComputedStyle(node).backgroundColor") for each in (in_first, in_second)]
        assert grounds[0] == grounds[1] != "rgba(0, 0, 0, 0)"
    assert "q2=commit+message" in page.url
    page.get_by_role("button", name="Stop comparing").click()
    expect(second).to_have_count(0)
    assert "q2" not in page.url


def test_a_chinese_request_finds_the_same_skill(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/search", locale="zh-CN").page
    page.get_by_role("searchbox", name="你想完成什么？").fill("计算文件的校验和")
    expect(hit(page, "checksums")).to_be_visible()
    expect(page.get_by_text("置信度").first).to_be_visible()


def test_what_was_right_is_remembered_and_forgotten(console: Console, open_page: OpenPage) -> None:
    console.install("teachable", description="Prepares the quarterly letter to the shareholders.")
    page = open_page(console, "#/search?q=quarterly%20letter").page
    found = hit(page, "teachable")
    expect(found.get_by_text("past use", exact=True)).to_have_count(0)
    found.get_by_role("button", name="This was right: teachable").click()
    expect(page.get_by_text("Remembered: teachable answers requests like this.")).to_be_visible()
    expect(found.get_by_text("past use", exact=True)).to_be_visible()
    found.get_by_role("button", name="Forget past use of teachable").click()
    expect(page.get_by_text("Forgot 1 past requests of teachable.")).to_be_visible()
    expect(found.get_by_text("past use", exact=True)).to_have_count(0)


def test_a_search_by_words_alone_says_so(start_console: StartConsole, open_page: OpenPage) -> None:
    settings = {
        "APEX_EMBEDDING": "openai",
        "APEX_EMBEDDING_BASE_URL": "http://127.0.0.1:9",
        "APEX_EMBEDDING_MODEL": "m",
    }
    console = start_console(**settings)
    console.install("found-by-words", description="Finds a needle.")
    page = open_page(console, "#/search?q=needle").page
    expect(hit(page, "found-by-words")).to_be_visible()
    expect(page.get_by_text("Only words were compared")).to_be_visible()


def test_an_error_is_shown_in_place_and_nothing_typed_is_lost(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, "#/search")
    watched.expect_status(400, 413, 422)
    page = watched.page
    field(page).fill("x" * 20_000)
    expect(page.get_by_role("alert")).to_be_visible()
    expect(field(page)).to_have_value("x" * 20_000)
    field(page).fill("checksum")
    expect(hit(page, "checksums")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_hostile_text_of_a_hit_is_text(console: Console, open_page: OpenPage) -> None:
    console.install("hostile-hit", description="<img src=x onerror=alert(1)> zebrafish " + "w" * 300)
    page = open_page(console, "#/search?q=zebrafish").page
    expect(hit(page, "hostile-hit")).to_contain_text("<img src=x onerror=alert(1)>")
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_the_search_has_no_serious_barriers(console: Console, open_page: OpenPage, theme: str, language: str) -> None:
    page = open_page(console, "#/search?q=checksum&q2=hash", color_scheme=theme, locale=language).page
    expect(hit(page, "checksums")).to_have_count(2)
    assert findings(page) == []


def test_a_phone_shows_one_column(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "#/search?q=checksum&q2=hash", viewport={"width": 390, "height": 844}).page
    expect(hit(page, "checksums").first).to_be_visible()
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_only_whole_requests_are_counted(console: Console, open_page: OpenPage) -> None:
    watched = open_page(console, "#/search")
    page = watched.page
    field(page).press_sequentially("quokka")
    expect(page.get_by_role("region", name="Results for “quokka”")).to_be_visible()
    bodies = [_body(request) for request in watched.requests if request.url.endswith("/api/skills/search")]
    assert not any(body["record"] for body in bodies)
    with page.expect_request(lambda request: bool(_body(request).get("record"))) as asked:
        page.keyboard.press("Enter")
    assert _body(asked.value)["query"] == "quokka"


def _body(request: Request) -> Json:
    """What a search asks for; nothing for other requests."""
    body: Json = request.post_data_json or {} if request.url.endswith("/api/skills/search") else {}
    return body
