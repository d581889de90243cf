"""Workspaces over HTTP: list, show and delete them, and download their files."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from apexbridge._time import MS_PER_DAY, from_ms
from apexbridge.storage.workspace_store import WorkspaceRow
from apexbridge.surfaces.http.deps import Owner, ServedBridge
from apexbridge.surfaces.http.transport.responses import download_part
from apexbridge.workspaces.config import WorkspaceLimits
from apexbridge.workspaces.views import WorkspaceDetail, WorkspaceFile, WorkspaceList, WorkspaceView

router = APIRouter(tags=["workspaces"])
Identity = Annotated[str, Path(alias="id", description="The workspace's id.")]


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
    identity: Identity, path: str, request: Request, bridge: ServedBridge, owner: Owner
) -> Response:
    """Download a file of a workspace, or a range of it."""
    file = await bridge.workspaces.open_file(identity, path, owner=owner)
    return download_part(request, file, path.rsplit("/", 1)[-1])


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
