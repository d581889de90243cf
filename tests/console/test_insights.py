"""The view "Insights": figures, charts, tables, CSV files."""

import csv
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.console.accessibility import findings
from tests.console.conftest import Console, OpenPage, StartConsole
from tests.making import write_skill
from tests.waiting import wait_until

FAILING = "import sys\nsys.exit(3)\n"
UNKNOWN = "=HYPERLINK(1) <b>xylophone</b>"


@pytest.fixture
def used(start_console: StartConsole, data_dir: Path) -> Console:
    """A server whose skills were called: one three times, one failed, one never."""
    write_skill(data_dir / "skills", "counts", {"scripts/execute.py": "print(1)\n"})
    write_skill(data_dir / "skills", "fails", {"scripts/execute.py": FAILING})
    write_skill(data_dir / "skills", "waits")
    console = start_console()
    for name in ("counts", "counts", "counts", "fails"):
        console.ask("POST", f"/api/skills/{name}/execute", json={})
    console.ask("POST", "/api/skills/search", json={"query": UNKNOWN, "threshold": 1})
    return console


def test_figures_are_those_of_the_server_and_lead_somewhere(used: Console, open_page: OpenPage) -> None:
    page = open_page(used, "#/insights").page
    expect(page.get_by_role("link", name="Calls of skills 4")).to_be_visible()
    expect(page.get_by_role("link", name="Success rate 75% 1 failed")).to_be_visible()
    expect(page.get_by_role("link", name="Never used 1")).to_be_visible()
    table = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="Median"))
    row = table.get_by_role("row").filter(has_text="counts")
    expect(row).to_contain_text("100%")
    row.get_by_role("link", name="3").click()
    expect(page).to_have_url(f"{used.url}/#/runs?skill=counts")


def test_the_order_is_in_the_address(used: Console, open_page: OpenPage) -> None:
    page = open_page(used, "#/insights").page
    page.get_by_label("Order").select_option("Most failing")
    expect(page).to_have_url(f"{used.url}/#/insights?sort=failures")
    names = page.get_by_role("table").first.get_by_role("link")
    expect(names.first).to_have_text("fails")
    page.reload()
    expect(page.get_by_label("Order")).to_have_value("failures")
    expect(names.first).to_have_text("fails")


def test_a_chart_is_also_a_table_and_a_file(used: Console, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(used, "#/insights?days=7").page
    expect(page.get_by_role("img", name="Calls of skills")).to_be_visible()
    page.get_by_role("button", name="Calls of skills: as a table").click()
    rows = page.get_by_role("group", name="Calls of skills").get_by_role("row")
    expect(rows).to_have_count(8)
    expect(rows.nth(1).get_by_role("cell").nth(1)).to_have_text("4")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Calls of skills: save as CSV").click()
    file = tmp_path / "calls.csv"
    saved.value.save_as(file)
    lines = list(csv.reader(file.read_text("utf-8-sig").splitlines()))
    assert [lines[0], lines[-1][1:]] == [["Day", "Calls", "Failed"], ["4", "1"]]
    assert len(lines) == 8


def test_a_search_without_result_is_text_in_the_table_and_in_the_file(
    used: Console, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(used, "#/insights").page
    link = page.get_by_role("link", name=UNKNOWN)
    expect(link).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Searches that found nothing: save as CSV").click()
    file = tmp_path / "searches.csv"
    saved.value.save_as(file)
    assert list(csv.reader(file.read_text("utf-8-sig").splitlines()))[1][0] == f"'{UNKNOWN}"
    link.click()
    expect(page).to_have_url(f"{used.url}/#/search?q={quote(UNKNOWN, safe='').replace('%20', '+')}")


def test_an_empty_library_says_so(start_console: StartConsole, open_page: OpenPage) -> None:
    page = open_page(start_console(), "#/insights?days=3650&by=week").page
    expect(page.get_by_text("No skill was called in this time.").first).to_be_visible()
    expect(page.get_by_text("No skill was installed in this time.")).to_be_visible()
    expect(page.get_by_text("Every search found something.")).to_be_visible()


def test_new_calls_appear_without_reloading(used: Console, open_page: OpenPage) -> None:
    page = open_page(used, "#/insights").page
    expect(page.get_by_role("link", name="Calls of skills 4")).to_be_visible()
    used.ask("POST", "/api/skills/counts/execute", json={})
    expect(page.get_by_role("link", name="Calls of skills 5")).to_be_visible()


def test_the_tables_are_current_after_a_run_without_reloading(used: Console, open_page: OpenPage) -> None:
    page = open_page(used, "#/insights").page
    fails = page.get_by_role("table").first.get_by_role("row").filter(has_text="fails")
    expect(page.get_by_role("link", name=UNKNOWN)).to_be_visible()
    expect(fails.get_by_role("link", name="1")).to_be_visible()
    used.ask("POST", "/api/skills/search", json={"query": "a quagmire of zebras", "threshold": 1})
    used.ask("POST", "/api/skills/fails/execute", json={})
    expect(fails.get_by_role("link", name="2")).to_be_visible()
    expect(page.get_by_role("link", name="a quagmire of zebras")).to_be_visible()


def test_the_file_of_skills_has_all_of_them(
    start_console: StartConsole, open_page: OpenPage, data_dir: Path, tmp_path: Path
) -> None:
    names = [f"skill-{number:03}" for number in range(510)]
    for name in names:
        write_skill(data_dir / "skills", name)
    console = start_console()
    wait_until(lambda: console.ask("GET", "/api/skills?limit=1")["total"] == len(names))
    page = open_page(console, "#/insights?sort=unused").page
    with page.expect_download() as saved:
        page.get_by_role("button", name="By skill: save as CSV").click()
    file = tmp_path / "skills.csv"
    saved.value.save_as(file)
    assert sorted(line[0] for line in list(csv.reader(file.read_text("utf-8-sig").splitlines()))[1:]) == names


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_everyone_can_read_it(used: Console, open_page: OpenPage, scheme: str, locale: str) -> None:
    page = open_page(used, "#/insights", color_scheme=scheme, locale=locale).page
    expect(page.get_by_role("table").first).to_be_visible()
    assert findings(page) == []
