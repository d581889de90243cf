"""Names of tools on the wire."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.tools.naming import MAX_CHARACTERS, WireNames, wire_name


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("file-read", "file_read"),
        ("file-write", "file_write"),
        ("list-files", "list_files"),
        ("calculate", "calculate"),
        ("datetime", "datetime"),
        ("platform-detect", "platform_detect"),
        ("vector-search", "search_skills"),
        ("read-skill", "load_skill"),
        ("run-skill", "run_skill"),
        ("skill:git-commit", "skill__git-commit"),
        ("acme.tools:do", "acme_tools_do"),
    ],
)
def test_ids_have_the_names_that_models_see(id: str, name: str) -> None:
    assert wire_name(id) == name


def test_a_long_name_is_hashed_and_stays_unique() -> None:
    one, other = (wire_name(f"skill:{'x' * 63}{last}") for last in "ab")
    assert len(one) == len(other) == MAX_CHARACTERS
    assert one != other
    assert one.startswith("skill__xxx")


@given(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}", fullmatch=True), unique=True, max_size=20))
def test_names_are_valid_unique_and_reversible(ids: list[str]) -> None:
    names = WireNames(ids, taken=["client_tool"])
    wire_names = [names.name(id) for id in ids]
    assert len(set(wire_names)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) and name != "client_tool" for name in wire_names)
    assert [names.id(name) for name in wire_names] == ids


def test_a_name_of_a_client_tool_is_not_reused() -> None:
    names = WireNames(["calculate"], taken=["calculate"])
    assert names.name("calculate") != "calculate"
    assert names.id("calculate") is None
