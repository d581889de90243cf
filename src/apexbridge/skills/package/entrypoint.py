"""Finds the entry script of a skill, and the scripts that can be run by name."""

from collections.abc import Collection, Iterable

RUNNABLE_SUFFIXES = (".js", ".mjs", ".cjs", ".py", ".sh")
_ENTRY_SCRIPTS = tuple(f"scripts/execute{suffix}" for suffix in RUNNABLE_SUFFIXES)


def find_entry(paths: Collection[str], declared: str | None = None) -> str | None:
    """The declared script, or without a declaration `scripts/execute.*`, then `index.js`; None if missing."""
    if declared is not None:
        return declared if declared in paths else None
    return next((path for path in (*_ENTRY_SCRIPTS, "index.js") if path in paths), None)


def runnable_scripts(paths: Iterable[str]) -> list[str]:
    """The scripts that can be run by name: all files below `scripts/` with a known interpreter."""
    return sorted(path for path in paths if path.startswith("scripts/") and path.endswith(RUNNABLE_SUFFIXES))
