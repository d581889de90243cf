"""`/v1/files`: OpenAI's files. A chat message names one in a `file` part."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from apexbridge.skills.runs.input_files import StoredFile
from apexbridge.surfaces.http.deps import Caller, Owner, ServedBridge
from apexbridge.surfaces.http.transport.responses import download
from apexbridge.surfaces.http.transport.uploads import receive_upload

router = APIRouter(tags=["files"])
Identity = Annotated[str, Path(alias="id", description="The file's id.")]
MAX_LIMIT = 10_000


class FileObject(BaseModel):
    """A file, in OpenAI's format."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(BaseModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("/v1/files")
async def create_file(request: Request, bridge: ServedBridge, caller: Caller) -> FileObject:
    """Upload a file for the `file` parts of chat messages, and for `files` of runs; only the same key can use it."""
    async with receive_upload(request, bridge.skills.staging, any_type=True) as upload:
        purpose = upload.fields.get("purpose") or "user_data"
        return _object(await bridge.runs.uploads.add_file(upload.file, upload.filename, purpose, caller=caller))


@router.get("/v1/files")
async def list_files(
    bridge: ServedBridge,
    owner: Owner,
    purpose: Annotated[str | None, Query(description="Only files with this purpose.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most this many.")] = MAX_LIMIT,
    order: Annotated[Literal["asc", "desc"], Query(description="By the time of the upload.")] = "desc",
    after: Annotated[str | None, Query(description="Only files after this one.")] = None,
) -> FileList:
    """List the uploaded files."""
    files = await bridge.runs.uploads.files(owner=owner)
    files = [file for file in files if purpose in (None, file.purpose)]
    files.sort(key=lambda file: (file.created_at, file.id), reverse=order == "desc")
    start = next((index + 1 for index, file in enumerate(files) if file.id == after), 0)
    shown = [_object(file) for file in files[start : start + limit]]
    return FileList(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(files) > start + limit,
    )


@router.get("/v1/files/{id}")
async def show_file(identity: Identity, bridge: ServedBridge, owner: Owner) -> FileObject:
    """Show one file."""
    return _object(await bridge.runs.uploads.file(identity, owner=owner))


@router.get("/v1/files/{id}/content", response_class=StreamingResponse)
async def file_content(identity: Identity, bridge: ServedBridge, owner: Owner) -> StreamingResponse:
    """Download a file."""
    name, opened = await bridge.runs.uploads.open_file(identity, owner=owner)
    return download(opened, name, "application/octet-stream")


@router.delete("/v1/files/{id}")
async def delete_file(identity: Identity, bridge: ServedBridge, owner: Owner) -> dict[str, Any]:
    """Delete a file."""
    await bridge.runs.uploads.delete_file(identity, owner=owner)
    return {"id": identity, "object": "file", "deleted": True}


def _object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=file.created_at,
        expires_at=file.expires_at,
        filename=file.name,
        purpose=file.purpose,
    )
