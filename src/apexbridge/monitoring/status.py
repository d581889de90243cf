"""The state of a running server, for an operator."""

import platform
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from pydantic import Field

from apexbridge._tasks import in_thread
from apexbridge._time import from_ms, now_ms
from apexbridge.mcp_client.servers import McpServers
from apexbridge.monitoring.disk_usage import DiskStatus, DiskUsage
from apexbridge.monitoring.upstream_checks import UpstreamChecks, UpstreamStatus
from apexbridge.retrieval.model_switch import ModelChange
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.storage.audit import AuditLog
from apexbridge.wire import WireModel

LOOK_SECONDS = 1.0
"""How long a request for the status waits for a check that it started."""
CHECK_SECONDS = 30.0
_PACKAGES = ("lancedb", "fastapi", "uvicorn", "pydantic", "mcp")


class GuaranteeStatus(WireModel):
    guarantee: str
    mechanism: str | None = Field(description="What enforces it; null if nothing does.")
    required: bool


class SandboxStatus(WireModel):
    backend: str | None = Field(description="Null before the sandbox was started, or if it cannot be.")
    guarantees: list[GuaranteeStatus]


class QueueStatus(WireModel):
    running: int
    waiting: int
    limit: int = Field(description="Runs at one time.")
    max_waiting: int


class EmbedderStatus(WireModel):
    name: str
    state: Literal["ready", "loading", "failed"]
    detail: str | None = Field(description="Why it failed, or what is to be known of it.")
    change: ModelChange | None = Field(description="Null unless everything is being embedded by other models.")


class IndexStatus(WireModel):
    skills: int
    vectors: int = Field(description="Skills that are found by meaning.")
    missing: int = Field(description="Skills that are found by words only.")
    is_indexed: bool = Field(description="Whether the skills that existed at startup are indexed.")


class McpStatus(WireModel):
    connected: int
    failed: int = Field(description="Servers that wait for the next attempt to connect.")
    total: int


class DatabaseStatus(WireModel):
    bytes: int | None


class AuditStatus(WireModel):
    intact: bool | None = Field(description="By the last verification since the start; null before.")


class ServerStatus(WireModel):
    version: str
    started_at: datetime
    uptime_seconds: int
    sandbox: SandboxStatus
    queue: QueueStatus
    llm: list[UpstreamStatus]
    embedder: EmbedderStatus
    index: IndexStatus
    mcp_servers: McpStatus
    disk: DiskStatus
    database: DatabaseStatus
    versions: dict[str, str | None] = Field(description="Of Python, Node, SQLite and some packages; null if missing.")
    audit: AuditStatus


class StatusBoard:
    def __init__(
        self,
        *,
        own_version: str,
        sandbox: Sandbox,
        retrieval: ToolRetrievalService,
        mcp: McpServers,
        audit: AuditLog,
        upstreams: UpstreamChecks,
        disk: DiskUsage,
        is_indexed: Callable[[], bool],
        database_bytes: Callable[[], int | None],
    ) -> None:
        self._own_version = own_version
        self._sandbox = sandbox
        self._retrieval = retrieval
        self._mcp = mcp
        self._audit = audit
        self._upstreams = upstreams
        self._disk = disk
        self._is_indexed = is_indexed
        self._database_bytes = database_bytes
        self._started_ms = now_ms()
        self._began = time.monotonic()

    async def close(self) -> None:
        await self._upstreams.close()
        await self._disk.close()

    async def check(self) -> ServerStatus:
        """The status after asking the model servers, measuring the disk and verifying the audit log."""
        await self._audit.verify()
        return await self.status(wait_seconds=CHECK_SECONDS, is_forced=True)

    async def status(self, *, wait_seconds: float = LOOK_SECONDS, is_forced: bool = False) -> ServerStatus:
        llm = await self._upstreams.status(wait_seconds=wait_seconds, is_forced=is_forced)
        disk = await self._disk.status(wait_seconds=wait_seconds, is_forced=is_forced)
        state, problem = self._retrieval.model_state
        detail = problem or " ".join(self._retrieval.model_warnings) or None
        skills, vectors = await in_thread(self._retrieval.vector_counts)  # waits for searches in progress
        servers = [server.state for server in await self._mcp.views()]
        queue, settings = self._sandbox.queue, self._sandbox.settings
        report = self._audit.last_report
        return ServerStatus(
            version=self._own_version,
            started_at=from_ms(self._started_ms),
            uptime_seconds=round(time.monotonic() - self._began),
            sandbox=self._sandbox_status(),
            queue=QueueStatus(
                running=queue.running,
                waiting=queue.waiting,
                limit=settings.max_concurrency,
                max_waiting=settings.queue,
            ),
            llm=llm,
            embedder=EmbedderStatus(
                name=self._retrieval.embedder, state=state, detail=detail, change=self._retrieval.models.change
            ),
            index=IndexStatus(skills=skills, vectors=vectors, missing=skills - vectors, is_indexed=self._is_indexed()),
            mcp_servers=McpStatus(
                connected=servers.count("connected"), failed=servers.count("waiting"), total=len(servers)
            ),
            disk=disk,
            database=DatabaseStatus(bytes=self._database_bytes()),
            versions=self._versions(),
            audit=AuditStatus(intact=report.intact if report is not None else None),
        )

    def _sandbox_status(self) -> SandboxStatus:
        backend = self._sandbox.backend
        required = self._sandbox.settings.require
        return SandboxStatus(
            backend=backend.launcher.backend if backend is not None else None,
            guarantees=[
                GuaranteeStatus(guarantee=name, mechanism=mechanism, required=name in required)
                for name, mechanism in (backend.enforcement.items() if backend is not None else ())
            ],
        )

    def _versions(self) -> dict[str, str | None]:
        own = {
            "python": platform.python_version(),
            "node": self._sandbox.node_version,
            "sqlite": sqlite3.sqlite_version,
        }
        return {**own, **{package: _version(package) for package in _PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
