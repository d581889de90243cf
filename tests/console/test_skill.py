"""The view of one skill: what it is, its files, versions, permissions, packages and description."""

import io
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.accessibility import findings
from tests.console.browser import Watched, enter_key
from tests.console.conftest import Console, OpenPage, StartConsole
from tests.making import write_skill
from tests.mounting import mounted_disk
from tests.sandbox.test_layers import make_wheel
from tests.skills.source_server import SourceRepository
from tests.waiting import PATIENCE_SECONDS

HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)> \u202egnp.exe"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5"
    "f645400000000049454e44ae426082"
)


def install_with_files(console: Console, name: str) -> None:
    files: dict[str, str | bytes] = {
        "scripts/execute.py": "import json\nprint(json.dumps({'answer': 42}))\n",
        "references/format.md": "# The format\n\nA JSON object.\n",
        "assets/rows.csv": "city,visits\nBerlin,12\n",
        "assets/data.json": '{"answer":42}',
        "assets/pixel.png": PIXEL,
        "assets/blob.bin": bytes(range(256)) * 4,
    }
    console.install(name, files, body="# How\n\nSee [the format](references/format.md).\n")


def alert(page: Page, text: str) -> Locator:
    return page.get_by_role("alert").filter(has_text=text)


# -------------------------------------------------------------------------------------------------- about, header
def test_a_skill_is_shown_with_its_text_its_facts_and_its_input(console: Console, open_page: OpenPage) -> None:
    fields = {"version": "1.2.3", "author": "acme", "license": "MIT", "tags": ["finance"], "allowed_tools": "Read Bash"}
    parameters = {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}}
    body = "# How to use it\n\n- [x] checked\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    console.install("about-skill", {"scripts/execute.py": "print(1)"}, body=body, parameters=parameters, **fields)
    console.ask("POST", "/api/skills/about-skill/execute", json={"input": {"title": "x"}})
    page = open_page(console, "#/skills/about-skill").page
    expect(page.get_by_role("heading", name="about-skill", level=1)).to_be_visible()
    expect(page.get_by_role("heading", name="How to use it")).to_be_visible()
    expect(page.get_by_role("columnheader", name="a")).to_be_visible()
    for text in ("1.2.3", "acme", "MIT", "finance", "Bash", "2 files", "title", "required"):
        expect(page.get_by_text(text, exact=True).first).to_be_visible()
    content_hash = console.ask("GET", "/api/skills/about-skill")["contentHash"]
    expect(page.get_by_text(content_hash[:12])).to_be_visible()
    expect(page.get_by_role("meter", name="100% succeeded")).to_be_visible()
    [run] = console.ask("GET", "/api/executions?skill=about-skill")["executions"]
    expect(page.locator(f'a[href$="#/runs/{run["id"]}"]')).to_contain_text("success")
    expect(page.get_by_role("link", name="Run", exact=True).last).to_have_attribute("href", "#/run/about-skill")


def test_runs_of_a_skill_appear_while_they_are_looked_at(console: Console, open_page: OpenPage) -> None:
    console.install("runs-skill", {"scripts/execute.py": "print(1)"})
    page = open_page(console, "#/skills/runs-skill/runs").page
    expect(page.get_by_text("No runs so far.")).to_be_visible()
    console.ask("POST", "/api/skills/runs-skill/execute", json={})
    expect(page.get_by_role("row").filter(has_text="success")).to_have_count(1)


def test_a_skill_is_switched_off_and_on(console: Console, open_page: OpenPage) -> None:
    console.install("switch-skill")
    page = open_page(console, "#/skills/switch-skill").page
    switch = page.get_by_role("switch", name="switch-skill: on or off")
    expect(switch).to_be_checked()
    switch.click()
    expect(switch).not_to_be_checked()
    expect(page.get_by_text("off", exact=True)).to_be_visible()
    assert console.ask("GET", "/api/skills/switch-skill")["enabled"] is False
    console.ask("POST", "/api/skills/switch-skill/enable")
    expect(switch).to_be_checked()


