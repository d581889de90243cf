"""Records of workspaces, and of the conversations that they belong to."""

import json
import sqlite3
from dataclasses import dataclass

from apexbridge.storage.database import Database

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

    async def links(self) -> dict[str, str | None]:
        """The workspace of each conversation, by digest; None if two conversations have the digest."""
        return dict(await self._database.rows("SELECT digest, workspace FROM workspace_links"))

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

    async def link(self, digest: str, workspace: str | None) -> None:
        await self._database.execute("INSERT OR REPLACE INTO workspace_links VALUES (?, ?)", digest, workspace)

    async def delete(self, id: str) -> None:
        """Delete a workspace and its links."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM workspaces WHERE id = ?", (id,))
            connection.execute("DELETE FROM workspace_links WHERE workspace = ?", (id,))

        await self._database.write(job)
