"""Workspaces, as clients of the HTTP API see them."""

from datetime import datetime

from pydantic import Field

from apexbridge.wire import WireModel


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
