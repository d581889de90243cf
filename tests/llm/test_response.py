"""JSON from model servers: valid responses are parsed, and those with too many values are refused."""

import json
from typing import Any

import pytest

from apexbridge.llm.response import MAX_VALUES, parsed
from apexbridge.llm.upstream_errors import UpstreamError


def alternatives(count: int) -> list[dict[str, Any]]:
    return [{"token": " the", "logprob": -0.25, "bytes": [32, 116, 104, 101]} for _ in range(count)]


def test_log_probabilities_of_a_long_response_are_parsed() -> None:
    tokens = [{**alternatives(1)[0], "top_logprobs": alternatives(20)} for _ in range(2_000)]
    completion = {"choices": [{"message": {"content": "x"}, "logprobs": {"content": tokens}}]}
    assert parsed(json.dumps(completion).encode()) == completion


def test_non_standard_numbers_and_lone_surrogates_are_parsed() -> None:
    assert parsed(b'{"a": NaN, "b": 1e999, "c": "\\ud800"}') == {"a": None, "b": None, "c": "\ud800"}


@pytest.mark.parametrize("body", [b"[" + b"[]," * MAX_VALUES + b"0]", b"[" * 5_000, b"{"])
def test_too_many_values_and_invalid_json_are_refused(body: bytes) -> None:
    with pytest.raises(UpstreamError) as caught:
        parsed(body)
    assert caught.value.status == 502
