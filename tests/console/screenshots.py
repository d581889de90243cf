"""Pictures of every view, light and dark, English and Chinese: `make screenshots`.

Writes all of them to a folder, and those that the documentation shows to `docs/images`. They show a real server with
skills, runs and chats that this program makes.
"""

import argparse
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from apexbridge._time import MS_PER_DAY
from apexbridge.bridge import DATABASE_FILE
from apexbridge.storage.call_days import bucket_of, today
from tests.chat.upstream import KEY, Step, Upstream, call, upstreams
from tests.console.browser import browsers, watched_page
from tests.console.conftest import EXAMPLES, Console
from tests.making import write_skill
from tests.surfaces.conftest import servers

IMAGES = EXAMPLES.parents[1] / "docs/images"
IN_DOCS = ("skills", "skill", "search", "run", "chat-dark", "approvals", "insights", "system-dark", "skills-zh")
LANGUAGES = {"": "en-US", "-zh": "zh-CN"}
SCHEMES = {"": "light", "-dark": "dark"}
WIDTH, HEIGHT, PHONE = 1280, 800, 390
INVOICES = """import json, os, sys, time
rows = json.loads(os.environ["INPUT_JSON"]).get("rows", 8)
total = 0
for row in range(1, rows + 1):
    total += row * 137
    print(f"invoice {row:>3}  supplier {chr(64 + row)}  {row * 137:>8.2f} EUR", flush=True)
    time.sleep(0.05)
print("warning: invoice 7 has no date", file=sys.stderr, flush=True)
os.makedirs("output", exist_ok=True)
open("output/totals.csv", "w").write("supplier,total\\nA,137.00\\nB,274.00\\n")
open("output/report.md", "w").write(f"# Invoices\\n\\n{rows} invoices, {total:.2f} EUR in total.\\n")
print("wrote output/report.md and output/totals.csv")
"""
PARAMETERS = {
    "type": "object",
    "required": ["rows"],
    "properties": {
        "rows": {"type": "integer", "minimum": 1, "maximum": 500, "default": 8, "title": "Rows"},
        "currency": {"type": "string", "enum": ["EUR", "USD", "CNY"], "default": "EUR", "title": "Currency"},
        "columns": {"type": "array", "items": {"type": "string"}, "title": "Columns"},
    },
}
SKILLS: dict[str, tuple[str, list[str]]] = {
    "contract-diff": ("Compare two versions of a contract and explain what changed. 合同比对。", ["legal", "pdf"]),
    "dns-check": ("Check DNS records, mail settings and certificates of a domain.", ["network", "operations"]),
    "epub-build": ("Build an EPUB from Markdown chapters.", ["files", "writing"]),
    "meeting-minutes": ("Turn a transcript into minutes: decisions, owners, dates. 会议纪要。", ["writing"]),
    "photo-resize": ("Resize and crop pictures, and remove their location.", ["files", "images"]),
    "release-notes": ("Write release notes from merged changes. 撰写发布说明。", ["git", "writing"]),
    "sql-review": ("Review a schema migration for locks and lost data.", ["data", "sql"]),
    "translate-zh-en": ("Translate between Chinese and English with a glossary. 中英互译。", ["writing"]),
}
ANSWER = """Six invoices, **2,877.00 EUR** in total.

| supplier | total |
|---|---|
| A | 137.00 |
| B | 274.00 |
"""
MISSES = {"book a flight to Oslo": 7, "生成发票的二维码": 4, "play some music while I work": 2}


@dataclass(frozen=True)
class View:
    name: str
    address: str
    prepare: Callable[[Page, Console], None] = lambda page, console: None


def _search(page: Page, console: Console) -> None:
    expect(page.get_by_role("listitem").first).to_be_visible()


def _run(page: Page, console: Console) -> None:
    page.locator("main form button.primary, main button.primary").first.click()
    expect(page.get_by_text("totals.csv").first).to_be_visible()


def _chat(page: Page, console: Console) -> None:
    code = "import csv\nrows = list(csv.DictReader(open('output/totals.csv')))\nprint(len(rows), 'suppliers')\n"
    model = console.upstream.play(
        Step(calls=[call("search_skills", {"query": "read invoices"})]),
        Step(calls=[call("run_skill", {"name": "invoice-extract", "input": {"rows": 6}})]),
        Step(calls=[call("run_code", {"language": "python", "code": code})]),
        Step(text=ANSWER),
    )
    # A narrow page has the model in its options.
    page.evaluate("model => localStorage.setItem('apexbridge.chat.options', JSON.stringify({ model }))", model)
    page.reload()
    message = page.locator("main textarea").last
    message.fill("What do my invoices add up to?")
    message.press("Enter")
    expect(page.get_by_text("2,877.00 EUR")).to_be_visible()


def _check(page: Page, console: Console) -> None:
    button = page.locator("main .summary button")
    button.click()
    expect(page.locator("main .mark.good, main .mark.warn")).to_be_visible()
    expect(button).to_be_enabled()


VIEWS = (
    View("skills", "#/skills"),
    View("install", "#/skills?install=1"),
    View("skill", "#/skills/csv-insights"),
    View("skill-files", "#/skills/csv-insights/files"),
    View("skill-versions", "#/skills/release-notes/versions"),
    View("skill-access", "#/skills/invoice-extract/access"),
    View("skill-edit", "#/skills/invoice-extract/edit"),
    View("search", "#/search?q=compare+two+agreements", _search),
    View("compare", "#/search?q=compare+two+agreements&q2=%E5%90%88%E5%90%8C", _search),
    View("run", "#/run/invoice-extract", _run),
    View("chat", "#/chat", _chat),
    View("runs", "#/runs"),
    View("approvals", "#/approvals"),
    View("audit", "#/audit"),
    View("insights", "#/insights?days=90"),
    View("system", "#/system", _check),
    View("models", "#/system/models"),
    View("keys", "#/system/keys"),
    View("settings", "#/system/settings"),
    View("storage", "#/system/storage"),
)


