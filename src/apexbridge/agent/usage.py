"""What an answer cost, summed over its turns."""

from typing import Any

Json = dict[str, Any]


def add_usage(total: Json | None, more: Json | None) -> Json | None:
    """Both together: numbers add up, also below; of anything else the last counts."""
    if more is None or total is None:
        return more if total is None else total
    summed = dict(total)
    for key, value in more.items():
        before = summed.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            summed[key] = add_usage(before, value)
        elif _is_number(value) and _is_number(before):
            summed[key] = before + value
        elif value is not None:
            summed[key] = value
    return summed


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
