"""Installs from repositories and addresses: what is fetched, what is refused, and that nothing is left behind."""

import asyncio
import io
import os
import ssl
import stat
import subprocess
import zipfile
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from apexbridge.errors import ApexBridgeError, InvalidArchiveError
from apexbridge.skills.config import FetchSettings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.remote import download, git, tree
from apexbridge.skills.remote.egress import Egress, EgressProxy, http_session
from apexbridge.skills.remote.source_text import parse_source
from tests.conftest import Workshop
from tests.making import skill_markdown, skill_zip, walk, zip_of
from tests.skills.source_server import (
    SourceRepository,
    SourceServer,
    commands,
    self_signed,
    send,
    shop_of,
    source_server,
)
from tests.skills.source_server import git as run_git
from tests.waiting import until

pytestmark = pytest.mark.anyio
PRIVATE = FetchSettings(private_addresses=True)


@pytest.fixture
def repository(tmp_path: Path) -> SourceRepository:
    return SourceRepository(tmp_path / "upstream")


@pytest.fixture
def server() -> Iterator[SourceServer]:
    with source_server() as opened:
        yield opened


@pytest.fixture
async def private(workshop: Workshop) -> AsyncIterator[SkillManager]:
    """A manager that may fetch from loopback."""
    async with workshop.open(fetch=PRIVATE) as manager:
        yield manager


async def refusal(manager: SkillManager, source: str, **options: Any) -> ApexBridgeError:
    with pytest.raises(ApexBridgeError) as caught:
        await manager.install_skill(source, **options)
    return caught.value


