"""Bundles: packages that every run can import, installed by the real pip from wheels that the tests make."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from apexbridge.errors import ApexBridgeError
from apexbridge.sandbox import bundles
from apexbridge.sandbox.bundles import BUNDLES, Bundles, bundle_of
from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.launcher.mounts import PYTHON_LAYERS
from apexbridge.sandbox.layers import LayerStore
from apexbridge.sandbox.package_names import distribution_of
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench
from tests.sandbox.test_layers import make_wheel, wheel_index

pytestmark = pytest.mark.anyio
SMALL: Mapping[str, tuple[str, ...]] = {"documents": ("tiny",), "data": ("shared", "other"), "web": ("broken",)}
SHOWS_ALL = "import json, tiny, shared, own; print(json.dumps([tiny.NAME, shared.NAME, own.NAME]))"


@pytest.fixture(autouse=True)
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip's only index: a folder."""
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = wheel_index(monkeypatch, tmp_path)
    monkeypatch.setattr(bundles, "BUNDLES", SMALL)
    make_wheel(folder, "tiny", {"tiny.py": "NAME = 'tiny'\n"}, metadata="Requires-Dist: shared")
    make_wheel(folder, "shared", {"shared.py": "NAME = 'shared'\n"})
    make_wheel(folder, "other", {"other.py": ""})
    return folder


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers")


@pytest.fixture
def installed(store: LayerStore) -> Bundles:
    return Bundles(store)


async def refusal(installed: Bundles, name: str) -> ApexBridgeError:
    with pytest.raises(ApexBridgeError) as caught:
        await installed.install(name)
    return caught.value


# ------------------------------------------------------------------------------------------------------- the lists
def test_every_bundle_has_a_mount_point_and_lists_packages_whose_modules_are_known() -> None:
    assert ("python", *BUNDLES) == PYTHON_LAYERS
    requirements = {Requirement(text).name for listed in BUNDLES.values() for text in listed}
    modules = (
        "PIL",
        "pypdf",
        "docx",
        "pptx",
        "openpyxl",
        "lxml",
        "pandas",
        "numpy",
        "matplotlib",
        "bs4",
        "yaml",
        "imageio",
    )
    assert {str(distribution_of(module)) for module in modules} <= requirements


def test_the_bundle_of_a_package_is_the_first_that_lists_it() -> None:
    assert [bundle_of(name) for name in ("Tiny", "other", "unlisted")] == ["documents", "data", None]


# --------------------------------------------------------------------------------------------------------- install
@pytest.mark.slow
async def test_a_bundle_is_installed_listed_and_removed(installed: Bundles) -> None:
    lines: list[str] = []
    assert [view.state for view in await installed.views()] == ["missing"] * 3
    view = await installed.install("documents", lines.append)
    assert (view.state, view.requirements) == ("installed", ["tiny"])
    assert [(package.name, package.version) for package in view.packages] == [("shared", "1.0"), ("tiny", "1.0")]
    assert view.size_bytes
    assert any("Successfully installed" in line for line in lines)
    lines.clear()
    assert await installed.install("documents", lines.append) == view
    assert lines == []
    assert list(installed.layers()) == ["documents"]
    assert installed.installed_packages() == {"shared": "documents", "tiny": "documents"}
    assert (await installed.remove("documents")).state == "missing"
    assert installed.layers() == {}
    with pytest.raises(ApexBridgeError) as caught:
        await installed.remove("documents")
    assert caught.value.code == "NOT_FOUND"


@pytest.mark.slow
async def test_a_bundle_with_another_list_is_used_until_it_is_installed_again(
    installed: Bundles, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await installed.install("documents")
    monkeypatch.setattr(bundles, "BUNDLES", {**SMALL, "documents": ("other", "tiny")})
    (before,) = [view for view in await installed.views() if view.name == "documents"]
    assert (before.state, list(installed.layers())) == ("outdated", ["documents"])
    after = await installed.install("documents")
    assert after.state == "installed"
    assert [package.name for package in after.packages] == ["other", "shared", "tiny"]
    assert len(store.list()) == 1


@pytest.mark.slow
async def test_bundles_share_the_versions_of_their_packages(installed: Bundles, wheels: Path) -> None:
    await installed.install("documents")
    make_wheel(wheels, "shared", {"shared.py": "NAME = 'newer'\n"}, version="2.0")
    view = await installed.install("data")
    assert {package.name: package.version for package in view.packages} == {"other": "1.0", "shared": "1.0"}


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["no package", "no wheel"])
async def test_a_bundle_that_cannot_be_installed_leaves_the_previous_one(
    installed: Bundles, wheels: Path, monkeypatch: pytest.MonkeyPatch, store: LayerStore, cause: str
) -> None:
    before = await installed.install("documents")
    if cause == "no wheel":
        (wheels / "broken-1.0.tar.gz").write_bytes(b"")
    monkeypatch.setattr(bundles, "BUNDLES", {**SMALL, "documents": ("broken", "tiny")})
    error = await refusal(installed, "documents")
    assert (error.code, "broken" in error.message) == ("EXECUTION_ERROR", True)
    view = await installed.view("documents")
    assert (view.state, view.packages) == ("outdated", before.packages)
    assert list((store.root / "staging").iterdir()) == []


