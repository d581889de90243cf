"""The chat of the console: answers with their steps, files, approvals, and everything that can go wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.chat.upstream import KEY, Play, Step, call, refusal, upstreams
from tests.console.accessibility import findings
from tests.console.browser import Watched, enter_key, watched_page
from tests.console.conftest import Console, OpenPage, StartConsole, expire_approvals
from tests.mcp_client.serving import fake, tools
from tests.surfaces.conftest import servers
from tests.waiting import wait_until

Json = dict[str, Any]
WIPE = "import json, sys\nprint('wiped', json.load(sys.stdin)['what'])\n"
MAKE_FILE = "print('one'); open('rows.csv', 'w').write('name,size\\nAda,1\\n')"
HOSTILE = """<script>document.title = 'hacked'</script>
<img src=x onerror="document.title='hacked'"> [click](javascript:document.title='hacked')
![picture](https://example.org/p.png) [data](data:text/html,<script>1</script>) \u202etxt.exe\u202c
<style>body { display: none }</style> <iframe src="https://example.org"></iframe>
"""


@pytest.fixture
def chat(open_page: OpenPage, console: Console) -> Watched:
    """A new chat on the shared server."""
    return open_page(console, "#/chat")


def message_field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def choose_model(page: Page, model: str) -> None:
    page.get_by_role("combobox", name="Model").select_option(label="Another model…")
    field = page.get_by_role("textbox", name="Name of the model")
    field.fill(model)
    field.press("Enter")
    expect(page.get_by_role("combobox", name="Model")).to_have_value(model)


def say(page: Page, text: str) -> None:
    message_field(page).fill(text)
    message_field(page).press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def expect_end(page: Page) -> None:
    """The last answer has ended, in whatever way."""
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def begin(watched: Watched, console: Console, *steps: Play, text: str = "Please begin.") -> str:
    """Ask a scripted model something in a new chat."""
    model = console.upstream.play(*steps)
    choose_model(watched.page, model)
    say(watched.page, text)
    return model


def wipe(what: str) -> Json:
    return call("run_skill", {"name": "wipe", "input": {"what": what}})


MANY_TABLES = ",".join(f"table-{number}" for number in range(60))
"""More than a summary of a call shows."""


def expect_input(card: Locator, text: str) -> None:
    """A card shows this text, which is broken into lines."""
    letters = r"\s*\u2060?\s*".join(map(re.escape, text))
    expect(card.get_by_role("region", name="The exact input")).to_have_text(re.compile(letters))


def last_message(body: Json) -> Step:
    """Answer with what the model was sent last."""
    return Step(text=f"I got: {body['messages'][-1]['content']}")


def steps(page: Page) -> Locator:
    return page.get_by_role("list", name="Tool calls").get_by_role("listitem")


# ------------------------------------------------------------------------------------------------ answers and steps
def test_an_answer_streams_with_its_steps_files_and_counters(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(
        chat,
        console,
        Step(
            fields={"reasoning_content": "I need a skill."}, calls=[call("search_skills", {"query": "sha256 checksum"})]
        ),
        Step(calls=[call("load_skill", {"name": "checksums"})]),
        Step(calls=[call("run_skill", {"name": "checksums", "input": {"text": "hello"}})]),
        Step(calls=[call("run_code", {"language": "python", "code": MAKE_FILE})]),
        Step(calls=[call("run_code", {"language": "python", "code": "raise ValueError('on purpose')"})]),
        Step(text="Here it is: **done**.\n\n- first\n- second\n"),
    )
    expect(answers(page).get_by_role("strong")).to_have_text("done")
    expect(page).to_have_url(re.compile(r"#/chat/[\w-]+$"))
    expect(page.get_by_text("I need a skill.")).to_be_hidden()
    page.get_by_text("Reasoning", exact=True).click()
    expect(page.get_by_text("I need a skill.")).to_be_visible()

    search, load, run, code, failed = steps(page).all()
    expect(search).to_contain_text(re.compile(r"Search, done.*checksums \d+"))
    expect(load).to_contain_text("Read skill, done checksums")
    expect(run).to_contain_text("Run skill, done checksums")
    expect(code).to_contain_text("one")
    expect(failed).to_contain_text(re.compile("failed.*ValueError: on purpose.*exit code 1"))
    expect(run.get_by_role("link", name="Open the run")).to_have_attribute("href", re.compile(r"^#/runs/\w+"))

    search.get_by_role("button", expanded=False).first.click()
    expect(search.get_by_role("region", name="Arguments")).to_contain_text('"query": "sha256 checksum"')
    expect(search.get_by_role("row", name=re.compile("checksums.*#1"))).to_be_visible()
    run.get_by_role("button", expanded=False).first.click()
    expect(run.get_by_role("region", name="Result for the model")).to_contain_text("2cf24dba")
    code.get_by_role("button", expanded=False).first.click()
    expect(code.get_by_role("region", name="Source")).to_contain_text("open('rows.csv', 'w')")

    answer = answers(page)
    expect(answer).to_contain_text("60 tokens in, 30 out")
    expect(answer).to_contain_text("6 turns")
    answer.get_by_role("button", name="Preview rows.csv").click()
    expect(answer.get_by_role("cell", name="Ada")).to_be_visible()
    with page.expect_download() as download:
        answer.get_by_role("button", name="Download rows.csv").first.click()
    assert Path(download.value.path()).read_text() == "name,size\nAda,1\n"

    page.get_by_role("button", name="Files", exact=True).click()
    dialog = page.get_by_role("dialog", name="Files of this conversation")
    dialog.get_by_role("button", name="Delete rows.csv").click()
    expect(dialog.get_by_text("There are no files yet.")).to_be_visible()


def test_the_output_of_code_is_shown_while_it_runs(chat: Watched, console: Console) -> None:
    code = "import time\nprint('alpha', flush=True)\ntime.sleep(600)"
    begin(chat, console, Step(calls=[call("run_code", {"language": "python", "code": code})]), Step(text="never"))
    step = steps(chat.page)
    expect(step).to_contain_text("Code, running")
    step.get_by_role("button", expanded=False).first.click()
    expect(step.get_by_text("alpha", exact=True)).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect_end(chat.page)
    expect(chat.page.get_by_text("Stopped. What was written stays.")).to_be_visible()
    expect(step).to_contain_text("Code, stopped")


def test_a_tool_of_an_mcp_server_is_shown_with_its_arguments_and_result(
    start_console: StartConsole, open_page: OpenPage
) -> None:
    console = start_console()
    server = fake("notes", options=tools("echo", "fail")).model_dump(mode="json", exclude_defaults=True)
    assert console.ask("POST", "/api/mcp/servers?wait=60", json=server)["state"] == "connected"
    chat = open_page(console, "#/chat")
    text = "<b>milk</b>"
    begin(
        chat,
        console,
        Step(calls=[call("notes_echo", {"text": text})]),
        Step(calls=[call("run_skill", {"name": "notes_echo", "input": {"text": "eggs"}})]),
        Step(calls=[call("notes_fail", {})]),
        Step(text="Noted."),
    )
    page = chat.page
    expect(page.get_by_text("Noted.")).to_be_visible()
    direct, by_name, failed = steps(page).all()
    expect(direct).to_contain_text("MCP tool, done notes_echo")
    expect(by_name).to_contain_text("MCP tool, done notes_echo")
    expect(failed).to_contain_text(re.compile("MCP tool, failed notes_fail.*it did not work"))
    for step, argument in ((direct, text), (by_name, "eggs")):
        step.get_by_role("button", expanded=False).first.click()
        expect(step.get_by_role("region", name="Arguments")).to_contain_text(f'"text": "{argument}"')
        expect(step.get_by_role("region", name="Result for the model")).to_contain_text(f'{{"text": "{argument}"}}')
    page.reload()
    expect(steps(page).first).to_contain_text("MCP tool, done notes_echo")


def test_the_next_message_continues_the_conversation_with_its_options(chat: Watched, console: Console) -> None:
    page = chat.page
    page.get_by_role("button", name="Options").click()
    dialog = page.get_by_role("dialog", name="Options")
    dialog.get_by_label("System prompt").fill("Be brief.")
    dialog.get_by_role("searchbox", name="Skills that are offered at once").fill("checks")
    dialog.get_by_role("button", name="checksums", exact=True).click()
    expect(dialog.get_by_role("button", name="Remove checksums")).to_be_visible()
    dialog.get_by_role("button", name="Done").click()
    model = begin(chat, console, Step(text="First."), Step(text="Second."), Step(text="Third."))
    expect(page.get_by_text("First.")).to_be_visible()
    expect_end(page)
    say(page, "And now?")
    expect(page.get_by_text("Second.")).to_be_visible()
    expect_end(page)
    first, second = console.upstream.bodies(model)
    system = first["messages"][0]
    assert system["role"] == "system"
    assert "Be brief." in system["content"]
    assert "skill__checksums" in [tool["function"]["name"] for tool in first["tools"]]
    assert [message["content"] for message in second["messages"][1:]] == ["Please begin.", "First.", "And now?"]
    page.get_by_role("button", name="Options (changed)").click()
    dialog.get_by_label("Tools and skills").uncheck()
    page.keyboard.press("Escape")
    say(page, "Without tools.")
    expect(page.get_by_text("Third.")).to_be_visible()
    expect_end(page)
    assert "tools" not in console.upstream.bodies(model)[2]


def test_models_are_listed_and_remembered(chat: Watched, console: Console, open_page: OpenPage) -> None:
    page = chat.page
    picker = page.get_by_role("combobox", name="Model")
    expect(picker.get_by_role("option", name="native-listed")).to_be_attached()
    picker.select_option(label="native-listed")
    page.get_by_role("link", name="New chat").click()
    page.reload()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("native-listed")


# ------------------------------------------------------------------------------------------------------- approvals
@pytest.fixture
def dangerous(console: Console) -> None:
    console.install("wipe", {"scripts/execute.py": WIPE}, dangerous=True, confirm="This wipes everything.")


@pytest.mark.usefixtures("dangerous")
def test_a_call_is_approved_in_the_chat(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(calls=[wipe("approved-table")]), last_message)
    card = page.get_by_role("article", name=re.compile("wipe asks"))
    expect(card).to_contain_text("This wipes everything.")
    expect(card).to_contain_text('"what": "approved-table"')
    expect(steps(page)).to_contain_text("waits for approval")
    card.get_by_role("button", name="Approve once").click()
    expect(answers(page).get_by_text("I got: [Output of the skill wipe")).to_contain_text("wiped approved-table")
    expect(page.get_by_text("wipe was approved.")).to_be_visible()
    expect(steps(page)).to_contain_text("Run skill, done")
    expect(answers(page)).to_have_count(1)


@pytest.mark.usefixtures("dangerous")
def test_a_long_call_is_shown_whole_before_it_is_approved(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(calls=[wipe(MANY_TABLES)]), last_message)
    card = page.get_by_role("article", name=re.compile("wipe asks"))
    expect_input(card, MANY_TABLES)
    card.get_by_role("button", name="Approve once").click()
    expect(page.get_by_text("wipe was approved.")).to_be_visible()


def test_a_key_without_admin_sees_the_whole_call_too(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    console.install("wipe", {"scripts/execute.py": WIPE}, dangerous=True)
    key = console.ask("POST", "/api/keys", json={"name": "chats", "scopes": ["chat", "run", "read"]})["key"]
    chat = open_page(console, "#/chat")
    chat.expect_status(401)
    enter_key(chat.page, key)
    expect(chat.page.get_by_role("dialog", name="API key")).to_be_hidden()
    begin(chat, console, Step(calls=[wipe(MANY_TABLES)]), last_message)
    card = chat.page.get_by_role("article", name=re.compile("wipe asks"))
    expect_input(card, MANY_TABLES)
    card.get_by_role("button", name="Approve once").click()
    expect(chat.page.get_by_text("wipe was approved.")).to_be_visible()


@pytest.mark.usefixtures("dangerous")
def test_a_call_is_denied_and_the_model_learns_of_it(chat: Watched, console: Console) -> None:
    page = chat.page
    before = console.ask("GET", "/api/executions?skill=wipe")["total"]
    begin(chat, console, Step(calls=[wipe("denied-table")]), last_message)
    page.get_by_role("article", name=re.compile("wipe asks")).get_by_role("button", name="Deny").click()
    expect(answers(page).get_by_text(re.compile("I got: .*did not agree"))).to_be_visible()
    expect(page.get_by_text("wipe was not approved.")).to_be_visible()
    assert console.ask("GET", "/api/executions?skill=wipe")["total"] == before


@pytest.mark.usefixtures("dangerous")
def test_another_message_instead_of_a_decision_denies(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(calls=[wipe("ignored-table")]), last_message)
    expect(page.get_by_role("button", name="Approve once")).to_be_visible()
    say(page, "Never mind.")
    expect(page.get_by_text("I got: Never mind.")).to_be_visible()
    expect(page.get_by_text("wipe was not approved.")).to_be_visible()


@pytest.mark.usefixtures("dangerous")
def test_a_call_can_wait_for_somebody_else(chat: Watched, console: Console) -> None:
    page = chat.page
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Calls that need approval").select_option(label="Wait until somebody approves under Approvals")
    page.get_by_role("button", name="Done").click()
    begin(chat, console, Step(calls=[wipe("waiting-table")]), last_message)
    card = page.get_by_role("article", name=re.compile("wipe asks"))
    expect(card).to_contain_text('"what": "waiting-table"')
    (approval,) = [one for one in console.ask("GET", "/api/approvals") if "waiting-table" in one["summary"]]
    console.ask("POST", f"/api/approvals/{approval['id']}", json={"approve": True})
    expect(answers(page).get_by_text("I got: [Output of the skill wipe")).to_contain_text("wiped waiting-table")


@pytest.mark.parametrize("is_for_others", [False, True])
def test_an_approval_that_expires_in_the_chat_says_so(
    start_console: StartConsole, open_page: OpenPage, is_for_others: bool
) -> None:
    console = start_console()
    console.install("wipe", {"scripts/execute.py": WIPE}, dangerous=True, confirm="This wipes everything.")
    chat = open_page(console, "#/chat")
    page = chat.page
    page.clock.install()
    page.reload()
    if is_for_others:
        page.get_by_role("button", name="Options").click()
        page.get_by_label("Calls that need approval").select_option(
            label="Wait until somebody approves under Approvals"
        )
        page.get_by_role("button", name="Done").click()
    model = begin(chat, console, Step(calls=[wipe("late-table")]), last_message)
    card = page.get_by_role("article", name=re.compile("wipe asks"))
    expect(card).to_contain_text('"what": "late-table"')
    expect(card).to_contain_text("expires in")
    expire_approvals(console)
    page.clock.fast_forward("10:00")
    expired = page.get_by_text(re.compile(r"approval (of wipe )?has expired\."))
    expect(expired).to_be_visible()
    expect(page.get_by_role("button", name="Approve once")).to_have_count(0)
    expect(page.get_by_role("button", name="Deny")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    if is_for_others:
        return
    assert len(console.upstream.bodies(model)) == 1  # without a decision the answer does not go on
    page.reload()
    expect(expired).to_be_visible()
    expect(steps(page)).to_contain_text("Run skill, stopped")
    expect(answers(page).get_by_role("button", name="Answer again")).to_be_visible()
    say(page, "Never mind.")
    expect(page.get_by_text("I got: Never mind.")).to_be_visible()


# ------------------------------------------------------------------------------------------- stop, edit, retry, copy
def test_stop_keeps_what_was_written(chat: Watched, console: Console) -> None:
    page = chat.page
    model = begin(chat, console, Step(text="Half of the answer and more", hang_after=4), Step(text="Whole."))
    expect(page.get_by_text("Half of the ans")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("Stopped. What was written stays.")).to_be_visible()
    expect(page.get_by_text("Half of the ans")).to_be_visible()
    wait_until(lambda: console.upstream.seen(model)[0].was_disconnected)
    say(page, "Go on.")
    expect(page.get_by_text("Whole.")).to_be_visible()
    assert console.upstream.bodies(model)[1]["messages"][-2]["content"].startswith("Half of the")


def test_a_message_is_edited_and_sent_again_and_that_can_be_undone(chat: Watched, console: Console) -> None:
    page = chat.page
    model = begin(chat, console, Step(text="About cats."), Step(text="About dogs."), text="Tell me about cats")
    expect(page.get_by_text("About cats.")).to_be_visible()
    expect_end(page)
    page.get_by_role("article", name="You").get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit your message").fill("Tell me about dogs")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("About dogs.")).to_be_visible()
    expect(page.get_by_text("About cats.")).to_be_hidden()
    assert [m["content"] for m in console.upstream.bodies(model)[1]["messages"][1:]] == ["Tell me about dogs"]
    expect_end(page)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("About cats.")).to_be_visible()


def test_an_answer_is_made_again(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(text="First try."), Step(text="Second try."))
    expect(page.get_by_text("First try.")).to_be_visible()
    page.get_by_role("button", name="Answer again").click()
    expect(page.get_by_text("Second try.")).to_be_visible()
    expect(page.get_by_text("First try.")).to_be_hidden()
    expect(answers(page)).to_have_count(1)


def copied(page: Page, name: str) -> str:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answers(page).get_by_role("button", name=name, exact=True).click()
    expect(answers(page).get_by_role("button", name="Copied")).to_be_visible()
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_a_copied_curl_command_runs(chat: Watched, console: Console) -> None:
    text = 'it\'s "quoted" $HOME `id` \\n 你好\nsecond line'
    model = begin(chat, console, Step(text="Fine."), text="x")
    expect_end(chat.page)
    say(chat.page, text)
    expect(answers(chat.page)).to_have_count(2)
    expect_end(chat.page)
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answers(chat.page).last.get_by_role("button", name="curl").click()
    expect(answers(chat.page).last.get_by_role("button", name="Copied")).to_be_visible()
    command = str(chat.page.evaluate("navigator.clipboard.readText()"))
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.rstrip().endswith("data: [DONE]")
    sent = console.upstream.bodies(model)
    assert sent[2]["messages"] == sent[1]["messages"]
    assert sent[2]["messages"][-1]["content"] == text


def test_copied_python_runs(chat: Watched, console: Console) -> None:
    begin(chat, console, Step(text="Fine, 好."), text='say "fine" \\')
    expect(chat.page.get_by_text("Fine, 好.")).to_be_visible()
    expect_end(chat.page)
    code = copied(chat.page, "Python")
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment["PYTHONIOENCODING"] = "utf-8"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert run.stdout.strip() == "Fine, 好.", run.stderr


# ----------------------------------------------------------------------------------------------------------- faults
def test_a_model_that_fails_in_the_middle_leaves_what_was_written(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(text="This much was written", cut_after=4), Step(text="Everything."))
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_text("This much was w")).to_be_visible()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("Everything.")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_error_of_a_model_is_shown_where_the_answer_would_be(chat: Watched, console: Console) -> None:
    page = chat.page
    chat.expect_status(400)
    refused = refusal(400, "This model reads only haiku.", code="bad_poem")
    begin(chat, console, refused, Step(text="Old pond."))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This model reads only haiku.")
    expect(page.get_by_text("Please begin.")).to_have_count(3)  # the title, the list and the message
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("Old pond.")).to_be_visible()


def test_a_server_that_restarts_in_the_middle_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    with upstreams() as upstream, servers(tmp_path / "data") as start:
        model = upstream.play(Step(text="Written before the end", hang_after=4), Step(text="Written after it."))
        settings = {"APEX_LLM_BASE_URL": upstream.url, "APEX_LLM_API_KEY": KEY, "APEX_LLM_TOOL_MODE": "native"}
        server = start(APEX_LLM_MODEL=model, **settings)
        port = str(urlsplit(server.url).port)
        with watched_page(browser, server.url) as watched:
            watched.expect_server_away()
            watched.expect_status(503)
            page = watched.page
            page.goto(f"{server.url.rstrip('/')}/#/chat")
            say(page, "Please begin.")
            expect(page.get_by_text("Written before ")).to_be_visible()
            message_field(page).fill("the next question")
            server.stop(9)
            expect(page.get_by_role("alert")).to_be_visible()
            expect(page.get_by_text("Written before ")).to_be_visible()
            start("--port", port, APEX_LLM_MODEL=model, **settings)
            page.get_by_role("article", name="Answer").get_by_role("button", name="Try again").click()
            expect(page.get_by_text("Written after it.")).to_be_visible()
            expect(message_field(page)).to_have_value("the next question")


def test_a_refused_key_is_asked_for_and_the_draft_stays(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    model = console.upstream.play(Step(text="With the new key."))
    made = console.ask("POST", "/api/keys", json={"name": "short", "scopes": ["chat", "read"]})
    watched = open_page(console, "#/chat")
    watched.expect_status(401)
    page = watched.page
    dialog = page.get_by_role("dialog", name="API key")
    enter_key(page, made["key"])
    expect(dialog).to_be_hidden()
    choose_model(page, model)
    console.ask("DELETE", f"/api/keys/{made['id']}")
    say(page, "A long and careful question")
    enter_key(page, console.owner_key)
    expect(dialog).to_be_hidden()
    expect(message_field(page)).to_have_value("A long and careful question")
    message_field(page).press("Enter")
    expect(page.get_by_text("With the new key.")).to_be_visible()


def test_a_refused_key_leaves_the_earlier_answer_where_it_is(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    model = console.upstream.play(Step(text="The first answer."), Step(text="The second answer."))
    made = console.ask("POST", "/api/keys", json={"name": "short", "scopes": ["chat", "read"]})
    watched = open_page(console, "#/chat")
    watched.expect_status(401)
    page = watched.page
    dialog = page.get_by_role("dialog", name="API key")
    enter_key(page, made["key"])
    expect(dialog).to_be_hidden()
    choose_model(page, model)
    say(page, "A question")
    expect(page.get_by_text("The first answer.")).to_be_visible()
    expect_end(page)
    console.ask("DELETE", f"/api/keys/{made['id']}")
    answers(page).get_by_role("button", name="Answer again").click()
    enter_key(page, console.owner_key)
    expect(dialog).to_be_hidden()
    expect(page.get_by_text("The first answer.")).to_be_visible()
    answers(page).get_by_role("button", name="Answer again").click()
    expect(page.get_by_text("The second answer.")).to_be_visible()


def test_a_conversation_goes_on_with_another_key(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    watched = open_page(console, "#/chat")
    watched.expect_status(401, 403)
    page = watched.page
    dialog = page.get_by_role("dialog", name="API key")
    make_file = call("run_code", {"language": "python", "code": MAKE_FILE})
    model = console.upstream.play(
        Step(calls=[make_file]), Step(text="With the first key."), Step(text="With another key.")
    )
    for name in ("first", "second"):
        made = console.ask("POST", "/api/keys", json={"name": name, "scopes": ["chat", "read", "run"]})
        if name == "second":
            page.get_by_role("button", name="first").click()
        enter_key(page, made["key"])
        expect(dialog).to_be_hidden()
        if name == "first":
            choose_model(page, model)
        say(page, f"Message of the {name} key")
        if name == "first":
            expect(page.get_by_text("With the first key.")).to_be_visible()
    page.get_by_role("button", name="Continue without the earlier files").click()
    expect(page.get_by_text("With another key.")).to_be_visible()


def test_a_key_that_may_not_chat_gets_an_explanation(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    made = console.ask("POST", "/api/keys", json={"name": "reader", "scopes": ["read"]})
    watched = open_page(console, "#/chat")
    watched.expect_status(401, 403)
    page = watched.page
    enter_key(page, made["key"])
    expect(page.get_by_text("This API key may not chat (scope chat).")).to_be_visible()
    expect(message_field(page)).to_be_disabled()


def test_without_a_model_the_page_says_which_settings_to_change(
    start_console: StartConsole, open_page: OpenPage
) -> None:
    console = start_console(APEX_LLM_BASE_URL="")
    page = open_page(console, "#/chat").page
    note = page.get_by_role("note")
    expect(note).to_contain_text("No language model is connected.")
    expect(note).to_contain_text("APEX_LLM_BASE_URL")
    examples = page.get_by_role("list", name="Examples")
    examples.get_by_role("button", name="What is 15% of 340?").click()
    message_field(page).press("Enter")
    expect(answers(page).get_by_text("51").first).to_be_visible()


# -------------------------------------------------------------------------------------------- conversations and files
def test_a_reload_keeps_the_conversation_and_the_draft(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(
        chat,
        console,
        Step(calls=[call("calculate", {"expression": "6 * 7"})]),
        Step(text="It is 42."),
        text="How much?",
    )
    expect(page.get_by_text("It is 42.")).to_be_visible()
    expect_end(page)
    message_field(page).fill("and then\na second line")
    page.reload()
    expect(page.get_by_text("It is 42.")).to_be_visible()
    expect(steps(page)).to_contain_text("calculate")
    expect(message_field(page)).to_have_value("and then\na second line")
    page.get_by_role("link", name="New chat").click()
    expect(message_field(page)).to_have_value("")
    page.get_by_role("navigation", name="Conversations").get_by_role("link", name="How much?").click()
    expect(message_field(page)).to_have_value("and then\na second line")


def test_a_reload_in_the_middle_of_an_answer_keeps_what_was_stored(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(text="Half of the answer and more", hang_after=4), Step(text="Whole."))
    expect(page.get_by_text("Half of the ans")).to_be_visible()
    stored = "indexedDB.databases().then((all) => all.length)"
    wait_until(lambda: page.evaluate(stored))
    page.evaluate(
        """async () => {
          const open = indexedDB.open('apexbridge.chats');
          const database = await new Promise((done) => (open.onsuccess = () => done(open.result)));
          for (;;) {
            const all = database.transaction('contents').objectStore('contents').getAll();
            const found = await new Promise((done) => (all.onsuccess = () => done(all.result)));
            if (JSON.stringify(found).includes('Half of the ans')) break;
            await new Promise((done) => setTimeout(done, 20));
          }
          database.close();
        }"""
    )
    page.reload()
    expect(page.get_by_text("Half of the ans")).to_be_visible()
    expect(page.get_by_text("The page was closed or loaded again while this was written.")).to_be_visible()
    page.get_by_role("button", name="Answer again").click()
    expect(page.get_by_text("Whole.")).to_be_visible()


def test_another_view_does_not_end_an_answer(chat: Watched, console: Console) -> None:
    page = chat.page
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
    begin(chat, console, Step(calls=[call("run_code", {"language": "python", "code": code})]), Step(text="Both done."))
    expect(steps(page)).to_contain_text("Code, running")
    address = page.url
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Search").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
    page.goto(address)
    expect(steps(page)).to_contain_text("Code, running")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect_end(page)


def test_conversations_are_renamed_exported_deleted_and_restored(chat: Watched, console: Console) -> None:
    page = chat.page
    begin(chat, console, Step(text="Yes."), text="An unforgettable question")
    expect(page.get_by_text("Yes.")).to_be_visible()
    expect_end(page)
    menu = page.get_by_role("button", name="More about this conversation")
    menu.click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_label("Name of the conversation").fill("Plans <b>for</b> the week")
    page.get_by_role("button", name="Save").click()
    conversations = page.get_by_role("navigation", name="Conversations")
    expect(conversations.get_by_role("link", name="Plans <b>for</b> the week")).to_be_visible()
    menu.click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Export as JSON").click()
    exported = json.loads(Path(download.value.path()).read_text())
    assert exported["title"] == "Plans <b>for</b> the week"
    assert [message["content"] for message in exported["messages"]] == ["An unforgettable question", "Yes."]
    menu.click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(conversations.get_by_role("link", name="Plans")).to_be_hidden()
    expect(page).to_have_url(re.compile("#/chat$"))
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Yes.")).to_be_visible()
    page.reload()
    expect(conversations.get_by_role("link", name="Plans")).to_be_visible()


def test_an_unknown_conversation_is_explained(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/chat/nowhere").page
    expect(page.get_by_text("This conversation is not in this browser.")).to_be_visible()


def test_files_are_attached_by_chooser_and_by_drop(chat: Watched, console: Console, tmp_path: Path) -> None:
    page = chat.page
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    page.get_by_label("Attach files").first.set_input_files(tmp_path / "data.csv")
    attached = page.get_by_role("list", name="Attached files")
    expect(attached.get_by_text("8 B")).to_be_visible()
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(['dropped'], '\u202egpj.exe', { type: 'text/plain' }));
          const target = document.querySelector('main section');
          for (const name of ['dragenter', 'dragover', 'drop'])
            target.dispatchEvent(new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    expect(attached.get_by_role("listitem")).to_have_count(2)
    expect(attached.get_by_text("7 B")).to_be_visible()
    page.reload()
    expect(attached.get_by_role("listitem")).to_have_count(2)
    read = call("run_code", {"language": "python", "code": "print(open('data.csv').read())"})
    model = begin(chat, console, Step(calls=[read]), last_message, text="Sum it up")
    expect(answers(page).get_by_text("I got: a,b")).to_be_visible()
    sent = console.upstream.bodies(model)[0]["messages"][-1]["content"]
    assert sent.startswith("Sum it up\n[File data.csv, 8 bytes, in the workspace]\n[File ")
    question = page.get_by_role("article", name="You")
    question.get_by_role("button", name="Preview data.csv").click()
    expect(question.get_by_role("cell", name="2", exact=True)).to_be_visible()


def test_a_file_that_is_too_large_is_refused_in_place_and_the_text_stays(chat: Watched, tmp_path: Path) -> None:
    page = chat.page
    chat.expect_status(413)
    message_field(page).fill("typed before")
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(51 * 1024 * 1024)
    page.get_by_label("Attach files").first.set_input_files(large)
    attached = page.get_by_role("list", name="Attached files")
    expect(attached.get_by_text(re.compile("50 MB|closed the connection|too large"))).to_be_visible()
    expect(message_field(page)).to_have_value("typed before")
    attached.get_by_role("button", name="Remove large.bin").click()
    expect(attached).to_be_hidden()


# ------------------------------------------------------------------------------------------- typing, drawing, hostility
def test_enter_sends_shift_enter_does_not_and_composed_characters_are_safe(chat: Watched, console: Console) -> None:
    page = chat.page
    model = console.upstream.play(Step(text="好的。"))
    choose_model(page, model)
    field = message_field(page)
    field.press_sequentially("你好")
    field.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    field.dispatch_event("keydown", {"key": "Enter", "keyCode": 229})
    expect(field).to_have_value("你好")
    field.press("Shift+Enter")
    field.press_sequentially("世界")
    expect(field).to_have_value("你好\n世界")
    field.press("Enter")
    expect(page.get_by_text("好的。")).to_be_visible()
    assert console.upstream.bodies(model)[0]["messages"][-1]["content"] == "你好\n世界"


def test_a_long_answer_draws_each_block_a_bounded_number_of_times(chat: Watched, console: Console) -> None:
    page = chat.page
    text = "".join(f"Paragraph {number} has **some** words and `code`, to be long.\n\n" for number in range(220))
    page.evaluate(
        """() => {
          window.drawn = 0;
          new MutationObserver((changes) => {
            const added = changes.flatMap((change) => [...change.addedNodes]);
            window.drawn += added.filter((node) => node.nodeName === 'P').length;
          }).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    begin(chat, console, Step(text=text))
    expect(page.get_by_text("Paragraph 219 has")).to_be_visible()
    expect_end(page)
    assert answers(page).locator("p").count() >= 220
    assert page.evaluate("window.drawn") < 2 * 220 + 50


def test_a_long_answer_is_drawn_completely_after_a_reload(chat: Watched, console: Console) -> None:
    """It is drawn in parts, so that it does not hold up the page."""
    page = chat.page
    sentence = "It says the same as all the others, but it has a number of its own. " * 2
    begin(chat, console, Step(text="".join(f"Paragraph {number}. {sentence}\n\n" for number in range(600))))
    paragraphs = answers(page).locator(".prose p")
    expect(paragraphs).to_have_count(600)
    expect_end(page)
    page.reload()
    expect(paragraphs).to_have_count(600)
    expect(paragraphs.last).to_contain_text("Paragraph 599.")
    expect(answers(page).get_by_role("button", name="Show all")).to_have_count(0)


def test_hostile_markdown_is_text(chat: Watched, console: Console) -> None:
    page = chat.page
    deep = "> " * 2000 + "deep\n\n" + "[" * 3000 + "\n\n" + "x" * 150_000
    begin(chat, console, Step(text=HOSTILE), Step(text=deep), text="<img src=x onerror=alert(1)> \u202eevil")
    expect(answers(page).get_by_text("<script>document.title = 'hacked'</script>")).to_be_visible()
    expect_end(page)
    assert page.title() == "Chat · apexbridge"
    answer = answers(page)
    expect(answer.locator("script, img, iframe, style, [onerror]")).to_have_count(0)
    expect(answer.get_by_role("link")).to_have_count(0)
    expect(answer.get_by_text("[click](javascript:document.title='hacked')")).to_be_visible()
    say(page, "Deeper.")
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    expect_end(page)


def test_the_end_stays_in_sight_until_the_user_scrolls_up(chat: Watched, console: Console) -> None:
    page = chat.page
    lines = "".join(f"line {number}\n\n" for number in range(80))
    code = "import time\ntime.sleep(600)"
    waits = Step(text=lines, calls=[call("run_code", {"language": "python", "code": code})])
    begin(chat, console, waits, Step(text="never"))
    expect(steps(page)).to_contain_text("Code, running")
    expect(page.get_by_text("line 79")).to_be_in_viewport()
    page.mouse.move(800, 400)
    page.mouse.wheel(0, -1500)
    expect(page.get_by_text("line 79")).not_to_be_in_viewport()
    page.get_by_role("button", name="To the latest").click()
    expect(page.get_by_text("line 79")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect_end(page)


def test_a_whole_story_by_keyboard(chat: Watched, console: Console) -> None:
    page = chat.page
    model = console.upstream.play(Step(calls=[call("calculate", {"expression": "6 * 7"})]), Step(text="It is 42."))
    choose_model(page, model)
    expect(page.get_by_role("combobox", name="Model")).to_be_visible()
    message_field(page).focus()
    page.keyboard.type("What is it?")
    page.keyboard.press("Enter")
    expect(page.get_by_text("It is 42.")).to_be_visible()
    expect_end(page)
    expect(message_field(page)).to_be_focused()
    step = steps(page).get_by_role("button").first
    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        if step.evaluate("(element) => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(steps(page).get_by_role("region", name="Arguments")).to_contain_text("6 * 7")


def test_a_phone_shows_all_of_it_without_scrolling_sideways(open_page: OpenPage, console: Console) -> None:
    watched = open_page(console, "#/chat", viewport={"width": 390, "height": 844}, has_touch=True)
    page = watched.page
    wide = f"| a | b |\n|---|---|\n| {'x' * 200} | {'长' * 100} |\n\n```\n{'y' * 300}\n```\n\n{'z' * 300}"
    page.get_by_role("button", name="Options").click()
    searches = Step(calls=[call("search_skills", {"query": "a very long query about checksums " * 5})])
    choose_model(page, console.upstream.play(searches, Step(text=wide)))
    page.get_by_role("button", name="Done").click()
    say(page, "w" * 200)
    expect_end(page)
    expect(page.get_by_text("z" * 300)).to_be_visible()
    steps(page).get_by_role("button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Conversations").click()
    dialog = page.get_by_role("dialog", name="Conversations")
    expect(dialog.get_by_role("link", name="www")).to_be_visible()
    dialog.get_by_role("link", name="New chat").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("heading", name="What can be done?")).to_be_visible()


@pytest.mark.usefixtures("dangerous")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_nothing_keeps_people_from_using_it(open_page: OpenPage, console: Console, theme: str, locale: str) -> None:
    watched = open_page(console, "#/chat", color_scheme=theme, locale=locale)
    page = watched.page
    is_chinese = locale == "zh-CN"
    expect(page.get_by_role("heading", name="想做点什么？" if is_chinese else "What can be done?")).to_be_visible()
    assert findings(page) == []
    model = console.upstream.play(
        Step(fields={"reasoning_content": "Hm."}, calls=[call("search_skills", {"query": "checksums"})]),
        Step(text="# Title\n\n| a |\n|---|\n| b |\n\n- [x] done", calls=[wipe(f"{theme}-{locale}")]),
    )
    page.evaluate("(model) => localStorage.setItem('apexbridge.chat.options', JSON.stringify({ model }))", model)
    page.reload()
    field = page.get_by_role("textbox", name="消息" if is_chinese else "Message")
    field.fill("Go")
    field.press("Enter")
    expect(page.get_by_role("article", name=re.compile("wipe"))).to_be_visible()
    for step in page.get_by_role("list", name="工具调用" if is_chinese else "Tool calls").all():
        step.get_by_role("button").first.click()
    assert findings(page) == []
    page.get_by_role("button", name="选项" if is_chinese else "Options").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert findings(page) == []
