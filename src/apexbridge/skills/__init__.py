"""A skill on disk and its life: parse, validate, install, list, edit, reload, uninstall."""

import re

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
"""What a skill's name looks like."""
SERVED_NAME_PATTERN = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,63}:)?[a-z0-9][a-z0-9-]{0,63}\Z")
"""A skill's name, or `plugin:skill` if the skill's own name was taken when its plugin was installed."""
RESERVED_NAMES = frozenset(
    {"stats", "growth", "problems", "search", "install", "reindex", "validate", "removed", "origins"}
)
"""Names that are routes below `/api/skills`."""
