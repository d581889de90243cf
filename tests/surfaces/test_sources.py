"""Installs from sources, updates and restores, over HTTP and on the command line."""

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage.audit import AUDIT_FILE, exported
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from tests.making import skill_markdown, write_skill
from tests.skills.source_server import SourceRepository, SourceServer, shop_of, source_server
from tests.skills.test_plugins import plugin_zip
from tests.surfaces.conftest import APEX, Apex, StartServer, environment
from tests.waiting import wait_until

OWNER = "the-owner"


@pytest.fixture
def repository(tmp_path: Path) -> SourceRepository:
    return SourceRepository(tmp_path / "upstream")


@pytest.fixture
def server() -> Iterator[SourceServer]:
    with source_server() as opened:
        yield opened


# --------------------------------------------------------------------------------------------------------------- HTTP
@pytest.mark.anyio
async def test_a_source_is_installed_shown_updated_removed_and_restored_over_http(
    data_dir: Path, embedder: Embedder, server: SourceServer, repository: SourceRepository
) -> None:
    settings = Settings(data_dir=data_dir, install_private_addresses=True)
    old = repository.commit_skill("pdf")
    source = server.serve_repository("/skills.git", repository.folder / ".git") + "#skills/pdf"
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client(bridge) as http:
        installed = await http.post("/api/skills/install", json={"source": source})
        assert (installed.status_code, installed.json()["names"]) == (201, ["pdf"])
        again = await http.post("/api/skills", json={"source": source, "overwrite": True, "profile": "strict"})
        assert (again.status_code, again.json()["replaced"]) == (200, True)
        origin = (await http.get("/api/skills/pdf")).json()["origin"]
        assert (origin["commit"], origin["ref"], origin["path"], origin["profile"]) == (
            old,
            None,
            "skills/pdf",
            "strict",
        )
        assert origin["installedAt"]
        assert [item["name"] for item in (await http.get("/api/skills/origins")).json()] == ["pdf"]
        new = repository.commit({"skills/pdf/new.md": "x"})
        report = (await http.post("/api/skills/pdf/update")).json()
        assert (report["newRevision"], report["applied"], report["skills"][0]["filesAdded"]) == (new, False, ["new.md"])
        applied = await http.post("/api/skills/pdf/update", json={"apply": True, "revision": new})
        assert applied.json()["applied"] is True
        removed = (await http.delete("/api/skills/pdf")).json()
        assert removed["restorableUntil"]
        (item,) = (await http.get("/api/skills/removed")).json()
        assert (item["name"], item["restorableUntil"]) == ("pdf", removed["restorableUntil"])
        restored = await http.post("/api/skills/pdf/restore", json={"id": item["id"]})
        assert restored.json()["success"] is True
        taken = await http.post("/api/skills/pdf/restore")
        assert (taken.status_code, taken.json()["code"]) == (404, "SKILL_NOT_FOUND")


def client(bridge: Bridge, access: Access | None = None, key: str | None = None) -> httpx.AsyncClient:
    app = create_app(bridge, access or Access(bound="127.0.0.1"))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)


