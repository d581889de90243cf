"""The list of requirements and the tests marked with them agree."""

import ast
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REQUIREMENTS = tomllib.loads((ROOT / "tests/requirements.toml").read_text("utf-8"))


def _ids_in_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                found.update(ast.literal_eval(argument) for argument in node.args)
    return found


def test_every_shown_requirement_has_a_test() -> None:
    shown = {key for key, entry in REQUIREMENTS.items() if entry["state"] == "shown"}
    assert shown - _ids_in_tests() == set()


def test_no_test_names_an_unknown_requirement() -> None:
    assert _ids_in_tests() - set(REQUIREMENTS) == set()


def test_each_requirement_is_one_line_with_a_known_state() -> None:
    assert all("\n" not in entry["text"] and entry["state"] in ("open", "shown") for entry in REQUIREMENTS.values())


def commands_of_make(target: str) -> list[str]:
    """The commands that `make` would run."""
    printed = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return printed.splitlines()


@pytest.mark.requirement("H1")
def test_mypy_is_strict_and_coverage_is_at_least_90_percent() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert project["mypy"]["strict"] is True
    assert "src" in project["mypy"]["files"]
    assert project["coverage"]["report"]["fail_under"] >= 90
    commands = commands_of_make("test")
    assert any("mypy" in command for command in commands)
    (measured,) = [command for command in commands if "--cov" in command]
    assert "--no-cov" not in measured
    assert "--cov-fail-under" not in measured


@pytest.mark.requirement("H3")
def test_one_command_runs_everything_and_nothing_is_skipped() -> None:
    assert "exec make test" in (ROOT / ".ci/run").read_text("utf-8")
    tests = [shlex.split(command) for command in commands_of_make("test") if "/pytest " in command]
    assert [words[words.index("-m") + 1] for words in tests] == ["not slow", "slow"], (
        "every test is either slow or not slow"
    )
    assert not any({"-k", "--deselect", "--ignore"} & set(words) for words in tests)
    skipping = re.compile(r"mark\.(skip|xfail)|pytest\.(skip|importorskip)\(")
    marked = [path.name for path in (ROOT / "tests").rglob("*.py") if skipping.search(path.read_text("utf-8"))]
    assert [name for name in marked if name != Path(__file__).name] == []
    locks = [path.read_text("utf-8") for path in (ROOT / "requirements").glob("*.lock")]
    assert locks
    for lock in locks:
        assert "--hash=sha256:" in lock
        assert not re.search(r"https?://|index-url", lock)
