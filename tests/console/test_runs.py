"""The history of runs, the approvals and the audit log on the page."""

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.chat.upstream import Step, call
from tests.console.accessibility import findings
from tests.console.browser import enter_key
from tests.console.conftest import Console, OpenPage, StartConsole, expire_approvals
from tests.waiting import wait_until

QUICK = "import sys\nprint('ran', sys.stdin.read())\n"
SLEEPS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module", autouse=True)
def skills(console: Console) -> None:
    console.install("runs-quick", {"scripts/execute.py": QUICK})
    console.install("runs-fails", {"scripts/execute.py": "raise SystemExit(3)\n"})
    console.install("runs-sleeps", {"scripts/execute.py": SLEEPS})
    console.install("runs-danger", {"scripts/execute.py": QUICK}, dangerous=True, confirm="Really?")


def execute(console: Console, skill: str, **body: Any) -> Any:
    return console.ask("POST", f"/api/skills/{skill}/execute", json=body)


def ask_for_approval(console: Console, **fields: Any) -> str:
    """Call a dangerous skill; returns the id of the approval."""
    answer = httpx.post(
        f"{console.url}/api/skills/runs-danger/execute",
        json={"input": fields},
        headers={"authorization": f"Bearer {console.owner_key}"},
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == 409
    return str(answer.json()["details"]["approvalId"])


def rows(page: Page) -> Any:
    return page.get_by_role("table").locator("tbody").get_by_role("row")


def test_a_run_is_listed_while_it_goes_on_and_its_end_is_shown(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/runs?skill=runs-sleeps").page
    expect(page.get_by_text("No run fits these filters.").or_(page.get_by_role("table"))).to_be_visible()
    run = execute(console, "runs-sleeps", wait=False)["id"]
    row = rows(page).filter(has=page.locator(f'a[href*="{run}"]'))
    expect(row.get_by_text("running")).to_be_visible()
    console.ask("POST", f"/api/executions/{run}/cancel")
    expect(row.get_by_text("cancelled")).to_be_visible()


def test_code_of_a_model_is_listed_and_can_be_opened(open_page: OpenPage, console: Console) -> None:
    code = call("run_code", {"language": "python", "code": "print('by a model')"})
    model = console.upstream.play(Step(calls=[code]), Step(text="Done."))
    message = {"role": "user", "content": "Print it."}
    console.ask("POST", "/v1/chat/completions", json={"model": model, "messages": [message]})
    page = open_page(console, "#/runs").page
    page.get_by_role("link", name="Code of a model").first.click()
    expect(page.get_by_text("by a model", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Code of a model", level=1)).to_be_visible()


def test_filters_are_in_the_address(open_page: OpenPage, console: Console) -> None:
    execute(console, "runs-quick")
    execute(console, "runs-fails")
    page = open_page(console, "#/runs?skill=runs-fails").page
    expect(rows(page).first.get_by_role("link")).to_have_text("runs-fails")
    expect(page.get_by_role("link", name="runs-quick")).to_be_hidden()
    page.get_by_label("State").select_option("success")
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()
    expect(page).to_have_url(re.compile("skill=runs-fails.*status=success"))
    page.reload()
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").first.click()
    expect(page.get_by_role("link", name="runs-quick").first).to_be_visible()


def test_a_run_leads_to_the_next_one_of_the_filtered_list_and_can_be_deleted(
    open_page: OpenPage, console: Console
) -> None:
    console.install("runs-three", {"scripts/execute.py": QUICK})
    ids = [execute(console, "runs-three", input={"number": number})["id"] for number in range(3)]
    execute(console, "runs-quick")
    page = open_page(console, f"#/runs/{ids[2]}?skill=runs-three").page
    expect(page.get_by_text('ran {"number":2}')).to_be_visible()
    expect(page.get_by_role("link", name="Newer run")).to_be_hidden()
    page.get_by_role("link", name="Older run").click()
    expect(page.get_by_text('ran {"number":1}')).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_text('ran {"number":0}')).to_be_visible()
    expect(page.get_by_role("link", name="Older run")).to_be_hidden()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("The run was deleted.")).to_be_visible()
    expect(rows(page)).to_have_count(2)


def test_a_run_that_is_gone_says_so(open_page: OpenPage, console: Console) -> None:
    watched = open_page(console, "#/runs/none")
    watched.expect_status(404)
    page = watched.page
    expect(page.get_by_text("This run is no longer there.")).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.locator("main").get_by_text("waiting", exact=True)).to_have_count(0)


@pytest.mark.parametrize("address", ["#/runs", "#/audit", "#/insights"])
def test_an_error_is_shown_in_place_and_what_was_loaded_stays(
    open_page: OpenPage, console: Console, address: str
) -> None:
    execute(console, "runs-quick")
    watched = open_page(console, address)
    page = watched.page
    shown = page.get_by_role("table").or_(page.get_by_text("Success rate")).first
    expect(shown).to_be_visible()
    watched.expect_status(500)
    failure = {"code": "INTERNAL_ERROR", "message": "The disk is full."}
    page.route(re.compile(r"/api/(executions|audit|insights/calls)\b"), lambda it: it.fulfill(status=500, json=failure))
    if address == "#/insights":
        page.get_by_role("button", name="7 days").click()
    else:
        page.get_by_role("searchbox").or_(page.get_by_role("combobox")).first.fill("nothing has this name")
        page.keyboard.press("Enter")
    expect(page.get_by_role("alert").get_by_text("The disk is full.")).to_be_visible()
    expect(shown).to_be_visible()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_filter_that_is_too_long_is_cut(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/runs").page
    field = page.get_by_role("combobox", name="Skill")
    text = "x" * 2_500_000
    field.evaluate("(field, text) => { field.value = text; }", text)
    field.dispatch_event("input")
    field.dispatch_event("change")
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()
    assert field.evaluate("(field) => field.value.length") == len(text)


def test_approvals_are_decided_by_keyboard(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console()
    console.install("runs-danger", {"scripts/execute.py": QUICK}, dangerous=True, confirm="Really?")
    first = ask_for_approval(console, words=[f"word {number}" for number in range(200)])
    page = open_page(console, "#/approvals").page
    cards = page.get_by_role("article")
    call = cards.first.get_by_role("region", name="The exact input")
    expect(call.get_by_text('"word 0"')).to_be_visible()
    call.evaluate("element => element.scrollTo(0, element.scrollHeight)")
    expect(call.get_by_text('"word 199"')).to_be_visible()
    second = ask_for_approval(console, number=2)  # arrives while the page is open
    expect(cards).to_have_count(2)
    page.keyboard.press("j")
    expect(cards.last.get_by_role("button", name="Deny n")).to_be_visible()
    page.keyboard.press("n")
    expect(cards.last.get_by_text("Denied").first).to_be_visible()
    expect(cards.first.get_by_role("button", name="Approve once y")).to_be_enabled()
    page.keyboard.press("y")
    expect(cards.first.get_by_text("Approved").first).to_be_visible()
    assert console.ask("GET", f"/api/approvals/{first}")["state"] == "approved"
    assert console.ask("GET", f"/api/approvals/{second}")["state"] == "denied"


def test_a_second_decider_loses_politely(open_page: OpenPage, console: Console) -> None:
    identity = ask_for_approval(console, number=7)
    watched = open_page(console, f"#/approvals/{identity}")
    watched.expect_status(403, 404)
    page = watched.page
    card = page.locator(f"#approval-{identity}").get_by_role("article")
    expect(card.get_by_role("button", name="Approve once")).to_be_enabled()
    console.ask("POST", f"/api/approvals/{identity}", json={"approve": False})
    expect(card.get_by_text("Somebody else has decided: Denied.")).to_be_visible()
    expect(card.get_by_role("button", name="Approve once")).to_be_hidden()


def test_an_approval_that_expires_while_it_is_shown_says_so(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console()
    console.install("runs-danger", {"scripts/execute.py": QUICK}, dangerous=True, confirm="Really?")
    identity = ask_for_approval(console, number=1)
    page = open_page(console, "#/approvals").page
    page.clock.install()
    page.reload()
    card = page.get_by_role("article")
    expect(card.get_by_role("button", name="Approve once")).to_be_enabled()
    expect(card).to_contain_text("expires in")
    expire_approvals(console)
    page.clock.fast_forward("10:00")
    expect(card.get_by_text("This approval has expired.")).to_be_visible()
    expect(card.get_by_role("button")).to_have_count(0)
    page.keyboard.press("y")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.reload()
    expect(page.get_by_text("Nothing waits for approval.")).to_be_visible()
    expect(rows(page).filter(has_text="runs-danger")).to_contain_text("Expired")
    page.goto(f"{console.url}/#/approvals/{identity}")
    expect(card.get_by_text("This approval has expired.")).to_be_visible()


def test_a_key_without_admin_sees_no_approvals_and_no_log(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    key = console.ask("POST", "/api/keys", json={"name": "reader", "scopes": ["read"]})["key"]
    watched = open_page(console)
    watched.expect_status(401, 403)
    page = watched.page
    enter_key(page, key)
    page.goto(f"{console.url}/#/approvals")
    expect(page.get_by_text("Only a key with the scope admin")).to_be_visible()
    expect(page.get_by_role("link", name="Audit")).to_be_hidden()


def test_the_audit_log_is_listed_and_verified(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/audit").page
    expect(rows(page).first).to_be_visible()
    page.get_by_role("button", name="Verify the log").click()
    expect(page.get_by_text("The log is intact", exact=False)).to_be_visible()
    page.get_by_label("Action").fill("no.such.action")
    page.get_by_label("Action").press("Enter")
    expect(page.get_by_text("No entries fit these filters.")).to_be_visible()
    expect(page).to_have_url(re.compile("action=no.such.action"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_everybody_can_use_them(open_page: OpenPage, console: Console, theme: str, locale: str) -> None:
    run = execute(console, "runs-fails")["id"]
    ask_for_approval(console, theme=theme, locale=locale)
    page = open_page(console, "#/runs", color_scheme=theme, locale=locale).page
    expect(rows(page).first).to_be_visible()
    assert findings(page) == []
    page.goto(f"{console.url}/#/runs/{run}")
    expect(page.get_by_text("EXIT_NONZERO")).to_be_visible()
    assert findings(page) == []
    page.goto(f"{console.url}/#/approvals")
    wait_until(lambda: page.get_by_role("article").count() > 0)
    assert findings(page) == []
    page.goto(f"{console.url}/#/audit")
    expect(page.get_by_role("table").or_(page.get_by_role("alert"))).to_be_visible()
    assert findings(page) == []


def test_they_fit_a_phone(open_page: OpenPage, console: Console) -> None:
    ask_for_approval(console, text="word" * 200)
    page = open_page(console, "#/approvals", viewport={"width": 390, "height": 844}).page
    wait_until(lambda: page.get_by_role("article").count() > 0)
    for address in ("#/approvals", "#/runs", "#/audit"):
        page.goto(f"{console.url}/{address}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
