"""Running a skill on the page: the form, the live output, the result and its files."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.chat.upstream import upstreams
from tests.console.accessibility import findings
from tests.console.conftest import Console, OpenPage, StartConsole
from tests.surfaces.conftest import servers

REPORT = """
import json, sys
data = json.load(sys.stdin)
print("title", data["title"])
print(json.dumps(data, sort_keys=True))
with open("output/table.csv", "w") as file:
    file.write("city,visits\\nBerlin,12\\n\\"a, b\\",30\\n")
with open("output/notes.md", "w") as file:
    file.write("# Notes\\n\\n<script>alert(1)</script>\\n")
with open("output/data.json", "w") as file:
    file.write('{"big": 12345678901234567890}')
with open("output/bytes.bin", "wb") as file:
    file.write(bytes(range(256)) * 40)
"""
PARAMETERS = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string", "minLength": 3},
        "rows": {"type": "integer", "minimum": 1, "maximum": 9, "default": 4},
        "format": {"type": "string", "enum": ["short", "long"], "default": "short"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "customer": {"type": "object", "properties": {"name": {"type": "string"}, "vip": {"type": "boolean"}}},
    },
}
STREAMS = """
import sys, time
for number in range(4):
    print("out", number, flush=True)
    time.sleep(0.05)
    print("err", number, file=sys.stderr, flush=True)
    time.sleep(0.05)
print("all printed", flush=True)
time.sleep(600)
"""
HOSTILE = r"""
print("\x1b[31mred\x1b[0m \x1b]0;owned\x07\x1b[2Jplain")
print("<img src=x onerror=alert(1)><script>document.title='owned'</script>")
print("nul \0 bidi \u202e end")
print("L" * 1_000_000)
open("output/<b>x.txt", "w").write("text")
print("done")
"""
LONG = """
import sys
block = "".join(f"line {number} of an output that is long\\n" for number in range(1000))
for _ in range(270):
    sys.stdout.write(block)
