"""Backups over HTTP: the archive is streamed while it is made."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from apexbridge._tasks import in_thread
from apexbridge.backup.backups import Backup
from apexbridge.surfaces.http.deps import ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import defer, note
from apexbridge.wire import WireInput

router = APIRouter(tags=["system"])
MEDIA_TYPE = "application/gzip"
SIZE_HEADER = "X-Backup-Bytes"
_RESPONSE = {"description": "The backup.", "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}


class BackupInput(WireInput):
    secrets: bool = Field(default=False, description="Whether to include the values of secrets, in plain text.")


@router.post("/api/backup", response_class=StreamingResponse, responses={200: _RESPONSE})
async def create_backup(options: BackupInput, request: Request, bridge: ServedBridge) -> StreamingResponse:
    """Make a backup of the data directory, as it is at this moment, and send it. Other requests are served meanwhile.

    `X-Backup-Bytes` is the approximate size of the files in it, before compression.
    """
    note(request, detail="with secrets" if options.secrets else "without secrets")
    resources = AsyncExitStack()
    backup = await resources.enter_async_context(bridge.backups.prepared(secrets=options.secrets))
    return _BackupResponse(backup, resources, defer(request))


class _BackupResponse(StreamingResponse):
    """Closes its resources in every case, also if the client is gone before the first byte."""

    def __init__(self, backup: Backup, resources: AsyncExitStack, record: Callable[[int], Awaitable[None]]) -> None:
        headers = {SIZE_HEADER: str(backup.header.bytes), "Cache-Control": "no-store"}
        super().__init__(_chunks(backup, record), media_type=MEDIA_TYPE, headers=headers)
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            await super().__call__(scope, receive, send)


async def _chunks(backup: Backup, record: Callable[[int], Awaitable[None]]) -> AsyncIterator[bytes]:
    """The bytes of the backup. It is recorded before the last of them is sent."""
    last = b""
    while (chunk := await in_thread(next, backup.chunks, None)) is not None:
        if last:
            yield last
        last = chunk
    await record(200)
    yield last
