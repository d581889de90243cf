"""Installs from servers that publish skills: the index, digests, archives of both kinds, and hostile ones."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from apexbridge.errors import ApexBridgeError
from apexbridge.skills.config import FetchSettings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.remote.discovery import INDEX_PATH, MAX_UNCHOSEN, SCHEMA
from apexbridge.skills.remote.source_text import parse_source
from tests.conftest import Workshop
from tests.making import entry as raw_entry
from tests.making import raw_zip, skill_markdown, zip_of
from tests.skills.source_server import SourceRepository, SourceServer, source_server

pytestmark = pytest.mark.anyio
RUN = "print(1)\n"


@pytest.fixture
def server() -> Iterator[SourceServer]:
    with source_server() as opened:
        yield opened


@pytest.fixture
async def private(workshop: Workshop) -> AsyncIterator[SkillManager]:
    async with workshop.open(fetch=FetchSettings(private_addresses=True)) as manager:
        yield manager


def tar_of(files: Mapping[str, str], *members: tarfile.TarInfo) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in files.items():
            member, data = tarfile.TarInfo(name), content.encode()
            member.size, member.mode = len(data), 0o755 if name.endswith(".py") else 0o644
            archive.addfile(member, io.BytesIO(data))
        for member in members:
            archive.addfile(member)
    return target.getvalue()


def listed(name: str, body: bytes, url: str, kind: str = "archive") -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return {"name": name, "type": kind, "description": "Does things.", "url": url, "digest": digest}


def publish(server: SourceServer, *entries: dict[str, Any], path: str = "", **fields: Any) -> str:
    """Serve an index; returns the address that a user would type."""
    document = {"$schema": SCHEMA, "skills": list(entries), **fields}
    server.serve(path + INDEX_PATH, json.dumps(document).encode())
    return server.url + path


def publish_zip(server: SourceServer, name: str, files: Mapping[str, str] | None = None) -> dict[str, Any]:
    body = zip_of({"SKILL.md": skill_markdown(name), **(files or {})})
    server.serve(f"/files/{name}.zip", body)
    return listed(name, body, f"/files/{name}.zip")


async def refusal(manager: SkillManager, source: str, **options: Any) -> ApexBridgeError:
    with pytest.raises(ApexBridgeError) as caught:
        await manager.install_skill(source, **options)
    return caught.value


# ------------------------------------------------------------------------------------------------------------ installs
@pytest.mark.parametrize("form", ["zip", "tar", "zip with a folder", "tar with a folder", "tar with ./"])
async def test_flat_archives_and_those_with_one_folder_are_installed(
    private: SkillManager, server: SourceServer, form: str, data_dir: Path
) -> None:
    top = "any/" if "folder" in form else "./" if "./" in form else ""
    files = {f"{top}SKILL.md": skill_markdown("pdf"), f"{top}scripts/run.py": RUN}
    body = tar_of(files) if form.startswith("tar") else zip_of(files, executable=[f"{top}scripts/run.py"])
    server.serve("/files/pdf", body)
    source = publish(server, listed("pdf", body, "/files/pdf"))
    receipt = await private.install_skill(source)
    assert (receipt.name, receipt.names) == ("pdf", ["pdf"])
    detail = await private.get_skill("pdf")
    assert [file.path for file in detail.files] == ["SKILL.md", "scripts/run.py"]
    assert (data_dir / "skills/pdf/scripts/run.py").stat().st_mode & 0o111
    origin = detail.origin
    assert origin is not None
    assert (origin.kind, origin.url, origin.source) == ("index", f"{source}{INDEX_PATH}", f"{source}{INDEX_PATH}#pdf")
    assert origin.digest == hashlib.sha256(body).hexdigest()
    assert list((data_dir / "staging").iterdir()) == []


async def test_a_skill_without_other_files_is_installed(private: SkillManager, server: SourceServer) -> None:
    body = skill_markdown("notes").encode()
    server.serve("/notes/SKILL.md", body)
    await private.install_skill(publish(server, listed("notes", body, "/notes/SKILL.md", "skill-md")))
    assert (await private.get_skill("notes")).files[0].path == "SKILL.md"


async def test_all_skills_of_an_index_or_chosen_ones_are_installed(private: SkillManager, server: SourceServer) -> None:
    source = publish(server, *(publish_zip(server, name) for name in ("one", "two", "three")))
    chosen = await private.install_skill(source, skills=["two"])
    assert chosen.names == ["two"]
    by_fragment = await private.install_skill(f"{source}#one")
    assert by_fragment.names == ["one"]
    error = await refusal(private, source)
    assert error.code == "SKILL_ALREADY_EXISTS"
    assert len((await private.list_skills()).skills) == 2
    receipt = await private.install_skill(source, overwrite=True)
    assert (receipt.name, receipt.names, receipt.replaced) == ("127.0.0.1", ["one", "two", "three"], True)


async def test_an_index_below_a_path_is_found_before_a_repository(
    private: SkillManager, server: SourceServer, tmp_path: Path
) -> None:
    source = publish(server, publish_zip(server, "pdf"), path="/team")
    assert (await private.install_skill(source)).names == ["pdf"]
    repository = SourceRepository(tmp_path / "upstream")
    repository.commit_skill("docx", folder="docx")
    address = server.serve_repository("/git/upstream", repository.folder / ".git")
    with pytest.raises(ApexBridgeError):  # the test server answers every path below it, and none of them with JSON
        await private.install_skill(f"{address}/nothing")
    assert (await private.install_skill(address)).names == ["docx"]
    assert f"/git/upstream{INDEX_PATH}" in server.requests


async def test_an_update_follows_the_index(private: SkillManager, server: SourceServer) -> None:
    source = publish(server, publish_zip(server, "pdf"), publish_zip(server, "docx"))
    await private.install_skill(source)
    assert [item.name for item in await private.origins()] == ["docx", "pdf"]
    assert (await private.update_skill("pdf")).changed is False
    publish(server, publish_zip(server, "pdf", {"new.md": "x"}), publish_zip(server, "docx"))
    report = await private.update_skill("pdf")
    assert (report.changed, report.skills[0].files_added) == (True, ["new.md"])
    assert (await private.update_skill("pdf", apply=True, revision=report.new_revision)).applied
    assert (await private.update_skill("pdf")).changed is False
    publish(server, publish_zip(server, "docx"))
    with pytest.raises(ApexBridgeError) as caught:
        await private.update_skill("pdf")
    assert caught.value.code == "SOURCE_NOT_FOUND"


async def test_one_bad_skill_of_several_is_left_out_unless_strict(private: SkillManager, server: SourceServer) -> None:
    bad = listed("bad", b"no archive", server.serve("/files/bad.zip", b"no archive"))
    source = publish(server, publish_zip(server, "good"), bad, {"name": "Bad Name"}, 3)  # type: ignore[arg-type]
    error = await refusal(private, source, strict=True)
    assert error.code == "INVALID_ZIP"
    assert (await private.list_skills()).total == 0
    receipt = await private.install_skill(source)
    assert receipt.names == ["good"]
    assert [one.name for one in receipt.left_out] == ["Bad Name", "unnamed", "bad"]


# ------------------------------------------------------------------------------------------------------------- refused
async def test_a_download_with_another_digest_is_refused(
    private: SkillManager, server: SourceServer, data_dir: Path
) -> None:
    entry = publish_zip(server, "pdf")
    server.serve("/files/pdf.zip", zip_of({"SKILL.md": skill_markdown("pdf"), "evil.py": "x"}))
    error = await refusal(private, publish(server, entry))
    assert (error.code, error.status) == ("DIGEST_MISMATCH", 502)
    assert (await private.list_skills()).total == 0
    assert list((data_dir / "staging").iterdir()) == []


async def test_a_skill_with_another_name_than_its_entry_is_refused(private: SkillManager, server: SourceServer) -> None:
    body = zip_of({"SKILL.md": skill_markdown("git-commit")})
    entry = listed("pdf", body, server.serve("/x.zip", body))
    error = await refusal(private, publish(server, entry), overwrite=True)
    assert error.code == "INVALID_SKILL_STRUCTURE"
    assert "git-commit" in error.message


def _link(kind: bytes, target: str) -> bytes:
    member = tarfile.TarInfo("link")
    member.type, member.linkname = kind, target
    return tar_of({"SKILL.md": skill_markdown("pdf")}, member)


def _bomb() -> bytes:
    zeros = "\0" * (24 * 1024 * 1024)
    return tar_of({"SKILL.md": skill_markdown("pdf"), **{f"{number}.bin": zeros for number in range(5)}})


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a symbolic link": (lambda: _link(tarfile.SYMTYPE, "/etc/passwd"), "UNSAFE_ENTRY"),
    "a hard link": (lambda: _link(tarfile.LNKTYPE, "SKILL.md"), "UNSAFE_ENTRY"),
    "a device": (lambda: _link(tarfile.CHRTYPE, ""), "UNSAFE_ENTRY"),
    "a path that leads out": (lambda: tar_of({"SKILL.md": skill_markdown("pdf"), "../evil": "x"}), "UNSAFE_PATH"),
    "an absolute path": (lambda: tar_of({"SKILL.md": skill_markdown("pdf"), "/etc/evil": "x"}), "UNSAFE_PATH"),
    "several skills": (
        lambda: tar_of({"a/SKILL.md": skill_markdown("pdf"), "b/SKILL.md": "x"}),
        "INVALID_SKILL_STRUCTURE",
    ),
    "no skill": (lambda: tar_of({"README.md": "x"}), "INVALID_SKILL_STRUCTURE"),
    "no files": (lambda: tar_of({}), "INVALID_SKILL_STRUCTURE"),
    "too much": (_bomb, "ARCHIVE_TOO_LARGE"),
    "no tar": (lambda: gzip.compress(b"no tar" * 200), "INVALID_ZIP"),
    "a short tar": (lambda: tar_of({"SKILL.md": skill_markdown("pdf")})[:-30], "INVALID_ZIP"),
    "the start of gzip": (lambda: b"\x1f\x8b", "INVALID_ZIP"),
    "the start of zip": (lambda: b"PK", "INVALID_ZIP"),
    "nothing": (lambda: b"", "INVALID_ZIP"),
    "a zip that leads out": (lambda: raw_zip([raw_entry("../SKILL.md", b"x")]), "UNSAFE_PATH"),
}


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> tuple[bytes, str]:
    """A body and the code of its refusal. It is made outside of the event loop."""
    make, code = HOSTILE[request.param]
    return make(), code


async def test_hostile_archives_are_refused_and_leave_nothing(
    private: SkillManager, server: SourceServer, data_dir: Path, hostile: tuple[bytes, str]
) -> None:
    body, code = hostile
    entry = listed("pdf", body, server.serve("/x", body))
    error = await refusal(private, publish(server, entry))
    assert error.code == code, error.message
    assert list((data_dir / "staging").iterdir()) == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<html>", "SOURCE_NOT_FOUND"),
        (b"[]", "SOURCE_NOT_FOUND"),
        (b'{"skills": 3}', "SOURCE_NOT_FOUND"),
        (b"[" * 100_000, "SOURCE_NOT_FOUND"),
        (b'{"skills": []}', "SOURCE_UNREACHABLE"),
        (b'{"$schema": "https://example.org/9", "skills": []}', "SOURCE_UNREACHABLE"),
        (json.dumps({"$schema": SCHEMA, "skills": []}).encode(), "INVALID_SKILL_STRUCTURE"),
        (json.dumps({"$schema": SCHEMA, "skills": [[], {}, None]}).encode(), "INVALID_SKILL_STRUCTURE"),
        (bytes(17 * 1024 * 1024), "ARCHIVE_TOO_LARGE"),
        (json.dumps({"$schema": SCHEMA, "skills": [{}] * 10_001}).encode(), "ARCHIVE_TOO_LARGE"),
    ],
)
async def test_what_is_not_an_index_is_refused(
    private: SkillManager, server: SourceServer, body: bytes, code: str
) -> None:
    server.serve(INDEX_PATH, body)
    assert (await refusal(private, server.url)).code == code


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../x"},
        {"name": "double--hyphen"},
        {"type": "exe"},
        {"digest": "md5:1"},
        {"digest": None},
        {"url": "file:///etc/passwd"},
        {"url": "//[bad"},
        {"url": 3},
    ],
)
async def test_entries_that_break_the_rules_are_left_out(
    private: SkillManager, server: SourceServer, fields: dict[str, Any]
) -> None:
    source = publish(server, {**publish_zip(server, "bad"), **fields}, publish_zip(server, "good"))
    receipt = await private.install_skill(source)
    assert receipt.names == ["good"]
    assert len(receipt.left_out) == 1


async def test_unknown_names_and_too_many_skills_are_refused_with_advice(
    private: SkillManager, server: SourceServer, tmp_path: Path
) -> None:
    one = publish_zip(server, "report-writer")
    source = publish(server, one)
    error = await refusal(private, source, skills=["report-writter"])
    assert (error.code, '"report-writer"' in error.message) == ("SOURCE_NOT_FOUND", True)
    source = publish(server, *({**one, "name": f"skill-{number}"} for number in range(MAX_UNCHOSEN + 1)))
    error = await refusal(private, source)
    assert (error.code, "--skill" in error.message) == ("INVALID_INPUT", True)
    assert (await refusal(private, str(tmp_path), skills=["x"])).code == "INVALID_INPUT"


async def test_private_addresses_are_refused_by_default(skills: SkillManager, server: SourceServer) -> None:
    source = publish(server, publish_zip(server, "pdf"))
    assert (await refusal(skills, source)).code == "ADDRESS_REFUSED"
    assert (await refusal(skills, f"{source}/team/repo")).code == "ADDRESS_REFUSED"
    assert server.requests == []


# ---------------------------------------------------------------------------------------------------------- addresses
@pytest.mark.parametrize(
    ("text", "kind", "index"),
    [
        ("https://example.org", "index", f"https://example.org{INDEX_PATH}"),
        ("https://example.org/", "index", f"https://example.org{INDEX_PATH}"),
        ("http://example.org:81#pdf", "index", f"http://example.org:81{INDEX_PATH}"),
        (f"https://example.org/x{INDEX_PATH}#pdf", "index", f"https://example.org/x{INDEX_PATH}"),
        ("https://example.org/a/b", "git", f"https://example.org/a/b{INDEX_PATH}"),
        ("https://example.org/a/b.git", "git", None),
        ("git+https://example.org/a/b", "git", None),
        ("https://example.org/a/b@v1", "git", None),
        ("https://example.org/a/b#folder", "git", None),
        ("https://gitlab.com/a/b", "git", None),
        ("owner/repo", "git", None),
        ("https://example.org/a.zip", "archive", None),
    ],
)
def test_an_address_leads_to_an_index_or_may_have_one(text: str, kind: str, index: str | None) -> None:
    source = parse_source(text)
    assert source is not None
    assert (source.kind, source.index_url) == (kind, index)


@pytest.mark.parametrize("text", ["https://example.org?x=1", "https://example.org#../x", "https://u:p@example.org"])
def test_an_address_of_an_index_has_no_query_and_no_password(text: str) -> None:
    with pytest.raises(ApexBridgeError) as caught:
        parse_source(text)
    assert caught.value.code == "INVALID_INPUT"