@pytest.mark.anyio
async def test_files_of_the_server_are_installed_and_updated_for_its_owner_only(
    bridge: Bridge, repository: SourceRepository
) -> None:
    repository.commit_skill("pdf")
    body = {"source": f"{repository.url}#skills/pdf"}
    access = Access(bound="127.0.0.1", owner=OWNER)
    async with client(bridge, access) as anyone, client(bridge, access, OWNER) as owner:
        refused = await anyone.post("/api/skills/install", json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert (await owner.post("/api/skills/install", json=body)).status_code == 201
        refused = await anyone.post("/api/skills/pdf/update")
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert (await owner.post("/api/skills/pdf/update")).json()["changed"] is False
        for path in ("/api/skills/pdf", "/api/skills/origins"):
            assert str(repository.folder) in (await owner.get(path)).text
            assert str(repository.folder) not in (await anyone.get(path)).text, "a path of the server"


@pytest.mark.anyio
async def test_an_approval_falls_with_an_update_and_with_a_removal(
    bridge: Bridge, repository: SourceRepository
) -> None:
    async def approved(http: httpx.AsyncClient) -> str:
        id = (await http.post("/api/skills/wipe/execute")).json()["details"]["approvalId"]
        assert (await http.post(f"/api/approvals/{id}", json={"approve": True})).status_code == 200
        return str(id)

    repository.commit(
        {"wipe/SKILL.md": skill_markdown("wipe", dangerous=True), "wipe/scripts/execute.py": "print('old')\n"}
    )
    async with client(bridge, Access(bound="127.0.0.1", owner=OWNER), OWNER) as http:
        await http.post("/api/skills/install", json={"source": f"{repository.url}#wipe"})
        id = await approved(http)
        repository.commit({"wipe/scripts/execute.py": "print('new')\n"})
        assert (await http.post("/api/skills/wipe/update", json={"apply": True})).json()["applied"] is True
        refused = await http.post("/api/skills/wipe/execute", json={"approval": id})
        assert refused.json()["code"] == "APPROVAL_INVALID"
        id = await approved(http)
        await http.delete("/api/skills/wipe")
        assert (await http.post("/api/skills/wipe/restore")).status_code == 200
        refused = await http.post("/api/skills/wipe/execute", json={"approval": id})
        assert refused.json()["code"] in ("APPROVAL_INVALID", "APPROVAL_NOT_FOUND")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"source": "/etc"}, 422, "INVALID_INPUT"),
        ({"source": "./folder"}, 422, "INVALID_INPUT"),
        ({"source": "--upload-pack=x"}, 422, "INVALID_INPUT"),
        ({"source": "ext::sh -c x"}, 422, "INVALID_INPUT"),
        ({"source": "https://127.0.0.1/x.zip"}, 403, "ADDRESS_REFUSED"),
        ({"source": "https://169.254.169.254/latest/x.git"}, 403, "ADDRESS_REFUSED"),
        ({"source": "git@localhost:x/y.git"}, 403, "ADDRESS_REFUSED"),
        ({"source": 3}, 422, "INVALID_INPUT"),
        ({}, 422, "INVALID_INPUT"),
        ({"source": "a/b", "path": "/etc"}, 422, "INVALID_INPUT"),
        ({"source": "a/b", "profile": "none"}, 422, "INVALID_INPUT"),
        ([1], 422, "INVALID_INPUT"),
        ({"source": "x" * 70_000}, 413, "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_bad_sources_are_refused_over_http(bridge: Bridge, body: object, status: int, code: str) -> None:
    async with client(bridge) as http:
        answer = await http.post("/api/skills/install", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.anyio
async def test_the_audit_log_names_the_source_and_no_password(bridge: Bridge, data_dir: Path) -> None:
    async with client(bridge) as http:
        for source in ("https://127.0.0.1/x.zip", "https://user:hunter2@example.org/x.git"):
            await http.post("/api/skills/install", json={"source": source})
    rows = [row for row in exported(data_dir / AUDIT_FILE) if row["what"] == "skills.install"]
    assert [row.get("detail") for row in rows] == ["https://127.0.0.1/x.zip", None]
    assert "hunter2" not in str(rows)


@pytest.mark.anyio
async def test_all_plugins_of_a_source_are_updated_over_http(bridge: Bridge, repository: SourceRepository) -> None:
    repository.commit({**shop_of(("tea", "brew"), ("coffee", "brew")), "tea/skills/bad/SKILL.md": "---\n---\n"})
    access = Access(bound="127.0.0.1", owner=OWNER)
    async with client(bridge, access, OWNER) as http:
        body = {"source": repository.url}
        refused = await http.post("/api/skills/install", json={**body, "strict": True})
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_SKILL_STRUCTURE")
        installed = (await http.post("/api/skills/install", json=body)).json()
        assert (installed["names"], len(installed["leftOut"])) == (["brew", "coffee:brew"], 1)
        repository.commit({"coffee/skills/brew/new.md": "x"})
        reports = (await http.post("/api/skills/update", json=body)).json()
        assert [(one["name"], one["changed"], one["error"]) for one in reports] == [
            ("coffee", True, None),
            ("tea", False, None),
        ]
        applied = (await http.post("/api/skills/update", json={**body, "apply": True})).json()
        assert [one["applied"] for one in applied] == [True, False]
        unknown = await http.post("/api/skills/update", json={"source": "owner/repo"})
        assert unknown.json()["code"] == "SOURCE_UNKNOWN"
        assert (await http.post("/api/skills/update", json={})).status_code == 422


@pytest.mark.anyio
async def test_json_that_cannot_be_parsed_is_refused(bridge: Bridge) -> None:
    async with client(bridge) as http:
        for body in (b"", b"{", b"\xff", b"[" * 100):
            answer = await http.post(
                "/api/skills/install", content=body, headers={"content-type": "application/json; charset=utf-8"}
            )
            assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_INPUT")


@pytest.mark.anyio
async def test_sources_and_restores_need_the_scope_admin(bridge: Bridge) -> None:
    _, secret = await bridge.keys.create(name="reader", scopes=("read", "run"))
    access = Access(bound="0.0.0.0", keys_required=True)
    async with client(bridge, access, secret) as http:
        for path in ("install", "pdf/update", "pdf/restore"):
            answer = await http.post(f"/api/skills/{path}", json={"source": "owner/repo"})
            assert answer.json()["code"] == "FORBIDDEN", path
        assert (await http.get("/api/skills/removed")).status_code == 200


@pytest.mark.anyio
async def test_a_skill_of_another_root_is_deleted_over_http_only_if_asked(
    data_dir: Path, embedder: Embedder, tmp_path: Path
) -> None:
    root = tmp_path / "team"
    folder = write_skill(root, "shared")
    settings = Settings(data_dir=data_dir, skill_roots=(root,))
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client(bridge) as http:
        assert (await http.delete("/api/skills/shared")).json()["hidden"] is True
        assert folder.exists()
        assert (await http.post("/api/skills/shared/restore")).json()["message"] == "Skill is served again"
        assert (await http.delete("/api/skills/shared", params={"delete": "true"})).json()["hidden"] is False
        assert not folder.exists()


@pytest.mark.slow
def test_a_server_that_is_killed_during_a_download_leaves_nothing(
    start_server: StartServer, server: SourceServer, data_dir: Path
) -> None:
    server.answers["/slow"] = lambda handler: handler.connection.recv(1) and None
    running = start_server(APEX_INSTALL_PRIVATE_ADDRESSES="true")
    for path in ("/slow/a.zip", "/slow/a.git"):
        body = {"source": server.url + path}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{running.url}/api/skills/install", json=body, timeout=httpx.Timeout(30, read=0.01))
    wait_until(lambda: not list((data_dir / "staging").iterdir()))
    command = subprocess.Popen(
        [*APEX, "skills", "install", f"{server.url}/slow/b.git"],
        env=environment(APEX_DATA_DIR=str(data_dir)),
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: list((data_dir / "staging").glob("fetch-*/repository.git")))
    running.stop(signal.SIGKILL)
    assert command.wait(60) == 1
    assert list((data_dir / "staging").iterdir())
    start_server(APEX_INSTALL_PRIVATE_ADDRESSES="true")
    assert list((data_dir / "staging").iterdir()) == []


# -------------------------------------------------------------------------------------------------------- command line
def test_a_repository_is_installed_updated_and_shown_on_the_command_line(
    apex: Apex, repository: SourceRepository
) -> None:
    old = repository.commit_skill("pdf", description="Reads documents, the first way.")
    assert "Skill installed" in apex("skills", "install", f"{repository.url}#skills/pdf").err
    assert f"commit {old}" in apex("skills", "show", "pdf").out
    assert f"pdf is up to date ({old[:12]})" in apex("skills", "update").err
    new = repository.commit_skill("pdf", description="Reads documents, the second way.", permissions=["env:LANG"])
    repository.commit({"skills/pdf/new.md": "x"})
    shown = apex("skills", "update", "--check")
    assert shown.code == 0
    for line in (
        "    + new.md",
        "    ~ SKILL.md",
        "    description: Reads documents, the second way.",
        "asks for: env",
    ):
        assert line in shown.out
    assert "Apply the changes with: apex skills update --yes" in shown.err
    assert "Apply the changes with: apex skills update pdf --yes" in apex("skills", "update", "pdf").err
    assert apex("skills", "update", "pdf", "--dry-run", "--json").json["updates"][0]["applied"] is False
    assert apex("skills", "update", "--json").json["updates"][0]["applied"] is False
    assert "pdf was updated" in apex("skills", "update", "pdf", "--yes").err
    assert new != old
    assert apex("skills", "update", "--yes", "--json").json["updates"][0]["changed"] is False
    missing = apex("skills", "update", "none")
    assert (missing.code, "Skills not found" in missing.err) == (1, True)
    repository.folder.rename(repository.folder.with_name("moved"))
    failed = apex("skills", "update", "--json")
    assert failed.code == 1
    assert failed.json["updates"][0]["error"]["code"] == "SOURCE_NOT_FOUND"


def test_a_repository_of_several_skills_is_refused_with_all_sources(apex: Apex, repository: SourceRepository) -> None:
    repository.commit_skill("alpha", "one/alpha")
    repository.commit_skill("beta", "two/beta")
    refused = apex("skills", "install", repository.url)
    assert refused.code == 1
    assert f"  {repository.url}#two/beta" in refused.err


def test_a_marketplace_is_installed_updated_and_restored_on_the_command_line(
    apex: Apex, repository: SourceRepository
) -> None:
    files = shop_of(("tea", "brew"), ("coffee", "brew"), ("cake", "bake"))
    repository.commit({**files, "tea/skills/bad/SKILL.md": "---\nname: bad\n---\n"})
    refused = apex("skills", "install", repository.url, "--strict")
    assert (refused.code, "Missing required fields: description" in refused.err) == (1, True)
    installed = apex("skills", "install", repository.url)
    assert "bad (upstream/tea/skills/bad) was left out" in installed.err
    assert "3 plugins installed successfully: shop" in installed.err
    assert "3 skills installed, 1 left out" in installed.err
    assert apex("skills", "show", "coffee:brew", "--json").json["origin"]["path"] == "coffee/skills/brew"
    new = repository.commit({"coffee/skills/brew/new.md": "x", "tea/skills/brew/new.md": "x"})
    checked = apex("skills", "update", "--json")
    assert [(entry["name"], entry["changed"]) for entry in checked.json["updates"]] == [
        ("cake", False),
        ("coffee", True),
        ("tea", True),
    ]
    assert "coffee was updated" in apex("skills", "update", "coffee:brew", "--yes").err
    updated = apex("skills", "update", "--yes")
    assert (updated.code, "tea was updated" in updated.err, "coffee was updated" in updated.err) == (0, True, False)
    commits = {one["name"]: one["origin"]["commit"] for one in apex("plugins", "list", "--json").json}
    assert commits["tea"] == commits["coffee"] == new
    assert commits["cake"] != new
    assert "restore coffee:brew" in apex("skills", "uninstall", "coffee:brew").err
    assert apex("skills", "restore", "coffee:brew").code == 0
    assert "new.md" in apex("skills", "show", "coffee:brew").out
    repository.commit({path: None for path in files if path.startswith("tea/")} | {"tea/skills/brew/new.md": None})
    failed = apex("skills", "update", "--yes")
    assert failed.code == 1
    assert "tea: The source of the plugin tea now contains the plugin" in failed.err
    assert "cake is up to date" in failed.err


def test_a_short_name_is_shown_with_the_address_that_it_means(
    apex: Apex, server: SourceServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("APEX_INSTALL_PRIVATE_ADDRESSES", "true")
    monkeypatch.setenv("PATH", str(tmp_path))  # without git, so that the archive is fetched
    monkeypatch.setattr("apexbridge.skills.remote.download.GITHUB_ARCHIVES", server.url)
    missing = apex("skills", "install", "owner/repo")
    assert missing.code == 1
    assert "fetching https://github.com/owner/repo.git" in missing.err
    assert "There is no file or folder owner/repo here, so it was looked up on GitHub." in missing.err
    assert server.requests == ["/owner/repo/zip/HEAD"]


def test_a_bare_repository_of_this_machine_is_a_source(
    apex: Apex, repository: SourceRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit_skill("pdf")
    subprocess.run(["git", "clone", "--quiet", "--bare", repository.folder, tmp_path / "bare.git"], check=True)
    monkeypatch.chdir(tmp_path)
    assert apex("skills", "install", "bare.git@main#skills/pdf").code == 0
    shown = apex("skills", "show", "pdf", "--json").json["origin"]
    assert (shown["url"], shown["ref"]) == (f"file://{tmp_path}/bare.git", "main")


def test_a_folder_wins_over_a_repository_of_the_same_name(
    apex: Apex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "owner", "repo")
    monkeypatch.chdir(tmp_path)
    assert apex("skills", "install", "owner/repo").code == 0
    assert apex("skills", "show", "repo", "--json").json["origin"] is None
    missing = apex("skills", "install", "no-such-file.zip")
    assert (missing.code, "owner/repo[/path][@ref]" in missing.err) == (1, True)
    refused = apex("skills", "install", "--", "--upload-pack=x")
    assert (refused.code, "begins with -" in refused.err) == (1, True)


def test_removed_skills_are_listed_and_restored_on_the_command_line(apex: Apex, tmp_path: Path) -> None:
    assert "No data directory" in apex("skills", "restore").err
    apex("skills", "install", str(write_skill(tmp_path, "other")))
    assert "nothing to restore" in apex("skills", "restore").err
    missing = apex("skills", "restore", "pdf")
    assert (missing.code, "apex skills restore" in missing.err) == (1, True)
    assert apex("plugins", "restore", "pdf", "--json").json["code"] == "PLUGIN_NOT_FOUND"
    apex("skills", "install", write_skill(tmp_path, "pdf"))
    removed = apex("skills", "uninstall", "pdf")
    assert "apex skills restore pdf" in removed.err
    assert "pdf" in apex("skills", "restore").out
    (item,) = apex("skills", "restore", "--json").json
    assert "Skill restored" in apex("skills", "restore", "pdf", "--id", item["id"]).err
    apex("skills", "uninstall", "pdf", "--yes", "--json")
    apex("skills", "install", write_skill(tmp_path, "pdf"))
    taken = apex("skills", "restore", "pdf")
    assert (taken.code, "Uninstall the skill first" in taken.err) == (1, True)
    (tmp_path / "plugin.zip").write_bytes(plugin_zip("alpha", "beta"))
    apex("skills", "install", tmp_path / "plugin.zip")
    assert "apex plugins restore my-plugin" in apex("plugins", "uninstall", "my-plugin").err
    assert "alpha, beta" in apex("plugins", "restore").out
    assert "Plugin restored" in apex("plugins", "restore", "my-plugin").err


def test_a_skill_of_another_root_is_hidden_on_the_command_line(
    apex: Apex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_skill(tmp_path / "team", "shared")
    monkeypatch.setenv("APEX_SKILL_ROOTS", str(tmp_path / "team"))
    apex("skills", "install", str(write_skill(tmp_path, "other")))
    hidden = apex("skills", "uninstall", "shared")
    assert "Skill hidden; its folder in team stays: shared" in hidden.err
    assert folder.exists()
    assert [skill["name"] for skill in apex("skills", "list", "--json").json["skills"]] == ["other"]
    assert apex("skills", "restore", "shared").code == 0
    assert "folder in team; it cannot be restored: shared" in apex("skills", "uninstall", "shared", "--delete").err
    assert not folder.exists()


def answer_at_a_terminal(data_dir: Path, answer: bytes, *arguments: str) -> tuple[int, str]:
    """Run a command at a terminal and answer its question; returns its exit code and what it showed."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*APEX, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(APEX_DATA_DIR=str(data_dir)),
        start_new_session=True,
    )
    os.close(slave)
    shown, is_answered = b"", False
    try:
        while select.select([master], [], [], 60)[0]:
            try:
                chunk = os.read(master, 4096)
            except OSError:
                break
            shown += chunk
            if b"[y/N]" in shown and not is_answered:
                is_answered = True
                os.write(master, answer)
        return process.wait(60), shown.decode()
    finally:
        os.close(master)
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_removal_and_an_update_are_asked_about_at_a_terminal(
    apex: Apex, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf")
    repository.commit_skill("docx")
    for name in ("pdf", "docx"):
        apex("skills", "install", f"{repository.url}#skills/{name}")
    code, shown = answer_at_a_terminal(data_dir, b"n\n", "skills", "uninstall", "pdf")
    assert (code, "Uninstall pdf?" in shown) == (1, True)
    assert (data_dir / "skills/pdf").exists()
    repository.commit({"skills/pdf/new.md": "x"})
    code, shown = answer_at_a_terminal(data_dir, b"n\n", "skills", "update")
    assert (code, "+ new.md" in shown, "Update pdf?" in shown) == (1, True, True)
    assert not (data_dir / "skills/pdf/new.md").exists()
    code, shown = answer_at_a_terminal(data_dir, b"y\n", "skills", "update")
    assert (code, "pdf was updated" in shown) == (0, True)
    assert (data_dir / "skills/pdf/new.md").exists()
    code, shown = answer_at_a_terminal(data_dir, b"y\n", "skills", "uninstall", "pdf")
    assert (code, "apex skills restore pdf" in shown) == (0, True)
    assert not (data_dir / "skills/pdf").exists()
    record = json.loads(next((data_dir / "trash").glob("*/removed.json")).read_text())
    assert record["name"] == "pdf"


def test_an_export_contains_neither_marker_nor_origin(apex: Apex, repository: SourceRepository, tmp_path: Path) -> None:
    repository.commit_skill("pdf")
    apex("skills", "install", f"{repository.url}#skills/pdf")
    apex("skills", "export", "pdf", "--out", tmp_path / "out.zip")
    assert b"origin" not in (tmp_path / "out.zip").read_bytes()
