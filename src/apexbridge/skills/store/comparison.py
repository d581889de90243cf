"""Compares the skills of a package with the installed ones, file by file."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from apexbridge.skills.models import SkillChange
from apexbridge.skills.package.archive import read_entry
from apexbridge.skills.package.fingerprint import FolderTooLargeError, content_hash, hash_file, scan_folder
from apexbridge.skills.package.skill import PackageFile
from apexbridge.skills.package.validation import Package, PackagedSkill
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.library import read_origin
from apexbridge.skills.store.names import folder_of_name

_Hashes = dict[str, tuple[PackageFile, str]]
"""Each file by its path, with the SHA-256 of its content."""


def compare(
    file: BinaryIO, package: Package, names: Sequence[str], folders: Path, rows: dict[str, Row]
) -> list[SkillChange]:
    """What an install of the package would change in `folders`. `rows` are the installed skills that it replaces.

    The skills of the package will be served as `names`. A skill is unchanged if the package has what was fetched
    before, or what is installed now.
    """
    changes = [
        _change(file, skill, name, folders / folder_of_name(name), rows.get(name))
        for skill, name in zip(package.skills, names, strict=True)
    ]
    return changes + [
        SkillChange(name=name, change="removed", files_removed=sorted(_hashes_on_disk(folders / folder_of_name(name))))
        for name in rows
        if name not in names
    ]


def content_hashes(file: BinaryIO, package: Package) -> dict[str, str]:
    """The content hash that each skill of the package will have, by its own name."""
    return {
        skill.metadata.name: content_hash(list(_hashes_in_archive(file, skill).values())) for skill in package.skills
    }


def _change(file: BinaryIO, skill: PackagedSkill, name: str, folder: Path, row: Row | None) -> SkillChange:
    new, old = _hashes_in_archive(file, skill), _hashes_on_disk(folder)
    metadata, origin = skill.metadata, read_origin(folder)
    digest, own_digest = content_hash(list(new.values())), content_hash(list(old.values()))
    fetched = origin.content_hash if origin else None
    if row and digest in (fetched, own_digest):
        return SkillChange(name=name, change="unchanged", edited=fetched not in (None, own_digest))
    asked_before = list(row.metadata.permissions) if row else []
    return SkillChange(
        name=name,
        change="changed" if row else "added",
        files_added=sorted(new.keys() - old.keys()),
        files_changed=sorted(path for path in new.keys() & old.keys() if _differs(new[path], old[path])),
        files_removed=sorted(old.keys() - new.keys()),
        old_description=row.description if row and row.description != metadata.description else None,
        new_description=metadata.description if not row or row.description != metadata.description else None,
        permissions_added=[one for one in metadata.permissions if one not in asked_before],
        permissions_removed=[one for one in asked_before if one not in metadata.permissions],
        edited=fetched not in (None, own_digest),
    )


def _differs(one: tuple[PackageFile, str], other: tuple[PackageFile, str]) -> bool:
    return (one[0].executable, one[1]) != (other[0].executable, other[1])


def _hashes_in_archive(file: BinaryIO, skill: PackagedSkill) -> _Hashes:
    found: _Hashes = {}
    for entry in skill.entries:
        digest = hashlib.sha256()
        for chunk in read_entry(file, entry):
            digest.update(chunk)
        path = "/".join(entry.parts[len(skill.root) :])
        found[path] = PackageFile(path=path, size=entry.size, executable=entry.executable), digest.hexdigest()
    return found


def _hashes_on_disk(folder: Path) -> _Hashes:
    """Of a folder that does not exist or cannot be read, none."""
    try:
        if not os.path.lexists(folder):
            return {}
        return {file.path: (file, hash_file(folder / file.path)) for file in scan_folder(folder).files}
    except (OSError, FolderTooLargeError):
        return {}
