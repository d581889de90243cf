"""Untrusted text without what a terminal would take for a command."""

import json
from typing import Any


def printable(text: str) -> str:
    """The text with control characters replaced; line ends and tabs stay."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


def printable_json(data: Any) -> str:
    """Data as JSON in which everything that is not printable is escaped: the same data for every reader."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n")) + "\n"


def _escaped(line: str) -> str:
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)
