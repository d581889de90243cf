"""The page at `/metrics`: what was counted, and the state at this moment."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Metric, generate_latest

from apexbridge._tasks import in_thread
from apexbridge.monitoring.metrics import Metrics
from apexbridge.monitoring.server_events import ServerEvents
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.sandbox.queue import RunQueue
from apexbridge.skills.manager import SkillManager
from apexbridge.storage.audit import AUDIT_FILE
from apexbridge.storage.directory import DATABASE_FILE

CONTENT_TYPE = CONTENT_TYPE_LATEST
_DATABASES = {"main": DATABASE_FILE, "audit": AUDIT_FILE}
_GAUGES = {
    "apex_skills": "Served skills.",
    "apex_skill_problems": "Folders that are not served.",
    "apex_skill_calls": "Calls of installed skills.",
    "apex_runs_running": "Runs in progress.",
    "apex_runs_waiting": "Queued runs.",
    "apex_approvals_waiting": "Pending approvals.",
    "apex_index_documents": "Skills and tools in the index of the search.",
    "apex_index_documents_without_vector": "Skills and tools that are found by words only until they are embedded.",
    "apex_disk_free_bytes": "Free space on the disk of the data directory.",
}


class MetricsPage:
    def __init__(
        self,
        metrics: Metrics,
        *,
        skills: SkillManager,
        queue: RunQueue,
        events: ServerEvents,
        retrieval: ToolRetrievalService,
        data_dir: Path,
    ) -> None:
        self._skills = skills
        self._queue = queue
        self._events = events
        self._retrieval = retrieval
        self._data_dir = data_dir
        self._registry = registry = metrics.registry
        self._gauges = {name: Gauge(name, text, registry=registry) for name, text in _GAUGES.items()}
        self._database = Gauge("apex_database_bytes", "A database and its WAL file.", ("database",), registry=registry)

    async def render(self) -> bytes:
        statistics = await self._skills.statistics()
        documents, vectors = await in_thread(self._retrieval.vector_counts)  # waits for searches in progress
        state = {
            "apex_skills": statistics.total,
            "apex_skill_problems": len(await self._skills.problems()),
            "apex_skill_calls": statistics.calls,
            "apex_runs_running": self._queue.running,
            "apex_runs_waiting": self._queue.waiting,
            "apex_approvals_waiting": self._events.pending_approvals,
            "apex_index_documents": documents,
            "apex_index_documents_without_vector": documents - vectors,
        }
        for name, value in state.items():
            self._gauges[name].set(value)
        return await in_thread(self._rendered)

    def _rendered(self) -> bytes:
        with suppress(OSError):
            self._gauges["apex_disk_free_bytes"].set(shutil.disk_usage(self._data_dir).free)
        for name, file in _DATABASES.items():
            self._database.labels(name).set(sum(_size_of(self._data_dir / f"{file}{end}") for end in ("", "-wal")))
        return generate_latest(_WithoutCreated(self._registry))


class _WithoutCreated(CollectorRegistry):
    """A view of a registry without the time at which each series began, which would double the page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(auto_describe=False)
        self._inner = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._inner.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
