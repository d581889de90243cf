"""Which file of a skill a name means: the closest reading, if it is the only one."""

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.bridge import Bridge
from apexbridge.errors import InvalidInputError, SkillError
from apexbridge.skills.package.named_files import NamedFile, NoSuchNameError, find_file, find_script
from tests.making import skill_zip

pytestmark = pytest.mark.anyio
PATHS = [
    "SKILL.md",
    "LICENSE.txt",
    "REFERENCE.md",
    "docs/forms.md",
    "pdf/inner.md",
    "scripts/Check.py",
    "scripts/check.py",
    "scripts/fill.py",
    "scripts/pack.py",
    "scripts/pack.sh",
    "scripts/two words.py",
    "scripts/tool/__init__.py",
    "scripts/tool/__main__.py",
    "scripts/sub/mod.py",
    "scripts/not-a-module.py",
    "tools/emit.sh",
    "run.js",
]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("scripts/fill.py", "scripts/fill.py"),
        ("./scripts/fill.py", "scripts/fill.py"),
        ("fill.py", "scripts/fill.py"),
        ("fill", "scripts/fill.py"),
        ("scripts/fill", "scripts/fill.py"),
        ("FILL", "scripts/fill.py"),
        ("Scripts/Fill.PY", "scripts/fill.py"),
        ("/skills/pdf/scripts/fill.py", "scripts/fill.py"),
        ("/skill/scripts/fill.py", "scripts/fill.py"),
        ("pdf/scripts/fill.py", "scripts/fill.py"),
        ("pdf/fill", "scripts/fill.py"),
        ("python scripts/fill.py", "scripts/fill.py"),
        ("python3 fill", "scripts/fill.py"),
        ("  bash tools/emit.sh ", "tools/emit.sh"),
        ("node run.js", "run.js"),
        ("run", "run.js"),
        ("Check", "scripts/Check.py"),
        ("pack.sh", "scripts/pack.sh"),
        ("scripts/two words.py", "scripts/two words.py"),
        ("two words", "scripts/two words.py"),
        ("tools/emit", "tools/emit.sh"),
    ],
)
def test_a_script_is_found_by_a_name_that_means_only_this_one(written: str, path: str) -> None:
    found = find_script("pdf", written, PATHS)
    assert (found.path, found.module) == (path, None)
    is_own = written.strip().removeprefix("./") == path
    assert found.notice == (None if is_own else f'Used {path} for "{written}"')


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("reference", "REFERENCE.md"),
        ("license.txt", "LICENSE.txt"),
        ("docs/Forms.md", "docs/forms.md"),
        ("pdf/inner.md", "pdf/inner.md"),
        ("pdf/SKILL.md", "SKILL.md"),
        ("/skills/pdf/docs/forms", "docs/forms.md"),
        ("fill", "scripts/fill.py"),
    ],
)
def test_a_file_is_found_by_a_name_that_means_only_this_one(written: str, path: str) -> None:
    assert find_file("pdf", written, PATHS).path == path


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("-m scripts.fill", "scripts/fill.py"),
        ("python -m scripts.fill", "scripts/fill.py"),
        ("python3 -m scripts.sub.mod", "scripts/sub/mod.py"),
        ("-m scripts.tool", "scripts/tool/__main__.py"),
    ],
)
def test_a_module_is_found_by_its_dotted_name(written: str, path: str) -> None:
    found = find_script("pdf", written, PATHS)
    module = written.split()[-1]
    assert (found.path, found.module, found.name) == (path, module, f"-m {module}")
    assert found.notice == (None if written.startswith("-m") else f'Used -m {module} for "{written}"')


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("pack", '"pack" can mean scripts/pack.py or scripts/pack.sh; name one of them'),
        ("CHECK", '"CHECK" can mean scripts/Check.py or scripts/check.py; name one of them'),
        ("fil.py", "pdf has no script fil.py. Did you mean scripts/fill.py?"),
        ("emit.sh", "pdf has no script emit.sh. Did you mean tools/emit.sh?"),
        ("mod", "pdf has no script mod. Did you mean scripts/sub/mod.py?"),
        ("-m scripts.fil", "pdf has no module -m scripts.fil. Did you mean -m scripts.fill?"),
        ("-m scripts/fill.py", "pdf has no module -m scripts/fill.py. Did you mean -m scripts.fill?"),
        ("python -m ./scripts/fill", "pdf has no module -m ./scripts/fill. Did you mean -m scripts.fill?"),
        ("-m fill", "pdf has no module -m fill. Did you mean -m scripts.fill?"),
        ("-m fill.py", "pdf has no module -m fill.py. Did you mean -m scripts.fill?"),
        ("-m scripts.fill --fast x", '"script" is one module; send "--fast x" in "args", one word each'),
        ("python fill.py --fast x", '"script" is one script; send "--fast x" in "args", one word each'),
    ],
)
def test_any_other_name_is_refused_with_what_could_be_meant(written: str, message: str) -> None:
    with pytest.raises(NoSuchNameError) as caught:
        find_script("pdf", written, PATHS)
    assert str(caught.value) == message
    assert caught.value.suggestions


