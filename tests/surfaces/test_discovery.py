"""The public index of skills: what it lists, that its digests hold, and that it is off by default."""

import hashlib
import io
import json
import os
import subprocess
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.skills.remote.discovery import INDEX_PATH, SCHEMA
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from tests.clients.install import script
from tests.making import skill_markdown, skill_zip, write_skill, zip_of
from tests.surfaces.conftest import StartServer

pytestmark = pytest.mark.anyio
SCRIPTS = {"scripts/run.py": "print(1)\n", "references/notes.md": "More.\n"}


def client_of(bridge: Bridge) -> httpx.AsyncClient:
    """A client without a key, of a server that requires one."""
    app = create_app(bridge, Access(bound="127.0.0.1", keys_required=True))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


@pytest.fixture
async def publisher(data_dir: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    settings = Settings(data_dir=data_dir, publish_skills=True)
    async with Bridge.open(settings, watch=False, embedder=embedder) as opened:
        yield opened


async def entries_of(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = (await http.get(INDEX_PATH)).raise_for_status().json()
    assert answer["$schema"] == SCHEMA
    return {entry["name"]: entry for entry in answer["skills"]}


async def download(http: httpx.AsyncClient, entry: dict[str, Any]) -> bytes:
    answer = (await http.get(f"/.well-known/agent-skills/{entry['url']}")).raise_for_status()
    assert entry["digest"] == f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.content


async def test_nothing_is_published_unless_the_operator_allows_it(bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("pdf"))
    async with client_of(bridge) as http:
        for path in (INDEX_PATH, "/.well-known/agent-skills/pdf.zip", "/.well-known/agent-skills/pdf/SKILL.md"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_the_index_and_its_downloads_need_no_key(publisher: Bridge) -> None:
    await publisher.skills.install_skill(skill_zip("pdf", SCRIPTS))
    await publisher.skills.install_skill(skill_zip("notes"))
    async with client_of(publisher) as http:
        entries = await entries_of(http)
        assert [(entry["name"], entry["type"], entry["url"]) for entry in entries.values()] == [
            ("notes", "skill-md", "notes/SKILL.md"),
            ("pdf", "archive", "pdf.zip"),
        ]
        with zipfile.ZipFile(io.BytesIO(await download(http, entries["pdf"]))) as archive:
            assert archive.namelist() == ["SKILL.md", "references/notes.md", "scripts/run.py"]
        assert (await download(http, entries["notes"])).decode() == skill_markdown("notes")
        for path in ("/api/skills", "/.well-known/other", "/.well-known/agent-skills"):
            assert (await http.get(path)).status_code == 401
        assert (await http.post(INDEX_PATH)).status_code == 401


async def test_unchanged_content_is_not_sent_again_and_a_head_has_no_body(publisher: Bridge) -> None:
    await publisher.skills.install_skill(skill_zip("pdf", SCRIPTS))
    await publisher.skills.install_skill(skill_zip("notes"))
    async with client_of(publisher) as http:
        for path in (INDEX_PATH, "/.well-known/agent-skills/pdf.zip", "/.well-known/agent-skills/notes/SKILL.md"):
            whole, head = await http.get(path), await http.head(path)
            etag = whole.headers["etag"]
            assert (head.status_code, head.headers["etag"]) == (200, etag)
            assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))
            for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
                assert (await http.get(path, headers={"if-none-match": known})).status_code == 304
            for other in ('"other"', etag.strip('"'), ""):
                assert (await http.get(path, headers={"if-none-match": other})).status_code == 200


async def test_only_the_fitting_download_of_a_published_skill_is_found(publisher: Bridge) -> None:
    await publisher.skills.install_skill(skill_zip("pdf", SCRIPTS))
    async with client_of(publisher) as http:
        for path in ("pdf/SKILL.md", "none.zip", "none/SKILL.md", "..%2f..%2fapex.sqlite3.zip", "pdf%00.zip", ".zip"):
            answer = await http.get(f"/.well-known/agent-skills/{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), path


async def test_disabled_internal_and_oddly_named_skills_are_left_out(
    data_dir: Path, embedder: Embedder, tmp_path: Path
) -> None:
    for name in ("double--hyphen", "ends-"):
        write_skill(tmp_path / "root", name)
    (tmp_path / "root" / "lower").mkdir()
    (tmp_path / "root" / "lower" / "skill.md").write_text(skill_markdown("lower"))
    settings = Settings(data_dir=data_dir, publish_skills=True, skill_roots=(tmp_path / "root",))
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as http:
        for name in ("shown", "off"):
            await bridge.skills.install_skill(skill_zip(name))
        internal = skill_markdown("hidden").replace("---\n", "---\nmetadata:\n  internal: true\n", 1)
        await bridge.skills.install_skill(zip_of({"hidden/SKILL.md": internal}))
        await bridge.skills.set_enabled("off", False)
        served = [skill.name for skill in (await bridge.skills.list_skills()).skills]
        assert set(served) >= {"shown", "off", "hidden", "double--hyphen", "lower"}
        assert list(await entries_of(http)) == ["shown"]


async def test_links_and_version_control_are_not_published(data_dir: Path, embedder: Embedder, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("good", "leaky"):
        write_skill(root, name)
    (root / "good/.git").mkdir()
    (root / "good/.git/config").write_text("a secret")
    (root / "good/run.py").write_text("")
    (tmp_path / "secret").write_text("a secret")
    (root / "leaky/link.txt").symlink_to(tmp_path / "secret")
    (root / "leaky/other.txt").write_text("")
    settings = Settings(data_dir=data_dir, publish_skills=True, skill_roots=(root,))
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as http:
        entries = await entries_of(http)
        assert list(entries) == ["good"]
        with zipfile.ZipFile(io.BytesIO(await download(http, entries["good"]))) as archive:
            assert archive.namelist() == ["SKILL.md", "run.py"]


async def test_an_unchanged_index_has_the_same_bytes_after_a_restart(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, publish_skills=True)
    bodies = []
    for _ in range(2):
        async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as http:
            await bridge.skills.install_skill(skill_zip("pdf", SCRIPTS), overwrite=True)
            first = await http.get(INDEX_PATH)
            bodies.append(first.content)
            etag = first.headers["etag"]
            again = await http.get(INDEX_PATH, headers={"if-none-match": etag})
            assert (again.status_code, again.content) == (304, b"")
            (entry,) = (await entries_of(http)).values()
            headers = {"if-none-match": f'"{entry["digest"].removeprefix("sha256:")}"'}
            assert (await http.get("/.well-known/agent-skills/pdf.zip", headers=headers)).status_code == 304
    assert bodies[0] == bodies[1]
    assert len(list((data_dir / "published").iterdir())) == 1


async def test_a_changed_skill_gets_a_new_digest_and_its_old_download_is_deleted(publisher: Bridge) -> None:
    folder = publisher.settings.data_dir / "published"
    async with client_of(publisher) as http:
        await publisher.skills.install_skill(skill_zip("pdf", SCRIPTS))
        old = (await entries_of(http))["pdf"]
        await publisher.skills.update_skill_description("pdf", "Does something else with PDF files.")
        new = (await entries_of(http))["pdf"]
        assert new["digest"] != old["digest"]
        assert new["description"] == "Does something else with PDF files."
        await download(http, new)
        assert [new["digest"].removeprefix("sha256:") in path.name for path in folder.iterdir()] == [True]
        await publisher.skills.uninstall_skill("pdf")
        assert await entries_of(http) == {}
        assert list(folder.iterdir()) == []
        assert (await http.get("/.well-known/agent-skills/pdf.zip")).status_code == 404


async def test_an_edit_that_is_not_scanned_yet_is_not_published_under_the_old_hash(publisher: Bridge) -> None:
    await publisher.skills.install_skill(skill_zip("pdf", SCRIPTS))
    script_file = publisher.settings.data_dir / "skills/pdf/scripts/run.py"
    script_file.write_text("print(2)\n")
    async with client_of(publisher) as http:
        assert await entries_of(http) == {}
        await publisher.skills.reload_skill("pdf")
        assert list(await entries_of(http)) == ["pdf"]


async def test_the_folder_of_downloads_can_be_deleted_at_any_time(publisher: Bridge) -> None:
    await publisher.skills.install_skill(skill_zip("pdf", SCRIPTS))
    async with client_of(publisher) as http:
        entry = (await entries_of(http))["pdf"]
        for path in (publisher.settings.data_dir / "published").iterdir():
            path.unlink()
        await download(http, entry)


async def test_a_long_description_is_shortened_for_the_index(publisher: Bridge) -> None:
    await publisher.skills.install_skill(skill_zip("pdf", description="x" * 2000))
    async with client_of(publisher) as http:
        assert len((await entries_of(http))["pdf"]["description"]) == 1024


# ------------------------------------------------------------------------------------------------------- real clients
@pytest.mark.slow
def test_the_skills_program_of_npm_lists_installs_and_checks_the_skills(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(APEX_PUBLISH_SKILLS="true")
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        for archive in (skill_zip("pdf", SCRIPTS), skill_zip("notes")):
            http.post("/api/skills", content=archive, headers={"content-type": "application/zip"}).raise_for_status()
    project = tmp_path / "project"
    project.mkdir()

    def skills(*arguments: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "CI": "1",
            "DISABLE_TELEMETRY": "1",
            "NO_COLOR": "1",
        }
        command = [*script("skills", "bin/cli.mjs"), *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = skills("add", server.url, "--list")
    assert "pdf" in listed
    assert "notes" in listed
    skills("add", server.url, "--skill", "*", "-a", "claude-code", "-y")
    assert (project / ".claude/skills/pdf/scripts/run.py").read_text() == SCRIPTS["scripts/run.py"]
    assert (project / ".claude/skills/notes/SKILL.md").read_text() == skill_markdown("notes")
    lock = json.loads((project / "skills-lock.json").read_text())
    assert {name: entry["sourceType"] for name, entry in lock["skills"].items()} == {
        "notes": "well-known",
        "pdf": "well-known",
    }
    assert "Updated" not in skills("check")
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        http.put("/api/skills/pdf/description", json={"description": "Reads and writes PDF files."}).raise_for_status()
    assert "Updated pdf" in skills("check")
    assert "Reads and writes PDF files." in (project / ".claude/skills/pdf/SKILL.md").read_text()
