"""Layers built by the real pip and npm from indexes on this machine; untrusted packages cannot harm the server."""

import base64
import errno
import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import threading
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anyio
import anyio.abc
import pytest

from apexbridge.errors import ApexBridgeError, RequestError, ServerError
from apexbridge.sandbox import layers
from apexbridge.sandbox.layers import Kind, LayerStore, without_paths
from apexbridge.skills.package.dependencies import read_dependencies
from tests.waiting import until

pytestmark = pytest.mark.anyio
KEY = "0123456789abcdef" * 2
OTHER_KEY = "fedcba9876543210" * 2
SECONDS = 60
"""Two installers may start at once on a busy machine."""
NpmScript = Callable[[str], None]


@pytest.fixture(autouse=True)
def _no_installer_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith(("PIP_", "NPM_CONFIG_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def wheel_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip's only index: a folder, named by pip's own settings."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return wheel_index(monkeypatch, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers")


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    *,
    metadata: str = "",
    links: Mapping[str, str] | None = None,
    version: str = "1.0",
) -> None:
    """A minimal wheel; `dist-info/` in a name is replaced by the wheel's own folder."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path.replace("dist-info/", f"{info}/"), content)
        for path, target in (links or {}).items():
            entry = zipfile.ZipInfo(path)
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def make_source(folder: Path, name: str, *, leaves: Path) -> Path:
    """A source package whose build would leave a file."""
    path = folder / f"{name}-1.0.tar.gz"
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"pyproject.toml": project, "backend.py": f"open({str(leaves)!r}, 'w')\n"}
    path.write_bytes(make_tarball({f"{name}-1.0/{file}": content for file, content in files.items()}))
    return path


def make_tarball(files: Mapping[str, str], links: Mapping[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


class Registry(ThreadingHTTPServer):
    """The subset of an npm registry that an install uses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _RegistryHandler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.answers: dict[str, bytes] = {}

    def add(
        self, name: str, *, files: Mapping[str, str] | None = None, links: Mapping[str, str] | None = None, **more: Any
    ) -> str:
        """Serve a package; returns the URL of its tarball."""
        manifest = {"name": name, "version": "1.0.0", **more}
        contents = {"package.json": json.dumps(manifest), "index.js": "module.exports = 7", **(files or {})}
        tarball = make_tarball({f"package/{path}": text for path, text in contents.items()}, links)
        path = f"/-/{name}.tgz"
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(tarball).digest()).decode()}"
        version = {**manifest, "dist": {"tarball": f"{self.address}{path}", "integrity": integrity}}
        report = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        self.answers |= {path: tarball, f"/{name}": json.dumps(report).encode()}
        return f"{self.address}{path}"


class _RegistryHandler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        answer = self.server.answers.get(unquote(self.path))
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer or b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with Registry() as opened:
        monkeypatch.setenv("npm_config_registry", opened.address)
        serving = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield opened
        opened.shutdown()
        serving.join()


@pytest.fixture
def fake_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NpmScript:
    """Replaces npm with a shell script, for behaviour that the real one does not have."""

    def put(script: str) -> None:
        npm = tmp_path / "bin/npm"
        npm.parent.mkdir(exist_ok=True)
        npm.write_text(f"#!/bin/sh\nif [ $1 = config ]; then echo all; exit; fi\n{script}\n")
        npm.chmod(0o755)
        monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")

    return put


def assert_nothing_is_left(store: LayerStore) -> None:
    assert store.list() == ()
    found = [path for path in store.root.rglob("*") if path.is_file() or path.parent.name == "staging"]
    assert [path.name for path in found] == [".lock"]
    assert not [process for process in Path("/proc").glob("[0-9]*") if names(process, store.root / "staging")]


