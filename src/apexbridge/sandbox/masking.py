"""Secrets in the shapes in which a program is likely to print them."""

import base64
import json
from collections.abc import Mapping
from urllib.parse import quote

MIN_CHARACTERS = 4
"""A shorter value would mask half of any text."""


def masks(secrets: Mapping[str, str]) -> list[str]:
    """Every text to mask: the values as they are, and as JSON, in a URL, in base64 and in hexadecimal."""
    found: dict[str, None] = {}
    for value in secrets.values():
        if len(value) < MIN_CHARACTERS:
            continue
        raw = value.encode("utf-8", "surrogateescape")
        encoded = base64.b64encode(raw).decode()
        shapes = [value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")]
        shapes += [quote(value), encoded, encoded.rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")]
        shapes += [raw.hex(), raw.hex().upper(), *value.splitlines()]
        found.update(dict.fromkeys(shape for shape in shapes if len(shape) >= MIN_CHARACTERS))
    return list(found)