# --------------------------------------------------------------------------------------------------------------- git
async def test_a_folder_of_a_repository_is_installed_and_its_origin_is_recorded(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    commit = repository.commit_skill("pdf")
    repository.commit({"skills/pdf/scripts/run.sh": "echo 1", "README.md": "x"})
    (repository.folder / "skills/pdf/scripts/run.sh").chmod(0o755)
    commit = repository.commit({})
    receipt = await skills.install_skill(f"{repository.url}#skills/pdf")
    assert receipt.names == ["pdf"]
    detail = await skills.get_skill("pdf")
    assert [file.path for file in detail.files] == ["SKILL.md", "scripts/run.sh"]
    assert stat.S_IMODE((data_dir / "skills/pdf/scripts/run.sh").stat().st_mode) == 0o755
    origin = detail.origin
    assert origin is not None
    assert (origin.url, origin.ref, origin.commit, origin.path) == (repository.url, None, commit, "skills/pdf")
    assert origin.source == f"{repository.url}#skills/pdf"
    assert origin.content_hash == detail.content_hash
    assert list((data_dir / "staging").iterdir()) == []


async def test_the_origin_survives_the_loss_of_the_database(
    workshop: Workshop, repository: SourceRepository, data_dir: Path
) -> None:
    commit = repository.commit_skill("pdf")
    async with workshop.open() as skills:
        await skills.install_skill(f"{repository.url}#skills/pdf")
    (data_dir / "apex.sqlite3").unlink()
    async with workshop.open() as skills:
        origin = (await skills.get_skill("pdf")).origin
        assert origin is not None
        assert origin.commit == commit


async def test_an_upload_has_no_origin_and_cannot_claim_one(skills: SkillManager, repository: SourceRepository) -> None:
    repository.commit_skill("pdf")
    await skills.install_skill(f"{repository.url}#skills/pdf")
    await skills.install_skill(skill_zip("pdf", {".apex-origin.json": '{"source": "evil/evil"}'}), overwrite=True)
    assert (await skills.get_skill("pdf")).origin is None


@pytest.mark.parametrize("ref", ["v1", "old-branch", "feature/x", None])
async def test_a_branch_a_tag_or_a_commit_can_be_named(
    skills: SkillManager, repository: SourceRepository, ref: str | None
) -> None:
    first = repository.commit_skill("pdf", description="The first version of the skill.")
    for name in ("old-branch", "feature/x"):
        run_git(repository.folder, "branch", name)
    run_git(repository.folder, "tag", "--annotate", "--message", "one", "v1")
    repository.commit_skill("pdf", description="The second version of the skill.")
    await skills.install_skill(f"{repository.url}@{ref or first}#skills/pdf")
    detail = await skills.get_skill("pdf")
    assert detail.description == "The first version of the skill."
    assert detail.origin is not None
    assert (detail.origin.commit, detail.origin.ref) == (first, ref or first)


async def test_a_repository_of_a_plugin_is_installed_with_its_origin(
    skills: SkillManager, repository: SourceRepository
) -> None:
    repository.commit_skill("alpha")
    commit = repository.commit_skill("beta")
    receipt = await skills.install_skill(repository.url)
    assert (receipt.name, receipt.names) == ("upstream", ["alpha", "beta"])
    (plugin,) = await skills.list_plugins()
    assert plugin.origin is not None
    assert plugin.origin.commit == commit
    assert (await skills.get_skill("beta")).origin is not None


async def test_a_marketplace_is_installed_as_its_folder_is(skills: SkillManager, repository: SourceRepository) -> None:
    files = shop_of(("tea", "brew"), ("coffee", "brew"), ("cake", "bake"))
    commit = repository.commit({**files, "cake/skills/bad/SKILL.md": "---\nname: bad\n---\n"})
    of_folder = await skills.install_skill(repository.folder)
    assert all(plugin.origin is None for plugin in await skills.list_plugins())
    receipt = await skills.install_skill(repository.url, overwrite=True)
    for field in ("name", "names", "plugins", "left_out", "warnings", "message"):
        assert getattr(receipt, field) == getattr(of_folder, field)
    assert (receipt.name, receipt.names) == ("shop", ["brew", "coffee:brew", "bake"])
    assert [one.name for one in receipt.left_out] == ["bad"]
    for plugin in await skills.list_plugins():
        assert plugin.origin is not None
        assert (plugin.origin.source, plugin.origin.commit) == (repository.url, commit)
    for name, path in (
        ("brew", "tea/skills/brew"),
        ("coffee:brew", "coffee/skills/brew"),
        ("bake", "cake/skills/bake"),
    ):
        origin = (await skills.get_skill(name)).origin
        assert origin is not None
        assert (origin.path, origin.commit) == (path, commit)
    assert [item.name for item in await skills.origins()] == ["cake", "coffee", "tea"]
    assert (await skills.install_skill(f"{repository.url}#tea", overwrite=True)).plugins == ["tea"]


async def test_a_strict_install_of_a_source_refuses_all_of_it(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit({**shop_of(("tea", "brew")), "tea/skills/bad/SKILL.md": "---\nname: bad\n---\n"})
    before = walk(data_dir)
    with pytest.raises(ApexBridgeError, match="bad: Missing required fields: description"):
        await skills.install_skill(repository.url, strict=True)
    assert walk(data_dir) == before
    repository.commit({"tea/skills/bad/SKILL.md": skill_markdown("bad")})
    await skills.install_skill(repository.url, strict=True)
    repository.commit({"tea/skills/bad/SKILL.md": "---\nname: bad\n---\n"})
    with pytest.raises(ApexBridgeError, match="bad: Missing required fields: description"):
        await skills.update_plugin("tea", apply=True)
    assert (await skills.list_skills()).total == 2, "an update is as strict as the install was"


async def test_the_path_of_a_skill_file_means_its_folder(skills: SkillManager, repository: SourceRepository) -> None:
    repository.commit_skill("pdf")
    assert (await skills.install_skill(f"{repository.url}#skills/pdf/SKILL.md")).names == ["pdf"]


async def test_several_unrelated_skills_are_refused_with_the_sources_to_choose_from(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("alpha", "one/alpha")
    repository.commit_skill("beta", "two/beta")
    before = walk(data_dir)
    error = await refusal(skills, repository.url)
    assert error.code == "INVALID_INPUT"
    assert error.details["sources"] == [f"{repository.url}#one/alpha", f"{repository.url}#two/beta"]
    assert walk(data_dir) == before


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        ("@no-such-ref", "SOURCE_NOT_FOUND"),
        ("@" + "0" * 40, "SOURCE_NOT_FOUND"),
        ("#no/such/folder", "SOURCE_NOT_FOUND"),
        ("#README.md", "SOURCE_NOT_FOUND"),
    ],
)
async def test_a_missing_ref_or_path_is_reported_and_leaves_nothing(
    skills: SkillManager, repository: SourceRepository, data_dir: Path, tail: str, code: str
) -> None:
    repository.commit({"README.md": "x"})
    before = walk(data_dir)
    error = await refusal(skills, repository.url + tail)
    assert error.code == code
    assert str(data_dir) not in error.message
    assert walk(data_dir) == before


async def test_a_missing_repository_is_reported(skills: SkillManager, tmp_path: Path) -> None:
    assert (await refusal(skills, f"file://{tmp_path}/nothing.git")).code == "SOURCE_NOT_FOUND"


async def test_links_inside_a_skill_work_and_links_out_of_it_are_refused(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf")
    (repository.folder / "skills/pdf/guide.md").symlink_to("SKILL.md")
    repository.commit({})
    await skills.install_skill(f"{repository.url}#skills/pdf")
    assert (data_dir / "skills/pdf/guide.md").read_text() == (data_dir / "skills/pdf/SKILL.md").read_text()
    assert not (data_dir / "skills/pdf/guide.md").is_symlink()
    for target in ("/etc/passwd", "../../outside", "../../../../../../etc/passwd"):
        (repository.folder / "skills/pdf/guide.md").unlink()
        (repository.folder / "skills/pdf/guide.md").symlink_to(target)
        repository.commit({"outside": "x"})
        error = await refusal(skills, f"{repository.url}#skills/pdf", overwrite=True)
        assert error.code == "UNSAFE_ENTRY"
    assert list((data_dir / "staging").iterdir()) == []


async def test_a_tree_with_a_path_that_leads_out_is_refused(
    skills: SkillManager, repository: SourceRepository, tmp_path: Path
) -> None:
    def hash_tree(data: bytes) -> str:
        return run_git(repository.folder, "hash-object", "-t", "tree", "-w", "--stdin", "--literally", input=data)

    blob = run_git(repository.folder, "hash-object", "-w", "--stdin", input=b"x")
    up = b"100644 escaped\0" + bytes.fromhex(blob)
    top = hash_tree(b"40000 ..\0" + bytes.fromhex(hash_tree(up)))
    commit = run_git(repository.folder, "commit-tree", top, "-m", "evil")
    run_git(repository.folder, "update-ref", "refs/heads/evil", commit)
    assert (await refusal(skills, f"{repository.url}@evil")).code == "UNSAFE_PATH"
    assert not list(tmp_path.rglob("escaped"))


async def test_a_tree_that_names_the_same_objects_too_often_is_refused(
    skills: SkillManager, repository: SourceRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten small trees of ten entries each describe ten thousand million files."""
    blob = run_git(repository.folder, "hash-object", "-w", "/dev/null")
    mode, id = "100644 blob", blob
    for _ in range(10):
        listing = "".join(f"{mode} {id}\tf{number}\n" for number in range(10))
        mode, id = "040000 tree", run_git(repository.folder, "mktree", input=listing.encode())
    commit = run_git(repository.folder, "commit-tree", id, "-m", "bomb")
    run_git(repository.folder, "update-ref", "refs/heads/bomb", commit)
    monkeypatch.setattr(tree, "MAX_FILES", 1000)
    error = await refusal(skills, f"{repository.url}@bomb")
    assert (error.code, "1,000 files" in error.message) == ("ARCHIVE_TOO_LARGE", True)
    assert "APEX_INSTALL_MAX_MB" not in error.message


async def test_a_repository_beyond_the_size_limit_is_refused(
    workshop: Workshop, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf")
    repository.commit({"large.bin": os.urandom(3 * 1024 * 1024)})
    async with workshop.open(fetch=FetchSettings(max_mb=1)) as skills:
        error = await refusal(skills, f"{repository.url}#skills/pdf")
        assert error.code == "ARCHIVE_TOO_LARGE"
        assert list((data_dir / "staging").iterdir()) == []


async def test_the_setting_is_named_only_if_it_is_the_limit(workshop: Workshop, server: SourceServer) -> None:
    url = server.serve("/big.zip", bytes(51 * 1024 * 1024))
    for max_mb, is_named in ((1, True), (200, False)):
        async with workshop.open(fetch=FetchSettings(private_addresses=True, max_mb=max_mb)) as skills:
            error = await refusal(skills, url)
            assert error.code == "ARCHIVE_TOO_LARGE"
            assert ("APEX_INSTALL_MAX_MB" in error.message) is is_named


async def test_an_untrusted_certificate_is_named(private: SkillManager, tmp_path: Path) -> None:
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(self_signed(tmp_path))
    answer = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=secure)
    async with answer:
        port = answer.sockets[0].getsockname()[1]
        error = await refusal(private, f"https://localhost:{port}/pdf.zip")
    assert error.code == "SOURCE_UNREACHABLE"
    assert "certificate of localhost is not trusted: self-signed certificate" in error.message
    assert "SSL_CERT_FILE" in error.message


async def test_a_small_pack_of_a_huge_file_is_refused_before_it_is_written(
    workshop: Workshop, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf")
    repository.commit({"skills/pdf/zeros": bytes(8 * 1024 * 1024)})
    async with workshop.open(fetch=FetchSettings(max_mb=2)) as skills:
        assert (await refusal(skills, f"{repository.url}#skills/pdf")).code == "ARCHIVE_TOO_LARGE"


async def test_hooks_filters_and_configuration_of_git_are_not_used(
    skills: SkillManager, repository: SourceRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit_skill("pdf")
    repository.commit({"skills/pdf/.gitattributes": "* filter=evil\n", "skills/pdf/data.txt": "as it is\n"})
    proof = tmp_path / "proof"
    script = tmp_path / "run-me"
    script.write_text(f"#!/bin/sh\ntouch {proof}\nexec cat\n")
    script.chmod(0o755)
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction", "post-merge"):
        (hooks / name).symlink_to(script)
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {script}\n\tsshCommand = {script}\n"
        f'[filter "evil"]\n\tsmudge = {script}\n\trequired = true\n[credential]\n\thelper = {script}\n'
        f'[init]\n\ttemplateDir = {home}\n[url "file:///nowhere/"]\n\tinsteadOf = file:///\n'
    )
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hooks))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(script))
    await skills.install_skill(f"{repository.url}#skills/pdf")
    assert (await skills.get_skill("pdf")).files
    assert not proof.exists()


async def test_memory_and_time_of_git_are_limited(skills: SkillManager, repository: SourceRepository) -> None:
    source = parse_source(repository.url)
    assert source is not None
    opened = git.Repository(repository.folder, git.find_git() or "git", source, max_bytes=1000)
    shown = opened._output("-c", "alias.limits=!ulimit -v; ulimit -t", "limits").split()
    assert shown == [str(git.MAX_MEMORY_KB), str(git.MAX_CPU_SECONDS)]


async def test_submodules_are_not_fetched(skills: SkillManager, repository: SourceRepository, tmp_path: Path) -> None:
    inner = SourceRepository(tmp_path / "inner")
    inner.commit_skill("inner")
    repository.commit_skill("pdf")
    run_git(repository.folder, "-c", "protocol.file.allow=always", "submodule", "add", inner.url, "skills/pdf/inner")
    repository.commit({})
    await skills.install_skill(f"{repository.url}#skills/pdf")
    assert [file.path for file in (await skills.get_skill("pdf")).files] == ["SKILL.md"]


async def test_a_repository_is_fetched_over_http_through_the_checking_proxy(
    private: SkillManager, repository: SourceRepository, server: SourceServer
) -> None:
    commit = repository.commit_skill("pdf")
    url = server.serve_repository("/team/skills.git", repository.folder / ".git")
    await private.install_skill(f"{url}#skills/pdf")
    origin = (await private.get_skill("pdf")).origin
    assert origin is not None
    assert (origin.url, origin.commit) == (url, commit)
    moved = server.redirect("/old/skills.git/info/refs", f"{url}/info/refs?service=git-upload-pack")
    await private.install_skill(f"{moved.removesuffix('/info/refs')}#skills/pdf", overwrite=True)


async def test_a_private_address_is_refused_for_git_too(
    workshop: Workshop, repository: SourceRepository, server: SourceServer
) -> None:
    repository.commit_skill("pdf")
    server.serve_repository("/skills.git", repository.folder / ".git")
    async with workshop.open() as skills:
        for source in (
            f"https://127.0.0.1:{server.port}/skills.git",
            f"https://localhost:{server.port}/skills.git",
            "https://169.254.169.254/skills.git",
            "https://[::1]/skills.git",
            "ssh://git@127.0.0.1/skills.git",
            "git@localhost:skills.git",
        ):
            assert (await refusal(skills, source)).code == "ADDRESS_REFUSED", source
        assert (await refusal(skills, f"{server.url}/skills.git")).code == "ADDRESS_REFUSED", "without TLS"
    assert server.requests == []


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("git@8.8.8.8:team/skills.git", ["HostName=8.8.8.8", "HostKeyAlias=8.8.8.8"]),
        ("ssh://git@8.8.8.8:2222/team/skills.git", ["HostName=8.8.8.8", "HostKeyAlias=[8.8.8.8]:2222"]),
    ],
)
async def test_ssh_connects_to_the_checked_address_without_questions(
    skills: SkillManager,
    repository: SourceRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    options: list[str],
) -> None:
    """A program named ssh records its arguments and serves the repository. No SSH server is needed."""
    repository.commit_skill("pdf")
    log, programs = tmp_path / "log", tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {log}\nexec git-upload-pack {repository.folder}\n"
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    await skills.install_skill(f"{address}#skills/pdf")
    arguments = log.read_text().splitlines()
    for option in ("BatchMode=yes", "ProxyCommand=none", *options):
        assert option in arguments


async def test_without_git_other_hosts_than_github_are_refused_with_advice(
    skills: SkillManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = await refusal(skills, "https://example.org/a/b.git")
    assert (error.code, "git" in error.message) == ("NOT_READY", True)


def github_zip(files: dict[str, str], *, commit: str, links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = commit.encode()
        for path, content in {**files, **(links or {})}.items():
            info = zipfile.ZipInfo(f"repo-main/{path}")
            kind = stat.S_IFLNK if links and path in links else stat.S_IFREG
            info.external_attr = (kind | 0o644) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


async def test_without_git_a_repository_on_github_is_fetched_as_an_archive(
    private: SkillManager, server: SourceServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(download, "GITHUB_ARCHIVES", server.url)
    files = {"skills/pdf/SKILL.md": skill_markdown("pdf"), "README.md": "x"}
    server.serve("/owner/repo/zip/v1", github_zip(files, commit="a" * 40, links={"skills/pdf/more.md": "SKILL.md"}))
    await private.install_skill("owner/repo/skills/pdf@v1")
    detail = await private.get_skill("pdf")
    assert detail.origin is not None
    assert (detail.origin.commit, detail.origin.ref) == ("a" * 40, "v1")
    assert [file.path for file in detail.files] == ["SKILL.md", "more.md"]
    assert (await refusal(private, "owner/repo/skills/none@v1")).code == "SOURCE_NOT_FOUND"
    assert (await refusal(private, "owner/repo/skills/pdf@v2")).code == "SOURCE_NOT_FOUND"


async def test_a_cancelled_fetch_ends_git_and_leaves_nothing(
    private: SkillManager, server: SourceServer, data_dir: Path
) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_end(handler: BaseHTTPRequestHandler) -> None:
        loop.call_soon_threadsafe(started.set)
        handler.connection.recv(1)

    server.answers["/slow.git"] = wait_for_end
    task = asyncio.ensure_future(private.install_skill(f"{server.url}/slow.git"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list((data_dir / "staging").iterdir()) == []
    assert f"{server.url}/slow.git" not in commands()


# ------------------------------------------------------------------------------------------------------------- archives
async def test_an_archive_is_installed_from_its_address(private: SkillManager, server: SourceServer) -> None:
    url = server.serve("/dl/pdf.zip", skill_zip("pdf"))
    moved = server.redirect("/latest.zip", "/dl/pdf.zip")
    receipt = await private.install_skill(moved)
    assert receipt.names == ["pdf"]
    origin = (await private.get_skill("pdf")).origin
    assert origin is not None
    assert (origin.kind, origin.url, origin.commit) == ("archive", moved, None)
    assert origin.digest
    assert (await refusal(private, url)).code == "SKILL_ALREADY_EXISTS"


async def test_a_private_address_is_refused_without_the_setting(skills: SkillManager, server: SourceServer) -> None:
    server.serve("/pdf.zip", skill_zip("pdf"))
    for host in ("127.1", "2130706433", "0x7f000001"):  # some libraries read these as 127.0.0.1
        assert (await refusal(skills, f"https://{host}:{server.port}/pdf.zip")).code in (
            "ADDRESS_REFUSED",
            "SOURCE_UNREACHABLE",
        )
    for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"):
        error = await refusal(skills, f"https://{host}:{server.port}/pdf.zip")
        assert error.code == "ADDRESS_REFUSED", host
        assert "APEX_INSTALL_PRIVATE_ADDRESSES" in error.message
    for address in ("10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "[fd00::1]", "[fe80::1]"):
        assert (await refusal(skills, f"https://{address}/pdf.zip")).code == "ADDRESS_REFUSED", address
    assert server.requests == []


class OnePublicName(Egress):
    """Treats the address of one name as public, as if a public server sent the redirect."""

    async def resolve(self, host: str, port: int, family: int = 0) -> list[str]:
        if host == "public.test":
            return ["127.0.0.1"]
        return await super().resolve(host, port, family)


@pytest.mark.parametrize(
    "target", ["https://127.0.0.1:{port}/secret", "https://localhost:{port}/x", "file:///etc/passwd"]
)
async def test_a_redirect_to_a_private_address_is_refused(server: SourceServer, target: str) -> None:
    server.redirect("/pdf.zip", target.format(port=server.port))
    egress = OnePublicName(allow_private=False)
    session = http_session(egress)
    async with session:  # the redirect arrives over plain HTTP, so that the test needs no certificate
        answer = await session.get(f"http://public.test:{server.port}/pdf.zip", allow_redirects=False)
        location = answer.headers["location"]
    with pytest.raises(ApexBridgeError) as caught:
        await download.download(egress, location, io.BytesIO(), max_bytes=1000, claim=lambda size: None)
    assert caught.value.code == "ADDRESS_REFUSED"
    assert server.requests == ["/pdf.zip"]


async def test_the_checked_address_is_connected_to_even_if_the_name_changes(server: SourceServer) -> None:
    """The name does not exist: only the address of the one resolution can have been used."""
    server.serve("/pdf.zip", b"content")
    proxy = EgressProxy(OnePublicName(allow_private=False), max_bytes=10_000)
    async with proxy.listening() as address:
        host, port = address.rpartition("@")[2].split(":")
        password = address.partition("git:")[2].partition("@")[0].encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x05\x01\x02\x01\x03git" + bytes([len(password)]) + password)
        writer.write(b"\x05\x01\x00\x03\x0bpublic.test" + server.port.to_bytes(2, "big"))
        assert await reader.readexactly(14) == b"\x05\x02\x01\x00\x05\x00\x00\x01" + bytes(6)
        writer.write(b"GET /pdf.zip HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"content")
        writer.close()


@pytest.mark.parametrize("password", [b"", b"wrong", b"x" * 255])
async def test_the_proxy_refuses_clients_without_its_password(password: bytes, server: SourceServer) -> None:
    proxy = EgressProxy(Egress(allow_private=True), max_bytes=10_000)
    async with proxy.listening() as address:
        host, port = address.rpartition("@")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x05\x01\x02\x01\x03git" + bytes([len(password)]) + password)
        assert await reader.readexactly(4) == b"\x05\x02\x01\x01"
        assert await reader.read() == b""
        writer.close()
    assert server.requests == []


async def test_an_endless_body_is_cut_off_and_leaves_nothing(
    workshop: Workshop, server: SourceServer, data_dir: Path
) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(bytes(65536))

    server.answers["/endless.zip"] = endless
    async with workshop.open(fetch=FetchSettings(private_addresses=True, max_mb=1)) as skills:
        error = await refusal(skills, f"{server.url}/endless.zip")
        assert (error.code, "1 MB" in error.message) == ("ARCHIVE_TOO_LARGE", True)
        assert list((data_dir / "staging").iterdir()) == []


async def test_a_slow_server_is_given_up_and_leaves_nothing(
    workshop: Workshop, server: SourceServer, data_dir: Path
) -> None:
    server.answers["/slow"] = lambda handler: handler.connection.recv(1) and None
    fetch = FetchSettings(private_addresses=True, timeout_seconds=0.3)
    async with workshop.open(fetch=fetch) as skills:
        for source in ("/slow/a.zip", "/slow/a.git"):
            error = await refusal(skills, server.url + source)
            assert (error.code, "APEX_INSTALL_TIMEOUT_SECONDS" in error.message) == ("TIMEOUT", True)
        assert list((data_dir / "staging").iterdir()) == []


async def test_an_archive_bomb_is_refused(private: SkillManager, server: SourceServer, data_dir: Path) -> None:
    bomb = zip_of({"pdf/SKILL.md": skill_markdown("pdf"), "pdf/zeros": bytes(20 * 1024 * 1024)})
    error = await refusal(private, server.serve("/bomb.zip", bomb))
    assert error.code == "ARCHIVE_TOO_LARGE"
    assert list((data_dir / "staging").iterdir()) == []


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (404, {}, "SOURCE_NOT_FOUND"),
        (500, {}, "SOURCE_UNREACHABLE"),
        (200, {"Content_Encoding": "gzip"}, "SOURCE_UNREACHABLE"),
        (200, {}, "INVALID_ZIP"),
        (302, {"Location": "/a.zip"}, "SOURCE_UNREACHABLE"),
        (302, {"Location": "gopher://x"}, "ADDRESS_REFUSED"),
    ],
)
async def test_a_bad_answer_is_reported(
    private: SkillManager, server: SourceServer, status: int, headers: dict[str, str], code: str
) -> None:
    server.answers["/a.zip"] = lambda handler: send(handler, status, b"body", **headers)
    assert (await refusal(private, f"{server.url}/a.zip")).code == code


async def test_an_unknown_host_and_a_closed_port_are_reported(private: SkillManager) -> None:
    assert (await refusal(private, "https://no-such-host.invalid/a.zip")).code == "SOURCE_UNREACHABLE"
    assert (await refusal(private, "https://no-such-host.invalid/a.git")).code == "SOURCE_UNREACHABLE"
    assert (await refusal(private, "https://127.0.0.1:9/a.zip")).code == "SOURCE_UNREACHABLE"


async def test_a_download_counts_against_the_quota_of_the_caller(
    workshop: Workshop, repository: SourceRepository
) -> None:
    repository.commit_skill("pdf")
    async with workshop.open() as skills:
        skills._disk._quota_of = lambda caller: 4096
        error = await refusal(skills, f"{repository.url}#skills/pdf", caller="a-key")
        assert error.code == "STORAGE_FULL"


async def test_a_full_disk_is_reported_as_such(server: SourceServer) -> None:
    url = server.serve("/pdf.zip", skill_zip("pdf"))
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(descriptor, "wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        await download.download(Egress(allow_private=True), url, full, max_bytes=10**6, claim=lambda size: None)
    source = parse_source("owner/repo")
    assert source is not None
    assert git._failure(source, ["fatal: write error: No space left on device"]).code == "STORAGE_FULL"


async def test_a_git_that_ignores_the_proxy_would_be_noticed(tmp_path: Path) -> None:
    """git must send names to the proxy: otherwise the check of addresses has no effect."""
    proxy = EgressProxy(Egress(allow_private=False), max_bytes=10_000)
    async with proxy.listening() as address:
        process = await asyncio.create_subprocess_exec(
            git.find_git() or "git",
            "ls-remote",
            "https://localhost:9/x.git",
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "https_proxy": address, "no_proxy": ""},
            stderr=subprocess.DEVNULL,
        )
        await process.wait()
        await until(lambda: proxy.refusal)
    assert proxy.refusal is not None
    assert proxy.refusal.code == "ADDRESS_REFUSED"


def test_damaged_data_of_a_github_archive_is_an_invalid_archive(tmp_path: Path) -> None:
    archive = tmp_path / "repo.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("repo-main/SKILL.md", "---\nname: repo\ndescription: A skill.\n---\n" + "text " * 200)
    data = bytearray(archive.read_bytes())
    start = data.index(b"SKILL.md") + len("SKILL.md")
    data[start : start + 20] = b"\xff" * 20
    archive.write_bytes(data)
    source = parse_source("owner/repo")
    assert source is not None
    with pytest.raises(InvalidArchiveError) as caught:
        download._extract(archive, source, tmp_path / "target", 1_000_000)
    assert caught.value.code == "INVALID_ZIP"
