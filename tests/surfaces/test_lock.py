"""`skills.lock`: written with every change, and reproduced exactly or with the name of the source that failed."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import RequestError
from apexbridge.skills.lock_file import LOCK_FILE, format_lock, read_lock
from tests.conftest import client_of
from tests.making import skill_zip, walk, write_skill
from tests.skills.source_server import SourceRepository, SourceServer, shop_of, source_server
from tests.skills.test_index_sources import publish, publish_zip
from tests.surfaces.conftest import Apex


@pytest.fixture
def repository(tmp_path: Path) -> SourceRepository:
    return SourceRepository(tmp_path / "upstream")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceServer]:
    monkeypatch.setenv("APEX_INSTALL_PRIVATE_ADDRESSES", "true")
    with source_server() as opened:
        yield opened


def packages_of(path: Path) -> dict[str, dict[str, Any]]:
    return {package["name"]: package for package in tomllib.loads(path.read_text())["package"]}


def test_the_lock_of_the_data_directory_follows_every_change(
    apex: Apex, data_dir: Path, repository: SourceRepository, tmp_path: Path
) -> None:
    lock = data_dir / LOCK_FILE
    assert apex("skills", "install", write_skill(tmp_path, "local")).code == 0
    assert not lock.exists()
    first = repository.commit_skill("pdf")
    source = f"{repository.url}#skills/pdf"
    assert apex("skills", "install", source).code == 0
    (package,) = packages_of(lock).values()
    assert (package["name"], package["kind"], package["source"], package["commit"]) == ("pdf", "skill", source, first)
    content = apex("skills", "show", "pdf", "--json").json["contentHash"]
    assert package["contents"] == {"pdf": f"sha256:{content}"}
    second = repository.commit({"skills/pdf/new.md": "x"})
    assert apex("skills", "update", "--yes").code == 0
    assert packages_of(lock)["pdf"]["commit"] == second
    assert apex("skills", "set-description", "pdf", "Another description of it.").code == 0
    assert packages_of(lock)["pdf"]["contents"] != {"pdf": f"sha256:{content}"}
    before = lock.read_bytes()
    assert apex("skills", "uninstall", "pdf", "--yes").code == 0
    assert "package" not in tomllib.loads(lock.read_text())
    assert apex("skills", "restore", "pdf").code == 0
    assert lock.read_bytes() == before
    assert apex("skills", "install", write_skill(tmp_path / "own", "pdf"), "--overwrite").code == 0
    assert "package" not in tomllib.loads(lock.read_text())


def test_locked_contents_are_reproduced_in_another_data_directory(
    apex: Apex, data_dir: Path, repository: SourceRepository, server: SourceServer, tmp_path: Path
) -> None:
    repository.commit_skill("pdf", description="The first version of it.")
    repository.commit({"skills/pdf/scripts/run.py": "print(1)\n"})
    assert apex("skills", "install", f"{repository.url}@main#skills/pdf").code == 0
    assert apex("skills", "install", publish(server, publish_zip(server, "docx", {"a.md": "x"}))).code == 0
    shop = SourceRepository(tmp_path / "shop")
    shop.commit(shop_of(("tea", "brew"), ("coffee", "roast"), ("cake", "bake")))
    assert apex("skills", "install", shop.url).code == 0
    assert apex("plugins", "uninstall", "cake", "--yes").code == 0
    written = apex("skills", "lock")
    assert (written.code, Path(LOCK_FILE).read_bytes()) == (0, (data_dir / LOCK_FILE).read_bytes())
    repository.commit_skill("pdf", description="The second version of it.")
    shop.commit({"tea/skills/brew/extra.md": "x"})

    other = tmp_path / "other"
    done = apex("skills", "install", "--locked", "--data-dir", other)
    assert (done.code, "4 installed" in done.out + done.err) == (0, True)
    mine, theirs = walk(data_dir / "skills"), walk(other / "skills")
    for tree in (mine, theirs):
        for path in [path for path in tree if path.endswith((".apex-origin.json", ".vectorized"))]:
            del tree[path]
    assert mine == theirs
    assert (other / LOCK_FILE).read_bytes() == (data_dir / LOCK_FILE).read_bytes()
    again = apex("skills", "install", "--locked", "--data-dir", other, "--json")
    assert {report["state"] for report in again.json["packages"]} == {"unchanged"}
    report = apex("skills", "update", "pdf", "--check", "--data-dir", other, "--json").json["updates"][0]
    assert report["changed"] is True  # it still follows the branch


def test_a_source_that_no_longer_delivers_the_content_is_named(
    apex: Apex, data_dir: Path, server: SourceServer, tmp_path: Path
) -> None:
    good, changed = publish_zip(server, "good"), publish_zip(server, "changed")
    source = publish(server, good, changed, publish_zip(server, "gone"))
    assert apex("skills", "install", source).code == 0
    publish(server, good, publish_zip(server, "changed", {"evil.py": "x"}))
    done = apex("skills", "install", "--locked", data_dir / LOCK_FILE, "--data-dir", tmp_path / "other", "--json")
    assert done.code == 1
    reports = {report["name"]: report for report in done.json["packages"]}
    assert {name: report["state"] for name, report in reports.items()} == {
        "good": "installed",
        "changed": "failed",
        "gone": "failed",
    }
    assert reports["changed"]["error"]["code"] == "SOURCE_CHANGED"
    assert reports["gone"]["error"]["code"] == "SOURCE_NOT_FOUND"
    assert sorted(path.name for path in (tmp_path / "other/skills").iterdir() if path.is_dir()) == ["good"]
    spoken = apex("skills", "install", "--locked", data_dir / LOCK_FILE, "--data-dir", tmp_path / "other")
    assert "no longer delivers the locked content of changed" in spoken.out + spoken.err


def test_another_packing_of_the_same_content_is_accepted(
    apex: Apex, data_dir: Path, server: SourceServer, tmp_path: Path
) -> None:
    assert apex("skills", "install", publish(server, publish_zip(server, "pdf", {"a.md": "x", "b.md": "y"}))).code == 0
    publish(server, publish_zip(server, "pdf", {"b.md": "y", "a.md": "x"}))
    assert apex("skills", "install", "--locked", data_dir / LOCK_FILE, "--data-dir", tmp_path / "other").code == 0


def test_an_edited_skill_is_replaced_by_the_locked_one_and_can_be_restored(
    apex: Apex, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf", description="The first version of it.")
    assert apex("skills", "install", f"{repository.url}#skills/pdf").code == 0
    lock = data_dir / LOCK_FILE
    assert apex("skills", "lock", "--check", "--out", lock).code == 0
    assert apex("skills", "set-description", "pdf", "Edited here by hand.").code == 0
    checked = apex("skills", "lock", "--check", "--out", lock)
    assert (checked.code, "1 skill was changed after the install: pdf" in checked.err) == (1, True)
    assert apex("skills", "install", "--locked").code == 0  # the lock of the data directory
    assert apex("skills", "lock", "--check", "--out", lock).code == 0
    assert apex("skills", "show", "pdf", "--json").json["description"] == "The first version of it."
    assert [one["name"] for one in apex("skills", "restore", "--json").json] == ["pdf"]


def test_commands_in_a_project_write_its_lock(apex: Apex, repository: SourceRepository, tmp_path: Path) -> None:
    repository.commit_skill("pdf")
    source, lock = f"{repository.url}#skills/pdf", Path(LOCK_FILE)
    assert apex("skills", "install", source).code == 0
    assert not lock.exists()  # no project
    Path("apex.toml").write_text("")
    assert apex("skills", "install", source, "--overwrite").code == 0
    assert list(packages_of(lock)) == ["pdf"]
    assert apex("skills", "lock", "--check").code == 0
    assert apex("skills", "uninstall", "pdf", "--yes").code == 0
    assert read_lock(lock) == []
    Path("apex.toml").unlink()
    assert apex("skills", "restore", "pdf").code == 0
    assert list(packages_of(lock)) == ["pdf"]
    lock.write_text(lock.read_text().replace("pdf", "docx"))
    assert apex("skills", "lock", "--check").code == 1
    lock.write_text("something = 'else'\n")
    refused = apex("skills", "lock")
    assert (refused.code, lock.read_text()) == (1, "something = 'else'\n")
    warned = apex("skills", "uninstall", "pdf", "--yes")
    assert (warned.code, "was not written" in warned.err) == (0, True)


def test_a_rollback_in_a_project_writes_its_lock(apex: Apex, repository: SourceRepository) -> None:
    first = repository.commit_skill("pdf")
    Path("apex.toml").write_text("")
    assert apex("skills", "install", f"{repository.url}#skills/pdf").code == 0
    repository.commit({"skills/pdf/new.md": "x"})
    assert apex("skills", "update", "--yes").code == 0
    assert packages_of(Path(LOCK_FILE))["pdf"]["commit"] != first
    assert apex("skills", "rollback", "pdf").code == 0
    assert packages_of(Path(LOCK_FILE))["pdf"]["commit"] == first


def test_skills_without_a_source_are_named(apex: Apex, tmp_path: Path) -> None:
    apex("skills", "install", write_skill(tmp_path, "local"))
    assert "local" in apex("skills", "lock").err
    assert apex("skills", "lock", "--json").json["others"] == ["local"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("--locked", "--overwrite"), 2),
        (("--locked",), 1),
        (("--locked", "nothing.lock"), 1),
        (("x.zip", "--skill", "y"), 2),
    ],
)
def test_wrong_usage_is_explained(apex: Apex, arguments: tuple[str, ...], code: int) -> None:
    Path("x.zip").write_bytes(b"")
    assert apex("skills", "install", *arguments).code == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version = 2\n",
        "version = 1\npackage = 3\n",
        "version = 1\npackage = [1]\n",
        "\x00",
        "version = " + "[" * 500,
    ],
)
def test_a_damaged_lock_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_FILE).write_text(text)
    with pytest.raises(RequestError) as caught:
        read_lock(tmp_path / LOCK_FILE)
    assert caught.value.code == "INVALID_INPUT"


def test_any_name_survives_writing_and_reading(tmp_path: Path) -> None:
    odd = 'a"b\\c\x7fé\u2028 = []'
    packages = [{"name": odd, "kind": "skill", "source": odd, "strict": True, "contents": {odd: "sha256:0", "b": "x"}}]
    (tmp_path / LOCK_FILE).write_text(format_lock(packages), "utf-8")
    assert read_lock(tmp_path / LOCK_FILE) == packages


@pytest.mark.anyio
@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../../evil"},
        {"name": "../../evil:pdf"},
        {"contents": {"../pdf": "sha256:0"}},
        {"commit": "--upload-pack=x"},
        {"digest": "sha256:1"},
        {"contents": {}},
        {"source": "https://user:secret@example.org/a.git"},
        {"source": "x" * 5000},
        {"kind": "other"},
    ],
)
async def test_invalid_packages_are_refused_over_http(bridge: Bridge, fields: dict[str, Any]) -> None:
    package = {"name": "pdf", "kind": "skill", "source": "owner/repo", "contents": {"pdf": "sha256:0"}, **fields}
    async with client_of(bridge) as http:
        answer = await http.post("/api/lock", json={"packages": [package]})
        assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_INPUT")


@pytest.mark.anyio
async def test_uploads_are_listed_as_others_over_http(bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("pdf"))
    async with client_of(bridge) as http:
        assert (await http.get("/api/lock")).json() == {"packages": [], "others": ["pdf"], "edited": []}


@pytest.mark.anyio
async def test_another_version_of_a_fetched_skill_changes_the_lock(
    bridge: Bridge, repository: SourceRepository, data_dir: Path
) -> None:
    first = repository.commit_skill("pdf")
    await bridge.skills.install_skill(f"{repository.url}#skills/pdf")
    repository.commit({"skills/pdf/new.md": "x"})
    await bridge.skills.update_skill("pdf", apply=True)
    assert packages_of(data_dir / LOCK_FILE)["pdf"]["commit"] != first
    await bridge.skills.versions.rollback("pdf")
    assert packages_of(data_dir / LOCK_FILE)["pdf"]["commit"] == first
    await bridge.skills.add_version("pdf", skill_zip("pdf", {"own.md": "x"}), default=True)
    assert "package" not in tomllib.loads((data_dir / LOCK_FILE).read_text())
