"""Globs: their matches, and their cost for hostile patterns."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.tools.builtin.file_tools import MAX_PATTERN_CHARACTERS
from apexbridge.tools.builtin.files.listing import Glob


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", ".py"], ["a.pyc", "b/a.py"]),
        ("**/*.py", ["a.py", "b/a.py", "b/c/a.py"], ["a.pyc", "b/a.py/c"]),
        ("src/**", ["src/a", "src/a/b"], ["src", "srcs/a"]),
        ("src/**/t?st.py", ["src/test.py", "src/a/b/tast.py"], ["src/tst.py", "src/a/t/st.py"]),
        ("**", ["a", "a/b"], []),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("**/**/x", ["x", "a/x", "a/b/x"], ["ax"]),
        ("**/a/**/b", ["a/b", "x/a/y/b"], ["b", "xa/b"]),
        ("[a].txt", ["[a].txt"], ["a.txt"]),
        ("*", ["a", ".a"], ["a/b"]),
        ("é*", ["é", "ét"], ["e"]),
        ("a]b[!c]*", ["a]b[!c]", "a]b[!c]d"], ["a]bd"]),
        ("*b", ["a\nb"], ["A\nB"]),
    ],
)
def test_a_glob_matches_the_expected_paths(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in [*yes, *no] if _matches(pattern, path)] == yes


@given(
    st.lists(st.sampled_from(["a", "b", "*", "?", "/", "**/", "/**"]), max_size=8).map("".join),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join),
)
def test_a_glob_agrees_with_its_regular_expression(pattern: str, path: str) -> None:
    assert _matches(pattern, path) == bool(re.fullmatch(_expression(pattern), path))


HOSTILE = {
    "stars": "*a" * 127 + "*b",
    "a long end": "*" + "a" * 254 + "b",
    "stars and any": "*?" * 128,
    "stars, any and an end": "*?a" * 85,
    "folders": "**/" * 85 + "b",
    "folders and stars": "**/*a/" * 42 + "b",
}


@pytest.mark.parametrize("pattern", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pattern_is_not_slow(pattern: str) -> None:
    """1,000 names of maximum length, five folders deep. The limit is far above the processor time they need."""
    assert len(pattern) <= MAX_PATTERN_CHARACTERS
    glob = Glob(pattern)
    state = glob.start
    begun = time.process_time()
    for _ in range(5):
        for _ in range(200):
            glob.matches(state, "a" * 255)
        state = glob.enter(state, "a" * 255)
    assert time.process_time() - begun < 5


def test_a_folder_without_possible_matches_is_not_searched() -> None:
    glob = Glob("src/*.py")
    assert not glob.enter(glob.start, "docs")
    assert glob.matches(glob.enter(glob.start, "src"), "a.py")
    assert not glob.enter(glob.enter(glob.start, "src"), "a.py")


def _matches(pattern: str, path: str) -> bool:
    glob = Glob(pattern)
    *folders, name = path.split("/")
    state = glob.start
    for folder in folders:
        state = glob.enter(state, folder)
    return glob.matches(state, name)


def _expression(pattern: str) -> str:
    *folders, last = pattern.split("/")

    def plain(segment: str) -> str:
        return re.sub(r"\*+", "*", segment).replace("*", "[^/]*").replace("?", "[^/]")

    before = "".join("(?:.*/)?" if folder == "**" else f"{plain(folder)}/" for folder in folders)
    return before + (".*" if last == "**" else plain(last))
