"""Packages that an operator adds to a skill: listed beside it, installed on request, kept when it is overwritten."""

from pathlib import Path
from typing import Any

import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.sandbox import bundles
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.package.dependencies import Dependencies, parse_package
from tests.making import skill_zip
from tests.sandbox.test_layers import make_wheel, wheel_index

pytestmark = pytest.mark.anyio
USES = "import tiny\nimport yaml\nimport surely_unknown\nprint(tiny.NAME)\n"


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = wheel_index(monkeypatch, tmp_path)
    for name in ("tiny", "pyyaml", "jinja2"):
        make_wheel(folder, name, {f"{name.removeprefix('py')}.py": f"NAME = '{name}'\n"})
    return folder


async def install(bridge: Bridge, script: str = USES, **fields: Any) -> None:
    files = {"scripts/execute.py": script, **fields.pop("files", {})}
    await bridge.skills.install_skill(skill_zip("wants", files=files, **fields), overwrite=True)


# ---------------------------------------------------------------------------------------------------- one package
@pytest.mark.parametrize(
    ("spec", "kind", "name", "requirement"),
    [
        ("PyPDF", "python", "pypdf", "pypdf"),
        (" pypdf >=4, <6 ", "python", "pypdf", "pypdf<6,>=4"),
        ("markitdown[pptx]", "python", "markitdown", "markitdown[pptx]"),
        ("x; python_version > '3'", "python", "x", "x"),
        ("npm:docx", "node", "docx", "docx@*"),
        ("npm:docx@^9.1", "node", "docx", "docx@^9.1"),
        ("npm:@scope/name@1 || 2", "node", "@scope/name", "@scope/name@1 || 2"),
    ],
)
def test_a_package_is_a_name_with_a_version(spec: str, kind: str, name: str, requirement: str) -> None:
    package = parse_package(spec)
    assert (package.kind, package.name, package.requirement) == (kind, name, requirement)
    assert parse_package(package.spec) == package


