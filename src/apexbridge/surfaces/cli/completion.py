"""Names for the shell's completion: from the running server, or without one from the folders of the data directory.

Completion must be fast and silent, so nothing is opened, and every error means that there is nothing to complete.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from apexbridge.skills.store.names import name_of_folder

ANSWER_SECONDS = 1.0
MAX_NAMES = 500
Completion = Callable[[typer.Context, str], list[str]]


def _installed_skills(data_dir: Path) -> Iterable[str]:
    folders = (data_dir / "skills").iterdir()
    return (name_of_folder(folder.name) for folder in folders if (folder / "SKILL.md").is_file())


def _completion(path: str, field: str, stored: Callable[[Path], Iterable[str]]) -> Completion:
    """`field` of every item of a list is completed. `stored` finds the names without a server."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        import asyncio  # here, because it would slow down `apex skills --help`

        try:
            names = asyncio.run(_names(context.params, path, field, stored))
            return sorted(name for name in names if name.startswith(incomplete))[:MAX_NAMES]
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
        return [str(item[field]) for item in items]


skill_names = _completion(f"/api/skills?limit={MAX_NAMES}", "name", _installed_skills)
plugin_names = _completion(
    "/api/plugins", "name", lambda folder: (file.stem for file in (folder / "plugins").glob("*.json"))
)
tool_ids = _completion("/api/tools", "id", lambda folder: (f"skill:{name}" for name in _installed_skills(folder)))
run_ids = _completion(
    f"/api/executions?limit={MAX_NAMES}", "id", lambda folder: (run.name for run in (folder / "runs").iterdir())
)
