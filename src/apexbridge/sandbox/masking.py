"""Secrets in the shapes in which a program is likely to print them."""

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

MIN_CHARACTERS = 4
"""A shorter value would mask half of any text."""
_NOT_PUNCTUATION = re.compile(r"(?:\w\W*){8}")
"""A line of a secret that is masked on its own: the lines of indented JSON or of a key's frame occur in other text."""
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""How many JSON writers escape what could end a script of a page."""


def masks(secrets: Mapping[str, str]) -> list[str]:
    """Every text to mask: the values as they are, and escaped or encoded as programs do it."""
    found: dict[str, None] = {}
    for value in secrets.values():
        if len(value) >= MIN_CHARACTERS:
            found.update(dict.fromkeys(shape for shape in _shapes(value) if len(shape) >= MIN_CHARACTERS))
    return list(found)


def _shapes(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogateescape")
    yield value
    yield from (line for line in map(str.strip, value.splitlines()) if _NOT_PUNCTUATION.search(line))
    yield from _in_json(value)
    yield from (repr(value)[1:-1], repr(f'{value}"')[1:-2], ascii(value)[1:-1])
    yield from (
        quoted for each in _in_url(value) for quoted in (each, _PERCENT.sub(lambda code: code[0].lower(), each))
    )
    escaped = html.escape(value)
    yield from (escaped, html.escape(value, quote=False), escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    yield from (shlex.quote(value).strip("'"), value.replace("'", "'\\''"))
    yield from _in_base64(raw)
    yield from (raw.hex(), raw.hex().upper())


def _in_json(value: str) -> Iterator[str]:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        yield text
        yield json.dumps(text, ensure_ascii=is_ascii)[1:-1]  # JSON in a text of JSON
        yield text.replace("/", "\\/")
        yield "".join(_IN_SCRIPT.get(character, character) for character in text)


def _in_url(value: str) -> Iterator[str]:
    yield from (quote(value, safe="", errors="surrogateescape"), quote(value, errors="surrogateescape"))
    yield quote_plus(value, errors="surrogateescape")


def _in_base64(raw: bytes) -> Iterator[str]:
    """Alone, and behind one or two other bytes: of those, the characters that come of the secret's bits alone."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        yield from (whole, whole.rstrip("="))
        for before in range(3):
            first, last = -(-8 * before // 6), 8 * (before + len(raw)) // 6
            yield encode(bytes(before) + raw).decode()[first:last]
