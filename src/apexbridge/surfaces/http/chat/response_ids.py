"""Ids of responses and of their items. The id of an item contains the id of its response, so that it can be found."""

import re
import secrets

_TOKEN_BYTES = 14
_RESPONSE = re.compile(r"resp_([0-9a-f]{28})")
_ITEM = re.compile(r"(?:msg|rs|fc|ctc|mcp|mcpr|in)_([0-9a-f]{28})[0-9a-f]{4,24}")
_APPROVAL = re.compile(r"mcpr_[0-9a-f]{28}([0-9a-f]{24})")
_QUESTION = re.compile(r"call_([0-9a-f]{24})")


def fresh_response_id() -> str:
    return f"resp_{secrets.token_hex(_TOKEN_BYTES)}"


def is_response_id(id: str) -> bool:
    return _RESPONSE.fullmatch(id) is not None


def item_id(response: str, prefix: str, index: int) -> str:
    """The id of an item of the output, or with the prefix `in` of the input. It has at most 40 characters."""
    return f"{prefix}_{response.removeprefix('resp_')}{index:04x}"


def response_of(item: str) -> str | None:
    """The id of the response that an item belongs to; None if the id is not one of this server."""
    found = _ITEM.fullmatch(item)
    return f"resp_{found[1]}" if found else None


def approval_id(response: str, call: str) -> str:
    """The id of an approval request; it contains the id of the call that asks."""
    found = _QUESTION.fullmatch(call)
    return f"mcpr_{response.removeprefix('resp_')}{found[1] if found else secrets.token_hex(12)}"


def question_of(approval: str) -> str:
    """The id of the call that asked, from the id of an approval request."""
    found = _APPROVAL.fullmatch(approval)
    return f"call_{found[1]}" if found else approval
