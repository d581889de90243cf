"""The console in a real browser: the longest task of the page, and the CPU time of a server with an open, idle page."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, Page, async_playwright

from benchmarks.commands import server
from benchmarks.library import SKILLS, write_library
from benchmarks.measuring import Comparison, cpu_ms, within_limit

TASK_LIMIT_MS: Final = 100.0
IDLE_LIMIT_MS: Final = 1.0
IDLE_SECONDS: Final = 60
READY_SECONDS: Final = 600
WAIT_MS: Final = 300_000
OUTPUT_BYTES: Final = 10_000_000
MODEL: Final = Path(__file__).parent / "programs/upstream.py"
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
TRACED: Final = ["disabled-by-default-devtools.timeline", "blink.user_timing", "blink"]
DEVTOOLS_COPY: Final = "ResponseBodyLoader::DidFinishLoadingBody"
"""Under playwright the browser decodes a copy of each response for its developer tools, 10 MB in 20 to 100 ms. Without
them it does not, so that the time is not the page's."""
MARK: Final = "the page's own thread"
LINES = {
    "plain": "line {} of an output that is long enough to matter",
    "chinese": "第 {} 行：这是一个足够长的输出，用来测量页面的速度",
    "coloured": "\x1b[32mline\x1b[0m {} of an \x1b[1moutput\x1b[0m with \x1b[33;4mcolours\x1b[0m",
}
SCRIPT = """
import sys
line, size, number = {line!r}, 0, 0
while size < {size}:
    block = "".join(line.format(number + index) + "\\n" for index in range(200))
    sys.stdout.write(block)
    size, number = size + len(block.encode()), number + 200
print("the end")
"""
ONE_LINE = """
import sys
sys.stdout.write("x" * {size})
print("\\nthe end")
"""
Walk = Callable[[Page], Awaitable[None]]


async def run() -> list[Comparison]:
    """Longest tasks with many skills, large outputs and long answers, and the cost of an idle page."""
    with tempfile.TemporaryDirectory() as folder, _model() as model_url:
        data_dir = Path(folder) / "data"
        write_library(data_dir / "skills")
        for name, script in _scripts().items():
            _write_skill(data_dir / f"skills/print-{name}", script)
        settings = {"APEX_LLM_BASE_URL": model_url, "APEX_LLM_TOOL_MODE": "native"}
        with server(data_dir, settings):
            announced = json.loads((data_dir / "server.json").read_text())
            url, pid = announced["url"].rstrip("/"), announced["pid"]
            await _until_ready(url)
            async with _browser() as browser:
                figures = [
                    within_limit(f"longest task, {what}", await _longest_task(browser, url, walk), TASK_LIMIT_MS)
                    for what, walk in _walks().items()
                ]
                alone = await _cpu_ms_per_second(pid)
                page = await browser.new_page()
                await page.goto(f"{url}/")
                await page.get_by_role("table").wait_for()
                await asyncio.sleep(10)
                cost = await _cpu_ms_per_second(pid) - alone
                print(f"an idle server without a page: {alone:.2f} ms of CPU time a second", flush=True)
        return [*figures, within_limit("an open page, CPU time a second", max(0.0, cost), IDLE_LIMIT_MS)]


def _walks() -> dict[str, Walk]:
    return {
        f"{SKILLS:,} skills": _skills,
        **{f"10 MB of {name.replace('-', ' ')} output": _output(name) for name in _scripts()},
        "an answer of 90 KB": _answer("article"),
        "an answer with a code block of 90 KB": _answer("code"),
    }


async def _skills(page: Page) -> None:
    """Open the list, filter it as one types, sort it, turn pages, open a skill, and go back."""
    await page.goto("#/skills")
    await page.get_by_role("table").wait_for()
    field = page.get_by_role("searchbox", name="Filter skills")
    await field.press_sequentially("number 99", delay=50)
    await page.get_by_role("link", name="skill-00099", exact=True).wait_for()
    await field.fill("")
    await page.get_by_role("link", name="skill-00001", exact=True).wait_for()
    for _ in range(5):
        await page.get_by_role("button", name="Next").click()
        await page.wait_for_timeout(300)
    await page.goto("#/skills?sort=calls")
    await page.get_by_role("link", name="skill-00001", exact=True).click()
    await page.get_by_role("heading", name="Skill 1", exact=True).wait_for()
    await page.go_back()
    await page.get_by_role("table").wait_for()


