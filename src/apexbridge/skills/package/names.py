"""Skill names: validation, and conversion of free text to a valid name."""

import hashlib
import re

from apexbridge._text import normalized
from apexbridge.skills.models import MAX_NAME_CHARACTERS, NAME_PATTERN, RESERVED_NAMES

MAX_READ_CHARACTERS = 1_000
"""Limit for the text that a name is derived from."""
_STRICT_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")


def name_problem(name: str, *, strict: bool = False) -> str | None:
    """Why this name is invalid; None if it is valid."""
    if len(name) > MAX_NAME_CHARACTERS:
        return f"name is longer than {MAX_NAME_CHARACTERS} characters"
    if not NAME_PATTERN.match(name):
        return f'name "{name}" may hold only lower-case letters, digits and hyphens, and begins with a letter or digit'
    if strict and not _STRICT_NAME.match(name):
        return f'name "{name}" may not end with a hyphen or hold two in a row'
    if name in RESERVED_NAMES:
        return f'name "{name}" is reserved; choose another one'
    return None


def slug(text: str) -> str:
    """The text as a name: without accents, hyphens for other characters than letters and digits. May be empty."""
    plain = normalized("NFKD", text[:MAX_READ_CHARACTERS]).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME_CHARACTERS].rstrip("-")


def lenient_name(written: str, folder: str) -> str:
    """A valid name for any text: its slug, else the slug of the folder, else one with a hash of the text."""
    for candidate in (written, folder):
        made = candidate if NAME_PATTERN.match(candidate) else slug(candidate)  # a valid name is kept as it is
        if re.search("[A-Za-z]", made):
            return made
    digest = hashlib.sha256((written or folder).encode("utf-8", "surrogatepass")).hexdigest()
    return f"skill-{digest[:8]}"
