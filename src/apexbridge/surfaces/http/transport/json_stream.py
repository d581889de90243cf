"""JSON that is encoded while it is sent, so that long texts are never in memory as one JSON document."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

import anyio.to_thread

from apexbridge.skills.runs.views import RecordedText, TextSource

PIECE_CHARACTERS = 32 * 1024
"""Encoded at a time. JSON needs up to six bytes per character."""


class Placeholders:
    """Replaces long texts in a document. They are encoded when they are sent."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)  # not guessable, so that no text can contain a placeholder
        self._texts: list[TextSource] = []

    def put(self, text: TextSource) -> str:
        """Add a long text and return the placeholder to write into the document."""
        self._texts.append(text)
        return f"{self._token}-{len(self._texts) - 1}-"

    async def pieces(self, document: str) -> AsyncIterator[bytes]:
        """Yield a JSON document with each placeholder replaced by its text."""
        parts = re.split(f"{self._token}-([0-9]+)-", document)
        for index, part in enumerate(parts):
            if index % 2 == 0:
                yield part.encode("utf-8", "replace")
                continue
            async for piece in _encoded(self._texts[int(part)]):
                yield piece


async def _encoded(text: TextSource) -> AsyncIterator[bytes]:
    if isinstance(text, RecordedText):
        source = text.chunks()
        try:
            while (piece := await anyio.to_thread.run_sync(_next_encoded, source)) is not None:
                yield piece
        finally:
            source.close()  # type: ignore[attr-defined]  # a generator
        return
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield _escaped(text[start : start + PIECE_CHARACTERS])
        await asyncio.sleep(0)


def _next_encoded(source: Iterator[str]) -> bytes | None:
    piece = next(source, None)
    return None if piece is None else _escaped(piece)


def _escaped(text: str) -> bytes:
    """The text as it appears between the quotes of a JSON string."""
    return encode_basestring(text)[1:-1].encode("utf-8", "replace")


def without_long_texts(data: Mapping[str, Any], texts: Mapping[str, TextSource]) -> tuple[dict[str, Any], Placeholders]:
    """A copy of an object in which placeholders replace the named texts."""
    placeholders = Placeholders()
    return {**data, **{name: placeholders.put(text) for name, text in texts.items()}}, placeholders
