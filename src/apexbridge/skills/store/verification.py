"""Compares installed skills with what was installed: recorded hashes, stored versions, `skills.lock`, signatures."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from apexbridge._tasks import in_thread
from apexbridge.errors import RequestError
from apexbridge.skills.lock_file import read_lock
from apexbridge.skills.models import SkillSignature, Verification, VerifiedSkill
from apexbridge.skills.package.fingerprint import FolderTooLargeError, hash_folder, scan_folder
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.library import read_origin
from apexbridge.skills.store.names import folder_of_name, name_of_folder
from apexbridge.skills.store.roots import INSTALLED_ROOT
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.skills.store.versions import History, Version

_UNSIGNED = SkillSignature(state="unsigned")


class SkillVerification:
    """Reads every file of the installed skills; what the catalog says of them is not trusted."""

    def __init__(self, store: SkillStore, lock_file: Path) -> None:
        self._store = store
        self._lock_file = lock_file

    async def verify(self, names: Sequence[str] = ()) -> Verification:
        """Verify these skills, or all that are installed or should be.

        Raises:
            SkillNotFoundError: there is no skill and no record of that name.
        """
        rows = {row.name: row for row in await self._store.catalog.all_live() if row.root == INSTALLED_ROOT}
        recorded = await in_thread(self._recorded)
        for name in names:
            if name not in rows and name not in recorded:
                raise await self._store.not_found(name)
        found = []
        for name in sorted(names or {*rows, *recorded}):
            async with self._store.commits.hold(name):
                found.append(await in_thread(self._verified, name, rows.get(name), recorded.get(name)))
        return Verification(skills=found, ok=not any(skill.problems for skill in found))

    def _recorded(self) -> dict[str, str]:
        """The contents that should be installed: those of `skills.lock`, and skills whose folder is missing."""
        try:
            packages = read_lock(self._lock_file)
            locked = {
                name: digest.removeprefix("sha256:")
                for package in packages
                for name, digest in package["contents"].items()
            }
        except (RequestError, KeyError, TypeError, AttributeError):
            locked = {}
        # Uploads have no entry. An uninstall moves the versions away, so what has versions was removed by hand.
        for folder in self._store.library.versions.names():
            if not os.path.lexists(self._store.library.skills / folder):
                name = name_of_folder(folder)
                locked.setdefault(name, "")
        return locked

    def _verified(self, name: str, row: Row | None, locked: str | None) -> VerifiedSkill:
        folder = self._store.folder(row) if row else self._store.library.skills / folder_of_name(name)
        history = self._store.library.versions.of(name)
        origin = read_origin(folder)
        try:
            actual: str | None = hash_folder(folder, scan_folder(folder).files)
        except (OSError, FolderTooLargeError):
            actual = None
        installed = _installed(history)
        recorded = (
            (origin.content_hash if origin else None) or locked or (installed.content_hash if installed else None)
        )
        version = history.installed(actual) if actual else None
        state: Literal["unchanged", "changed", "missing"] = "unchanged"
        if actual is None:
            state = "missing"
        elif recorded and actual != recorded:
            state = "changed"
        archive = self._archive(name, version)
        signature = self._store.intake.signature_of(folder, name) if actual else _UNSIGNED
        return VerifiedSkill(
            name=name,
            state=state,
            source=origin.source if origin else None,
            content_hash=actual,
            recorded_hash=recorded,
            version=version.number if version else None,
            archive=archive,
            signature=signature,
            problems=list(self._problems(state, archive, signature)),
        )

    def _archive(self, name: str, version: Version | None) -> Literal["intact", "damaged", "missing"]:
        if version is None:
            return "missing"
        try:
            return "intact" if self._store.library.versions.is_intact(name, version) else "damaged"
        except FileNotFoundError:
            return "missing"

    def _problems(self, state: str, archive: str, signature: SkillSignature) -> Sequence[str]:
        problems = []
        if state == "changed":
            problems.append("changed after the install")
        if state == "missing":
            problems.append("its folder is missing or cannot be read")
        if archive == "damaged":
            problems.append("the stored version is damaged")
        if signature.state == "invalid":
            problems.append(signature.reason or "the signature is not valid")
        elif self._store.intake.requires_signatures and signature.state != "valid" and state != "missing":
            problems.append(signature.reason or "not signed")
        return problems


def _installed(history: History) -> Version | None:
    """The version that was installed last: not one that was found on disk, or made by an edit of the description."""
    default = history.numbered(history.default)
    if default is not None and default.source not in ("disk", "edit"):
        return default
    earlier = [one for one in history.versions if one.number < history.default and one.source not in ("disk", "edit")]
    return earlier[-1] if earlier else default
