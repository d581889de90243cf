"""What a failed run did not find, from the end of its stderr."""

import pytest

from apexbridge.sandbox.missing import MAX_MISSING, TAIL_CHARACTERS, find_missing
from apexbridge.sandbox.runtimes import RuntimeName
from tests.sandbox.bench import Bench

TRACEBACK = 'Traceback (most recent call last):\n  File "/skill/a.py", line 1, in <module>\n'
DEPS = "apex skills deps pdf --add"
CASES: dict[str, tuple[RuntimeName, str, list[tuple[str, str, str | None, str | None]]]] = {
    "a module that a bundle has": (
        "python",
        f"{TRACEBACK}ModuleNotFoundError: No module named 'pypdf'\n",
        [("python", "pypdf", "pypdf", "apex packages install documents")],
    ),
    "a part of a module with another name": (
        "python",
        f"{TRACEBACK}ModuleNotFoundError: No module named 'PIL.Image'; 'PIL' is not a package\n",
        [("python", "PIL", "pillow", "apex packages install documents")],
    ),
    "a module that no bundle has": (
        "python",
        f"{TRACEBACK}ModuleNotFoundError: No module named 'fitz'\n",
        [("python", "fitz", "pymupdf", f"{DEPS} pymupdf --install")],
    ),
    "an unknown module": (
        "python",
        f"{TRACEBACK}ModuleNotFoundError: No module named 'surely_unknown'\n",
        [("python", "surely_unknown", None, None)],
    ),
    "a module of the standard library": (
        "python",
        f"{TRACEBACK}ModuleNotFoundError: No module named 'tkinter'\n",
        [],
    ),
    "an optional dependency": (
        "python",
        f"{TRACEBACK}ImportError: Missing optional dependency 'xlrd'.  Use pip or conda to install xlrd.\n",
        [("python", "xlrd", "xlrd", f"{DEPS} xlrd --install")],
    ),
    "a script's own advice": (
        "python",
        "Error: not installed. Run: pip install Markdownify\n",
        [("python", "markdownify", "markdownify", "apex packages install web")],
    ),
    "Node, CommonJS": (
        "node",
        "Error: Cannot find module 'docx'\nRequire stack:\n- /skill/scripts/a.js\n    at x\n",
        [("node", "docx", "docx", f"{DEPS} npm:docx --install")],
    ),
    "Node, ES modules": (
        "node",
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@scope/name' imported from /skill/a.mjs\n",
        [("node", "@scope/name", "@scope/name", f"{DEPS} npm:@scope/name --install")],
    ),
    "Node, a file of a package": (
        "node",
        "Error: Cannot find module 'docx/build/index.js'\nRequire stack:\n",
        [("node", "docx", "docx", f"{DEPS} npm:docx --install")],
    ),
    "a file of the skill": ("node", "Error: Cannot find module './lib/x'\nRequire stack:\n", []),
    "sh": (
        "shell",
        "/skill/scripts/a.sh: 3: pandoc: not found\n",
        [("program", "pandoc", "pandoc", "apt-get install pandoc")],
    ),
    "bash": (
        "shell",
        "/skill/scripts/a.sh: line 3: pdftoppm: command not found\n",
        [("program", "pdftoppm", "poppler-utils", "apt-get install poppler-utils")],
    ),
    "sh -c": (
        "python",
        "sh: 1: soffice: not found\n",
        [("program", "soffice", "libreoffice", "apt-get install libreoffice")],
    ),
    "env": (
        "shell",
        "/usr/bin/env: ‘jq’: No such file or directory\n",
        [("program", "jq", "jq", "apt-get install jq")],
    ),
    "an unknown program": ("shell", "a.sh: 1: own-tool: not found\n", [("program", "own-tool", None, None)]),
    "a program that Python starts": (
        "python",
        f"{TRACEBACK}    self._execute_child(args)\nFileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n",
        [("program", "ffmpeg", "ffmpeg", "apt-get install ffmpeg")],
    ),
    "a file that Python opens": (
        "python",
        f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n",
        [],
    ),
    "a program that Node starts": (
        "node",
        "Error: spawn tesseract ENOENT\n    at x\n",
        [("program", "tesseract", "tesseract-ocr", "apt-get install tesseract-ocr")],
    ),
    "another error": ("python", f"{TRACEBACK}ValueError: pypdf: not found\n", []),
}


@pytest.mark.parametrize("name", CASES)
def test_the_missing_package_or_program_is_named_with_the_command_that_adds_it(name: str) -> None:
    runtime, stderr, expected = CASES[name]
    found = find_missing(stderr, 1, runtime, skill="pdf")
    assert [(one.kind, one.name, one.package, one.command) for one in found] == expected
    for one in found:
        assert (one.command or one.package or "No known package") in one.to_message()
        assert one.name in one.to_message()


def test_a_run_that_succeeds_misses_nothing() -> None:
    assert find_missing("a.sh: 1: pandoc: not found\n", 0, "shell") == []


def test_a_bundle_that_the_run_had_is_not_proposed_again() -> None:
    stderr = "ModuleNotFoundError: No module named 'pypdf'\n"
    (found,) = find_missing(stderr, 1, "python", skill="pdf", installed={"documents"})
    assert found.command == "apex skills deps pdf --add pypdf --install"


def test_code_without_a_skill_gets_commands_without_one() -> None:
    stderr = "ModuleNotFoundError: No module named 'fitz'\nModuleNotFoundError: No module named 'pandas'\n"
    assert [one.command for one in find_missing(stderr, 1, "python")] == [None, "apex packages install data"]


def test_only_the_end_of_stderr_and_a_few_names_are_read() -> None:
    many = "".join(f"ModuleNotFoundError: No module named 'module_{number}'\n" for number in range(1000))
    assert len(find_missing(many, 1, "python")) == MAX_MISSING
    early = "ModuleNotFoundError: No module named 'pypdf'\n" + " " * TAIL_CHARACTERS
    assert find_missing(early, 1, "python") == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("suffix", "text", "name"),
    [
        ("py", "import pypdf", "pypdf"),
        ("py", "import subprocess; subprocess.run(['surely-missing'])", "surely-missing"),
        ("js", "require('docx')", "docx"),
        ("mjs", "import docx from 'docx'", "docx"),
        ("js", "require('child_process').execFileSync('surely-missing')", "surely-missing"),
        ("sh", "surely-missing", "surely-missing"),
        ("sh", "#!/bin/bash\nsurely-missing", "surely-missing"),
        ("sh", "#!/bin/bash\npython3 -c 'import surely_unknown'", "surely_unknown"),
    ],
)
async def test_a_failed_run_reports_what_it_misses(cold: Bench, suffix: str, text: str, name: str) -> None:
    result = await cold.run(text, suffix)
    assert (result.success, [one.name for one in result.missing]) == (False, [name])
    assert result.warnings == [one.to_message() for one in result.missing]
    assert result.model_dump()["missing"][0]["name"] == name
    assert "missing" not in (await cold.run("true", "sh")).model_dump()
