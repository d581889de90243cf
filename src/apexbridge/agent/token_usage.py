"""What an answer cost, summed over its turns."""

from typing import Any, TypeGuard

Json = dict[str, Any]
MAX_DEPTH = 8
"""An upstream decides how deep its numbers are nested; those that are known to nest, nest twice."""
MAX_COUNT = 2**53
"""Beyond that it is no count of anything; `NaN` is none either."""


def add_usage(total: Json | None, more: Json | None, depth: int = MAX_DEPTH) -> Json | None:
    """Both together: numbers add up, also below; of anything else the last counts."""
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
    """All tokens of one turn, as far as the upstream tells."""
    told = usage or {}
    if _is_number(total := told.get("total_tokens")):
        return max(0, int(total))
    parts = [told.get("prompt_tokens"), told.get("completion_tokens")]
    return int(sum(max(0, part) for part in parts if _is_number(part)))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_COUNT