print("the end")
"""


@pytest.fixture(scope="module", autouse=True)
def skills(console: Console) -> None:
    console.install("run-report", {"scripts/execute.py": REPORT}, parameters=PARAMETERS)
    console.install("run-streams", {"scripts/execute.py": STREAMS})
    console.install("run-hostile", {"scripts/execute.py": HOSTILE})
    console.install("run-long", {"scripts/execute.py": LONG})
    cat = "import json, sys\nprint([open(path).read() for path in json.load(sys.stdin)['files']])\n"
    console.install("run-cat", {"scripts/execute.py": cat})
    console.install(
        "run-danger",
        {"scripts/execute.py": "import sys\nprint('dropped', sys.stdin.read())\n"},
        dangerous=True,
        confirm="Delete the table?",
    )


def run(page: Page) -> None:
    page.get_by_role("button", name=re.compile(r"^Run( again)? Ctrl")).click()


def output(page: Page) -> str:
    return page.get_by_role("region", name="Output", exact=True).last.inner_text()


def badge(page: Page, word: str | re.Pattern[str]) -> None:
    expect(page.get_by_role("region", name="Output", exact=True).first.get_by_role("status").first).to_have_text(word)


def test_a_skill_is_picked_by_typing(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run").page
    page.get_by_label("Which skill?").fill("run-report")
    expect(page.get_by_role("link", name=re.compile("run-report"))).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("run-hostile"))).to_be_hidden()
    page.get_by_label("Which skill?").press("Enter")
    expect(page.get_by_role("heading", name=re.compile("run-report.*Run"))).to_be_visible()


def test_fields_and_json_show_the_same_value(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-report").page
    page.get_by_label("title").fill("three lines\nof\ntext")
    expect(page.get_by_label("rows")).to_have_value("4")
    expect(page.get_by_text("integer · 1–9 · default 4")).to_be_visible()
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_label("tags-1").fill("new")
    page.get_by_label("name", exact=True).fill("Ada")
    page.get_by_label("vip").check()
    page.get_by_role("button", name="JSON").click()
    typed = json.loads(page.get_by_label("Input as JSON").input_value())
    customer = {"name": "Ada", "vip": True}
    whole = {"title": "three lines\nof\ntext", "rows": 4, "format": "short", "tags": ["new"], "customer": customer}
    assert typed == whole
    page.get_by_label("Input as JSON").fill('{"title": ')
    expect(page.get_by_role("button", name=re.compile(r"^Run( again)? Ctrl"))).to_be_disabled()
    page.get_by_label("Input as JSON").fill('{"title": "from JSON", "format": "long"}')
    page.get_by_role("button", name="Fields").click()
    expect(page.get_by_label("title")).to_have_value("from JSON")
    expect(page.get_by_label("format")).to_have_value(re.compile("."))
    run(page)
    expect(page.get_by_text("title from JSON")).to_be_visible()


def test_errors_of_the_input_are_at_their_fields_and_nothing_typed_is_lost(
    open_page: OpenPage, console: Console
) -> None:
    watched = open_page(console, "#/run/run-report")
    watched.expect_status(422)
    page = watched.page
    page.get_by_label("title").fill("no")
    page.get_by_label("rows").fill("99")
    run(page)
    expect(page.get_by_label("title")).to_be_focused()
    expect(page.get_by_label("title")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("is shorter than 3 characters")).to_be_visible()
    expect(page.get_by_text("99 is greater than the maximum of 9")).to_be_visible()
    page.reload()
    expect(page.get_by_label("title")).to_have_value("no")
    expect(page.get_by_label("rows")).to_have_value("99")


def test_both_streams_are_shown_live_in_their_order_and_the_run_is_cancelled(
    open_page: OpenPage, console: Console
) -> None:
    page = open_page(console, "#/run/run-streams").page
    expect(page.get_by_role("button", name=re.compile("^Run"))).to_be_visible()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("all printed")).to_be_visible()
    badge(page, "running")
    lines = [line for line in output(page).splitlines() if line.startswith(("out", "err"))]
    assert lines == [f"{stream} {number}" for number in range(4) for stream in ("out", "err")]
    page.reload()  # the address opens the run again, live
    badge(page, "running")
    page.get_by_role("button", name="Cancel").click()
    badge(page, "cancelled")
    expect(page.get_by_text("CANCELLED", exact=True)).to_be_visible()


def test_a_timeout_says_what_to_do(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-streams").page
    page.get_by_text("More options").click()
    page.get_by_label("Timeout in seconds").fill("0.3")
    run(page)
    badge(page, "timeout")
    expect(page.get_by_text("Raise the timeout")).to_be_visible()


def test_files_of_a_run_are_shown_and_saved_byte_for_byte(
    open_page: OpenPage, console: Console, tmp_path: Path
) -> None:
    page = open_page(console, "#/run/run-report").page
    page.get_by_label("title").fill("files")
    run(page)
    files = page.get_by_role("region", name="Files it made")
    files.get_by_role("button", name="Preview table.csv").click()
    expect(files.get_by_role("cell", name="a, b")).to_be_visible()
    files.get_by_role("button", name="Preview data.json").click()
    expect(files.get_by_text('"big": 12345678901234567890')).to_be_visible()
    files.get_by_role("button", name="Preview notes.md").click()
    expect(files.get_by_role("heading", name="Notes")).to_be_visible()
    expect(files.get_by_text("<script>alert(1)</script>")).to_be_visible()
    files.get_by_role("button", name="Preview bytes.bin").click()
    expect(files.get_by_text("This file has no text to show.")).to_be_visible()
    with page.expect_download() as saving:
        files.get_by_role("button", name="Download bytes.bin").click()
    saving.value.save_as(tmp_path / "bytes.bin")
    assert (tmp_path / "bytes.bin").read_bytes() == bytes(range(256)) * 40


def test_the_guarantees_of_the_sandbox_are_in_words(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-report").page
    page.get_by_label("title").fill("sandbox")
    run(page)
    page.get_by_text("What the sandbox enforced").click()
    expect(page.get_by_text("No variables of the server")).to_be_visible()
    expect(page.get_by_text("clean environment")).to_be_visible()


def test_files_are_sent_along(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-cat").page
    page.get_by_label("Choose files").last.set_input_files(
        {"name": "note.txt", "mimeType": "text/plain", "buffer": b"from the browser"}
    )
    expect(page.get_by_role("button", name="Remove note.txt")).to_be_visible()
    run(page)
    expect(page.get_by_text("['from the browser']")).to_be_visible()


def test_files_are_sent_along_by_drop(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-cat").page
    expect(page.get_by_role("form", name="Input")).to_be_visible()
    dropped = page.evaluate_handle(
        """() => {
          const dropped = new DataTransfer();
          dropped.items.add(new File(['dropped here'], 'drop.txt'));
          return dropped;
        }"""
    )
    page.locator(".run").dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.get_by_role("button", name="Remove drop.txt")).to_be_visible()
    run(page)
    expect(page.get_by_text("['dropped here']")).to_be_visible()


def test_each_script_has_its_own_input(open_page: OpenPage, console: Console) -> None:
    echo = "import sys\nprint('got', sys.stdin.read())\n"
    console.install("run-scripts", {"scripts/execute.py": echo, "scripts/other.py": echo}, parameters=PARAMETERS)
    page = open_page(console, "#/run/run-scripts").page
    page.get_by_label("title").fill("for the first")
    page.get_by_label("title").blur()
    page.get_by_label("Script").select_option("scripts/other.py")
    page.get_by_label("Input as JSON").fill('{"a": 1}')
    run(page)
    expect(page.get_by_text('got {"a":1}')).to_be_visible()
    page.get_by_label("Script").select_option(index=0)
    expect(page.get_by_label("title")).to_have_value("for the first")


def test_a_script_that_is_gone_is_not_chosen_any_more(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-cat?script=scripts/gone.py").page
    page.get_by_label("Input as JSON").fill('{"files": []}')
    run(page)
    expect(page.get_by_text("[]", exact=True)).to_be_visible()


def test_hostile_output_is_text(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-hostile").page
    run(page)
    badge(page, "success")
    region = page.get_by_role("region", name="Output", exact=True).last
    region.evaluate("element => element.scrollTo(0, 0)")
    expect(region.get_by_text("plain", exact=False).first).to_be_visible()
    expect(region.get_by_text("red", exact=True)).to_have_class(re.compile("front-1"))
    expect(region.get_by_text("<img src=x onerror=alert(1)>", exact=False)).to_be_visible()
    expect(region.get_by_text("nul ␀ bidi ‹U+202E› end")).to_be_visible()
    assert page.title() != "owned"
    region.evaluate("element => element.scrollTo(0, element.scrollHeight)")
    region.get_by_role("button", name="Show all (977 KB)").click()
    assert page.evaluate("document.querySelectorAll('*').length") < 1000
    expect(page.get_by_role("button", name="Preview <b>x.txt")).to_be_visible()


def test_ten_megabytes_of_output_stay_few_elements(open_page: OpenPage, console: Console, tmp_path: Path) -> None:
    page = open_page(console, "#/run/run-long").page
    run(page)
    region = page.get_by_role("region", name="Output", exact=True).last
    expect(region.get_by_text("the end")).to_be_visible()
    expect(page.get_by_text("265,001 older lines are not shown.")).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < 1000
    region.evaluate("element => element.scrollTo(0, 1000)")
    expect(page.get_by_role("button", name="Follow the end")).to_be_visible()
    expect(region.get_by_text("the end")).to_be_hidden()
    page.get_by_role("button", name="Follow the end").click()
    expect(region.get_by_text("the end")).to_be_visible()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Download the whole output").click()
    saving.value.save_as(tmp_path / "output.txt")
    text = (tmp_path / "output.txt").read_text()
    assert text.count("\n") == 270_001
    assert text.endswith("the end\n")


def test_a_dangerous_run_is_approved_by_keyboard_and_goes_on(open_page: OpenPage, console: Console) -> None:
    watched = open_page(console, "#/run/run-danger")
    watched.expect_status(409)
    page = watched.page
    page.get_by_label("Input as JSON").fill('{"table": "orders"}')
    page.keyboard.press("Control+Enter")
    card = page.get_by_role("article", name="run-danger asks first")
    expect(card.get_by_text("Delete the table?")).to_be_visible()
    expect(card.get_by_text('"table": "orders"')).to_be_visible()
    page.get_by_label("Input as JSON").blur()
    expect(card.get_by_role("button", name="Approve once")).to_be_enabled()
    page.keyboard.press("y")
    expect(page.get_by_text('dropped {"table":"orders"}')).to_be_visible()
    badge(page, "success")


def test_a_denied_run_does_not_start(open_page: OpenPage, console: Console) -> None:
    watched = open_page(console, "#/run/run-danger")
    watched.expect_status(409)
    page = watched.page
    run(page)
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("article").get_by_text("Denied").first).to_be_visible()
    expect(page.get_by_text("The run was not approved. Nothing was run.")).to_be_visible()
    assert all("dropped" not in text for text in page.get_by_role("region", name="Output").all_inner_texts())


def test_a_run_is_repeated_with_its_recorded_input(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_RECORD_INPUT="true")
    console.install("report", {"scripts/execute.py": REPORT}, parameters=PARAMETERS)
    console.ask("POST", "/api/skills/report/execute", json={"input": {"title": "the recorded one"}})
    page = open_page(console, "#/run/report").page
    title = page.get_by_label(re.compile("^title", re.IGNORECASE))
    title.fill("typed before")
    page.goto(f"{console.url}/#/runs")
    page.get_by_role("table").get_by_role("link", name="report").click()
    page.get_by_role("link", name="Run again").click()
    expect(title).to_have_value("the recorded one")
    page.get_by_role("button", name="Undo").click()
    expect(title).to_have_value("typed before")


def test_a_direct_skill_shows_its_instructions(open_page: OpenPage, console: Console) -> None:
    console.install("run-direct", body="# Steps\n\nWrite about {{input.topic}}.\n")
    page = open_page(console, "#/run/run-direct").page
    page.get_by_label("Input as JSON").fill('{"topic": "rain"}')
    run(page)
    expect(page.get_by_role("heading", name="Steps")).to_be_visible()
    expect(page.get_by_text("Write about rain.")).to_be_visible()


def test_the_copied_command_runs(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-report", permissions=["clipboard-read", "clipboard-write"]).page
    page.get_by_label("title").fill("it's $HOME")
    page.get_by_role("button", name="curl").click()
    command = page.evaluate("navigator.clipboard.readText()")
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(answer.stdout)["stdout"].startswith("title it's $HOME\n")


def test_a_skill_that_somebody_removes_says_so_and_keeps_what_was_typed(open_page: OpenPage, console: Console) -> None:
    console.install("run-removed", {"scripts/execute.py": "print(1)\n"}, parameters=PARAMETERS)
    watched = open_page(console, "#/run/run-removed")
    watched.expect_status(404)
    page = watched.page
    page.get_by_label("title").fill("typed before")
    console.ask("DELETE", "/api/skills/run-removed")
    expect(page.get_by_text("There is no skill named “run-removed”.")).to_be_visible()
    expect(page.get_by_label("title")).to_have_value("typed before")


def test_output_goes_on_after_the_connection_was_lost(open_page: OpenPage, data_dir: Path) -> None:
    with upstreams() as upstream, servers(data_dir) as start:
        server = start()
        console = Console(url=server.url.rstrip("/"), data_dir=server.data_dir, upstream=upstream)
        console.install("run-streams", {"scripts/execute.py": STREAMS})
        watched = open_page(console, "#/run/run-streams")
        page = watched.page
        run(page)
        expect(page.get_by_text("err 3")).to_be_visible()
        watched.expect_server_away()
        server.stop(signal.SIGKILL)
        expect(page.get_by_text("trying again", exact=False).first).to_be_visible()
        expect(page.get_by_text("err 3")).to_be_visible()
        start("--port", console.url.rsplit(":", 1)[1])
        badge(page, re.compile("failed|cancelled"))
        assert output(page).count("out 0") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_everybody_can_use_it(open_page: OpenPage, console: Console, theme: str, locale: str) -> None:
    page = open_page(console, "#/run/run-report", color_scheme=theme, locale=locale).page
    page.get_by_label("title").fill("accessible")
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name=re.compile("table.csv")).first.click()
    expect(page.get_by_role("cell", name="Berlin")).to_be_visible()
    assert findings(page) == []
    page.goto(f"{console.url}/#/run")
    page.get_by_role("searchbox").fill("run-report")  # other tests install skills too
    expect(page.get_by_role("link", name=re.compile("run-report"))).to_be_visible()
    assert findings(page) == []


def test_it_fits_a_phone(open_page: OpenPage, console: Console) -> None:
    page = open_page(console, "#/run/run-hostile", viewport={"width": 390, "height": 844}).page
    run(page)
    badge(page, "success")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
