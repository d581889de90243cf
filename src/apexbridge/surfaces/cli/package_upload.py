"""Uploads archives and folders to a server, one or many."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apexbridge.errors import ApexBridgeError, RequestError
from apexbridge.skills.package.packing import is_folder, open_source
from apexbridge.skills.package.validation import skill_file_among
from apexbridge.skills.store.roots import SkillRoot, discover
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.options import ProfileChoice
from apexbridge.surfaces.cli.progress import progress_bar

_ARCHIVE_SUFFIXES = {".zip", ".skill"}


async def send(api: Api, path: Path, *, overwrite: bool, profile: ProfileChoice | None) -> Any:
    """Install one archive or folder. A folder is packed first; its default profile is lenient."""
    with open_source(path) as (file, filename):
        file.seek(0)
        return await api.upload(
            "/api/skills/install",
            file,
            filename=filename,
            overwrite="true" if overwrite else None,
            profile=profile.value if profile else "lenient" if is_folder(path) else None,
        )


async def import_packages(api: Api, folder: Path, *, overwrite: bool, profile: ProfileChoice | None) -> dict[str, Any]:
    """Install every skill folder and archive in a folder. Without `overwrite`, existing skills are only reported."""
    if not is_folder(folder):
        raise RequestError(f"No such folder: {folder}", code="FILE_NOT_FOUND")
    if skill_file_among(os.listdir(folder)):  # noqa: PTH208  # names are enough
        raise RequestError(
            f"{folder} is a skill itself, not a folder of skills. Install it with: apex skills install {folder}",
            code="INVALID_INPUT",
        )
    packages = list(_packages(folder))
    entries = []
    with progress_bar("importing") as progress:
        for number, (path, problem) in enumerate(packages, start=1):
            entries.append(await _import_one(api, folder, path, problem, overwrite=overwrite, profile=profile))
            progress(number, len(packages))
    return {"counts": dict(Counter(entry["outcome"] for entry in entries)), "skills": entries}


async def _import_one(
    api: Api, folder: Path, path: Path, problem: str | None, *, overwrite: bool, profile: ProfileChoice | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "path": path.relative_to(folder).as_posix(),
        "name": None,
        "message": problem,
        "warnings": [],
    }
    if problem:
        return entry | {"outcome": "refused"}
    try:
        receipt = await send(api, path, overwrite=overwrite, profile=profile)
    except ApexBridgeError as error:
        exists = error.code == "SKILL_ALREADY_EXISTS"
        return entry | {"outcome": "exists" if exists else "refused", "message": error.message, "code": error.code}
    except OSError as error:
        return entry | {"outcome": "refused", "message": f"cannot be read: {error.strerror}"}
    outcome = "replaced" if receipt["replaced"] else "installed"
    return entry | {"outcome": outcome, "name": receipt["name"], "warnings": receipt["warnings"]}


def _packages(folder: Path) -> Iterator[tuple[Path, str | None]]:
    # Links are followed even out of the folder: the user chose it, and installers create such links.
    for found in discover(SkillRoot(id="import", path=folder), [Path("/")]):
        yield found.path, found.problem
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _ARCHIVE_SUFFIXES and path.is_file():
            yield path, None
