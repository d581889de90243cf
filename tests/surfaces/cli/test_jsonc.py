"""Edits of JSON files with comments."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.surfaces.cli.jsonc import JsoncError, loads, with_item, with_value

COMMENTED = """// The servers of this project.
{
    "servers": {
        /* the first */
        "one": {"command": "a"}, // and why
        "two": {
            "command": "b", // two
            "args": ["x",],
        }
        // the last line
    },
    "inputs": [],
}
"""


def test_a_member_is_added_and_comments_stay() -> None:
    edited = with_value(COMMENTED, ("servers", "three"), {"command": "c", "args": ["y"]})
    assert edited == COMMENTED.replace(
        """        }
        // the last line
""",
        """        },
        // the last line
        "three": {
            "command": "c",
            "args": [
                "y"
            ]
        }
""",
    )
    assert loads(edited)["servers"]["three"] == {"command": "c", "args": ["y"]}


def test_a_value_is_replaced_and_an_equal_one_is_left_as_it_is_written() -> None:
    assert with_value(COMMENTED, ("servers", "two", "args"), ["x"]) == COMMENTED
    edited = with_value(COMMENTED, ("servers", "two", "command"), "z")
    assert edited == COMMENTED.replace('"command": "b", // two', '"command": "z", // two')


def test_an_item_is_added_once_and_replaced_by_its_key() -> None:
    first = with_item(COMMENTED, ("inputs",), {"id": "key", "type": "old"}, key="id")
    assert loads(first)["inputs"] == [{"id": "key", "type": "old"}]
    assert with_item(first, ("inputs",), {"id": "key", "type": "old"}, key="id") == first
    second = with_item(first, ("inputs",), {"id": "key", "type": "new"}, key="id")
    third = with_item(second, ("inputs",), {"id": "other"}, key="id")
    assert loads(third)["inputs"] == [{"id": "key", "type": "new"}, {"id": "other"}]
    assert third.startswith("// The servers of this project.")
    assert loads(with_item("{}", ("a", "b"), {"id": 1}, key="id")) == {"a": {"b": [{"id": 1}]}}


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ("{}\n", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("// nothing yet\n", '// nothing yet\n{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ('{"x": 1}', '{"x": 1, "a": {"b": 1}}'),
        ('{"a": {}}', '{"a": {"b": 1}}'),
        ('{"a": {"b": 2}}', '{"a": {"b": 1}}'),
        ('{\n\t"x": 1 // one\n}\n', '{\n\t"x": 1, // one\n\t"a": {\n\t\t"b": 1\n\t}\n}\n'),
        ('{\r\n  "x": 1\r\n}\r\n', '{\r\n  "x": 1,\r\n  "a": {\r\n    "b": 1\r\n  }\r\n}\r\n'),
        ('{\n  "x": 1,\n}', '{\n  "x": 1,\n  "a": {\n    "b": 1\n  },\n}'),
        ('\ufeff{\n  "x": 1\n}', '\ufeff{\n  "x": 1,\n  "a": {\n    "b": 1\n  }\n}'),
    ],
)
def test_the_layout_of_the_file_is_followed(text: str, edited: str) -> None:
    assert with_value(text, ("a", "b"), 1) == edited


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        "{a: 1}",
        '{"a": tru}',
        '{"a": 1} x',
        "/* open",
        '{"a": "\\x"}',
        "[1, , 2]",
        "{,}",
        "[" * 5000,
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 01}',
        '{"a": "line\nbreak"}',
    ],
)
def test_what_is_not_jsonc_is_an_error(text: str) -> None:
    with pytest.raises(JsoncError):
        loads(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1}', "a is not an object"),
        ("[]", "the file is not an object"),
        ('{"a": {}, "a": {}}', "a is there twice"),
    ],
)
def test_a_value_that_cannot_be_set_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(JsoncError, match=problem):
        with_value(text, ("a", "b"), 1)
    with pytest.raises(JsoncError):
        with_item(text, ("a", "b"), {"id": 1}, key="id")


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=10,
)


@given(
    data=st.dictionaries(st.text(max_size=5), VALUES, max_size=4),
    value=VALUES,
    indent=st.sampled_from([None, 1, 2, "\t"]),
)
def test_only_the_value_changes(data: dict[str, Any], value: Any, indent: int | str | None) -> None:
    text = json.dumps(data, indent=indent)
    if not isinstance(data.get("a", {}), dict):
        with pytest.raises(JsoncError):
            with_value(text, ("a", "b"), value)
        return
    edited = with_value(text, ("a", "b"), value)
    assert json.loads(edited) == {**data, "a": {**data.get("a", {}), "b": value}}
    assert with_value(edited, ("a", "b"), value) == edited
