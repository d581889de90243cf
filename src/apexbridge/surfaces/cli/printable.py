"""Makes untrusted text safe to print on a terminal."""

import json
from typing import Any


def printable(text: str) -> str:
    """The text with unprintable characters replaced, except line feeds and tabs."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


def printable_json(data: Any) -> str:
    """Data as JSON with unprintable characters escaped. It parses to the same data."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n")) + "\n"


def _escaped(line: str) -> str:
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)
