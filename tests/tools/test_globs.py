"""Globs: what they match, and that no pattern makes them slow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.tools.builtin.files.globs import Glob


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
    ],
)
def test_a_glob_means_what_people_expect(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in [*yes, *no] if _matches(pattern, path)] == yes


@given(
    st.lists(st.sampled_from(["a", "b", "*", "?", "/", "**/", "/**"]), max_size=8).map("".join),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join),
)
def test_a_glob_agrees_with_its_regular_expression(pattern: str, path: str) -> None:
    assert _matches(pattern, path) == bool(re.fullmatch(_expression(pattern), path))


def test_a_hostile_pattern_takes_one_step_for_each_character() -> None:
    glob = Glob("*a" * 127 + "*b")
    state = glob.start
    for _ in range(100):
        state = glob.advance(state, "a" * 255)
    assert not glob.accepts(state)
    assert state.bit_length() <= 256


def _matches(pattern: str, path: str) -> bool:
    glob = Glob(pattern)
    return glob.accepts(glob.advance(glob.start, path))


def _expression(pattern: str) -> str:
    *folders, last = pattern.split("/")

    def plain(segment: str) -> str:
        return re.sub(r"\*+", "*", segment).replace("*", "[^/]*").replace("?", "[^/]")

    before = "".join("(?:.*/)?" if folder == "**" else f"{plain(folder)}/" for folder in folders)
    return before + (".*" if last == "**" else plain(last))
