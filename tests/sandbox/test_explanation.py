"""Why a run failed: what it had and did not find, and that there is no network."""

from pathlib import Path

import pytest

from apexbridge.sandbox.config import MB, SandboxLimits
from apexbridge.sandbox.explanation import RunFolders, browser_note, explain
from apexbridge.sandbox.models import Job, MountedSkill
from apexbridge.sandbox.runtimes import RuntimeName
from tests.sandbox.bench import Bench

PEP_668 = "error: externally-managed-environment\n\n× This environment is externally managed\n"
ENOTCACHED = "npm error code ENOTCACHED\nnpm error request to https://registry.npmjs.org/docx failed: cache mode\n"


def not_found(name: str) -> str:
    return f"ModuleNotFoundError: No module named '{name}'\n"


def write(top: Path, *names: str) -> Path:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    return top


# ------------------------------------------------------------------------------------------------------------- modules
@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("core", "/skills/gif/lib"),
        ("core.builder", "/skills/gif/lib"),
        ("helper", "/skills/gif/scripts"),
        ("scripts.own", "/skills/gif"),
    ],
)
def test_a_module_elsewhere_in_a_loaded_skill_is_named_with_its_path(tmp_path: Path, module: str, path: str) -> None:
    skill = write(tmp_path, "lib/core/builder.py", "scripts/helper.py", "scripts/own.py")
    found = explain(not_found(module), 1, "python", folders=RunFolders(skills={"/skills/gif": skill}))
    assert found.missing == []
    (note,) = found.messages
    assert f'The module "{module}" is in {path}. ' in note


def test_a_folder_without_python_files_is_not_a_module(tmp_path: Path) -> None:
    skill = write(tmp_path, "assets/fonts/a.ttf")
    found = explain(not_found("fonts"), 1, "python", folders=RunFolders(skills={"/skills/gif": skill}))
    assert [one.name for one in found.missing] == ["fonts"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("lxml", "lxml/__init__.py"),
        ("lxml.etree", "lxml/__init__.py"),
        ("six", "six.py"),
        ("yaml", "yaml.cpython-311-x86_64-linux-gnu.so"),
    ],
)
def test_a_package_that_the_run_had_is_never_proposed(tmp_path: Path, name: str, file: str) -> None:
    packages = write(tmp_path, file)
    found = explain(not_found(name), 1, "python", bundles=["documents"], folders=RunFolders(python=[packages]))
    assert found.missing == []
    assert f'The package of "{name}" is installed, but' in found.messages[0]


def test_a_distribution_that_a_script_asks_for_is_not_proposed_if_the_run_had_it(tmp_path: Path) -> None:
    packages = write(tmp_path, "python_docx-1.0.dist-info/METADATA")
    found = explain("Run: pip install python-docx\n", 1, "python", folders=RunFolders(python=[packages]))
    assert (found.missing, len(found.messages)) == ([], 1)


def test_a_node_package_that_the_run_had_is_not_proposed(tmp_path: Path) -> None:
    packages = write(tmp_path, "docx/index.js")
    stderr = "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'docx' imported from /workspace/a.mjs\n"
    found = explain(stderr, 1, "node", skill="pptx", folders=RunFolders(node=[packages]))
    assert found.missing == []
    assert "require()" in found.messages[0]


# ------------------------------------------------------------------------------------------------------------- network
@pytest.mark.parametrize(
    "stderr",
    [
        "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>\n",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution\n",
        "Error: getaddrinfo ENOTFOUND example.com\n",
        "curl: (6) Could not resolve host: example.com\n",
        "OSError: [Errno 101] Network is unreachable\n",
    ],
)
def test_an_error_of_the_network_is_explained_unless_hosts_are_granted(stderr: str) -> None:
    (note,) = explain(stderr, 1, "python").messages
    assert "no network in the sandbox" in note
    assert explain(stderr, 1, "python", has_network=True).messages == []


