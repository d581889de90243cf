"""Files that last between calls, and uploads for runs."""

from typing import TYPE_CHECKING

from apexbridge._tasks import in_thread
from apexbridge.client.protocol import FileSource, file_path, path_of, read_source, without_none
from apexbridge.skills.models import Upload
from apexbridge.workspaces.views import WorkspaceDetail, WorkspaceList

if TYPE_CHECKING:
    from apexbridge.client._async.client import Client


class Workspaces:
    """`client.workspaces`"""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list(self) -> WorkspaceList:
        """The workspaces of the API key, the last used first."""
        return await self._client.read(WorkspaceList, "GET", "/api/workspaces")

    async def show(self, id: str) -> WorkspaceDetail:
        """A workspace with its files."""
        return await self._client.read(WorkspaceDetail, "GET", path_of("api", "workspaces", id))

    async def upload(self, id: str, source: FileSource, *, name: str | None = None) -> Upload:
        """Put a file into a workspace, which is created if it does not exist."""
        return await self._client.uploads.create(source, name=name, workspace=id)

    async def download(self, id: str, path: str) -> bytes:
        """A file of a workspace."""
        return await self._client.fetch("GET", file_path(path_of("api", "workspaces", id), path))

    async def delete_file(self, id: str, path: str) -> None:
        """Delete a file of a workspace, or a folder with everything in it."""
        await self._client.ask("DELETE", file_path(path_of("api", "workspaces", id), path))

    async def delete(self, id: str) -> None:
        """Delete a workspace with its files."""
        await self._client.ask("DELETE", path_of("api", "workspaces", id))


class Uploads:
    """`client.uploads`"""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def create(self, source: FileSource, *, name: str | None = None, workspace: str | None = None) -> Upload:
        """Upload a file of at most 50 MB, for `files` of a run, or into a workspace."""
        file = await in_thread(read_source, source, name)
        params = without_none(workspace=workspace)
        return await self._client.read(Upload, "POST", "/api/uploads", files={"file": file}, params=params)
