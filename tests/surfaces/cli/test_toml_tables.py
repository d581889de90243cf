"""Edits of one table of a TOML file."""

import tomllib

import pytest

from apexbridge.surfaces.cli.toml_tables import TomlError, rendered, with_table

PATH = ("servers", "own")
OTHERS = """# my settings
model = "m" # the best

[servers.other]
command = "x"
"""
EXISTING = (
    OTHERS
    + """
[servers.own] # mine
# where it is
command = "old"
args = [
  "a", # first
  "b",
]
timeout = 5

# about the next one
[servers.own.env]
A = "1"

[last]
text = '''
[servers.own]
'''
"""
)


def test_a_missing_table_is_appended() -> None:
    values = {"command": "apex", "args": ["mcp", 'say "x"\\'], "on": True, "env": {"A B": "1"}}
    block = '[servers.own]\ncommand = "apex"\nargs = ["mcp", "say \\"x\\"\\\\"]\non = true\nenv = { "A B" = "1" }\n'
    assert rendered(PATH, values) == block
    assert with_table(OTHERS, PATH, values) == f"{OTHERS}\n{block}"
    assert with_table("", PATH, values) == block
    assert with_table("a = 1", PATH, values) == f"a = 1\n\n{block}"
    assert with_table("a = 1\r\n", PATH, {"b": 2}) == "a = 1\r\n\r\n[servers.own]\r\nb = 2\r\n"
    assert with_table(with_table(OTHERS, PATH, values), PATH, values) == f"{OTHERS}\n{block}"


def test_keys_are_changed_added_and_removed_and_the_rest_stays() -> None:
    text = EXISTING.replace("[servers.own]\n'''", "[not a header]\n'''")
    edited = with_table(text, PATH, {"command": "new", "args": ["c"], "cwd": "/"})
    lines = '  "a", # first\n  "b",\n]\n'
    assert edited == text.replace('"old"', '"new"').replace(f"args = [\n{lines}", 'args = ["c"]\n').replace(
        "timeout = 5\n", 'timeout = 5\ncwd = "/"\n'
    )
    switched = with_table(text, PATH, {"url": "http://x"}, without=["command", "args", "env"])
    assert tomllib.loads(switched)["servers"]["own"] == {"timeout": 5, "url": "http://x"}
    assert "# mine" in switched
    assert "# where it is" in switched
    assert "[last]" in switched


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = ", "Invalid value"),
        ("servers = 1", "servers.own is not a table"),
        ("servers = { other = {} }", "cannot be changed here"),
        ("[servers]\nown = { command = 'x' }", "cannot be changed here"),
        ("servers.own.command = 'x'", "cannot be changed here"),
        (EXISTING, "cannot be changed here"),
        ("[[servers.own]]\ncommand = 'x'", "servers.own is not a table"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused(text: str, problem: str) -> None:
    with pytest.raises(TomlError, match=problem):
        with_table(text, PATH, {"command": "new"})
