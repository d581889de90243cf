"""The depth of JSON, told without parsing, against the depth of what a parser makes of it."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from apexbridge.surfaces.http.nesting import is_too_deep

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


@given(VALUES)
def test_the_depth_is_that_of_the_value_whatever_its_strings_hold(value: Any) -> None:
    depth = depth_of(value)
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert not is_too_deep(text.encode(), depth)
        assert depth == 0 or is_too_deep(text.encode(), depth - 1)


@given(st.binary(max_size=200))
def test_anything_at_all_can_be_looked_at(body: bytes) -> None:
    assert is_too_deep(body, 0) in (True, False)


def test_exactly_the_limit_is_allowed() -> None:
    assert not is_too_deep(b"[" * 64 + b"]" * 64)
    assert is_too_deep(b"[" * 65 + b"]" * 65)
    assert is_too_deep(b'{"a":' * 65)
    assert not is_too_deep(b"[" + b"[]," * 10_000 + b"[]]")
