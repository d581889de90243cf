"""Fields of a converted request that an upstream refuses."""

import json
from typing import Any

import pytest

from apexbridge.agent.converted_fields import without_refused
from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
BODY: Json = {"model": "m", "max_tokens": 9, "reasoning_effort": "low", "parallel_tool_calls": False, "messages": []}


def refused(message: str, *, param: str | None = None, status: int = 400, body: Json | None = None) -> Json | None:
    error = UpstreamError(status, json.dumps({"error": {"message": message, "param": param}}).encode())
    return without_refused(BODY if body is None else body, error)


@pytest.mark.parametrize(
    ("message", "param", "missing", "added"),
    [
        ("Unsupported parameter: use 'max_completion_tokens' instead.", "max_tokens", "max_tokens", True),
        ("'max_tokens' or 'max_completion_tokens' is too large", None, "max_tokens", True),
        ("max_tokens is too large: 32000", None, "max_tokens", False),
        ("Unrecognized request argument supplied: reasoning_effort", None, "reasoning_effort", False),
        ('"llama" does not support thinking', None, "reasoning_effort", False),
        ("Invalid value", "parallel_tool_calls", "parallel_tool_calls", False),
    ],
)
def test_the_refused_field_is_left_out_or_renamed(message: str, param: str | None, missing: str, added: bool) -> None:
    body = refused(message, param=param)
    assert body is not None
    assert set(BODY) - set(body) == {missing}
    assert body.get("max_completion_tokens") == (9 if added else None)


def test_a_limit_is_left_out_if_its_new_name_is_refused_too() -> None:
    assert refused("max_completion_tokens is too large", body={"max_completion_tokens": 9}) == {}


@pytest.mark.parametrize(
    ("message", "status"), [("Invalid image", 400), ("max_tokens", 401), ("max_tokens", 500), ("", 400)]
)
def test_other_refusals_stay(message: str, status: int) -> None:
    assert refused(message, status=status) is None
