"""Which script is the skill, and which scripts are only helpers that can be run by name."""

from collections.abc import Collection, Iterable

RUNNABLE_SUFFIXES = (".js", ".mjs", ".cjs", ".py", ".sh")
_ENTRY_SCRIPTS = tuple(f"scripts/execute{suffix}" for suffix in RUNNABLE_SUFFIXES)


def find_entry(paths: Collection[str], declared: str | None = None) -> str | None:
    """The entry script: the declared one, else `scripts/execute.*`, else `index.js`; a helper never is."""
    if declared is not None:
        return declared if declared in paths else None
    return next((path for path in (*_ENTRY_SCRIPTS, "index.js") if path in paths), None)


def runnable_scripts(paths: Iterable[str]) -> list[str]:
    """What can be run by name: everything below `scripts/` that an interpreter is known for."""
    return sorted(path for path in paths if path.startswith("scripts/") and path.endswith(RUNNABLE_SUFFIXES))
