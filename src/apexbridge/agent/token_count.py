"""Estimates the tokens of a prompt. Each model has its own tokenizer; this needs none."""

import json
import math
from collections.abc import Sequence
from typing import Any

from apexbridge._text import estimated_tokens

Json = dict[str, Any]
MESSAGE_TOKENS = 4
"""Role and separators."""
IMAGE_TOKENS = 800
"""About what models use for an image of 1,024 x 1,024 pixels."""


def estimated_prompt_tokens(messages: Sequence[Json], tools: Sequence[Json]) -> int:
    """About the tokens of a chat request. Files count as their note for the model, images as one size."""
    total = sum(map(_message_tokens, messages))
    if tools:
        total += estimated_tokens(json.dumps(tools, ensure_ascii=False))
    return math.ceil(total)


def _message_tokens(message: Json) -> float:
    content = message.get("content")
    total = MESSAGE_TOKENS + sum(map(_part_tokens, content if isinstance(content, list) else [content]))
    if message.get("tool_calls"):
        total += estimated_tokens(json.dumps(message["tool_calls"], ensure_ascii=False))
    return total


def _part_tokens(part: Any) -> float:
    if isinstance(part, str):
        return estimated_tokens(part)
    if not isinstance(part, dict):
        return 0
    if isinstance(part.get("text"), str):
        return estimated_tokens(part["text"])
    return IMAGE_TOKENS if part.get("type") == "image_url" else 0
