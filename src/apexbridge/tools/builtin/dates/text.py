"""What is done to every text before it is read as a moment, a zone or a duration."""

import unicodedata

from apexbridge.errors import InvalidInputError

MAX_CHARACTERS = 100
_QUOTED_CHARACTERS = 60


def tidy(text: str) -> str:
    """The text with full-width signs made plain and single spaces between its words.

    Raises:
        InvalidInputError: it is longer than any date, zone or duration.
    """
    plain = unicodedata.normalize("NFKC", text[: MAX_CHARACTERS + 1]).replace("\N{MINUS SIGN}", "-")
    if len(text) > MAX_CHARACTERS or len(plain) > MAX_CHARACTERS:
        raise InvalidInputError(f"{quoted(text)} is too long: at most {MAX_CHARACTERS} characters")
    return " ".join(plain.split())


def quoted(text: str) -> str:
    """The text as a message can show it: short, and with nothing in it that cannot be printed."""
    return repr(text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "…")
