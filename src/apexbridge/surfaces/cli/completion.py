"""Names for the shell's completion: from the running server, or without one from the folders of the data directory.

Completion must be fast and silent, so nothing is opened, and every error means that there is nothing to complete.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from apexbridge.skills.store.names import name_of_folder

ANSWER_SECONDS = 1.0
MAX_NAMES = 500
Completion = Callable[[typer.Context, str], list[str]]
_TYPED = "_APEX_COMPLETE_TYPED"
"""The part of the word before its last colon, which bash does not replace."""


def join_words_at_colons() -> None:
    """Undo that bash splits words at colons: `skill:pdf` arrives as three words, and only the last one is replaced.

    The word that is completed loses the part before its last colon. `_completion` adds it to find names.
    """
    if os.environ.get("_APEX_COMPLETE") != "complete_bash" or "\n:" not in os.environ.get("COMP_WORDS", ""):
        return
    split = os.environ["COMP_WORDS"].split("\n")
    words: list[str] = []
    is_open = False
    for word in split[: int(os.environ["COMP_CWORD"]) + 1]:
        if words and (word.startswith(":") or is_open):
            words[-1] += word
        else:
            words.append(word)
        is_open = word.endswith(":")
    typed, colon, words[-1] = words[-1].rpartition(":")
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), _TYPED: f"{typed}{colon}"}


def _installed_skills(data_dir: Path) -> Iterable[str]:
    folders = (data_dir / "skills").iterdir()
    return (name_of_folder(folder.name) for folder in folders if (folder / "SKILL.md").is_file())


def _removed_skills(data_dir: Path) -> Iterable[str]:
    records = [json.loads(file.read_bytes()) for file in (data_dir / "trash").glob("*/removed.json")]
    return (str(record["name"]) for record in records if record["kind"] == "skill")


def _bundles(data_dir: Path) -> Iterable[str]:
    from apexbridge.sandbox.bundles import BUNDLES  # not needed beside a server

    return BUNDLES


def _completion(path: str, field: str, stored: Callable[[Path], Iterable[str]]) -> Completion:
    """`field` of every item of a list is completed. `stored` finds the names without a server."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        import asyncio  # here, because it would slow down `apex skills --help`

        try:
            names = asyncio.run(_names(context.params, path, field, stored))
            typed = os.environ.get(_TYPED, "")
            found = sorted(name for name in names if name.startswith(f"{typed}{incomplete}"))
            return [name.removeprefix(typed) for name in found[:MAX_NAMES]]
        except Exception:  # a message in the middle of a command line would be worse than no completion
            return []

    return complete


async def _names(
    options: dict[str, Any], path: str, field: str, stored: Callable[[Path], Iterable[str]]
) -> Iterable[str]:
    import asyncio

    from apexbridge.surfaces.cli.client import running_api
    from apexbridge.surfaces.cli.connection import find_connection

    connection = find_connection(data_dir=options.get("data_dir"), url=options.get("url"))
    async with asyncio.timeout(ANSWER_SECONDS):
        api = await running_api(connection)
        if api is None:
            return stored(connection.data_dir)
        answer = await api.ask("GET", path)
        items = answer if isinstance(answer, list) else answer[path.rpartition("/")[2].partition("?")[0]]
        return [str(item[field]) for item in items if item.get("kind") != "plugin"]


skill_names = _completion(f"/api/skills?limit={MAX_NAMES}", "name", _installed_skills)
plugin_names = _completion(
    "/api/plugins", "name", lambda folder: (file.stem for file in (folder / "plugins").glob("*.json"))
)
tool_ids = _completion("/api/tools", "id", lambda folder: (f"skill:{name}" for name in _installed_skills(folder)))
run_ids = _completion(
    f"/api/executions?limit={MAX_NAMES}", "id", lambda folder: (run.name for run in (folder / "runs").iterdir())
)
removed_skill_names = _completion("/api/skills/removed", "name", _removed_skills)
bundle_names = _completion("/api/packages", "name", _bundles)
workspace_ids = _completion(
    "/api/workspaces", "id", lambda folder: (workspace.name for workspace in (folder / "workspaces").iterdir())
)