def _write_skills(root: Path) -> None:
    for name, (description, tags) in SKILLS.items():
        write_skill(root, name, {"scripts/execute.py": "print('done')\n"}, description=description, tags=tags)
    write_skill(
        root,
        "invoice-extract",
        {"scripts/execute.py": INVOICES},
        description="Read invoices and give supplier, date, lines and totals as a table. 提取发票信息。",
        tags=["finance", "pdf"],
        parameters=PARAMETERS,
        permissions=["net:api.example.com:443"],
    )
    write_skill(
        root,
        "db-migrate",
        {"scripts/execute.py": "print('migrated')\n"},
        description="Apply schema migrations to a database and report what changed.",
        tags=["data", "sql"],
        dangerous=True,
        confirm="Apply to the live database?",
    )


def _write_history(database: Path) -> None:
    """Calls and searches of the last months, as if they had happened."""
    now = int(time.time() * 1000)
    rates = {
        "invoice-extract": (9, 14, 420),
        "release-notes": (5, 0, 90),
        "sql-review": (3, 5, 1900),
        "csv-insights": (7, 21, 160),
    }
    with sqlite3.connect(database) as connection:
        for age in range(1, 90):
            for position, (skill, (calls, rhythm, duration)) in enumerate(rates.items()):
                count = max(0, calls + (age * 7 + position * 5) % 6 - 3 - (4 if age % 7 in (2, 3) else 0) - age // 20)
                if count == 0:
                    continue
                failed = 1 if rhythm and age % rhythm == 0 else 0
                slower = duration + (age * 37 + position * 11) % duration
                row = (today() - age, skill, bucket_of(slower), count, failed, now - age * MS_PER_DAY)
                connection.execute("INSERT INTO skill_call_days VALUES (?, ?, ?, ?, ?, ?)", row)
        for position, (query, count) in enumerate(MISSES.items()):
            miss = (query, count, now - position * MS_PER_DAY, 0)
            connection.execute("INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?)", miss)
    connection.close()


@contextmanager
def _demonstration(folder: Path, upstream: Upstream) -> Iterator[Console]:
    data_dir = folder / "data"
    _write_skills(data_dir / "skills")
    settings = {"APEX_LLM_BASE_URL": upstream.url, "APEX_LLM_API_KEY": KEY, "APEX_LLM_TOOL_MODE": "native"}
    with servers(data_dir) as start:
        start("--examples", str(EXAMPLES)).stop()
        _write_history(data_dir / DATABASE_FILE)
        server = start("--examples", str(EXAMPLES), **settings)
        console = Console(url=server.url.rstrip("/"), data_dir=data_dir, upstream=upstream)
        for name in ("invoice-extract", "release-notes", "sql-review", "photo-resize"):
            console.ask("POST", f"/api/skills/{name}/execute", json={"input": {"rows": 3}})
        console.ask(
            "PUT",
            "/api/skills/release-notes/description",
            json={
                "description": "Write release notes from merged changes, grouped by what users notice. 撰写发布说明。"
            },
        )
        for name, scopes in (("night build", ["run", "read"]), ("claude code", ["chat"])):
            console.ask("POST", "/api/keys", json={"name": name, "scopes": scopes, "expiresIn": 7_776_000})
        console.attempt(
            "POST", "/api/skills/db-migrate/execute", json={"input": {"database": "orders", "dryRun": False}}
        )
        yield console


def _draw(browser: Browser, console: Console, view: View, file: Path, *, width: int = WIDTH, **options: str) -> None:
    with watched_page(browser, f"{console.url}/", viewport={"width": width, "height": HEIGHT}, **options) as watched:
        page = watched.page
        page.goto(f"{console.url}/{view.address}")
        expect(page.locator("main h1").first).to_be_visible()
        view.prepare(page, console)
        expect(page.locator("main .skeleton")).to_have_count(0)
        page.wait_for_load_state("load")
        page.evaluate("document.fonts.ready")
        page.mouse.move(0, 0)
        page.screenshot(path=file, animations="disabled", caret="hide")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the pictures")
    parser.add_argument("--only", help="one view")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder, upstream = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(upstreams())
        browser = stack.enter_context(browsers())
        console = stack.enter_context(_demonstration(Path(folder), upstream))
        for view in VIEWS:
            if arguments.only not in (None, view.name):
                continue
            for language, locale in LANGUAGES.items():
                for scheme, color_scheme in SCHEMES.items():
                    file = arguments.folder / f"{view.name}{scheme}{language}.png"
                    _draw(browser, console, view, file, locale=locale, color_scheme=color_scheme)
                    print(file.name, flush=True)
            file = arguments.folder / f"{view.name}-phone.png"
            _draw(browser, console, view, file, width=PHONE, locale="en-US", color_scheme="light")
    IMAGES.mkdir(exist_ok=True)
    for name in IN_DOCS:
        if (arguments.folder / f"{name}.png").exists():
            shutil.copy(arguments.folder / f"{name}.png", IMAGES / f"console-{name}.png")


if __name__ == "__main__":
    main()
