"""Grants: permissions of a skill, granted by an operator. They become void when the skill's content changes."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import urlsplit

from apexbridge._tasks import in_thread
from apexbridge._time import from_ms, now_ms
from apexbridge.errors import InvalidInputError, SkillError, SkillNotFoundError
from apexbridge.sandbox.launcher.granted_paths import kernel_file_system, origin
from apexbridge.sandbox.models import Grants
from apexbridge.skills.package.fingerprint import hash_folder, scan_folder
from apexbridge.skills.package.permissions import Permission, canonical, parse
from apexbridge.skills.runs.secrets import SecretStore
from apexbridge.skills.store.catalog import Row
from apexbridge.storage.directory import SERVER_FILE
from apexbridge.storage.grant_store import GrantRow, GrantStore
from apexbridge.wire import WireModel

MAX_GRANTS = 32
GrantState = Literal["requested", "granted", "void"]


class GrantView(WireModel):
    """A permission that a skill asks for or was given."""

    permission: str
    state: GrantState
    """`void`: it was granted to other content, and has to be granted again."""
    granted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFolder:
    """A folder with its device and inode: another folder can have the same path later."""

    path: Path
    identity: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> "SkillFolder":
        """The folder that is at this path now. Raises OSError: there is none."""
        found = path.stat()
        return cls(path=path, identity=(found.st_dev, found.st_ino))

    def check_unchanged(self, skill: str) -> None:
        """Check that the path still leads to the admitted folder.

        Raises:
            SkillError: BUSY if the folder was replaced, ENOENT if it is missing.
        """
        try:
            is_same = SkillFolder.of(self.path) == self
        except OSError as error:
            raise SkillNotFoundError(skill, code="ENOENT") from error
        if not is_same:
            raise SkillError(f"{skill} was replaced a moment ago; call it again.", skill=skill, code="BUSY")


class SkillGrants:
    """Grants and revokes permissions, and computes the grants of a run."""

    def __init__(
        self, store: GrantStore, secrets: SecretStore, *, data_dir: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._store = store
        self._data_dir = data_dir
        self._environment = os.environ if environment is None else environment
        self.secrets = secrets

    async def grant(self, row: Row, folder: Path, permission: str) -> GrantView:
        """Grant a permission that the skill requests.

        Raises:
            InvalidInputError: the skill does not request it, or it cannot be granted.
        """
        requested = parse(permission)
        permission = requested.text
        if permission not in _asked(row):
            asked = ", ".join(_asked(row)) or "nothing"
            raise InvalidInputError(f"{row.name} does not ask for {permission}; it asks for {asked}")
        await in_thread(self.check, requested)
        if requested.kind == "net" and len(await self.granted(row)) >= MAX_GRANTS:
            raise InvalidInputError(f"{row.name} has {MAX_GRANTS} grants already; revoke some first")
        await self._same_content(row, folder)
        now = now_ms()
        await self._store.put(row.name, GrantRow(permission=permission, content_hash=row.content_hash, granted_at=now))
        return GrantView(permission=permission, state="granted", granted_at=from_ms(now))

    async def revoke(self, row: Row, permission: str) -> None:
        """Revoke a permission. Raises InvalidInputError: it was not granted."""
        removed = [
            await self._store.remove(row.name, grant.permission)
            for grant in await self._store.of(row.name)
            if canonical(grant.permission) == canonical(permission)
        ]
        if not any(removed):
            raise InvalidInputError(f"{row.name} was not granted {permission[:200]}")

    async def forget(self, skill: str) -> None:
        """Remove all grants of a removed skill."""
        await self._store.remove(skill)

    async def views(self, row: Row) -> list[GrantView]:
        """All permissions that the skill requests or was granted."""
        stored = {canonical(grant.permission): grant for grant in await self._store.of(row.name)}
        views = []
        for permission in dict.fromkeys((*_asked(row), *stored)):
            grant = stored.get(permission)
            if grant is None:
                views.append(GrantView(permission=permission, state="requested"))
                continue
            state: GrantState = "granted" if _holds(grant, row) else "void"
            views.append(GrantView(permission=permission, state=state, granted_at=from_ms(grant.granted_at)))
        return views

    async def granted(self, row: Row) -> list[str]:
        """The granted permissions that are not void."""
        held = [canonical(grant.permission) for grant in await self._store.of(row.name) if _holds(grant, row)]
        return list(dict.fromkeys(held))

    async def for_run(self, row: Row, folder: SkillFolder, *, approved: str | None = None) -> Grants:
        """Compute the grants of a run. `approved` is the hash of the approved content, if approval was required.

        The result always identifies the admitted folder, so that no other folder can be run.

        Raises:
            SkillError: PERMISSION_DENIED if a granted variable or secret is not set; APPROVAL_INVALID if the content
                changed after the approval; BUSY if the folder was replaced; ENOENT if it is missing.
        """
        folder.check_unchanged(row.name)
        held = await self.granted(row) if row.metadata.permissions else []
        if not held and approved is None:
            return Grants(folder=folder.identity)
        content, identity = await in_thread(_hash_and_identity, folder.path)
        if approved is not None and content != approved:
            raise SkillError(
                f"{row.name} was changed after it was approved, and was not run. Review it, and approve it again.",
                skill=row.name,
                code="APPROVAL_INVALID",
                mode="sandbox",
            )
        folder.check_unchanged(row.name)
        if not held:
            return Grants(folder=identity)
        if content != row.content_hash:
            return Grants(folder=folder.identity)  # changed since the last scan: its grants are void
        requested = [parse(permission) for permission in held]
        identities = await in_thread(lambda: {item.text: self.check(item) for item in requested})
        secrets = await in_thread(
            lambda: {item.name: self._secret(row, item) for item in requested if item.kind == "secret"}
        )
        return Grants(
            hosts=tuple((item.name, item.port) for item in requested if item.kind == "net"),
            variables={item.name: self._variable(row, item) for item in requested if item.kind == "env"},
            secrets=secrets,
            paths={item.path: shown for item in requested if (shown := identities[item.text]) is not None},
            folder=identity,
        )

    def check(self, requested: Permission) -> tuple[int, int] | None:
        """Refuse what must never be granted; returns device and inode of a path, None for other permissions.

        Raises InvalidInputError.
        """
        if requested.kind == "net" and requested.port == self._own_port() and _is_here(requested.name):
            raise InvalidInputError(f"{requested.text}: this is the address of this server, which skills must not call")
        if requested.kind != "fs":
            return None
        try:
            descriptor = os.open(requested.path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInputError(f"{requested.text}: {requested.path} does not exist") from error
        try:
            return self._check_path(requested, descriptor)
        finally:
            os.close(descriptor)

    def _check_path(self, requested: Permission, descriptor: int) -> tuple[int, int]:
        """Check the open descriptor, not the path: the file at the path could be replaced between two checks."""
        resolved = Path(f"/proc/self/fd/{descriptor}").readlink()
        parse(f"fs:ro:{resolved}")  # a link to a forbidden path is refused too
        if kind := kernel_file_system(descriptor):
            raise InvalidInputError(
                f"{requested.text}: it is on a file system of the kernel's ({kind}) and is never shown"
            )
        found = os.fstat(descriptor)
        identity = (found.st_dev, found.st_ino)
        if _is_data(descriptor, resolved, identity, self._data_dir.resolve()):
            raise InvalidInputError(f"{requested.text}: the server's own data are never shown to a skill")
        return identity

    def _own_port(self) -> int | None:
        """The port that this server listens on; None if it does not listen."""
        try:
            server = json.loads((self._data_dir / SERVER_FILE).read_bytes())
            return urlsplit(str(server["url"])).port
        except (OSError, ValueError, KeyError):
            return None

    async def _same_content(self, row: Row, folder: Path) -> None:
        """Check that the content is as scanned: the operator could not review content that changed since."""
        content, _ = await in_thread(_hash_and_identity, folder)
        if content != row.content_hash:
            raise InvalidInputError(f"{row.name} changed a moment ago; scan_folder at it, then grant again")

    def _variable(self, row: Row, requested: Permission) -> str:
        value = self._environment.get(requested.name)
        if value is None:
            raise _not_there(row, f"env:{requested.name} is granted, but the server has no variable {requested.name}")
        return value

    def _secret(self, row: Row, requested: Permission) -> str:
        value = self.secrets.get(requested.name)
        if value is None:
            raise _not_there(
                row, f"secret:{requested.name} is granted, but not set. Set it with: apex secrets set {requested.name}"
            )
        return value


def _is_data(descriptor: int, resolved: Path, identity: tuple[int, int], data_dir: Path) -> bool:
    """Whether an open file is the data directory, in it, or above it, also through other mounts and links."""
    if _overlap(resolved, data_dir):
        return True
    private = (data_dir, *data_dir.parents, *(data_dir.iterdir() if data_dir.is_dir() else ()))
    for path in private:
        with suppress(OSError):
            found = path.stat()
            if (found.st_dev, found.st_ino) == identity:
                return True
    opened = os.open(data_dir, os.O_PATH | os.O_CLOEXEC)
    try:
        here, there = origin(descriptor), origin(opened)
    finally:
        os.close(opened)
    return here is not None and there is not None and here[0] == there[0] and _overlap(here[1], there[1])


def _overlap(one: PurePath, other: PurePath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _is_here(host: str) -> bool:
    return host in ("localhost", "0.0.0.0") or host.startswith("127.")  # noqa: S104


def _holds(grant: GrantRow, row: Row) -> bool:
    return grant.content_hash == row.content_hash and canonical(grant.permission) in _asked(row)


def _asked(row: Row) -> list[str]:
    """The requested permissions in canonical form."""
    return list(dict.fromkeys(map(canonical, row.metadata.permissions)))


def _hash_and_identity(folder: Path) -> tuple[str, tuple[int, int]]:
    """Content hash, device and inode of a folder. One descriptor for all, in case the folder is replaced meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found, opened = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}")
        return hash_folder(opened, scan_folder(opened).files), (found.st_dev, found.st_ino)
    finally:
        os.close(descriptor)


def _not_there(row: Row, message: str) -> SkillError:
    return SkillError(message, skill=row.name, code="PERMISSION_DENIED", mode="sandbox")
