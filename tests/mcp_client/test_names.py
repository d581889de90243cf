"""Ids of the tools of MCP servers."""

import re

from hypothesis import given
from hypothesis import strategies as st

from apexbridge.mcp_client.names import tool_ids


def test_names_are_cleaned_cut_and_numbered() -> None:
    ids = tool_ids("git-hub", ["list.issues", "list/issues", "list_issues", "x" * 100, "x" * 101, "日本"], taken=())
    assert list(ids.values()) == [
        "git-hub_list_issues",
        "git-hub_list_issues_2",
        "git-hub_list_issues_3",
        "git-hub_" + "x" * 56,
        "git-hub_" + "x" * 54 + "_2",
        "git-hub___",
    ]


def test_ids_of_other_tools_are_not_taken() -> None:
    assert tool_ids("file", ["read"], taken={"file_read"}) == {"read": "file_read_2"}


def test_a_tool_keeps_its_id_when_others_come_and_go() -> None:
    first = tool_ids("s", ["a.b", "a/b"], taken=())
    assert first == {"a.b": "s_a_b", "a/b": "s_a_b_2"}
    assert tool_ids("s", ["a/b"], taken=(), earlier=first) == {"a/b": "s_a_b_2"}
    assert tool_ids("s", ["a+b", "a/b"], taken=(), earlier=first) == {"a/b": "s_a_b_2", "a+b": "s_a_b"}
    assert tool_ids("s", ["a/b"], taken={"s_a_b_2"}, earlier=first) == {"a/b": "s_a_b"}


@given(st.lists(st.text(min_size=1, max_size=80), unique=True, max_size=30))
def test_ids_are_valid_and_unique(names: list[str]) -> None:
    ids = tool_ids("server", names, taken={"server_a"})
    assert len(set(ids.values()) | {"server_a"}) == len(names) + 1
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", id) for id in ids.values())