@pytest.mark.parametrize(
    "spec",
    [
        *("", "-r x", "--index-url=https://e.org", "x @ https://e.org/x.whl", "git+https://e.org/x", "./x", "/x", "~x"),
        *("x.whl", "x --hash=sha256:1", "a b", "x; python_version < '3'", "x" * 600, "a\nb", "docx@9"),
        *("npm:", "npm:./x", "npm:x@file:y", "npm:x@https://e.org", "npm:x@git+ssh://e.org", "npm:-g", "npm:x@npm:y"),
    ],
)
def test_anything_else_is_refused(spec: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_package(spec)
    assert caught.value.code == "INVALID_INPUT"


def test_a_name_with_an_at_sign_gets_advice_about_npm() -> None:
    with pytest.raises(InvalidInputError, match="npm:NAME"):
        parse_package("docx@9")


def test_added_packages_complete_and_override_the_declared_ones() -> None:
    declared = Dependencies(python=("a", "b>=1"), node=(("x", "1"), ("y", "2")), sources=("requirements.txt",))
    both = declared.with_added([parse_package(spec) for spec in ("c", "b<3", "npm:x@5")])
    assert both.python == ("a", "b<3", "b>=1", "c")
    assert both.node == (("x", "5"), ("y", "2"))
    assert both.sources == declared.sources
    assert declared.with_added([]) == declared


# ----------------------------------------------------------------------------------------------------- of a skill
async def test_packages_are_added_replaced_and_removed(bridge: Bridge) -> None:
    await install(bridge)
    before = await bridge.skills.get_skill("wants")
    view = await bridge.skills.change_dependencies("wants", add=["tiny", "npm:docx@^9"])
    assert (view.python, view.node, view.added) == (["tiny"], ["docx@^9"], ["tiny", "npm:docx@^9"])
    assert not view.installed
    view = await bridge.skills.change_dependencies("wants", add=["Tiny>=1"], remove=["npm:docx"])
    assert (view.python, view.node, view.added) == (["tiny>=1"], [], ["tiny>=1"])
    assert (await bridge.skills.get_skill("wants")).content_hash == before.content_hash
    with pytest.raises(InvalidInputError, match="Added: tiny>=1"):
        await bridge.skills.change_dependencies("wants", add=["other"], remove=["absent"])
    with pytest.raises(InvalidInputError):
        await bridge.skills.change_dependencies("wants", add=["other", "--option"])
    assert (await bridge.skills.dependencies_of("wants")).added == ["tiny>=1"], "all changes or none"


async def test_an_overwrite_keeps_added_packages_and_an_uninstall_removes_them(bridge: Bridge) -> None:
    await install(bridge)
    await bridge.skills.change_dependencies("wants", add=["tiny"])
    await install(bridge, "print(2)\n", files={"requirements.txt": "rich\n"})
    assert (await bridge.skills.dependencies_of("wants")).python == ["rich", "tiny"]
    await bridge.skills.uninstall_skill("wants")
    await install(bridge)
    assert (await bridge.skills.dependencies_of("wants")).added == []


@pytest.mark.slow
async def test_added_packages_are_installed_and_seen_by_runs(bridge: Bridge, wheels: Path) -> None:
    await install(bridge, "import tiny\nprint(tiny.NAME)\n")
    failed = await bridge.skills.execute_skill("wants")
    assert isinstance(failed, ExecutionResult)
    assert [one.name for one in failed.missing] == ["tiny"]
    await bridge.skills.change_dependencies("wants", add=["tiny"])
    assert (await bridge.skills.install_dependencies("wants")).installed
    result = await bridge.skills.execute_skill("wants")
    assert isinstance(result, ExecutionResult)
    assert (result.stdout, result.warnings, result.missing) == ("tiny\n", [], [])


@pytest.mark.slow
async def test_packages_that_cannot_be_installed_are_not_added(bridge: Bridge, wheels: Path) -> None:
    await install(bridge)
    view = await bridge.skills.change_dependencies("wants", add=["tiny"], install=True)
    assert (view.added, view.installed) == (["tiny"], True)
    for add in (["no-such-package"], ["jinja2", "no-such-package"], ["tiny>=2"]):
        with pytest.raises(ServerError) as caught:
            await bridge.skills.change_dependencies("wants", add=add, install=True)
        assert caught.value.code == "EXECUTION_ERROR"
    view = await bridge.skills.dependencies_of("wants")
    assert (view.added, view.installed) == (["tiny"], True)
    view = await bridge.skills.change_dependencies("wants", add=["jinja2"], remove=["tiny"], install=True)
    assert (view.added, view.installed) == (["jinja2"], True)


async def test_nothing_is_installed_for_a_change_that_is_refused(bridge: Bridge, wheels: Path) -> None:
    await install(bridge)
    for add, remove in ((["--option"], []), (["tiny"], ["absent"])):
        with pytest.raises(InvalidInputError):
            await bridge.skills.change_dependencies("wants", install=True, add=add, remove=remove)
    assert (await bridge.skills.dependencies_of("wants")).added == []
    assert not list((bridge.settings.data_dir / "layers").glob("*/*"))


# ------------------------------------------------------------------------------------------------------- detected
@pytest.mark.slow
async def test_detected_packages_have_a_status_and_the_commands_that_add_them(
    bridge: Bridge, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "BUNDLES", {"documents": ("pypdf",), "web": ("jinja2", "pyyaml")})
    script = "import jinja2, yaml, pypdf, rich, fitz, surely_unknown, openpyxl\n"
    files = {
        "requirements.txt": "jinja2\nrich\n",
        "scripts/other.sh": "sh -c x\npdftk a\ngit status\n",
        "scripts/node.js": "require('docx')\n",
    }
    await install(bridge, script, files=files)
    assert (await bridge.skills.dependencies_of("wants")).detected is None
    await bridge.packages.install("web")
    view = await bridge.skills.dependencies_of("wants", detect=True)
    assert view.detected is not None
    found = {one.package or one.name: (one.kind, one.status, one.bundle) for one in view.detected}
    assert found.pop("git")[0] == "program"
    assert found == {
        "jinja2": ("python", "bundle", "web"),
        "pyyaml": ("python", "bundle", "web"),
        "pypdf": ("python", "missing", "documents"),
        "rich": ("python", "declared", None),
        "pymupdf": ("python", "missing", None),
        "openpyxl": ("python", "missing", None),
        "surely_unknown": ("python", "unknown", None),
        "docx": ("node", "missing", None),
        "pdftk-java": ("program", "missing", None),
    }
    assert {(one.file, one.line) for one in view.detected if one.name == "pypdf"} == {("scripts/execute.py", 1)}
    assert view.commands == [
        "apex packages install documents",
        "apex skills deps wants --add openpyxl pymupdf npm:docx --install",
        "apt-get install pdftk-java",
    ]


@pytest.mark.slow
async def test_an_installed_package_is_detected_as_installed(bridge: Bridge, wheels: Path) -> None:
    await install(bridge, "import jinja2\n", files={"requirements.txt": "jinja2\n"})
    (before,) = (await bridge.skills.dependencies_of("wants", detect=True)).detected or []
    await bridge.skills.install_dependencies("wants")
    view = await bridge.skills.dependencies_of("wants", detect=True)
    (after,) = view.detected or []
    assert (before.status, after.status, view.commands) == ("declared", "installed", [])


# ------------------------------------------------------------------------------------------------------ the model
async def test_a_model_learns_which_module_is_missing_and_the_command_that_adds_it(bridge: Bridge) -> None:
    await install(bridge, "import pypdf\n")
    result = await bridge.tools.execute("run-skill", {"name": "wants"})
    advice = 'The module "pypdf" is not installed. Install it with: apex packages install documents'
    assert advice in result.notices
    assert result.data["missing"] == [
        {"kind": "python", "name": "pypdf", "package": "pypdf", "command": "apex packages install documents"}
    ]
