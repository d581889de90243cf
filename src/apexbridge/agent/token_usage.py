"""Token usage, summed over the turns of a chat."""

from typing import Any, TypeGuard

Json = dict[str, Any]
MAX_DEPTH = 8
"""Upstreams nest usage at most two levels deep; deeper data is untrusted."""
MAX_COUNT = 2**53
"""Larger numbers and NaN are not token counts."""


def add_usage(total: Json | None, more: Json | None, depth: int = MAX_DEPTH) -> Json | None:
    """Add numbers, also nested ones. Of other values the last one wins."""
    if more is None or total is None:
        return more if total is None else total
    summed = dict(total)
    for key, value in more.items():
        before = summed.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and depth > 1:
            summed[key] = add_usage(before, value, depth - 1)
        elif _is_number(value) and _is_number(before):
            summed[key] = before + value
        elif value is not None:
            summed[key] = value
    return summed


def tokens_of(usage: Json | None) -> int:
    """All tokens of one turn, if the upstream reports them."""
    counts = usage or {}
    if _is_number(total := counts.get("total_tokens")):
        return max(0, int(total))
    parts = [counts.get("prompt_tokens"), counts.get("completion_tokens")]
    return int(sum(max(0, part) for part in parts if _is_number(part)))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_COUNT