def names(process: Path, folder: Path) -> bool:
    """Whether a process was started with this folder."""
    try:
        return os.fsencode(folder) in (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def refusal(store: LayerStore, kind: Kind, *requirements: str) -> ApexBridgeError:
    with pytest.raises(ApexBridgeError) as caught, anyio.fail_after(SECONDS):
        await store.install(kind, KEY, requirements)
    assert caught.value.status  # it can be reported over HTTP
    assert_nothing_is_left(store)
    return caught.value


# --------------------------------------------------------------------------------------------------------- installed
@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_python_packages_become_a_layer_that_a_script_can_import(store: LayerStore, wheels: Path) -> None:
    make_wheel(wheels, "tiny", {"tiny/__init__.py": "from helper import ANSWER\n"}, metadata="Requires-Dist: helper")
    make_wheel(wheels, "helper", {"helper.py": "ANSWER = 42\n"})
    lines: list[str] = []
    assert store.find("python", KEY) is None
    layer = await store.install("python", KEY, ["tiny>=1"], lines.append)
    assert store.find("python", KEY) == layer
    assert any("Successfully installed" in line for line in lines)
    program = f"import sys; sys.path.append({str(layer)!r}); import tiny; print(tiny.ANSWER)"
    # As in the sandbox: the interpreter without its packages.
    base = getattr(sys, "_base_executable", sys.executable)
    answer = await anyio.run_process([base, "-I", "-S", "-B", "-c", program])
    assert answer.stdout == b"42\n"
    (listed,) = store.list()
    assert (listed.kind, listed.key, listed.requirements) == ("python", KEY, ("tiny>=1",))
    assert listed.packages == (("helper", "1.0"), ("tiny", "1.0"))
    assert listed.size_bytes > 0
    assert json.loads((layer.parent / "layer.json").read_text())["installedAt"]


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_node_packages_become_a_layer_that_a_script_can_require(store: LayerStore, registry: Registry) -> None:
    registry.add("plain", dependencies={"@scope/deep": "^1"}, bin={"plain": "index.js"}, devDependencies={"none": "1"})
    registry.add("@scope/deep")
    layer = await store.install("node", KEY, ["plain@>=1 <2 || latest"])
    assert store.find("node", KEY) == layer
    answer = await anyio.run_process(["node", "-p", f"require({str(layer / 'node_modules/@scope/deep')!r})"])
    assert answer.stdout == b"7\n"
    assert (layer / "node_modules/.bin/plain").resolve() == layer / "node_modules/plain/index.js"
    assert store.list()[0].packages == (("@scope/deep", "1.0.0"), ("plain", "1.0.0"))


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_everything_in_a_layer_is_read_only(store: LayerStore, wheels: Path, registry: Registry) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": "", "dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n"})
    registry.add("plain", bin={"plain": "index.js"})
    found = [await store.install("python", KEY, ["tiny"]), await store.install("node", KEY, ["plain@1"])]
    paths = [path for layer in found for path in (layer, *layer.rglob("*")) if not path.is_symlink()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o555}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o444, 0o555}
    assert store.remove("python", KEY)
    assert store.remove("node", KEY)
    assert not store.remove("node", KEY)
    assert_nothing_is_left(store)


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_a_layer_is_installed_once(store: LayerStore, wheels: Path) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": ""})
    first = await store.install("python", KEY, ["tiny"])
    before = first.stat().st_ino
    (wheels / "tiny-1.0-py3-none-any.whl").unlink()
    lines: list[str] = []
    assert await store.install("python", KEY, ["tiny"], lines.append) == first
    assert (first.stat().st_ino, lines) == (before, [])


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_two_concurrent_installs_of_a_layer_do_the_work_once_and_both_succeed(
    tmp_path: Path, wheels: Path
) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": ""})
    lines: list[str] = []
    found: list[Path] = []

    async def install(store: LayerStore) -> None:
        found.append(await store.install("python", KEY, ["tiny"], lines.append))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(install, LayerStore(tmp_path / "layers"))
            tasks.start_soon(install, LayerStore(tmp_path / "layers"))  # like the store of another process
    assert len(set(found)) == 1
    assert len(found) == 2
    assert lines.count("Successfully installed tiny-1.0") == 1
    assert lines.count("waiting for another install to end") == 1


