"""Limits on the depth and size of JSON, checked without parsing; compared with parsed values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge._json import MAX_DEPTH, MAX_VALUES, JsonShapeError, check_shape, loads_untrusted

TRICKY = st.text(alphabet='"\\[]{}a\n:,é')
VALUES: st.SearchStrategy[Any] = st.recursive(
    TRICKY | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


def size_of(value: Any) -> int:
    """The number of items in all containers; an empty container counts as one."""
    if not isinstance(value, dict | list):
        return 0
    return max(1, len(value)) + sum(map(size_of, value.values() if isinstance(value, dict) else value))


def is_refused(body: bytes, **limits: int) -> bool:
    try:
        check_shape(body, **limits)
    except JsonShapeError:
        return True
    return False


def spellings(value: Any) -> list[bytes]:
    return [json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()]


@given(VALUES)
def test_the_checked_depth_is_that_of_the_parsed_value(value: Any) -> None:
    depth = depth_of(value)
    for body in spellings(value):
        assert not is_refused(body, max_depth=depth)
        assert depth == 0 or is_refused(body, max_depth=depth - 1)


@given(VALUES)
def test_the_checked_number_of_values_is_that_of_the_parsed_value(value: Any) -> None:
    for body in spellings(value):
        assert not is_refused(body, max_values=size_of(value) + 1)
        assert size_of(value) == 0 or is_refused(body, max_values=size_of(value))


@given(st.binary(max_size=200))
def test_any_bytes_can_be_checked(body: bytes) -> None:
    assert is_refused(body, max_depth=0, max_values=1) in (True, False)


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, False),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), True),
        (b'{"a":' * (MAX_DEPTH + 1), True),
        (b"[" + b"[]," * 10_000 + b"[]]", False),
        (b"[" + b"0," * (MAX_VALUES - 3) + b"0]", False),
        (b"[" + b"0," * MAX_VALUES + b"0]", True),
        (b"[" + b"[]," * MAX_VALUES + b"[]]", True),
        (b"{" + b",".join(b'"%d":"%d"' % (i, i) for i in range(MAX_VALUES - 2)) + b"}", False),
        (b"{" + b",".join(b'"%d":"%d"' % (i, i) for i in range(MAX_VALUES)) + b"}", True),
        (json.dumps("[" * 1_000_000 + "," * 1_000_000).encode(), False),
        (json.dumps('"[,' * 1_000_000).encode(), False),
    ],
    ids=["deep", "deeper", "objects", "lists", "most", "more", "more lists", "keys", "more keys", "text", "quoted"],
)
def test_exactly_the_limits_are_allowed(body: bytes, refused: bool) -> None:
    assert is_refused(body) is refused


def test_untrusted_text_is_parsed_unless_it_exceeds_a_limit() -> None:
    assert loads_untrusted('{"a": [1, "é", null]}') == {"a": [1, "é", None]}
    for text in ("[" * 100_000, "[" + "0," * MAX_VALUES + "0]", "{", "]" * 70, "\ud800"):
        with pytest.raises(ValueError, match=r"."):
            loads_untrusted(text)


def test_very_long_numbers_are_refused_and_strings_of_digits_are_not() -> None:
    assert loads_untrusted(json.dumps(["1" * 5_000, 10**999, 1.5])) == ["1" * 5_000, 10**999, 1.5]
    for number in ("1" * 1_001, "-" + "1" * 1_001, "0." + "1" * 1_001, "1e" + "1" * 1_001):
        with pytest.raises(JsonShapeError):
            loads_untrusted(f'{{"a": "\\"{" " * 70_000}", "b": [{number}]}}')