def test_a_skill_is_exported_and_read_from_disk_again_by_keyboard(console: Console, open_page: OpenPage) -> None:
    console.install("menu-skill", body="# Before\n")
    page = open_page(console, "#/skills/menu-skill").page
    expect(page.get_by_role("heading", name="Before")).to_be_visible()
    page.get_by_role("button", name="More acts").focus()
    with page.expect_download() as downloading:
        page.keyboard.press("Enter")
        expect(page.get_by_role("menuitem", name="Export as ZIP")).to_be_focused()
        page.keyboard.press("Enter")
    with zipfile.ZipFile(downloading.value.path()) as archive:
        assert "menu-skill/SKILL.md" in archive.namelist()
    expect(page.get_by_role("button", name="More acts")).to_be_focused()
    file = console.data_dir / "skills/menu-skill/SKILL.md"
    file.write_text(file.read_text().replace("Before", "After"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Reload from disk")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="After")).to_be_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_be_hidden()
    expect(page.get_by_role("button", name="More acts")).to_be_focused()


def test_an_uninstall_names_what_is_lost_and_can_be_undone(console: Console, open_page: OpenPage) -> None:
    console.install("gone-skill", {"scripts/execute.py": "print(1)"}, permissions=["net:example.com:443"])
    console.ask("POST", "/api/skills/gone-skill/grants", json={"permission": "net:example.com:443"})
    page = open_page(console, "#/skills/gone-skill").page
    page.get_by_role("button", name="More acts").click()
    page.get_by_role("menuitem", name="Uninstall…").click()
    dialog = page.get_by_role("dialog", name="Uninstall gone-skill?")
    expect(dialog).to_contain_text("It can be restored for 7 days")
    expect(dialog).to_contain_text("net:example.com:443")
    with page.expect_download() as downloading:
        dialog.get_by_role("button", name="Export first").click()
    assert downloading.value.suggested_filename == "gone-skill.zip"
    dialog.get_by_role("button", name="Uninstall", exact=True).click()
    expect(page).to_have_url(re.compile("#/skills$"))
    page.get_by_role("status").get_by_role("button", name="Undo").click()
    expect(page).to_have_url(re.compile("#/skills/gone-skill$"))
    expect(page.get_by_text("Permissions have to be granted again")).to_be_visible()
    expect(page.get_by_role("heading", name="gone-skill", level=1)).to_be_visible()
    assert console.ask("GET", "/api/skills/gone-skill")["grants"] == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is smaller than what a server keeps free."""
    with mounted_disk(tmp_path / "full", megabytes=128) as folder:
        yield folder


def test_an_uninstall_that_keeps_nothing_offers_no_undo(
    full_disk: Path, start_console: StartConsole, open_page: OpenPage
) -> None:
    for name in ("lost-a", "lost-b", "lost-c"):
        write_skill(full_disk / "data/skills", name)
    console = start_console(folder=full_disk / "data")
    page = open_page(console, "#/skills/lost-a").page
    page.get_by_role("button", name="More acts").click()
    page.get_by_role("menuitem", name="Uninstall…").click()
    dialog = page.get_by_role("dialog", name="Uninstall lost-a?")
    dialog.get_by_role("button", name="Uninstall", exact=True).click()
    expect(page).to_have_url(re.compile("#/skills$"))
    expect(page.get_by_role("status").get_by_text("lost-a")).to_be_visible()
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    page.get_by_role("checkbox", name="Select all on this page").check()
    page.get_by_role("toolbar", name="2 selected").get_by_role("button", name="Uninstall").click()
    page.get_by_role("dialog").get_by_role("button", name="Uninstall", exact=True).click()
    expect(page.get_by_text("No skills yet")).to_be_visible()
    expect(page.get_by_role("status").get_by_text("2 skills uninstalled")).to_be_visible()
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    assert console.ask("GET", "/api/skills/removed") == []


def test_a_skill_that_is_not_there_says_so_and_can_be_restored(console: Console, open_page: OpenPage) -> None:
    console.install("absent-skill")
    console.ask("DELETE", "/api/skills/absent-skill")
    watched = open_page(console, "#/skills/absent-skill")
    watched.expect_status(404)
    page = watched.page
    expect(page.get_by_text("There is no skill named “absent-skill”.")).to_be_visible()
    page.get_by_role("button", name="Restore it").click()
    expect(page.get_by_role("heading", name="absent-skill", level=1)).to_be_visible()


def test_a_skill_that_somebody_else_removes_keeps_what_was_typed(console: Console, open_page: OpenPage) -> None:
    console.install("removed-skill", description="Before.")
    watched = open_page(console, "#/skills/removed-skill/edit")
    watched.expect_status(404)
    page = watched.page
    page.get_by_role("textbox", name="Description").fill("A long text that took an hour.")
    console.ask("DELETE", "/api/skills/removed-skill")
    expect(alert(page, "This skill was removed meanwhile.")).to_be_visible()
    expect(page.get_by_role("textbox", name="Your draft")).to_have_value("A long text that took an hour.")
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    page.get_by_role("button", name="Restore it").click()
    expect(page.get_by_role("textbox", name="Description")).to_have_value("A long text that took an hour.")
    expect(page.get_by_role("button", name="Save")).to_be_enabled()


def test_a_long_text_is_drawn_completely_after_a_reload(console: Console, open_page: OpenPage) -> None:
    """It is drawn in parts, so that it does not hold up the page."""
    sentence = "It says the same as all the others, but it has a number of its own. " * 2
    body = "".join(f"Paragraph {number}. {sentence}\n\n" for number in range(600))
    assert 90_000 < len(body) < 100_000
    console.install("long-text", body=body)
    page = open_page(console, "#/skills/long-text").page
    paragraphs = page.get_by_role("region", name="Instructions").locator(".prose p")
    for _ in range(2):
        expect(paragraphs).to_have_count(600)
        expect(paragraphs.last).to_contain_text("Paragraph 599.")
        page.reload()


# --------------------------------------------------------------------------------------------------------- updates
@pytest.fixture
def repository(tmp_path: Path) -> SourceRepository:
    """The source of the skill "sourced"."""
    made = SourceRepository(tmp_path / "upstream")
    made.commit_skill("sourced", description="The first.")
    made.commit({"skills/sourced/scripts/execute.py": "print(1)\n", "skills/sourced/old.md": "old\n"})
    return made


@pytest.fixture
def sourced(start_console: StartConsole, open_page: OpenPage, repository: SourceRepository) -> tuple[Console, Watched]:
    """A skill that was installed from files of the server. Only the owner of the server may read those."""
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    console.ask("POST", "/api/skills/install", json={"source": f"{repository.url}#skills/sourced"})
    watched = open_page(console)
    watched.expect_status(401)
    enter_key(watched.page, console.owner_key)
    expect(watched.page.get_by_role("dialog", name="API key")).to_be_hidden()
    watched.page.goto(f"{console.url}/#/skills/sourced")
    return console, watched


def open_update(page: Page) -> Locator:
    page.get_by_role("button", name="More acts").click()
    page.get_by_role("menuitem", name="Update from its source").click()
    return page.get_by_role("dialog", name="Update sourced")


def test_an_update_shows_what_changed_in_the_source_and_installs_it(
    sourced: tuple[Console, Watched], repository: SourceRepository
) -> None:
    console, watched = sourced
    page = watched.page
    before = console.ask("GET", "/api/skills/sourced")["origin"]["commit"]
    dialog = open_update(page)
    expect(dialog.get_by_text("It is up to date.")).to_be_visible()
    expect(dialog.get_by_role("button", name="Install the update")).to_have_count(0)
    dialog.get_by_role("button", name="Close").last.click()
    expect(dialog).to_be_hidden()

    repository.commit_skill("sourced", description="The second.", permissions=["net:example.com:443"])
    changed = {"scripts/execute.py": "print(2)\n", "new.md": "new\n", "old.md": None}
    after = repository.commit({f"skills/sourced/{path}": text for path, text in changed.items()})
    open_update(page)
    expect(dialog.get_by_text(f"{before[:12]} → {after[:12]}")).to_be_visible()
    for line in ("+ new.md", "~ SKILL.md", "~ scripts/execute.py", "− old.md"):
        expect(dialog.get_by_role("listitem").filter(has_text=line)).to_have_count(1)
    expect(dialog.get_by_text("The second.")).to_be_visible()
    expect(dialog.get_by_text("net:example.com:443")).to_be_visible()
    assert findings(page) == []
    assert console.ask("GET", "/api/skills/sourced")["description"] == "The first."
    dialog.get_by_role("button", name="Install the update").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_text("The second.").first).to_be_visible()
    assert console.ask("GET", "/api/skills/sourced")["origin"]["commit"] == after


def test_an_update_from_a_source_that_is_gone_says_why(
    sourced: tuple[Console, Watched], repository: SourceRepository, tmp_path: Path
) -> None:
    _, watched = sourced
    watched.expect_status(404, 422, 502)
    shutil.move(repository.folder, tmp_path / "elsewhere")
    dialog = open_update(watched.page)
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    expect(dialog.get_by_role("button", name="Install the update")).to_have_count(0)
    shutil.move(tmp_path / "elsewhere", repository.folder)
    dialog.get_by_role("button", name="Try again").click()
    expect(dialog.get_by_text("It is up to date.")).to_be_visible()
    expect(dialog.get_by_role("alert")).to_have_count(0)


# ----------------------------------------------------------------------------------------------------------- files
def test_files_are_shown_by_their_kind(console: Console, open_page: OpenPage) -> None:
    install_with_files(console, "files-skill")
    page = open_page(console, "#/skills/files-skill/files").page
    preview = page.get_by_role("region", name=re.compile("^Preview of"))
    expect(preview.get_by_text("name: files-skill")).to_be_visible()
    tree = page.get_by_role("tree", name="Files of the skill")
    tree.get_by_role("treeitem", name="execute.py").click()
    expect(preview.get_by_text("import json")).to_be_visible()
    expect(page).to_have_url(re.compile(r"files\?path=scripts%2Fexecute\.py$"))
    tree.get_by_role("treeitem", name="rows.csv").click()
    expect(preview.get_by_role("cell", name="Berlin")).to_be_visible()
    tree.get_by_role("treeitem", name="data.json").click()
    expect(preview.get_by_text('"answer": 42')).to_be_visible()
    tree.get_by_role("treeitem", name="pixel.png").click()
    expect(preview.get_by_role("img")).to_be_visible()
    assert preview.get_by_role("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    tree.get_by_role("treeitem", name="blob.bin").click()
    expect(preview.get_by_text("This file has no text to show.")).to_be_visible()
    with page.expect_download() as downloading:
        preview.get_by_role("button", name="Download").click()
    assert Path(downloading.value.path()).read_bytes() == bytes(range(256)) * 4


def test_links_between_files_of_a_skill_lead_to_the_files(console: Console, open_page: OpenPage) -> None:
    install_with_files(console, "linked-skill")
    page = open_page(console, "#/skills/linked-skill").page
    page.get_by_role("link", name="the format").click()
    expect(page).to_have_url(re.compile("path=references%2Fformat.md"))
    expect(page.get_by_role("heading", name="The format")).to_be_visible()


def test_the_tree_of_files_works_by_keyboard(console: Console, open_page: OpenPage) -> None:
    install_with_files(console, "tree-skill")
    page = open_page(console, "#/skills/tree-skill/files").page
    tree = page.get_by_role("tree")
    tree.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem", name="assets")).to_have_attribute("aria-expanded", "false")
    expect(tree.get_by_role("treeitem", name="rows.csv")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("d")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("path=assets%2Fdata.json"))
    expect(tree.get_by_role("treeitem", name="data.json")).to_have_attribute("aria-selected", "true")


def test_a_file_that_is_not_there_and_a_long_file(console: Console, open_page: OpenPage) -> None:
    text = "".join(f"line {number}\n" for number in range(60_000))
    console.install("long-skill", {"assets/long.txt": text})
    watched = open_page(console, "#/skills/long-skill/files?path=none.txt")
    page = watched.page
    expect(page.get_by_text("There is no file “none.txt” in this skill.")).to_be_visible()
    page.get_by_role("treeitem", name="long.txt").click()
    expect(page.get_by_text("The first 256 KB of")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_text("The first 256 KB of")).to_be_hidden()
    ranges = [request.headers.get("range") for request in watched.requests if "long.txt" in request.url]
    assert ranges == ["bytes=0-262143", "bytes=0-1048575"]


def test_many_files_are_drawn_as_far_as_they_are_seen(console: Console, open_page: OpenPage) -> None:
    console.install("many-files", {f"assets/f{number:04}.txt": "x" for number in range(900)})
    page = open_page(console, "#/skills/many-files/files").page
    page.get_by_role("treeitem", name="assets").click()
    expect(page.get_by_role("treeitem", name="f0001.txt")).to_be_visible()
    assert page.get_by_role("treeitem").count() < 100
    page.get_by_role("tree").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("tree")).to_have_attribute("aria-activedescendant", re.compile("-2$"))
    page.get_by_role("searchbox", name="Filter files").fill("f0899")
    page.get_by_role("treeitem", name="f0899.txt").click()
    expect(page).to_have_url(re.compile("f0899.txt"))


# -------------------------------------------------------------------------------------------------------- versions
def test_versions_show_their_changes_and_are_rolled_back(console: Console, open_page: OpenPage) -> None:
    permission = "net:example.com:443"
    fields = {"permissions": [permission]}
    console.install("versions-skill", {"scripts/execute.py": "print(1)\n", "a.txt": "same\n"}, **fields)
    console.install("versions-skill", {"scripts/execute.py": "print(2)\n", "b.txt": "new\n"}, **fields)
    console.ask("POST", "/api/skills/versions-skill/grants", json={"permission": permission})
    page = open_page(console, "#/skills/versions-skill/versions").page
    second = page.get_by_role("listitem").filter(has_text="Version 2")
    expect(second.get_by_text("installed", exact=True).first).to_be_visible()
    second.get_by_role("button", name="Changes").click()
    changes = page.get_by_role("region", name="Changes in version 2")
    expect(changes.get_by_role("row", name=re.compile(r"removed: print\(1\)"))).to_be_visible()
    expect(changes.get_by_role("row", name=re.compile(r"added: print\(2\)"))).to_be_visible()
    for name, change in (("a.txt", "removed"), ("b.txt", "added")):
        expect(changes.get_by_role("group").filter(has_text=name).filter(has_text=change).first).to_be_visible()
    page.reload()
    expect(changes.get_by_role("row", name=re.compile(r"print\(2\)"))).to_be_visible()
    page.get_by_role("listitem").filter(has_text="Version 1").get_by_role("button", name="Roll back…").click()
    dialog = page.get_by_role("dialog", name="Install version 1?")
    expect(dialog).to_contain_text("Version 2 stays in the list.")
    expect(dialog).to_contain_text("The granted permission becomes void")
    dialog.get_by_role("button", name="Install version 1").click()
    expect(page.get_by_text("Version 1 is installed. Before, it was version 2.")).to_be_visible()
    assert console.ask("GET", "/api/skills/versions-skill/versions")["defaultVersion"] == 1
    expect(
        page.get_by_role("listitem").filter(has_text="Version 2").get_by_role("button", name="Install…")
    ).to_be_visible()


def test_a_version_is_downloaded_and_deleted(console: Console, open_page: OpenPage) -> None:
    console.install("old-versions", {"a.txt": "first\n"})
    console.install("old-versions", {"a.txt": "second\n"})
    page = open_page(console, "#/skills/old-versions/versions").page
    page.get_by_role("button", name="More acts: Version 1").click()
    with page.expect_download() as downloading:
        page.get_by_role("menuitem", name="Download").click()
    with zipfile.ZipFile(io.BytesIO(Path(downloading.value.path()).read_bytes())) as archive:
        assert archive.read("old-versions/a.txt") == b"first\n"
    page.get_by_role("button", name="More acts: Version 1").click()
    page.get_by_role("menuitem", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("listitem").filter(has_text="Version 1")).to_have_count(0)
    page.get_by_role("button", name="More acts: Version 2").click()
    expect(page.get_by_role("menuitem", name=re.compile("Delete"))).to_have_attribute("aria-disabled", "true")


# ---------------------------------------------------------------------------------------------------------- access
def test_permissions_are_granted_and_a_secret_is_set_and_never_shown(console: Console, open_page: OpenPage) -> None:
    permissions = ["net:api.example.com:443", "secret:ACCESS_KEY", "env:LANG"]
    console.install("access-skill", {"scripts/execute.py": "print(1)"}, permissions=permissions)
    page = open_page(console, "#/skills/access-skill/access").page
    expect(page.get_by_text("Connect to api.example.com, port 443")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("Access.*3"))).to_be_visible()
    page.get_by_role("switch", name="Grant secret:ACCESS_KEY").click()
    expect(page.get_by_role("switch", name="Grant secret:ACCESS_KEY")).to_be_checked()
    assert console.ask("GET", "/api/skills/access-skill")["grants"] == ["secret:ACCESS_KEY"]
    value = page.get_by_label("Value of ACCESS_KEY")
    expect(value).to_have_attribute("type", "password")
    value.fill("correct-horse")
    page.get_by_role("button", name="Save the value").click()
    expect(page.get_by_text("set", exact=True)).to_be_visible()
    assert "ACCESS_KEY" in console.ask("GET", "/api/secrets")["names"]
    page.reload()
    expect(page.get_by_role("button", name="Replace…")).to_be_visible()
    assert "correct-horse" not in page.content()
    page.get_by_role("switch", name="Grant net:api.example.com:443").click()
    expect(page.get_by_text("A skill can send anything to a granted host")).to_be_visible()
    page.get_by_role("switch", name="Grant net:api.example.com:443").click()
    expect(page.get_by_text("A skill can send anything to a granted host")).to_be_hidden()
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_text("not set", exact=True)).to_be_visible()


def test_a_grant_to_other_content_is_void(console: Console, open_page: OpenPage) -> None:
    console.install("void-skill", {"a.txt": "1"}, permissions=["env:LANG"])
    console.ask("POST", "/api/skills/void-skill/grants", json={"permission": "env:LANG"})
    page = open_page(console, "#/skills/void-skill/access").page
    expect(page.get_by_role("switch", name="Grant env:LANG")).to_be_checked()
    console.install("void-skill", {"a.txt": "2"}, permissions=["env:LANG"])
    expect(page.get_by_role("switch", name="Grant env:LANG")).not_to_be_checked()
    expect(page.get_by_text("It was granted to other content of this skill.")).to_be_visible()


def test_a_dangerous_skill_shows_its_question(console: Console, open_page: OpenPage) -> None:
    console.install("danger-skill", dangerous=True, confirm="Apply this to the live database?")
    page = open_page(console, "#/skills/danger-skill/access").page
    expect(page.get_by_text("Apply this to the live database?")).to_be_visible()
    expect(page.get_by_text("asks first")).to_be_visible()


def test_packages_are_detected_added_and_removed(console: Console, open_page: OpenPage) -> None:
    files: dict[str, str | bytes] = {
        "scripts/execute.py": "import yaml\nimport docx_nobody_knows\n",
        "requirements.txt": "six>=1\n",
    }
    console.install("package-skill", files)
    page = open_page(console, "#/skills/package-skill/access").page
    expect(page.get_by_text("Not all packages are installed.")).to_be_visible()
    declared = page.get_by_role("listitem").filter(has_text="six>=1")
    expect(declared).to_contain_text("declared")
    used = page.get_by_role("listitem").filter(has_text=re.compile("pyyaml", re.IGNORECASE))
    expect(used).to_contain_text("missing")
    expect(used.get_by_role("link", name="scripts/execute.py:1")).to_be_visible()
    used.get_by_role("button", name=re.compile("^Add ")).click()
    expect(used).to_contain_text("added here")
    expect(used).to_contain_text("not installed")
    used.get_by_role("button", name=re.compile("^Remove ")).click()
    expect(used).to_contain_text("missing")


def test_packages_are_installed_with_the_lines_of_the_installer(
    start_console: StartConsole, open_page: OpenPage, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "tiny", {"tiny.py": "NAME = 'tiny'\n"})
    console = start_console(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_CONFIG_FILE=os.devnull)
    console.install("tiny-skill", {"scripts/execute.py": "import tiny\nprint(tiny.NAME)\n"})
    page = open_page(console, "#/skills/tiny-skill/access").page
    field = page.get_by_label("Add a package")
    field.fill("no-such-package")
    page.get_by_role("button", name="Add and install").click()
    expect(alert(page, "no-such-package")).to_be_visible()
    expect(field).to_have_value("no-such-package")
    field.fill("tiny")
    page.get_by_role("button", name="Add and install").click()
    expect(page.get_by_text("The packages are installed.").last).to_be_visible()
    expect(page.get_by_role("log", name="Log of the installer")).to_contain_text("tiny")
    expect(page.get_by_role("listitem").filter(has_text="added here")).to_contain_text("installed")
    result = console.ask("POST", "/api/skills/tiny-skill/execute", json={})
    assert result["stdout"] == "tiny\n"


@pytest.fixture
def waiting_index(tmp_path: Path) -> Iterator[tuple[str, threading.Event]]:
    """A package index with the bundle "images". It sends no package before the event is set."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("imageio", "numpy", "pillow"):
        make_wheel(wheels, name, {f"{name}.py": f"NAME = '{name}'\n"})
    may_send = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").rpartition("/")[2]
            if name.endswith(".whl"):
                may_send.wait(PATIENCE_SECONDS)
                content, kind = (wheels / name).read_bytes(), "application/octet-stream"
            else:
                file = f"{name}-1.0-py3-none-any.whl"
                content, kind = f'<a href="/files/{file}">{file}</a>'.encode(), "text/html"
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple", may_send
        finally:
            may_send.set()
            server.shutdown()


def test_a_bundle_is_installed_and_its_log_stays_while_another_tab_is_shown(
    start_console: StartConsole, open_page: OpenPage, waiting_index: tuple[str, threading.Event]
) -> None:
    address, may_send = waiting_index
    console = start_console(PIP_INDEX_URL=address, PIP_CONFIG_FILE=os.devnull, NO_PROXY="127.0.0.1")
    console.install("bundle-skill", {"scripts/execute.py": "import imageio\nprint(imageio.NAME)\n"})
    page = open_page(console, "#/skills/bundle-skill/access").page
    log = page.get_by_role("log", name="Log of the installer")
    page.get_by_role("button", name="Install the bundle images").click()
    expect(log).to_contain_text("imageio")
    page.get_by_role("navigation").get_by_role("link", name="Files").click()
    expect(page.get_by_role("tree")).to_be_visible()
    expect(log).to_have_count(0)
    page.get_by_role("navigation").get_by_role("link", name="Access").click()
    expect(log).to_contain_text("imageio")
    expect(page.get_by_role("progressbar", name="Log of the installer")).to_be_visible()
    expect(page.get_by_label("Add a package")).to_be_disabled()
    may_send.set()
    expect(log).to_contain_text("Successfully installed")
    expect(page.get_by_role("listitem").filter(has_text="imageio")).to_contain_text("images")
    expect(page.get_by_role("button", name="Install the bundle")).to_have_count(0)
    assert console.ask("POST", "/api/skills/bundle-skill/execute", json={})["stdout"] == "imageio\n"


# ------------------------------------------------------------------------------------------------------------ edit
def test_a_description_shows_its_places_before_it_is_saved(console: Console, open_page: OpenPage) -> None:
    console.install("ranked-bills", description="Reads bills and adds them up.")
    console.install("ranked-other", description="Sings quagmire zebra songs in the evening.")
    page = open_page(console, "#/skills/ranked-bills/edit").page
    page.get_by_role("textbox", name="Sample request").fill("quagmire zebra songs")
    page.keyboard.press("Enter")
    request = page.get_by_role("listitem").filter(has_text="quagmire zebra songs")
    expect(request).to_contain_text("same place")
    page.get_by_role("textbox", name="Description").fill("quagmire zebra songs, quagmire zebra songs")
    expect(request).to_contain_text("→ 1")
    expect(request).to_contain_text(re.compile("place(s)? up|found now"))
    expect(request.get_by_role("link", name="ranked-other")).to_be_visible()
    assert console.ask("GET", "/api/skills/ranked-bills")["description"] == "Reads bills and adds them up."
    page.reload()
    expect(page.get_by_role("textbox", name="Description")).to_have_value("quagmire zebra songs, quagmire zebra songs")
    expect(request).to_contain_text("→ 1")
    page.get_by_role("textbox", name="Description").press("Control+Enter")
    expect(page.get_by_text("The description is saved.")).to_contain_text(re.compile("“quagmire zebra songs”: .* → 1"))
    saved = console.ask("GET", "/api/skills/ranked-bills")["description"]
    assert saved == "quagmire zebra songs, quagmire zebra songs"
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    page.get_by_role("button", name="Remove “quagmire zebra songs”").click()
    expect(page.get_by_text("Add a request to see")).to_be_visible()


def test_a_description_shows_what_past_requests_win_and_lose(console: Console, open_page: OpenPage) -> None:
    console.install("past-alpha", description="Weather forecast for a city")
    console.install("past-beta", description="Statistics of the climate in the past")
    request = "weather forecast for Paris"
    console.ask("POST", "/api/skills/remember", json={"request": request, "name": "past-alpha"})
    console.ask("POST", "/api/skills/search", json={"query": request})
    page = open_page(console, "#/skills/past-alpha/edit").page
    expect(page.get_by_text("Past requests", exact=True)).to_be_visible()
    expect(page.get_by_text("In the first place for 1 → 1")).to_be_visible()
    page.get_by_role("textbox", name="Description").fill("Bakes bread and cakes")
    expect(page.get_by_text("In the first place for 1 → 0")).to_be_visible()
    expect(page.get_by_text(request)).to_be_visible()


def test_a_description_has_a_limit(console: Console, open_page: OpenPage) -> None:
    console.install("limit-skill", description="Short.")
    page = open_page(console, "#/skills/limit-skill/edit").page
    field = page.get_by_role("textbox", name="Description")
    field.fill("字" * 1025)
    expect(page.get_by_text("1,025 of 1,024 characters")).to_be_visible()
    expect(alert(page, "1 characters too many.")).to_be_visible()
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    field.fill("")
    expect(alert(page, "It cannot be empty.")).to_be_visible()
    page.get_by_role("button", name="Discard changes").click()
    expect(field).to_have_value("Short.")


def test_a_change_by_somebody_else_is_a_conflict_and_nothing_is_lost(console: Console, open_page: OpenPage) -> None:
    console.install("conflict-skill", description="Before.")
    page = open_page(console, "#/skills/conflict-skill/edit").page
    field = page.get_by_role("textbox", name="Description")
    field.fill("Mine.")
    console.ask("PUT", "/api/skills/conflict-skill/description", json={"description": "Theirs."})
    conflict = alert(page, "Somebody changed the description meanwhile.")
    expect(conflict).to_contain_text("Theirs.")
    expect(field).to_have_value("Mine.")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    conflict.get_by_role("button", name="Keep mine").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The description is saved.")).to_be_visible()
    assert console.ask("GET", "/api/skills/conflict-skill")["description"] == "Mine."
    console.ask("PUT", "/api/skills/conflict-skill/description", json={"description": "Newer."})
    expect(field).to_have_value("Newer.")


def test_a_skill_of_another_root_says_why_it_cannot_be_edited(
    start_console: StartConsole, open_page: OpenPage, tmp_path: Path
) -> None:
    write_skill(tmp_path / "team", "rooted-skill")
    (tmp_path / "team").chmod(0o555)
    console = start_console(APEX_SKILL_ROOTS=str(tmp_path / "team"))
    page = open_page(console, "#/skills/rooted-skill/edit").page
    expect(page.get_by_text("This skill cannot be edited here.")).to_be_visible()
    expect(page.get_by_role("textbox", name="Description")).not_to_be_editable()
    expect(page.get_by_role("button", name="Save")).to_be_hidden()


# --------------------------------------------------------------------------------------------- scopes, hostile text
def test_a_key_that_may_only_read_is_offered_no_changes(start_console: StartConsole, open_page: OpenPage) -> None:
    console = start_console(APEX_API_KEYS_REQUIRED="true")
    console.install("read-skill", {"a.txt": "1"}, permissions=["env:LANG"])
    key = console.ask("POST", "/api/keys", json={"name": "reader", "scopes": ["read"]})["key"]
    watched = open_page(console)
    watched.expect_status(401)
    page = watched.page
    enter_key(page, key)
    expect(page.get_by_role("dialog", name="API key")).to_be_hidden()
    page.goto(f"{console.url}/#/skills/read-skill")
    expect(page.get_by_role("heading", name="read-skill", level=1)).to_be_visible()
    expect(page.get_by_role("switch")).to_be_disabled()
    expect(page.get_by_role("main").get_by_role("link", name="Run", exact=True)).to_be_hidden()
    page.get_by_role("button", name="More acts").click()
    expect(page.get_by_role("menuitem", name="Uninstall…")).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Access").click()
    expect(page.get_by_role("switch", name="Grant env:LANG")).to_be_disabled()
    expect(page.get_by_label("Add a package")).to_be_hidden()
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_text("Editing needs a key with the scope admin.")).to_be_visible()


def test_hostile_text_of_a_skill_is_text(console: Console, open_page: OpenPage) -> None:
    links = "[x](javascript:alert(1)) ![p](http://example.com/p.png)"
    body = f"# {HOSTILE}\n\n{links}\n\n<style>* {{display: none}}</style>\n"
    fields = {"author": HOSTILE, "license": HOSTILE, "metadata": {"<b>key": HOSTILE}, "confirm": HOSTILE}
    first: dict[str, str | bytes] = {"scripts/execute.py": f"# {HOSTILE}\n"}
    second: dict[str, str | bytes] = {"scripts/execute.py": f"print('{HOSTILE}')\n"}
    for files in (first, second):
        console.install("hostile-skill", files, body=body, description=HOSTILE, **fields)
    for part in ("", "/files?path=scripts%2Fexecute.py", "/versions?version=2", "/access", "/edit"):
        page = open_page(console, f"#/skills/hostile-skill{part}").page
        expect(page.get_by_role("heading", name="hostile-skill", level=1)).to_be_visible()
        expect(page.get_by_text("<script>document.title").first).to_be_attached()
        assert page.title() == "Skills · apexbridge"
        assert page.locator("main img, main script, main style").count() == 0


def test_a_hostile_file_name_shows_its_invisible_characters(console: Console, open_page: OpenPage) -> None:
    console.install("hostile-file")
    name = "<img src=x onerror=alert(1)>\u202egnp.md"
    (console.data_dir / "skills/hostile-file" / name).write_text(HOSTILE)
    console.ask("POST", "/api/skills/hostile-file/reload")
    page = open_page(console, "#/skills/hostile-file/files").page
    page.get_by_role("treeitem", name="<img src=x onerror=alert(1)>‹U+202E›gnp.md").click()
    expect(page.get_by_role("region", name=re.compile("Preview")).get_by_text("<script>document.title")).to_be_visible()
    assert page.locator("main img").count() == 0


# ---------------------------------------------------------------------------------------------------- accessibility
PARTS = ("", "/files", "/versions?version=2", "/access", "/edit", "/runs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("width", [1280, 390])
def test_each_part_is_accessible_and_fits(
    console: Console, open_page: OpenPage, scheme: str, locale: str, width: int
) -> None:
    if console.ask("GET", "/api/skills?name=axe-skill")["total"] == 0:
        fields = {"permissions": ["net:example.com:443", "secret:AXE"], "tags": ["a", "b"], "confirm": "Really?"}
        long_name = "x" * 80
        for text in ("import pandas\nprint(1)\n", "import pandas\nprint(2)\n"):
            console.install(
                "axe-skill",
                {"scripts/execute.py": text, f"{long_name}.txt": "x"},
                body="# How\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
                **fields,
            )
        console.ask("POST", "/api/skills/axe-skill/grants", json={"permission": "net:example.com:443"})
    watched = open_page(console, "", color_scheme=scheme, locale=locale, viewport={"width": width, "height": 800})
    page = watched.page
    for part in PARTS:
        page.goto(f"{console.url}/#/skills/axe-skill{part}")
        expect(page.get_by_role("heading", name="axe-skill", level=1)).to_be_visible()
        page.wait_for_load_state("load")
        expect(page.locator(".skeleton")).to_have_count(0)
        assert findings(page) == [], part
        assert page.evaluate("document.documentElement.scrollWidth") <= width, part
