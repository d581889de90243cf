"""Direct mode: a skill's instructions with the input filled in."""

import json
import re
from collections.abc import Mapping
from typing import Any

from apexbridge._time import now_ms
from apexbridge.errors import InvalidInputError
from apexbridge.skills.models import DirectMetadata, DirectSkillResult

MODEL_WORKING_DIRECTORY = "/"
"""The root of the file tools as the model sees it, never a path on the server."""
MAX_RESULT_CHARACTERS = 4_000_000
MAX_WARNINGS = 20
_PLACEHOLDER = re.compile(r"\{\{\s*(input|system)\.([A-Za-z0-9_][A-Za-z0-9_.-]{0,200})\s*\}\}")


def render(*, name: str, body: str, source_path: str, input: Mapping[str, Any]) -> DirectSkillResult:
    """Replace `{{input.…}}` and `{{system.…}}` in one pass. Other braces and placeholders without a value are kept."""
    now = now_ms()
    warnings: list[str] = []
    values: dict[str, str] = {}
    left = max(MAX_RESULT_CHARACTERS - len(body), 0)

    def fill(match: re.Match[str]) -> str:
        nonlocal left
        if match[0] not in values:
            values[match[0]] = value_of(match)
        left -= len(values[match[0]])
        if left < 0:
            raise InvalidInputError(
                f"The instructions of {name} with this input are longer than {MAX_RESULT_CHARACTERS:,} characters. "
                "Send less."
            )
        return values[match[0]]

    def value_of(match: re.Match[str]) -> str:
        kind, path = match[1], match[2]
        scope: Any = input if kind == "input" else {"cwd": MODEL_WORKING_DIRECTORY, "timestamp": now}
        for key in path.split("."):
            if not isinstance(scope, Mapping) or key not in scope:
                if kind == "input" and len(warnings) < MAX_WARNINGS:
                    warnings.append(f"no input for {match[0]}")
                return match[0]
            scope = scope[key]
        return scope if isinstance(scope, str) else json.dumps(scope, ensure_ascii=False)

    content = _PLACEHOLDER.sub(fill, body)
    return DirectSkillResult(
        content=content,
        metadata=DirectMetadata(skill_name=name, source_path=source_path, generated_at=now),
        warnings=list(dict.fromkeys(warnings)),
    )
