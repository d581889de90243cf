"""File names allowed in packages: portable to every system, without invisible characters."""

import re
import unicodedata

from apexbridge._text import normalized
from apexbridge.errors import InvalidArchiveError
from apexbridge.skills import OWN_FILES, SKILL_FILE

MAX_PATH_BYTES = 240
MAX_COMPONENT_BYTES = 200
MAX_DEPTH = 16
_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(?:\..*)?\Z", re.IGNORECASE)
_JUNK = {*OWN_FILES, ".DS_Store", "Thumbs.db"}
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control, bidi and other invisible characters, surrogates, line and paragraph separators."""


def is_skill_file(name: str) -> bool:
    """Whether this is `SKILL.md` in any case; the validator warns about other spellings."""
    return name.lower() == SKILL_FILE.lower()


def checked_parts(name: str) -> tuple[str, ...]:
    """Check an entry's name and split it into components. Raises InvalidArchiveError: UNSAFE_PATH, with the reason."""
    problem = _problem(name)
    if problem:
        shown = ascii(name[:80])[1:-1]
        raise InvalidArchiveError(f"Unsafe path {shown!r}: {problem}", code="UNSAFE_PATH", entry=shown)
    return tuple(name.rstrip("/").split("/"))


def leads_out(name: str) -> bool:
    """Whether a name that is not allowed could mean a path outside of its folder, or hide one."""
    parts = name.removesuffix("/").split("/")
    hidden = any(unicodedata.category(character) in _HIDDEN_CATEGORIES for character in name)
    return hidden or "\\" in name or bool(re.match(r"[A-Za-z]:", name)) or not {"", ".", ".."}.isdisjoint(parts)


def collision_key(parts: tuple[str, ...]) -> str:
    """A key that is equal for names that collide on case-insensitive or normalizing file systems."""
    return normalized("NFC", normalized("NFC", "/".join(parts)).casefold())


SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"})
"""Version control, caches and installed packages: never scanned for skills, and never copied."""


def is_junk(parts: tuple[str, ...]) -> bool:
    """Whether this is a file of the operating system or of a skipped folder, or one that only this server may write."""
    last = parts[-1]
    if not SKIPPED_FOLDERS.isdisjoint(parts[:-1]):
        return True
    return parts[0] == "__MACOSX" or last.startswith("._") or last in _JUNK


def is_text(path: str) -> bool:
    """Whether a name on disk is valid UTF-8. Python decodes invalid bytes as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def is_odd(path: str) -> bool:
    """Whether a path has spaces or other characters that cause problems on some systems."""
    return re.fullmatch(r"[\w./@+,=()\[\]{}&'!#%~^-]+", path) is None


def _problem(name: str) -> str | None:
    if not name:
        return "the name is empty"
    if "\\" in name:
        return "a backslash; use / between folders"
    if any(unicodedata.category(character) in _HIDDEN_CATEGORIES for character in name):
        return "a control or invisible character"
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "an absolute path; use a path relative to the skill's folder"
    if len(name.encode()) > MAX_PATH_BYTES:
        return f"longer than {MAX_PATH_BYTES} bytes"
    parts = name.removesuffix("/").split("/")
    if len(parts) > MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} folders"
    return next((problem for component in parts if (problem := _component_problem(component))), None)


def _component_problem(component: str) -> str | None:
    if component in ("", ".", ".."):
        return "an empty, '.' or '..' component"
    if len(component.encode()) > MAX_COMPONENT_BYTES:
        return f"a name longer than {MAX_COMPONENT_BYTES} bytes"
    if component != component.rstrip(". ") or component[0] == " ":
        return "a name that begins with a space or ends with a dot or space"
    if any(character in '<>:"|?*' for character in component):
        return 'one of < > : " | ? * in a name'
    if _RESERVED.match(component):
        return "a name that is reserved on Windows"
    return None
