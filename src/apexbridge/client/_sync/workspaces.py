# Generated from _async by scripts/unasync.py. Do not edit.
"""Files that last between calls, and uploads for runs."""

from typing import TYPE_CHECKING

from apexbridge.client.protocol import FileSource, file_path, path_of, read_source, without_none
from apexbridge.skills.models import Upload
from apexbridge.workspaces.views import WorkspaceDetail, WorkspaceList

if TYPE_CHECKING:
    from apexbridge.client._sync.client import SyncClient


class Workspaces:
    """`client.workspaces`"""

    def __init__(self, client: "SyncClient") -> None:
        self._client = client

    def list(self) -> WorkspaceList:
        """The workspaces of the API key, the last used first."""
        return self._client.read(WorkspaceList, "GET", "/api/workspaces")

    def show(self, id: str) -> WorkspaceDetail:
        """A workspace with its files."""
        return self._client.read(WorkspaceDetail, "GET", path_of("api", "workspaces", id))

    def upload(self, id: str, source: FileSource, *, name: str | None = None) -> Upload:
        """Put a file into a workspace, which is created if it does not exist."""
        return self._client.uploads.create(source, name=name, workspace=id)

    def download(self, id: str, path: str) -> bytes:
        """A file of a workspace."""
        return self._client.fetch("GET", file_path(path_of("api", "workspaces", id), path))

    def delete_file(self, id: str, path: str) -> None:
        """Delete a file of a workspace, or a folder with everything in it."""
        self._client.ask("DELETE", file_path(path_of("api", "workspaces", id), path))

    def delete(self, id: str) -> None:
        """Delete a workspace with its files."""
        self._client.ask("DELETE", path_of("api", "workspaces", id))


class Uploads:
    """`client.uploads`"""

    def __init__(self, client: "SyncClient") -> None:
        self._client = client

    def create(self, source: FileSource, *, name: str | None = None, workspace: str | None = None) -> Upload:
        """Upload a file of at most 50 MB, for `files` of a run, or into a workspace."""
        file = read_source(source, name)
        params = without_none(workspace=workspace)
        return self._client.read(Upload, "POST", "/api/uploads", files={"file": file}, params=params)
