"""Records of workspaces, and of the conversations that they belong to."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from apexbridge._time import now_ms
from apexbridge.storage.database import Database

MAX_PARTS = 10_000
"""Of one workspace. The oldest are forgotten first."""

_COLUMNS = "id, owner, created_at, used_at, bytes, files, folders, skills"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRow:
    """One workspace; times in milliseconds since 1970."""

    id: str
    owner: str
    """The API key's id; empty for callers without a key."""
    created_at: int
    used_at: int
    bytes: int = 0
    files: int = 0
    folders: int = 0
    skills: tuple[str, ...] = ()
    """Skills that the conversation has loaded, in order."""

    @property
    def entries(self) -> int:
        """Files and folders, which the quota counts."""
        return self.files + self.folders


class WorkspaceStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[WorkspaceRow]:
        rows = await self._database.rows(f"SELECT {_COLUMNS} FROM workspaces")  # noqa: S608
        return [
            WorkspaceRow(
                id=id,
                owner=owner,
                created_at=created_at,
                used_at=used_at,
                bytes=size,
                files=files,
                folders=folders,
                skills=tuple(json.loads(skills)),
            )
            for id, owner, created_at, used_at, size, files, folders, skills in rows
        ]

    async def links(self) -> dict[str, str]:
        """The workspace of each conversation, by digest, the oldest first."""
        return dict(await self._database.rows("SELECT digest, workspace FROM workspace_links ORDER BY linked_at"))

    async def put(self, row: WorkspaceRow) -> None:
        """Add or replace a workspace."""
        await self._database.execute(
            f"INSERT OR REPLACE INTO workspaces ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            row.id,
            row.owner,
            row.created_at,
            row.used_at,
            row.bytes,
            row.files,
            row.folders,
            json.dumps(row.skills),
        )

    async def link(self, digest: str, workspace: str) -> None:
        insert = "INSERT OR REPLACE INTO workspace_links VALUES (?, ?, ?)"
        await self._database.execute(insert, digest, workspace, now_ms())

    async def unlink(self, digests: Sequence[str]) -> None:
        rows = [(digest,) for digest in digests]
        await self._database.write(
            lambda connection: connection.executemany("DELETE FROM workspace_links WHERE digest = ?", rows)
        )

    async def parts(self, workspace: str) -> dict[str, tuple[str, int]]:
        """Name and size of each file that a client sent in a part of a message, by the part."""
        query = "SELECT part, name, bytes FROM workspace_parts WHERE workspace = ?"
        return {part: (name, size) for part, name, size in await self._database.rows(query, workspace)}

    async def add_part(self, workspace: str, part: str, name: str, size: int) -> None:
        """Remember a part of a workspace that still exists."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO workspace_parts (workspace, part, name, bytes) "
                "SELECT id, ?, ?, ? FROM workspaces WHERE id = ?",
                (part, name, size, workspace),
            )
            connection.execute(
                "DELETE FROM workspace_parts WHERE workspace = ? AND number <= (SELECT number FROM workspace_parts "
                "WHERE workspace = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (workspace, workspace, MAX_PARTS),
            )

        await self._database.write(job)

    async def delete(self, id: str) -> None:
        """Delete a workspace with its links and parts."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM workspaces WHERE id = ?", (id,))
            connection.execute("DELETE FROM workspace_links WHERE workspace = ?", (id,))
            connection.execute("DELETE FROM workspace_parts WHERE workspace = ?", (id,))

        await self._database.write(job)