@pytest.mark.parametrize(
    ("runtime", "code", "stderr", "commands"),
    [
        ("shell", "pip install pypdf 'rich>=13'", PEP_668, ["apex packages install documents", "--add rich --install"]),
        ("python", "os.system('pip install -q fitz')", "x/python3: No module named pip\n", ["--add fitz --install"]),
        ("shell", "pip3 install -r requirements.txt", "a.sh: line 1: pip3: command not found\n", []),
        ("shell", "npm install -g docx @scope/x@2", ENOTCACHED, ["npm:docx --install", "npm:@scope/x --install"]),
        ("shell", "npx -y cowsay hello", ENOTCACHED, ["--add npm:cowsay --install"]),
    ],
)
def test_an_attempt_to_install_packages_is_answered_with_the_commands_that_do(
    runtime: RuntimeName, code: str, stderr: str, commands: list[str]
) -> None:
    found = explain(stderr, 1, runtime, code=code, skill="pdf")
    assert [command in str(one.command) for one, command in zip(found.missing, commands, strict=True)] == [
        True for _ in commands
    ]
    assert "apex skills deps pdf --add PACKAGE --install" in found.notes[-1]


# -------------------------------------------------------------------------------------------------------- without skill
def test_a_package_without_a_skill_to_add_it_to_is_still_named() -> None:
    stderr = f"{not_found('sklearn')}Error: Cannot find module 'docx'\n"
    messages = explain(stderr, 1, "shell").messages
    assert "The package scikit-learn provides it." in messages[0]
    assert "apex skills deps SKILL --add scikit-learn --install" in messages[0]
    assert "apex skills deps SKILL --add npm:docx --install" in messages[1]


def test_magick_is_not_promised_by_a_package_that_lacks_it() -> None:
    (message,) = explain("a.sh: 1: magick: not found\n", 127, "shell").messages
    assert "call convert instead" in message


# ------------------------------------------------------------------------------------------------------------- browser
@pytest.mark.parametrize(
    "stderr", ["playwright._impl._errors.Error: Page.goto: Target crashed\n", "[3:4:ERROR:zygote_linux.cc:623] fork\n"]
)
def test_a_browser_that_fails_is_explained_by_the_limits_that_it_needs(stderr: str) -> None:
    note = str(browser_note(stderr, SandboxLimits()))
    assert "APEX_SANDBOX_MEMORY_MB=4096 and APEX_SANDBOX_PROCESSES=256" in note
    assert browser_note(stderr, SandboxLimits(memory_bytes=4096 * MB, processes=256)) is None
    assert browser_note("ValueError: chromium\n", SandboxLimits()) is None


# ---------------------------------------------------------------------------------------------------------------- runs
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("suffix", "code", "expected"),
    [
        ("py", "import helper", 'The module "helper" is in /skills/gif/scripts. '),
        ("sh", "python3 -c 'import helper'", 'The module "helper" is in /skills/gif/scripts. '),
        ("py", "import urllib.request; urllib.request.urlopen('http://example.com')", "no network in the sandbox"),
        ("js", "fetch('http://example.com')", "no network in the sandbox"),
        ("sh", "python3 -m pip install pypdf", "a run cannot install packages"),
        ("py", "import sklearn", "apex skills deps gif --add scikit-learn --install"),
    ],
)
async def test_a_failed_run_of_code_is_explained(
    cold: Bench, tmp_path: Path, suffix: str, code: str, expected: str
) -> None:
    folder = write(tmp_path / "gif", "scripts/helper.py")
    status = folder.stat()
    skill = MountedSkill(folder=folder, identity=(status.st_dev, status.st_ino))
    job = Job(script=f".code.{suffix}", code=code, skills={"gif": skill}, timeout_ms=20_000)
    result = await cold.sandbox.run(job)
    assert not result.success
    assert any(expected in warning for warning in result.warnings), (result.warnings, result.stderr)