# ----------------------------------------------------------------------------------------------------------- refused
@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_a_package_without_a_wheel_is_refused_and_not_built(
    store: LayerStore, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_source(wheels, "raw", leaves=wheels / "BUILT")
    error = await refusal(store, "python", "raw")
    assert (error.code, error.message.splitlines()[-1]) == (
        "EXECUTION_ERROR",
        "ERROR: No matching distribution found for raw",
    )
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    await refusal(store, "python", "raw")
    assert not (wheels / "BUILT").exists()


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_a_source_package_that_a_wheel_names_by_url_is_not_built(store: LayerStore, wheels: Path) -> None:
    source = make_source(wheels.parent, "raw", leaves=wheels / "BUILT")
    make_wheel(wheels, "tiny", {"tiny.py": ""}, metadata=f"Requires-Dist: raw @ {source.as_uri()}")
    assert "nothing is built" in (await refusal(store, "python", "tiny")).message
    assert not (wheels / "BUILT").exists()


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_a_wheel_that_a_wheel_names_by_url_is_refused(store: LayerStore, wheels: Path) -> None:
    make_wheel(wheels.parent, "far", {"far.py": ""})
    url = (wheels.parent / "far-1.0-py3-none-any.whl").as_uri()
    make_wheel(wheels, "tiny", {"tiny.py": ""}, metadata=f"Requires-Dist: far @ {url}")
    assert "far" in (await refusal(store, "python", "tiny")).message


@pytest.mark.slow
@pytest.mark.requirement("B21")
@pytest.mark.parametrize(
    "url_template",
    [
        "{address}/internal/metadata?token=1",
        "{address}/files/far-1.0-py3-none-any.whl",
        "{address}/files/far-1.0.tar.gz",
        "git+{address}/far.git",
        "file://{folder}",
        "file://{folder}/far-1.0-py3-none-any.whl",
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_dependency_named_by_a_url_is_not_fetched(
    store: LayerStore, wheels: Path, tmp_path: Path, url_template: str, depth: int
) -> None:
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        url = url_template.format(address=f"http://127.0.0.1:{server.server_port}", folder=tmp_path)
        make_wheel(wheels, "near", {"near.py": ""}, metadata=f"Requires-Dist: far @ {url}")
        make_wheel(wheels, "tiny", {"tiny.py": ""}, metadata="Requires-Dist: near")
        lines: list[str] = []
        with pytest.raises(ServerError) as caught:
            await store.install("python", KEY, ["near" if depth == 1 else "tiny"], lines.append)
        server.shutdown()
    assert "by a URL" in caught.value.message
    assert fetched == []
    report = "\n".join([caught.value.message, *lines])
    assert str(tmp_path) not in report, "paths of the server must not be reported"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Cannot unpack file /srv/staging/x/data.json (downloaded)", "Cannot unpack file …/data.json (downloaded)"),
        ("in '/usr/lib/python3/pip'", "in '…/pip'"),
        ("from https://index.example/simple/tiny/ and http://[::1]:80/a/b", None),
        ("Looking in links: file:///srv/wheels/here", "Looking in links: …/here"),
        ("read/write and 1/2, ./a/b, ../c/d", None),
    ],
)
def test_output_of_installers_is_reported_without_paths_of_the_server(line: str, shown: str | None) -> None:
    assert without_paths(line) == (shown or line)


async def test_an_npm_that_would_fetch_any_url_is_refused(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n[ $1 = config ] && echo undefined && exit\ntouch {tmp_path}/INSTALLED\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    error = await refusal(store, "node", "a@1")
    assert (error.code, "npm install -g npm@latest" in error.message) == ("NOT_READY", True)
    assert not (tmp_path / "INSTALLED").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["../../../../evil.py", "tiny-1.0.data/purelib/../../../../../evil.py", "tiny-1.0.data/data/../../../evil.py"],
)
async def test_a_wheel_cannot_write_outside_of_its_layer(
    store: LayerStore, wheels: Path, tmp_path: Path, path: str
) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": "", path: "evil"})
    await refusal(store, "python", "tiny")
    assert list(tmp_path.rglob("evil*")) == []


@pytest.mark.slow
async def test_a_script_named_by_a_path_is_not_written_there(store: LayerStore, wheels: Path, tmp_path: Path) -> None:
    scripts = f"[console_scripts]\ntiny = tiny:main\n{'../' * 30}{tmp_path.relative_to('/')}/evil = tiny:main\n"
    make_wheel(wheels, "tiny", {"tiny.py": "", "dist-info/entry_points.txt": scripts})
    # Some versions of pip refuse; others use only the last component of the name.
    with suppress(ServerError):
        await store.install("python", KEY, ["tiny"])
    assert not (tmp_path / "evil").exists()


def python_without_pip(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let installs use a separate Python; returns its empty site-packages folder."""
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    monkeypatch.setattr(sys, "executable", str(environment / "bin/python"))
    (packages,) = environment.glob("lib/python*/site-packages")
    return packages


async def test_the_guard_restricts_every_version_of_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: LayerStore
) -> None:
    """A pip without any checks, as in old versions."""
    packages = python_without_pip(monkeypatch, tmp_path)
    (tmp_path / "other").touch()
    for attempt in (
        f"open({str(tmp_path / 'evil')!r}, 'w')",
        f"os.open({str(tmp_path / 'evil')!r}, os.O_CREAT | os.O_WRONLY)",
        "open('../../../../evil', 'a')",
        f"os.remove({str(tmp_path / 'other')!r})",
        f"os.remove('other', dir_fd=os.open({str(tmp_path)!r}, os.O_RDONLY))",
        f"os.chmod({str(tmp_path / 'other')!r}, 0)",
        f"os.rename({str(tmp_path / 'other')!r}, 'evil')",
        f"os.mkdir({str(tmp_path / 'evil')!r})",
        f"os.symlink({str(tmp_path)!r}, 'evil')",
        f"os.system('touch {tmp_path / 'evil'}')",
        f"subprocess.run(['touch', {str(tmp_path / 'evil')!r}])",
        f"os.execv('/usr/bin/touch', ['touch', {str(tmp_path / 'evil')!r}])",
        "os.fork()",
    ):
        (packages / "pip").mkdir(exist_ok=True)
        (packages / "pip/__main__.py").write_text(f"import os, subprocess\n{attempt}\n")
        for name in ("__init__", "_internal/__init__", "_internal/req/__init__"):
            (packages / f"pip/{name}.py").parent.mkdir(exist_ok=True)
            (packages / f"pip/{name}.py").touch()
        (packages / "pip/_internal/exceptions.py").write_text("class InstallationError(Exception): pass\n")
        (packages / "pip/_internal/req/req_install.py").write_text("class InstallRequirement: pass\n")
        error = await refusal(store, "python", "tiny")
        assert "PermissionError" in error.message, attempt
    assert list(tmp_path.rglob("evil")) == []
    assert (tmp_path / "other").stat().st_mode & 0o777 != 0


async def test_a_pip_whose_urls_cannot_be_restricted_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: LayerStore
) -> None:
    packages = python_without_pip(monkeypatch, tmp_path)
    (packages / "pip").mkdir()
    (packages / "pip/__init__.py").touch()
    (packages / "pip/__main__.py").write_text(f"open({str(tmp_path / 'evil')!r}, 'w')\n")
    error = await refusal(store, "python", "tiny")
    assert (error.code, "version of pip" in error.message) == ("NOT_READY", True)


@pytest.mark.slow
async def test_a_link_in_a_wheel_is_not_a_link_in_the_layer(store: LayerStore, wheels: Path) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": ""}, links={"out": "/etc/passwd"})
    layer = await store.install("python", KEY, ["tiny"])
    assert (layer / "out").read_text() == "/etc/passwd"
    assert not any(path.is_symlink() for path in layer.rglob("*"))


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_an_install_script_of_a_node_package_does_not_run(
    store: LayerStore, registry: Registry, tmp_path: Path
) -> None:
    run = f"touch {tmp_path / 'evil'}"
    registry.add("scripted", scripts=dict.fromkeys(["preinstall", "install", "postinstall", "prepare"], run))
    await store.install("node", KEY, ["scripted@*"])
    assert not (tmp_path / "evil").exists()


@pytest.mark.slow
async def test_links_and_paths_of_a_node_package_stay_inside_its_layer(
    store: LayerStore, registry: Registry, tmp_path: Path
) -> None:
    registry.add(
        "linked",
        files={"../../../evil": "x"},
        links={"package/out": "/etc", "package/up": "../../.."},
        bin={"../../../evil": "index.js", "x": "../../../../../etc/passwd"},
    )
    layer = await store.install("node", KEY, ["linked@1"])
    links = [path for path in layer.rglob("*") if path.is_symlink()]
    assert all(path.resolve().is_relative_to(layer / "node_modules") for path in links)
    assert [path for path in tmp_path.rglob("evil") if not path.is_relative_to(layer)] == []


@pytest.mark.slow
@pytest.mark.requirement("B21")
@pytest.mark.parametrize("url", ["git+file:///nowhere", "file:/", "github:a/b", "{tarball}"])
async def test_a_node_package_cannot_depend_on_one_outside_the_registry(
    store: LayerStore, registry: Registry, url: str
) -> None:
    tarball = registry.add("far")
    registry.add("near", dependencies={"far": url.format(tarball=tarball)})
    assert (await refusal(store, "node", "near@1")).code == "EXECUTION_ERROR"


@pytest.mark.parametrize(
    ("listed", "made"),
    [
        ('{"packages": {"node_modules/a": {"resolved": "https://example.com/a.tgz"}}}', ":"),
        ('{"packages": {"node_modules/a": {"link": true}}}', ":"),
        ('{"packages": []}', ":"),
        ("{}", ":"),
        ("nothing", ":"),
        ('{"packages": {}}', "ln -s /etc node_modules/out"),
        ('{"packages": {}}', "ln -s .. node_modules/out"),
        ('{"packages": {}}', "ln -s here node_modules/one; ln -s one/../../.. node_modules/here"),
        ('{"packages": {}}', "mkfifo node_modules/pipe"),
    ],
)
async def test_unsafe_results_of_an_older_npm_are_refused(
    store: LayerStore, fake_npm: NpmScript, listed: str, made: str
) -> None:
    fake_npm(f"mkdir node_modules; echo '{listed}' > node_modules/.package-lock.json; {made}")
    assert (await refusal(store, "node", "a@1")).code == "EXECUTION_ERROR"


@pytest.mark.requirement("B21")
@pytest.mark.parametrize(
    ("kind", "requirement"),
    [
        ("python", "-r/etc/passwd"),
        ("python", "--index-url=https://example.com"),
        ("python", "a @ https://example.com/a.whl"),
        ("python", "./a"),
        ("python", "a===/../../tmp"),
        ("python", "a\nb"),
        ("python", ""),
        ("node", "a"),
        ("node", "a@file:../x"),
        ("node", "a@user/repo"),
        ("node", "a@npm:b@1"),
        ("node", "a@.."),
        ("node", "a@x.tgz"),
        ("node", "a@1.0.0-x.tar.gz"),
        ("node", "../a@1"),
        ("node", "-g@1"),
    ],
)
async def test_the_store_accepts_only_names_and_versions(store: LayerStore, kind: Kind, requirement: str) -> None:
    with pytest.raises(RequestError) as caught:
        await store.install(kind, KEY, [requirement])
    assert caught.value.code == "INVALID_INPUT"


async def test_missing_requirements_and_invalid_keys_are_errors(store: LayerStore) -> None:
    with pytest.raises(RequestError):
        await store.install("python", KEY, [])
    for key in ("", "../../etc", "XYZ", "0" * 65):
        with pytest.raises(ValueError, match="key"):
            store.find("python", key)


@pytest.mark.slow
async def test_a_package_that_is_too_large_is_refused(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": "", "data.bin": "x" * 200_000})
    assert "larger" in (await refusal(LayerStore(tmp_path / "layers", max_bytes=100_000), "python", "tiny")).message


async def test_an_install_that_grows_too_large_is_stopped(
    tmp_path: Path, fake_npm: NpmScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SIZE_CHECK_SECONDS", 0.02)
    fake_npm("head -c 300000 /dev/zero > big; exec sleep 1000")
    error = await refusal(LayerStore(tmp_path / "layers", max_bytes=100_000), "node", "a@1")
    assert "larger" in error.message


# ------------------------------------------------------------------------------------------------------ interrupted
@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_a_cancelled_install_leaves_nothing_behind(
    store: LayerStore, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = anyio.Event()

    async def never_answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            requested.set()
            await anyio.sleep_forever()

    monkeypatch.delenv("PIP_NO_INDEX")
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, never_answer)
                tasks.start_soon(store.install, "python", KEY, ["tiny"])
                await requested.wait()
                assert store.find("python", KEY) is None
                tasks.cancel_scope.cancel()
    assert_nothing_is_left(store)


async def test_a_cancelled_installer_ends_with_all_its_children(
    store: LayerStore, tmp_path: Path, fake_npm: NpmScript
) -> None:
    fake_npm(f"sleep 1000 & echo $! $$ > {tmp_path}/processes; echo begun; wait")
    started = anyio.Event()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.install, "node", KEY, ["a@1"], lambda line: started.set())
            await started.wait()
            tasks.cancel_scope.cancel()
        for process in map(int, (tmp_path / "processes").read_text().split()):
            await until(lambda process=process: not is_running(process))  # type: ignore[misc]
    assert_nothing_is_left(store)


async def test_an_installer_that_takes_too_long_is_stopped(tmp_path: Path, fake_npm: NpmScript) -> None:
    fake_npm("exec sleep 1000")
    assert (await refusal(LayerStore(tmp_path / "layers", timeout_seconds=0.1), "node", "a@1")).code == "TIMEOUT"


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.requirement("B21")
async def test_leftovers_of_a_crash_are_ignored_and_removed_by_the_next_install(
    store: LayerStore, wheels: Path
) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": ""})
    left = store.root / "staging" / f"{KEY}-1/done/layer/deep"
    left.mkdir(parents=True)
    (left / "half.py").touch()
    left.chmod(0o555)
    (store.root / "staging/stray").touch()
    assert (store.find("python", KEY), store.list()) == (None, ())
    await store.install("python", OTHER_KEY, ["tiny"])
    assert list((store.root / "staging").iterdir()) == []
    assert [layer.key for layer in store.list()] == [OTHER_KEY]


@pytest.mark.slow
async def test_a_folder_deeper_than_pythons_stack_can_be_removed(store: LayerStore, wheels: Path) -> None:
    make_wheel(wheels, "tiny", {"tiny.py": ""})
    await store.install("python", KEY, ["tiny"])
    layer = store.find("python", KEY)
    assert layer is not None
    layer.chmod(0o755)
    await anyio.run_process(["mkdir", "-p", layer / "/".join("d" * 1500)])
    assert store.remove("python", KEY)
    assert_nothing_is_left(store)


# ---------------------------------------------------------------------------------------------------- the installers
async def test_an_installer_sees_no_secret_of_the_server(
    store: LayerStore, fake_npm: NpmScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("APEX_TOKEN", "OPENAI_API_KEY", "PYTHONPATH", "NODE_OPTIONS", "LD_PRELOAD_X", "XPIP_A", "TMPDIR"):
        monkeypatch.setenv(name, "secret")
    for name in ("PIP_INDEX_URL", "NPM_CONFIG_PROXY", "npm_config_x", "https_proxy", "NO_PROXY", "LC_ALL", "LANG"):
        monkeypatch.setenv(name, "passed")
    fake_npm("env; exit 3")
    lines: list[str] = []
    with pytest.raises(ServerError):
        await store.install("node", KEY, ["a@1"], lines.append)
    assert not [line for line in lines if "secret" in line]
    assert len([line for line in lines if line.endswith("=passed")]) == 7


async def test_installer_output_is_bounded_and_printable(
    store: LayerStore, fake_npm: NpmScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MAX_REPORTED_CHARACTERS", 10_000)
    fake_npm(
        r"yes x | head -c 3000000 | tr -d '\n'; echo; yes line | head -n 9000"
        "\n"
        r"printf 'npm error \033[31mlast\n'; exit 1"
    )
    lines: list[str] = []
    with pytest.raises(ServerError) as caught, anyio.fail_after(SECONDS):
        await store.install("node", KEY, ["a@1"], lines.append)
    assert sum(map(len, lines)) <= 10_000
    assert all(line.isprintable() for line in lines)
    assert caught.value.message.endswith("npm error  [31mlast")


async def test_without_pip_the_error_says_how_to_install_it(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    error = await refusal(store, "python", "tiny")
    assert (error.code, "ensurepip" in error.message) == ("NOT_READY", True)


async def test_without_npm_the_error_says_how_to_install_it(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = await refusal(store, "node", "a@1")
    assert (error.code, "nodejs.org" in error.message) == ("NOT_READY", True)


async def test_the_store_accepts_every_requirement_that_a_skill_may_declare(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("A_b[c,d]>=1,!=1.5,<2\ne~=1.0\nf==1!2.*\ng===1.0+local-1\nh\n")
    ranges = {"a": "", "b": "1.x || >=2.5.0-rc.1 <3", "@c/d": "next", "e": "~1", "f": "^1.0.0+b", "g": "1 - 2"}
    (tmp_path / "package.json").write_text(json.dumps({"dependencies": ranges}))
    found = read_dependencies(tmp_path)
    assert (len(found.python), len(found.node), found.problems) == (5, 6, ())
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    # The requirements are accepted; then the installers are missing.
    assert (await refusal(store, "python", *found.python)).code == "NOT_READY"
    assert (await refusal(store, "node", *found.node_requirements)).code == "NOT_READY"


async def test_a_full_disk_is_named_as_the_cause(store: LayerStore, fake_npm: NpmScript) -> None:
    fake_npm("echo 'npm error code ENOSPC'; echo 'npm error nospc ENOSPC: no space left on device, write'; exit 1")
    error = await refusal(store, "node", "a@1")
    assert (error.code, error.status) == ("STORAGE_FULL", 507)
    assert "Free some space" in error.message


async def test_a_full_disk_while_a_layer_is_prepared_leaves_nothing(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(key: str) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "_prepare", fail)
    assert (await refusal(store, "python", "tiny")).code == "STORAGE_FULL"
