"""The system prompt."""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

Json = dict[str, Any]


@cache
def own_prompt() -> str:
    """The default prompt."""
    return resources.files("apexbridge.agent").joinpath("prompts/system.md").read_text("utf-8").strip()


def with_system(messages: Sequence[Json], text: str) -> list[Json]:
    """The messages with `text` appended to the first system message, or as a new one."""
    if not text:
        return list(messages)
    for place, message in enumerate(messages):
        if message.get("role") in ("system", "developer"):
            return [*messages[:place], _joined(message, text), *messages[place + 1 :]]
    return [{"role": "system", "content": text}, *messages]


def _joined(message: Json, text: str) -> Json:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": f"\n\n{text}"}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}
