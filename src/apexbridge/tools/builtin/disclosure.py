"""Renders found skills for a model: enough to choose and call one, in few tokens."""

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from apexbridge.tools.builtin.ports import FoundSkill
from apexbridge.tools.naming import SKILL_IDENTIFIER

DESCRIPTION_TOKENS = 85
ARGUMENT_TOKENS = 45
"""With the name and the score, a hit stays below 150 tokens and five of them below 800."""
CHARACTERS_PER_TOKEN = 8
"""A text is cut to this many characters per token before its tokens are counted: a token has at most four bytes."""
MAX_ARGUMENTS, MAX_ARGUMENT_CHARACTERS = 50, 200
"""Limits of a signature: number of arguments, and length of each."""
CUT = "…"
_CJK = (("⺀", "鿿"), ("豈", "﫿"), ("가", "힣"), ("！", "￦"))


def tokens(text: str) -> float:
    """Estimated tokens of a text: one for each CJK character, and one for four bytes of other text."""
    wide = sum(any(first <= letter <= last for first, last in _CJK) for letter in text)
    narrow = sum(len(letter.encode("utf-8", "replace")) for letter in text if not _is_wide(letter))
    return wide + narrow / 4


def cut(text: str, limit: float) -> str:
    """The text on one line, cut to a number of tokens; `…` marks the cut."""
    # A token has at most four characters. White space is collapsed, so start with twice as many.
    start = text[: int(limit * CHARACTERS_PER_TOKEN)]
    is_whole = len(start) == len(text)
    text = " ".join(start.split())
    if is_whole and tokens(text) <= limit:
        return text
    used, kept = tokens(CUT), []
    for letter in text:
        used += 1 if _is_wide(letter) else len(letter.encode("utf-8", "replace")) / 4
        if used > limit:
            break
        kept.append(letter)
    return "".join(kept).rstrip() + CUT


def told_hit(place: int, match: FoundSkill, schema: Mapping[str, Any] | None) -> str:
    """One hit: name, score, mode, description and arguments."""
    kind = "instructions" if match.mode == "direct" else "runs"
    lines = [f"{place}. {match.name} ({match.score:.2f}, {kind}): {cut(match.description, DESCRIPTION_TOKENS)}"]
    if told := told_arguments(schema or {}):
        lines.append(f"   input: {cut(told, ARGUMENT_TOKENS)}")
    return "\n".join(lines)


def told_arguments(schema: Mapping[str, Any]) -> str:
    """A schema as a signature: `message: string, scope?: "api"|"cli"`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    required = schema.get("required") or ()
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_kind(own)}"[:MAX_ARGUMENT_CHARACTERS]
        for name, own in islice(properties.items(), MAX_ARGUMENTS)
        if name != "name" or not _is_identifier(own)
    )


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(choices := schema.get("enum"), list):
        return "|".join(json.dumps(choice, ensure_ascii=False) for choice in choices[:8])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    return f"{_kind(schema.get('items', {}))}[]" if kind == "array" else str(kind)


def _is_identifier(schema: Any) -> bool:
    """Whether a `name` is the one that every skill tool takes, not a parameter of the skill."""
    return isinstance(schema, Mapping) and str(schema.get("description")).startswith(SKILL_IDENTIFIER)


def _is_wide(letter: str) -> bool:
    return any(first <= letter <= last for first, last in _CJK)