def _output(name: str) -> Walk:
    async def walk(page: Page) -> None:
        """Run a skill, see its end, scroll through it, and follow its end again. Then open the run as recorded."""
        await page.goto(f"#/run/print-{name}")
        await page.get_by_role("button", name="Run Ctrl").click()
        region = page.get_by_role("region", name="Output", exact=True).last
        await region.get_by_text("the end", exact=True).wait_for()
        for part in range(10):
            await region.evaluate("(element, part) => element.scrollTo(0, element.scrollHeight * part)", part / 10)
            await page.wait_for_timeout(50)
        await page.goto("#/runs")
        await page.get_by_role("link", name=f"print-{name}").first.click()
        await page.get_by_text("the end", exact=True).wait_for()

    return walk


def _answer(model: str) -> Walk:
    async def walk(page: Page) -> None:
        """Ask, wait for the end of the answer, and load the conversation again."""
        await page.goto("#/chat")
        await page.get_by_role("combobox", name="Model").select_option(label="Another model…")
        name = page.get_by_role("textbox", name="Name of the model")
        await name.fill(model)
        await name.press("Enter")
        message = page.get_by_role("textbox", name="Message")
        await message.fill("Write.")
        await message.press("Enter")
        answer = page.get_by_role("article", name="Answer")
        await answer.get_by_text("That was all.").wait_for()
        await page.reload()
        await answer.get_by_text("That was all.").wait_for()

    return walk


async def _longest_task(browser: Browser, url: str, walk: Walk) -> float:
    """CPU time of the longest task of the page's main thread. A busy machine makes tasks longer, but not this."""
    context = await browser.new_context(base_url=f"{url}/", locale="en-US")
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    await browser.start_tracing(page=page, categories=TRACED)
    try:
        await walk(page)
        await page.evaluate("name => performance.mark(name)", MARK)
    finally:
        events = json.loads(await browser.stop_tracing())["traceEvents"]
        await context.close()
    # The browser's own pages have threads of the same name.
    thread = next((each["pid"], each["tid"]) for each in events if each["name"] == MARK)
    own = [each for each in events if (each["pid"], each["tid"]) == thread and "tdur" in each]
    copies = {each["ts"]: each["tdur"] for each in own if each["name"] == DEVTOOLS_COPY}
    return max(_own_time(each, copies) for each in own if each["name"] == "RunTask") / 1000


def _own_time(task: dict[str, Any], copies: dict[int, int]) -> float:
    """CPU time of a task without the copies for the developer tools, in microseconds."""
    end = task["ts"] + task["dur"]
    return float(task["tdur"] - sum(time for begin, time in copies.items() if task["ts"] <= begin <= end))


async def _cpu_ms_per_second(pid: int) -> float:
    before = cpu_ms(pid)
    await asyncio.sleep(IDLE_SECONDS)
    return (cpu_ms(pid) - before) / IDLE_SECONDS


def _scripts() -> dict[str, str]:
    printed = {name: SCRIPT.format(line=line, size=OUTPUT_BYTES) for name, line in LINES.items()}
    return {**printed, "one-line": ONE_LINE.format(size=OUTPUT_BYTES)}


def _write_skill(folder: Path, script: str) -> None:
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: Prints 10 MB.\n---\nPrint.\n")
    (folder / "scripts/execute.py").write_text(script)


async def _until_ready(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(READY_SECONDS):
            if (await client.get(f"{url}/readyz")).is_success:
                return
            await asyncio.sleep(1)
        raise TimeoutError("the server is not ready")


@asynccontextmanager
async def _browser() -> AsyncIterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "this benchmark needs a Chromium browser: scripts/system-parts.sh"
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@contextmanager
def _model() -> Iterator[str]:
    command: list[Any] = [sys.executable, MODEL, "20", "1", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().decode().strip() + "/v1"
        finally:
            process.terminate()
