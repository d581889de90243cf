"""Workspaces over HTTP: list, show and delete them, and download their files."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse
from pydantic import Field

from apexbridge._time import MS_PER_DAY, from_ms
from apexbridge.storage.workspace_store import WorkspaceRow
from apexbridge.surfaces.http.deps import Owner, ServedBridge
from apexbridge.surfaces.http.transport.responses import download
from apexbridge.wire import WireModel
from apexbridge.workspaces.config import WorkspaceLimits

router = APIRouter(tags=["workspaces"])
Identity = Annotated[str, Path(alias="id", description="The workspace's id.")]


class WorkspaceView(WireModel):
    id: str
    caller: str = Field(description="The id of the API key that owns it; empty without a key.")
    created_at: datetime
    used_at: datetime
    expires_at: datetime = Field(description="Use renews it.")
    size: int = Field(description="Bytes of all files.")
    files: int = Field(description="Number of files.")
    skills: list[str] = Field(description="Skills that the conversation has loaded.")


class WorkspaceList(WireModel):
    workspaces: list[WorkspaceView]
    total: int
    size: int = Field(description="Bytes of all workspaces in the list.")
    max_size: int = Field(description="Bytes that one API key may have.")
    max_files: int = Field(description="Files and folders that one API key may have.")


class WorkspaceFile(WireModel):
    path: str
    type: str = Field(description="file or folder.")
    size: int
    modified: datetime


class WorkspaceDetail(WorkspaceView):
    entries: list[WorkspaceFile]


@router.get("/api/workspaces")
async def list_workspaces(bridge: ServedBridge, owner: Owner) -> WorkspaceList:
    """List the workspaces of the request's key, or all for an admin key, the last used first."""
    limits = bridge.workspaces.limits
    rows = bridge.workspaces.list(owner=owner)
    return WorkspaceList(
        workspaces=[WorkspaceView(**_fields(row, limits)) for row in rows],
        total=len(rows),
        size=sum(row.bytes for row in rows),
        max_size=limits.quota_bytes,
        max_files=limits.max_files,
    )


@router.get("/api/workspaces/{id}")
async def show_workspace(identity: Identity, bridge: ServedBridge, owner: Owner) -> WorkspaceDetail:
    """Show a workspace with its files."""
    row = bridge.workspaces.get(identity, owner=owner)
    entries = [
        WorkspaceFile(
            path=entry.path,
            type="folder" if entry.is_folder else "file",
            size=0 if entry.is_folder else entry.size,
            modified=from_ms(entry.modified_ns // 1_000_000),
        )
        for entry in await bridge.workspaces.files(identity, owner=owner)
    ]
    return WorkspaceDetail(**_fields(row, bridge.workspaces.limits), entries=entries)


@router.get("/api/workspaces/{id}/files/{path:path}", response_class=StreamingResponse)
async def download_workspace_file(
    identity: Identity, path: str, bridge: ServedBridge, owner: Owner
) -> StreamingResponse:
    """Download a file of a workspace."""
    file = await bridge.workspaces.open_file(identity, path, owner=owner)
    return download(file, path.rsplit("/", 1)[-1], "application/octet-stream")


@router.delete("/api/workspaces/{id}/files/{path:path}")
async def delete_workspace_file(identity: Identity, path: str, bridge: ServedBridge, owner: Owner) -> dict[str, Any]:
    """Delete a file of a workspace, or a folder with everything in it."""
    await bridge.workspaces.delete_file(identity, path, owner=owner)
    return {"success": True, "id": identity, "path": path}


@router.delete("/api/workspaces/{id}")
async def delete_workspace(identity: Identity, bridge: ServedBridge, owner: Owner) -> dict[str, Any]:
    """Delete a workspace with its files."""
    await bridge.workspaces.delete(identity, owner=owner)
    return {"success": True, "id": identity}


def _fields(row: WorkspaceRow, limits: WorkspaceLimits) -> dict[str, Any]:
    return {
        "id": row.id,
        "caller": row.owner,
        "created_at": from_ms(row.created_at),
        "used_at": from_ms(row.used_at),
        "expires_at": from_ms(row.used_at + limits.days * MS_PER_DAY),
        "size": row.bytes,
        "files": row.files,
        "skills": list(row.skills),
    }
