"""All workspaces of a data directory: who owns them, how large they may be, and when they expire."""

import asyncio
import logging
import re
import secrets
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from apexbridge._fs import PRIVATE_FILE
from apexbridge._safe_open import open_file_beneath
from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._text import near_names
from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge._usage import ResourceUsage
from apexbridge.disk import MB, Disk, blocks
from apexbridge.errors import InvalidInputError, RequestError, ServerError, did_you_mean
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.workspace_files import UNCHANGED, AppliedChanges, Changes, CollectedFile, TreeEntry, list_tree
from apexbridge.storage.answered_digests import AnsweredDigests
from apexbridge.storage.directory import storage_faults
from apexbridge.storage.workspace_store import WorkspaceRow, WorkspaceStore
from apexbridge.workspaces.config import WorkspaceLimits
from apexbridge.workspaces.generations import Changed, Generations, apply_changes

SWEEP_SECONDS = 3600
MS_PER_HOUR = 3_600_000
MAX_LINKS_OF_A_KEY = 25_000
"""Answers whose workspace is remembered. The oldest are forgotten first."""
MAX_LINKS = 100_000
"""The same for all keys; beyond that the key with the most loses its oldest."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
T = TypeVar("T")
logger = logging.getLogger(__name__)


def is_workspace_id(text: str) -> bool:
    return _ID.match(text) is not None


class _Entry:
    """A workspace that exists."""

    def __init__(self, row: WorkspaceRow, folder: Path) -> None:
        self.row = row
        self.generations = Generations(folder)
        self.is_deleted = False
        self.is_new = False
        """Whether it is not in the database yet."""


class Workspaces:
    def __init__(
        self,
        folder: Path,
        store: WorkspaceStore,
        *,
        limits: WorkspaceLimits | None = None,
        disk: Disk | None = None,
        reach: Callable[[str], str | None] = lambda caller: caller,
    ) -> None:
        """`reach` returns the owner whose workspaces a caller may use; None means all."""
        self.limits = limits or WorkspaceLimits()
        self._folder = folder
        self._store = store
        self._disk = disk or Disk(folder)
        self._reach = reach
        self._entries: dict[str, _Entry] = {}
        self._links: dict[str, dict[str, str]] = {}
        """By owner: workspaces of conversations that only one answer has led to, by digest, the oldest first."""
        self._answered = AnsweredDigests(folder.with_name("answered"))
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By owner: the quota is the owner's."""

    async def load(self) -> None:
        """Read the records, and remove what a crash has left."""
        rows = await self._store.all()
        self._entries = await in_thread(self._load, rows)
        links = await self._store.links()
        owners = {row.owner for row in rows}
        known = {owner for owner in owners if self._answered.has_filter(owner)}
        self._links = {}
        forgotten = []
        for digest, id in links.items():
            owner = self._entries[id].row.owner if id in self._entries else None
            if owner is None or owner not in known:  # without its filter, a link may belong to two conversations
                forgotten.append(digest)
            else:
                self._links.setdefault(owner, {})[digest] = id
        if forgotten:
            await self._store.unlink(forgotten)

    def _load(self, rows: Sequence[WorkspaceRow]) -> dict[str, _Entry]:
        entries = {row.id: _Entry(row, self._folder / row.id) for row in rows}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in entries:
                    remove_tree(str(path))
        return entries

    # ------------------------------------------------------------------------------------------------- opening
    def open(self, id: str | None, *, caller: str = "") -> "Workspace":
        """A workspace by the id that a caller chose, or a new one. It is created when something is written to it.

        Raises:
            InvalidInputError: the id is not valid.
            RequestError: FORBIDDEN, the workspace belongs to another key.
        """
        if id is None:
            return Workspace(self, f"ws-{secrets.token_hex(16)}", caller)
        if not is_workspace_id(id):
            raise InvalidInputError(
                f"{id[:64]!r} is not a valid id of a workspace: at most 64 letters, digits, and . _ - after the first"
            )
        entry = self._entries.get(id)
        if entry is None:
            return Workspace(self, id, caller)
        self._check_owner(entry, self._reach(caller))
        return Workspace(self, id, entry.row.owner)

    def of_conversation(self, digest: str, *, caller: str) -> "Workspace | None":
        """The workspace of a conversation whose messages so far have this digest; None if unknown or ambiguous."""
        entry = self._entries.get(self._links.get(caller, {}).get(digest, ""))
        if entry is None or entry.row.owner != caller:
            return None
        return Workspace(self, entry.row.id, caller)

    @property
    def has_conversations(self) -> bool:
        return any(self._links.values())

    async def link(self, digest: str, workspace: "Workspace | None", *, caller: str) -> None:
        """Remember that a conversation was answered, and its workspace, if it has one.

        A digest that was answered before leads to no workspace from then on, unless it was in the same workspace.
        """
        id = workspace.id if workspace is not None and workspace.exists else None
        links = self._links.setdefault(caller, {})
        known = links.get(digest)
        is_new = self._note_answer(digest, caller)
        try:
            if known is not None and known != id:
                await self._unlink(caller, [digest])
            elif is_new and id is not None:
                links[digest] = id
                await self._store.link(digest, id)
                await self._unlink(caller, list(islice(links, max(0, len(links) - MAX_LINKS_OF_A_KEY))))
                if (over := sum(map(len, self._links.values())) - MAX_LINKS) > 0:
                    largest = max(self._links, key=lambda owner: len(self._links[owner]))
                    await self._unlink(largest, list(islice(self._links[largest], over)))
        except (OSError, sqlite3.Error):
            logger.warning("the workspace of a conversation could not be written to the database", exc_info=True)

    def _note_answer(self, digest: str, caller: str) -> bool:
        """Whether this is the first answer with this digest. If it cannot be stored, it counts as a later one."""
        try:
            return self._answered.add(caller, digest)
        except OSError:
            logger.warning("an answer could not be noted; its conversation goes on without its files", exc_info=True)
            return False

    async def _unlink(self, owner: str, digests: Sequence[str]) -> None:
        if not digests:
            return
        for digest in digests:
            self._links[owner].pop(digest, None)
        # Not cancelled: after a restart, a link that should be gone would lead two conversations to one workspace.
        await run_to_completion(self._disk.ballast.give_way(lambda: self._store.unlink(digests)))

    async def parts(self, workspace: "Workspace") -> Mapping[str, tuple[str, int]]:
        """Name and size of each file that the client sent in a part of a message, by the part."""
        return await self._store.parts(workspace.id) if workspace.exists else {}

    async def add_part(self, workspace: "Workspace", part: str, name: str, size: int) -> None:
        """Remember where the file in a part of a message was stored."""
        await self._store.add_part(workspace.id, part, name, size)

    # ------------------------------------------------------------------------------------------------- reading
    def list(self, *, owner: str | None = None) -> list[WorkspaceRow]:
        """Workspaces, the last used first; with `owner`, only those of this owner."""
        rows = [entry.row for entry in self._entries.values() if owner in (None, entry.row.owner)]
        return sorted(rows, key=lambda row: (-row.used_at, row.id))

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        own = [entry.row for entry in self._entries.values() if entry.row.owner == caller]
        limits = self.limits
        return (
            ResourceUsage(
                resource="workspace-bytes", used=sum(row.bytes for row in own), limit=limits.quota_bytes, unit="bytes"
            ),
            ResourceUsage(
                resource="workspace-files", used=sum(row.entries for row in own) + len(own), limit=limits.max_files
            ),
            ResourceUsage(
                resource="remembered-answers",
                used=len(self._links.get(caller, ())),
                limit=MAX_LINKS_OF_A_KEY,
                total=sum(map(len, self._links.values())),
                total_limit=MAX_LINKS,
            ),
        )

    def get(self, id: str, *, owner: str | None = None) -> WorkspaceRow:
        """Raises RequestError: WORKSPACE_NOT_FOUND."""
        return self._entry(id, owner).row

    async def files(self, id: str, *, owner: str | None = None) -> Sequence[TreeEntry]:
        """The files and folders of a workspace. Raises RequestError: WORKSPACE_NOT_FOUND."""
        entry = self._entry(id, owner)
        async with self._reading(entry) as top:
            return await in_thread(list_tree, top)

    async def open_file(self, id: str, path: str, *, owner: str | None = None) -> BinaryIO:
        """Open a file of a workspace. Raises RequestError: WORKSPACE_NOT_FOUND or FILE_NOT_FOUND."""
        entry = self._entry(id, owner)
        async with self._reading(entry) as top:
            try:
                return await in_thread(open_file_beneath, top, path)
            except (OSError, ValueError) as error:
                raise RequestError(f"The workspace {id} has no file {path[:200]}", code="FILE_NOT_FOUND") from error

    def _entry(self, id: str, owner: str | None) -> _Entry:
        entry = self._entries.get(id)
        if entry is None or owner not in (None, entry.row.owner):
            near = near_names(id, [row.id for row in self.list(owner=owner)])
            raise RequestError(f"No workspace {id[:64]}{did_you_mean(near)}", code="WORKSPACE_NOT_FOUND")
        return entry

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """No workspace changes during the block, except new ones."""
        async with AsyncExitStack() as stack:
            for owner in sorted(self._locks):
                await stack.enter_async_context(self._locks[owner])
            yield

    def acquire_all(self, stack: ExitStack) -> dict[str, Path]:
        """The folder with the files of each workspace, which do not change until the stack is closed."""
        folders = {}
        for id, entry in self._entries.items():
            folders[id] = entry.generations.acquire()
            stack.callback(_release, entry.generations, folders[id])
        return folders

    @asynccontextmanager
    async def _reading(self, entry: _Entry) -> AsyncIterator[Path]:
        generation = entry.generations.acquire()
        try:
            yield generation
        finally:
            if entry.generations.release(generation):
                await in_thread(remove_tree, str(generation))
            await self._note_use(entry)

    async def _note_use(self, entry: _Entry) -> None:
        now = now_ms()
        if not entry.is_deleted and now - entry.row.used_at > MS_PER_HOUR:
            await self._put(entry, replace(entry.row, used_at=now))

    # ------------------------------------------------------------------------------------------------- changing
    async def _change(self, workspace: "Workspace", work: Callable[[Path], T]) -> Changed[T]:
        """Run `work` on a copy of the files, which then replaces them if the owner's quota allows it."""
        async with self._locks[workspace.owner], self._created(workspace) as entry:

            def check(tree: Sequence[TreeEntry]) -> None:
                self._check_quota(entry, _bytes_of(tree), len(tree))

            def run() -> Changed[T]:
                with storage_faults(), self._disk.claim("", self._folder) as claim:
                    claim.take(blocks(0))
                    return entry.generations.change(work, check)

            changed = await in_thread(run)
            folders = sum(item.is_folder for item in changed.after)
            row = replace(entry.row, used_at=now_ms(), bytes=_bytes_of(changed.after))
            await self._put(entry, replace(row, files=len(changed.after) - folders, folders=folders))
            return changed

    def _check_quota(self, entry: _Entry, size: int, count: int) -> None:
        others = [row for row in self.list(owner=entry.row.owner) if row.id != entry.row.id]
        total_bytes = size + sum(row.bytes for row in others)
        # A workspace counts as a folder, or empty ones would be unlimited.
        total_files = count + 1 + sum(row.entries + 1 for row in others)
        is_smaller = size <= entry.row.bytes and count <= entry.row.entries and not entry.is_new
        if is_smaller or (total_bytes <= self.limits.quota_bytes and total_files <= self.limits.max_files):
            return
        raise ServerError(
            f"The workspaces would have {-(-total_bytes // MB)} MB in {total_files:,} files and folders, "
            f"their own included; at most {self.limits.quota_bytes // MB} MB and {self.limits.max_files:,} are "
            "allowed. Nothing was changed. Delete files, or workspaces that are no longer needed: "
            "`apex workspaces delete ID`.",
            code="STORAGE_FULL",
        )

    @asynccontextmanager
    async def _created(self, workspace: "Workspace") -> AsyncIterator[_Entry]:
        """The entry of a workspace. A new one is removed again if the block fails."""
        entry = self._entries.get(workspace.id)
        if entry is not None:
            self._check_owner(entry, workspace.owner)
            yield entry
            return
        now = now_ms()
        row = WorkspaceRow(id=workspace.id, owner=workspace.owner, created_at=now, used_at=now)
        entry = self._entries[workspace.id] = _Entry(
            row, self._folder / row.id
        )  # at once: the id is taken from here on
        entry.is_new = True
        try:
            yield entry
        except BaseException:
            del self._entries[workspace.id]
            raise

    def _check_owner(self, entry: _Entry, owner: str | None) -> None:
        if owner not in (None, entry.row.owner):
            raise RequestError(
                f"The workspace {entry.row.id} belongs to another API key; choose another id.", code="FORBIDDEN"
            )

    async def _put(self, entry: _Entry, row: WorkspaceRow) -> None:
        entry.row = row
        if not entry.is_deleted:
            await self._store.put(row)
            entry.is_new = False

    # ------------------------------------------------------------------------------------------------- removing
    async def delete(self, id: str, *, owner: str | None = None) -> None:
        """Delete a workspace with its files. Raises RequestError: WORKSPACE_NOT_FOUND."""
        async with self._locks[self._entry(id, owner).row.owner]:
            entry = self._entry(id, owner)
            entry.is_deleted = True
            with storage_faults():
                await self._disk.ballast.give_way(lambda: self._store.delete(id))
            own = self._links.get(entry.row.owner, {})
            self._links[entry.row.owner] = {digest: linked for digest, linked in own.items() if linked != id}
            try:
                await in_thread(entry.generations.remove)
            finally:
                del self._entries[id]  # last: a new workspace of this id uses the same folder

    async def delete_file(self, id: str, path: str, *, owner: str | None = None) -> None:
        """Delete a file, or a folder with everything in it.

        Raises:
            RequestError: WORKSPACE_NOT_FOUND or FILE_NOT_FOUND.
        """
        row = self.get(id, owner=owner)

        def remove(top: Path) -> None:
            if path not in {entry.path for entry in list_tree(top)}:
                raise RequestError(f"The workspace {id} has no file {path[:200]}", code="FILE_NOT_FOUND")
            remove_tree(str(top / path))

        await Workspace(self, id, row.owner).change(remove)

    async def add_file(self, id: str, name: str, file: BinaryIO, *, caller: str) -> "WorkspaceRow":
        """Copy an open file to a workspace, which is created if missing. A file of that name is replaced.

        Raises:
            InvalidInputError: the id is not valid, or a folder has the name.
            RequestError: FORBIDDEN, the workspace belongs to another key.
            ServerError: STORAGE_FULL.
        """
        workspace = self.open(id, caller=caller)

        def store(top: Path) -> None:
            if (top / name).is_dir():
                raise InvalidInputError(f"{name} is a folder of the workspace; choose another name")
            draft = top / f".apex-{secrets.token_hex(8)}"
            with draft.open("xb") as copy:
                shutil.copyfileobj(file, copy)
            draft.chmod(PRIVATE_FILE)
            draft.replace(top / name)

        await workspace.change(store)
        return self.get(id)

    async def keep_tidy(self) -> None:
        """Sweep periodically until cancelled."""
        while True:
            try:
                await self.sweep()
            except Exception:
                logger.exception("expired workspaces could not be removed; trying again later")
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Delete workspaces that were not used for a while."""
        oldest = now_ms() - self.limits.days * MS_PER_DAY
        for row in self.list():
            if row.used_at < oldest:
                await self.delete(row.id)


class Workspace:
    """One workspace, as one request or call uses it."""

    def __init__(self, workspaces: Workspaces, id: str, owner: str) -> None:
        self.id = id
        self.owner = owner
        self.changed: dict[str, int] = {}
        """Size of each file that was made or changed through this object."""
        self.named_skills: Sequence[str] = ()
        """Skills that the client named in this request; they count as loaded."""
        self._workspaces = workspaces
        self._opened = workspaces._entries.get(id)

    @property
    def exists(self) -> bool:
        return self.id in self._workspaces._entries

    @property
    def skills(self) -> Sequence[str]:
        """Skills that the conversation has loaded, in order."""
        entry = self._workspaces._entries.get(self.id)
        return tuple(dict.fromkeys((*self.named_skills, *(entry.row.skills if entry else ()))))

    async def add_skill(self, name: str) -> None:
        """Remember that the conversation has loaded a skill."""
        if name in self.skills:
            return
        async with self._workspaces._locks[self.owner], self._workspaces._created(self) as entry:
            self._workspaces._check_quota(entry, entry.row.bytes, entry.row.entries)
            await self._workspaces._put(entry, replace(entry.row, skills=(*entry.row.skills, name)))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Path]:
        """The folder with the files, which do not change during the block. It does not exist if there are none."""
        entry = self._workspaces._entries.get(self.id)
        if entry is None:
            yield self._workspaces._folder / self.id / "none"
            return
        self._opened = entry
        async with self._workspaces._reading(entry) as top:
            yield top

    async def change(self, work: Callable[[Path], T]) -> T:
        """Run `work` in a thread on a copy of the files, which then replaces them.

        Files of the copy are hard links: they must be replaced, not changed in place.

        Raises:
            ServerError: STORAGE_FULL.
        """
        changed = await run_to_completion(self._workspaces._change(self, work))
        names = {entry.path for entry in changed.after}
        self.changed = {path: size for path, size in self.changed.items() if path in names}
        self.changed |= {entry.path: entry.size for entry in changed.new_files()}
        return changed.result

    async def keep(self, changes: Changes, artifacts: Path) -> AppliedChanges:
        """Move what a run changed from the folder of its artifacts. If there is no space, nothing is changed."""
        if not changes.is_complete:
            return AppliedChanges(warnings=[f"The changes are too large or too many. {UNCHANGED}"])
        if self._opened is not None and self._opened.is_deleted:
            return AppliedChanges(warnings=["The workspace was deleted during the run. Nothing was kept in it."])
        if not changes.files and not changes.removed and not await self._has_new_folders(changes):
            return AppliedChanges()
        try:
            applied = await self.change(lambda top: apply_changes(top, changes, artifacts))
        except (ServerError, RequestError) as error:  # no space, or another key has taken the id in the meantime
            return AppliedChanges(warnings=[f"{error.message} {UNCHANGED}"])
        await in_thread(_remove_files, artifacts, applied.files)
        return applied

    async def _has_new_folders(self, changes: Changes) -> bool:
        async with self.reading() as top:
            return any(not (top / folder).is_dir() for folder in changes.folders)


def _remove_files(artifacts: Path, files: Sequence[CollectedFile]) -> None:
    """Remove artifacts and the folders that are empty then."""
    for file in files:
        path = artifacts / file.artifact
        path.unlink()
        with suppress(OSError):  # not empty
            while path.parent.is_relative_to(artifacts):
                path = path.parent
                path.rmdir()


def _release(generations: Generations, generation: Path) -> None:
    if generations.release(generation):
        remove_tree(str(generation))


def _bytes_of(tree: Sequence[TreeEntry]) -> int:
    return sum(entry.size for entry in tree if not entry.is_folder)