@pytest.mark.parametrize(
    "written", ["zzz", "", " ", "-m", "-m ", "python", "python -m", "-m json.zzz", "-m ..x", "-m os"]
)
def test_a_name_like_none_of_the_scripts_is_refused_with_some_of_them(written: str) -> None:
    with pytest.raises(NoSuchNameError, match=r"pdf has no (script|module) .*; it has "):
        find_script("pdf", written, PATHS)
    with pytest.raises(NoSuchNameError) as caught:
        find_script("pdf", written, ["SKILL.md"])
    assert caught.value.suggestions == []


@given(st.text(alphabet="./\\abAB-m pdfscripts\0") | st.text())
def test_only_files_of_the_skill_are_found(written: str) -> None:
    for find in (find_file, find_script):
        with contextlib.suppress(NoSuchNameError):
            assert find("pdf", written, PATHS).path in PATHS


@pytest.mark.parametrize(
    "written", ["../x.py", "/etc/passwd", "scripts/../../other/x.py", "/skills/other/scripts/fill.py"]
)
def test_paths_outside_of_the_skill_are_not_found(written: str) -> None:
    for find in (find_file, find_script):
        with pytest.raises(NoSuchNameError):
            find("pdf", written, PATHS)


# ------------------------------------------------------------------------------------------------------- in the product
async def install(bridge: Bridge, files: dict[str, str]) -> None:
    await bridge.skills.install_skill(skill_zip("pdf", files=files))


SHOWS = "import sys; print(__name__, __package__, sys.argv[1:])"


async def test_a_run_uses_the_script_that_is_meant_and_says_so(bridge: Bridge) -> None:
    await install(bridge, {"scripts/fill.py": SHOWS, "scripts/other.py": "", "tools/emit.sh": "echo $1"})
    result = await bridge.executor.execute("pdf", script="python fill", args=["a"])
    assert (result.stdout, result.warnings) == ("__main__ None ['a']\n", ['Used scripts/fill.py for "python fill"'])
    assert (await bridge.runs.get(result.id)).script == "scripts/fill.py"
    result = await bridge.executor.execute("pdf", script="tools/emit.sh", args=["a"])
    assert (result.stdout, result.warnings) == ("a\n", [])
    result = await bridge.executor.execute("pdf", script="-m scripts.fill", args=["a"])
    assert (result.stdout, result.warnings) == ("__main__ scripts ['a']\n", [])
    with pytest.raises(InvalidInputError) as caught:
        await bridge.executor.execute("pdf", script="fil.py")
    assert caught.value.message == "pdf has no script fil.py. Did you mean scripts/fill.py?"
    assert caught.value.details["suggestions"] == ["scripts/fill.py"]


async def test_the_tools_find_scripts_and_files_by_name(bridge: Bridge) -> None:
    await install(bridge, {"scripts/fill.py": SHOWS, "REFERENCE.md": "how to"})
    ran = await bridge.tools.execute("run-skill", {"name": "pdf", "script": "fill", "args": ["a"]})
    assert ran.notices == ('Used scripts/fill.py for "fill"',)
    read = await bridge.tools.execute("read-skill", {"name": "pdf", "path": "reference"})
    assert ("how to" in read.output, read.data["path"]) == (True, "REFERENCE.md")
    assert read.notices == ('Used REFERENCE.md for "reference"',)
    with pytest.raises(SkillError) as caught:
        await bridge.skills.open_skill_file("pdf", "REFERENZ.md")
    assert caught.value.message == "pdf has no file REFERENZ.md. Did you mean REFERENCE.md?"
    assert caught.value.code == "FILE_NOT_FOUND"
    with await bridge.skills.open_skill_file("pdf", "pdf/reference.md") as file:
        assert file.read() == b"how to"


async def test_a_download_by_another_name_has_the_location_of_the_file(
    bridge: Bridge, client: httpx.AsyncClient
) -> None:
    await install(bridge, {"docs/Über uns.md": "how to"})
    answer = await client.get("/api/skills/pdf/files/docs/über uns")
    assert (answer.status_code, answer.text) == (200, "how to")
    assert answer.headers["content-location"] == "/api/skills/pdf/files/docs/%C3%9Cber%20uns.md"
    assert "%C3%9Cber%20uns.md" in answer.headers["content-disposition"]
    answer = await client.get("/api/skills/pdf/files/docs/%C3%9Cber%20uns.md")
    assert "content-location" not in answer.headers
    answer = await client.get("/api/skills/pdf/files/docs/uber uns.md")
    assert (answer.status_code, answer.json()["code"]) == (404, "FILE_NOT_FOUND")
    assert answer.json()["details"]["suggestions"] == ["docs/Über uns.md"]


async def test_an_approval_is_bound_to_the_script_that_runs(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await bridge.skills.install_skill(skill_zip("pdf", files={"scripts/fill.py": SHOWS}, dangerous=True))
    asked = await client.post("/api/skills/pdf/execute", json={"script": "fill"})
    approval = asked.json()["details"]["approvalId"]
    pending = (await client.get("/api/approvals")).text
    assert "scripts/fill.py" in pending
    await client.post(f"/api/approvals/{approval}", json={"approve": True})
    ran = await client.post("/api/skills/pdf/execute", json={"script": "scripts/fill.py", "approval": approval})
    assert (ran.status_code, ran.json()["success"]) == (200, True)


def test_a_found_file_has_the_name_that_means_exactly_it() -> None:
    for written, found in (("fill", NamedFile(path="scripts/fill.py")), ("-m scripts.tool", None)):
        name = find_script("pdf", written, PATHS).name
        assert find_script("pdf", name, PATHS) == (found or find_script("pdf", written, PATHS))