@pytest.mark.slow
async def test_an_index_that_cannot_be_reached_is_named_as_the_cause(
    installed: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    error = await refusal(installed, "documents")
    assert (error.code, "cannot be reached" in error.message) == ("EXECUTION_ERROR", True)
    assert (await installed.view("documents")).state == "missing"


async def test_an_unknown_bundle_is_refused_with_the_list_of_bundles(installed: Bundles) -> None:
    error = await refusal(installed, "../x")
    assert (error.code, error.status) == ("NOT_FOUND", 404)
    assert "documents, data, web" in error.message


# ------------------------------------------------------------------------------------------------------------ runs
@pytest.fixture(params=["cold", "warm"])
async def bench(request: pytest.FixtureRequest, installed: Bundles, tmp_path: Path) -> AsyncIterator[Bench]:
    settings = SandboxSettings(backend="bubblewrap", warm=1 if request.param == "warm" else 0)
    sandbox = Sandbox(settings, bundles=installed)
    async with sandbox.running():
        await sandbox.warm_up()  # before anything is installed
        yield Bench(sandbox, tmp_path)


@pytest.fixture
async def own_layer(store: LayerStore, wheels: Path) -> Path:
    """The packages of a skill, one of which a bundle also has."""
    make_wheel(wheels, "own", {"own.py": "NAME = 'own'\n", "shared.py": "NAME = 'of the skill'\n"})
    return await store.install("python", "0123456789abcdef" * 2, ["own"])


@pytest.mark.slow
async def test_every_run_sees_the_bundles_beneath_the_skills_own_packages(
    bench: Bench, installed: Bundles, own_layer: Path
) -> None:
    await installed.install("documents")
    assert await bench.run_json(SHOWS_ALL, layers={"python": own_layer}) == ["tiny", "of the skill", "own"]
    assert await bench.run_json("import json, shared; print(json.dumps(shared.NAME))") == "shared"
    await installed.remove("documents")
    assert not (await bench.run("import tiny")).success


@pytest.mark.slow
async def test_interpreters_that_a_run_starts_see_the_packages_too(bench: Bench, installed: Bundles) -> None:
    await installed.install("documents")
    await installed.install("data")
    text = """
import json, subprocess, sys
code = "import tiny, other, sys; print(tiny.NAME, sys.version)"
found = [subprocess.run([name, "-c", code], capture_output=True, text=True) for name in (sys.executable, "python3")]
print(json.dumps([one.stdout == f"tiny {sys.version}\\n" for one in found]))
"""
    assert await bench.run_json(text) == [True, True]
    result = await bench.run("python3 -c 'import tiny; print(tiny.NAME)'", "sh")
    assert (result.success, result.stdout) == (True, "tiny\n")


@pytest.mark.slow
async def test_programs_of_packages_run_with_the_python_of_the_run(
    bench: Bench, installed: Bundles, wheels: Path
) -> None:
    points = "[console_scripts]\ntiny-tool = tiny:main\n"
    text = "import sys\ndef main(): print('tiny', sys.argv[1])\n"
    make_wheel(wheels, "tiny", {"tiny.py": text, "dist-info/entry_points.txt": points}, version="3.0")
    await installed.install("documents")
    result = await bench.run("tiny-tool x", "sh")
    assert (result.success, result.stdout) == (True, "tiny x\n"), result.stderr


@pytest.mark.slow
async def test_packages_are_read_only_and_numeric_libraries_start_one_thread(bench: Bench, installed: Bundles) -> None:
    await installed.install("documents")
    text = """
import json, os, tiny
try: open(tiny.__file__, "w"); done = "written"
except OSError: done = "refused"
names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MPLBACKEND")
os.makedirs(os.environ["MPLCONFIGDIR"])
print(json.dumps([done, *(os.environ[name] for name in names), os.environ["PYTHONPATH"]]))
"""
    assert await bench.run_json(text) == ["refused", "1", "1", "Agg", "/layers/documents"]


async def test_without_packages_a_run_gets_no_further_variables(bench: Bench) -> None:
    found = json.loads((await bench.run("import json, os; print(json.dumps(sorted(os.environ)))")).stdout)
    assert not {"PYTHONPATH", "MPLBACKEND", "OMP_NUM_THREADS"} & set(found)


async def test_code_outside_the_skill_finds_the_packages_of_node_too(cold: Bench, tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "tiny"
    package.mkdir(parents=True)
    (package / "index.js").write_text("module.exports = 'tiny'\n")
    text = """
const fs = require('fs'), { execFileSync } = require('child_process');
fs.writeFileSync('here.mjs', "import name from 'tiny'; process.stdout.write(name)");
fs.writeFileSync('/tmp/there.js', "process.stdout.write(require('tiny'))");
const found = ['here.mjs', '/tmp/there.js'].map((file) => execFileSync(process.execPath, [file]).toString());
console.log(JSON.stringify([require('tiny'), ...found]));
"""
    assert await cold.run_json(text, "js", layers={"node_modules": tmp_path / "node_modules"}) == ["tiny"] * 3


@pytest.mark.slow
async def test_without_namespaces_bundles_never_fail_a_run(installed: Bundles, tmp_path: Path) -> None:
    await installed.install("documents")
    sandbox = Sandbox(SandboxSettings(backend="landlock", warm=0), bundles=installed)
    async with sandbox.running():
        assert (await Bench(sandbox, tmp_path).run("print(1)")).stdout == "1\n"
