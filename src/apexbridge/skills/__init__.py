"""A skill on disk and its life: parse, validate, install, list, edit, reload, uninstall."""

RESERVED_NAMES = frozenset({"stats", "growth", "problems", "search", "install", "reindex", "validate"})
"""Names that are routes below `/api/skills`."""
