"""A skill on disk and its life: parse, validate, install, list, edit, reload, uninstall."""

import re
from typing import Literal

Profile = Literal["seed", "lenient", "strict"]
Mode = Literal["sandbox", "direct"]
Severity = Literal["low", "medium", "high"]
"""Of a finding of the scan."""
ScanPolicy = Literal["off", "warn", "refuse"]
SignaturePolicy = Literal["off", "warn", "all"]
DefaultMode = Literal["auto", "sandbox", "direct"]
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
"""What a skill's name looks like."""
SERVED_NAME_PATTERN = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,63}:)?[a-z0-9][a-z0-9-]{0,63}\Z")
"""A skill's name, or `plugin:skill` if the skill's own name was taken when its plugin was installed."""
RESERVED_NAMES = frozenset(
    {"stats", "growth", "problems", "search", "install", "reindex", "validate", "removed", "origins", "tags"}
)
"""Names that are routes below `/api/skills`."""
SKILL_FILE = "SKILL.md"
MARKER_FILE = ".vectorized"
ORIGIN_FILE = ".apex-origin.json"
OWN_FILES = frozenset({MARKER_FILE, ORIGIN_FILE})
"""Files that this server keeps in the folder of an installed skill. They are not part of its content."""
MAX_SKILL_FILE_BYTES = 1024 * 1024
MAX_NAME_CHARACTERS = 64
MAX_DESCRIPTION_CHARACTERS = 1024
