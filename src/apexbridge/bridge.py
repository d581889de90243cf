"""The composition root: the only module that wires the parts together."""

import asyncio
import logging
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import apexbridge
from apexbridge._tasks import in_thread
from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge._usage import ResourceUsage, UsageOf
from apexbridge.agent.approver import Approver
from apexbridge.agent.conversation_files import ConversationFiles
from apexbridge.agent.offline import OFFLINE_MODEL
from apexbridge.agent.records.chat_records import ChatRecords
from apexbridge.agent.request import ChatRequest
from apexbridge.agent.strategy import ReActStrategy
from apexbridge.agent.suspended_turns import SuspendedTurns
from apexbridge.backup.backups import Backups
from apexbridge.disk import MB, Disk, size_on_disk
from apexbridge.errors import ApexBridgeError, ServerError
from apexbridge.mcp_client.sandboxed_process import process_starter
from apexbridge.mcp_client.servers import McpServers
from apexbridge.monitoring.disk_usage import DiskUsage
from apexbridge.monitoring.doctor import Doctor
from apexbridge.monitoring.event_feed import EventFeed
from apexbridge.monitoring.event_stream import EventStreams
from apexbridge.monitoring.host_checks import check_host
from apexbridge.monitoring.insights import Insights
from apexbridge.monitoring.metrics import Metrics
from apexbridge.monitoring.metrics_page import MetricsPage
from apexbridge.monitoring.server_events import ServerEvents
from apexbridge.monitoring.settings_view import SettingsView
from apexbridge.monitoring.skill_changes import SkillChanges
from apexbridge.monitoring.status import StatusBoard
from apexbridge.monitoring.upstream_checks import UpstreamChecks
from apexbridge.retrieval.documents import SkillFacts, kind_of
from apexbridge.retrieval.embedders.embedder import Embedder, choose_embedder, installed_models
from apexbridge.retrieval.embedding_models import EmbeddingModelList, EmbeddingModels
from apexbridge.retrieval.matches import SearchAnswer
from apexbridge.retrieval.reranking import choose_reranker
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.sandbox.bundles import Bundles
from apexbridge.sandbox.diagnosis import diagnose
from apexbridge.sandbox.layers import LayerStore
from apexbridge.sandbox.programs import is_visible
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.settings import Settings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.published import PublishedSkills
from apexbridge.skills.runs.code_runs import CodeRuns
from apexbridge.skills.runs.input_files import InputFiles, UploadStore, upload_owner
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.skills.sandbox_executor import SkillsSandboxExecutor
from apexbridge.skills.store.catalog import Catalog
from apexbridge.skills.store.indexer import Progress
from apexbridge.skills.store.skill_versions import skill_id
from apexbridge.skills.tool_backend import SkillToolBackend
from apexbridge.skills.watcher import watch as watch_skills
from apexbridge.storage.approval_store import SqliteApprovals
from apexbridge.storage.audit import AUDIT_FILE, AuditLog
from apexbridge.storage.call_days import CallDays
from apexbridge.storage.call_statistics import CallCounts, CallStatisticsStore, CallTally
from apexbridge.storage.chat_store import ChatStore
from apexbridge.storage.database import Database
from apexbridge.storage.directory import DATABASE_FILE as DATABASE_FILE  # re-exported
from apexbridge.storage.directory import keep_private, owned, storage_faults
from apexbridge.storage.key_store import ApiKey, KeyStore
from apexbridge.storage.mcp_store import McpStore
from apexbridge.storage.response_store import ResponseStore
from apexbridge.storage.run_store import RunStore
from apexbridge.storage.search_store import SearchRecords
from apexbridge.storage.workspace_store import WorkspaceStore
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.builtin.calculator import calculate
from apexbridge.tools.builtin.code_tool import run_code
from apexbridge.tools.builtin.date_time import datetime_tool
from apexbridge.tools.builtin.file_tools import file_read, file_write, list_files
from apexbridge.tools.builtin.files.workspace import KEYS, Workspace
from apexbridge.tools.builtin.platform_detect import platform_detect
from apexbridge.tools.builtin.skill_tools import read_skill, run_skill, vector_search
from apexbridge.tools.conversation import Conversations
from apexbridge.tools.naming import SKILL_PREFIX, skill_tool_id
from apexbridge.tools.packages import register_packages
from apexbridge.tools.registry import BuiltInExecutor, ToolRegistry
from apexbridge.workspaces.workspaces import Workspace as LastingWorkspace
from apexbridge.workspaces.workspaces import Workspaces

Indexing = Literal["wait", "background", "on-demand"]
"""When skills are indexed: while the bridge opens, in the background, or before the first search."""

RETRY_SECONDS = 10
SECONDS_PER_DAY = 86_400
TOOL_KEY = "tool:"
"""Prefix of the call counters of all tools except skills; those of skills use the bare skill name."""
logger = logging.getLogger(__name__)


class Bridge:
    """An open data directory and all services that work on it.

    Example:
        async with Bridge.open(Settings(data_dir="data")) as bridge:
            receipt = await bridge.skills.install_skill(Path("git-commit.zip"))
            hits = await bridge.retrieval.find_relevant_skills("commit my work")
            value = await bridge.builtins.execute("calculate", {"expression": "sqrt(144) + 10"})
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        embedder: Embedder,
        *,
        indexing: Indexing = "wait",
        progress: Progress | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Build all parts. `Bridge.open` opens the database and starts them."""
        self.settings = settings
        self.tracer = tracer
        """Records spans of requests, turns of models, calls and runs; by default it records nothing."""
        self.instance = uuid.uuid4().hex
        """Identifies this open data directory, so that a client can detect that it talks to the wrong server."""
        self._database = database
        feed = EventFeed()
        self.metrics = Metrics(version=apexbridge.__version__, models={*settings.chat.llm.names, OFFLINE_MODEL})
        self._events = ServerEvents(feed, self.metrics)
        catalog = Catalog(database, settings.skills.default_mode)

        async def facts(keys: Collection[str]) -> Mapping[str, SkillFacts]:
            tools = [key for key in keys if kind_of(key) == "tool"]
            skills = await catalog.facts([key for key in keys if kind_of(key) == "skill"])
            return {**skills, **await self.mcp.facts(tools)} if tools else skills

        self._searches = SearchRecords(
            database, is_enabled=settings.record_searches, retention_days=settings.chat_retention_days
        )
        self.retrieval = ToolRetrievalService(
            settings.data_dir,
            embedder,
            settings.retrieval,
            facts=facts,
            on_search=self._note_search,
            on_answer=self.metrics.search_ended,
            installed=lambda: installed_models(settings.data_dir).values(),
            texts=lambda links: self.chats.questions(links),
            reranker=choose_reranker(settings.retrieval, settings.data_dir),
        )
        self.embedding_models = EmbeddingModels(settings.data_dir, settings.retrieval, self.retrieval)
        self._run_store = run_store = RunStore(database)

        def quota_of(caller: str) -> int:
            own = self.keys.limits_of(caller).get("quota_mb")
            return (settings.key_quota_mb if own is None else own) * MB

        self.disk = _disk(settings, run_store, quota_of)
        layers = LayerStore(settings.data_dir / "layers")
        self.packages = Bundles(layers)
        self.sandbox = Sandbox(
            settings.sandbox,
            disk=self.disk,
            bundles=self.packages,
            max_runs_of=lambda caller: self.keys.limits_of(caller).get("max_runs"),
        )
        self.keys = KeyStore(database, ballast=self.disk.ballast, changed=self._keys_changed)
        self.audit = AuditLog(settings.data_dir / AUDIT_FILE, database, ballast=self.disk.ballast)
        self.workspaces = Workspaces(
            settings.data_dir / "workspaces",
            WorkspaceStore(database),
            limits=settings.workspace_limits,
            disk=self.disk,
            reach=self.keys.reach,
        )
        workspace = _workspace(settings, run_store, self.keys, self.disk)
        file_seconds = settings.workspace_days * SECONDS_PER_DAY
        self._uploads = uploads = UploadStore(_uploads_folder(settings), disk=self.disk, file_seconds=file_seconds)
        self.runs = RunTracker(
            self.sandbox,
            store=run_store,
            statistics=CallStatisticsStore(database),
            folder=_runs_folder(settings),
            inputs=InputFiles(
                workspace=workspace,
                uploads=uploads,
                reach=self.keys.reach,
                folder=_runs_folder(settings),
                disk=self.disk,
            ),
            uploads=uploads,
            open_kept=lambda id, path, caller: self.workspaces.open_file(id, path, owner=self.keys.reach(caller)),
            disk=self.disk,
            record_input=settings.record_input,
            retention_days=settings.run_retention_days,
            listener=self._events,
            tracer=tracer,
        )
        self.events = EventStreams(
            feed, self._events, keys=self.keys, run_counts=self.runs.counts, instance=self.instance
        )
        self._tally = CallTally(CallStatisticsStore(database))
        self._approval_store = SqliteApprovals(
            database, retention_days=settings.run_retention_days, keeps_calls=settings.record_input
        )
        self.approvals = Approvals(
            self._approval_store, enabled=settings.skills.confirm_dangerous, listener=self._events
        )
        self.tools = ToolRegistry(
            approvals=self.approvals, counter=self._count, open_workspace=self.open_workspace, tracer=tracer
        )
        self._skill_changes = SkillChanges(self.tools, self._events.skills_changed)
        self.skills = SkillManager(
            data_dir=settings.data_dir,
            database=database,
            catalog=catalog,
            index=self.retrieval,
            tools=self.tools,
            approvals=self.approvals,
            tracker=self.runs,
            disk=self.disk,
            bundles=self.packages,
            has_program=lambda program: is_visible(program, settings.sandbox.path),
            open_workspace=self.open_workspace,
            settings=settings.skills,
            on_change=self._skill_changes.note,
        )
        self.backups = Backups(
            settings.data_dir,
            version=apexbridge.__version__,
            database=database,
            audit=self.audit,
            store=self.skills.store,
            workspaces=self.workspaces,
            retrieval=self.retrieval,
            disk=self.disk,
        )
        self.published = (
            PublishedSkills(self.skills.store, settings.data_dir / "published", disk=self.disk)
            if settings.publish_skills
            else None
        )
        self.mcp = McpServers(
            settings.mcp,
            store=McpStore(database),
            registry=self.tools,
            index=self.retrieval,
            approvals=self.approvals,
            secret_of=self.skills.grants.secrets.get,
            start_process=process_starter(self.sandbox, self.skills.grants),
            on_state=self._events.mcp_changed,
        )
        self.code = CodeRuns(
            self.skills.store,
            tracker=self.runs,
            layers=self.skills.layers,
            may_run=lambda caller: self.keys.allows(caller, "run"),
            max_timeout_ms=settings.skills.max_sandbox_timeout_ms,
        )
        self.executor = SkillsSandboxExecutor(self.skills, self.sandbox)
        self.builtins = BuiltInExecutor(self.tools)
        self.conversations = Conversations()
        self._chat_store = ChatStore(database)
        self.chats = ChatRecords(
            self._chat_store,
            has_texts=settings.chat_records == "full",
            retention_days=settings.chat_retention_days,
            key_name=self.keys.name_of,
            is_disk_short=lambda: self.disk.is_short,
            past_use=self.retrieval,
        )
        self._call_days = CallDays(database)
        self.insights = Insights(
            self._call_days,
            self._searches,
            self._chat_store,
            installed=catalog.live_names,
            records_searches=settings.record_searches,
        )
        has_records = settings.chat_records != "off"
        self.responses = ResponseStore(
            database,
            retention_days=settings.response_retention_days if has_records else 0,
            is_disk_short=lambda: self.disk.is_short,
        )
        self._suspended = SuspendedTurns()
        self.chat = ReActStrategy(
            self.tools,
            settings.chat,
            Approver(self.approvals),
            teach=self._teach if has_records else None,  # without records, nothing about a chat is stored
            recorder=self.chats if has_records else None,
            observer=self.metrics,
            tracer=tracer,
            files=ConversationFiles(
                self.workspaces, lambda id, caller: uploads.open(id, owner=self.keys.reach(caller))
            ),
            suspended=self._suspended,
            may_run_code=lambda caller: self.keys.allows(caller, "run"),
        )
        self.is_indexed = False
        """Whether the skills that existed at startup are indexed."""
        self.doctor = Doctor(
            lambda: diagnose(settings.sandbox),
            lambda: check_host(settings, version=apexbridge.__version__),
            changed=self._events.doctor_changed,
        )
        self.settings_view = SettingsView(settings)
        self.status = StatusBoard(
            own_version=apexbridge.__version__,
            sandbox=self.sandbox,
            retrieval=self.retrieval,
            mcp=self.mcp,
            audit=self.audit,
            upstreams=UpstreamChecks(settings.chat.llm.upstreams),
            disk=DiskUsage(settings.data_dir),
            is_indexed=lambda: self.is_indexed,
            database_bytes=lambda: _size_of(settings.data_dir / DATABASE_FILE),
        )
        self.metrics_page = MetricsPage(
            self.metrics,
            skills=self.skills,
            queue=self.sandbox.queue,
            events=self._events,
            retrieval=self.retrieval,
            data_dir=settings.data_dir,
        )
        self._indexing = indexing
        self._progress = progress
        self._index_lock = asyncio.Lock()
        self._register_tools(workspace)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings | None = None,
        *,
        watch: bool = True,
        indexing: Indexing = "wait",
        progress: Progress | None = None,
        index_progress: Progress | None = None,
        embedder: Embedder | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> AsyncIterator["Bridge"]:
        """Lock the data directory, sync everything with the disk, and keep it in sync until the block ends.

        Vectors come from `embedder`, or else from the model in the settings. `progress` reports on reading the skills,
        `index_progress` on indexing them. `tracer` records spans.

        Raises:
            ServerError: DATA_DIR_IN_USE, or STORAGE_FULL if the directory cannot be written to.
        """
        settings = settings or Settings()
        embedder = embedder or choose_embedder(settings.retrieval, settings.data_dir)
        with owned(settings.data_dir):
            await in_thread(keep_private, settings.data_dir)
            database = await in_thread(_open_database, settings.data_dir)
            try:
                bridge = cls(settings, database, embedder, indexing=indexing, progress=index_progress, tracer=tracer)
                async with bridge._running(watch=watch, progress=progress):
                    yield bridge
            finally:
                await in_thread(database.close)

    @asynccontextmanager
    async def _running(self, *, watch: bool, progress: Progress | None) -> AsyncIterator[None]:
        """Start the parts in the order in which they need each other, and stop them in the reverse order."""
        async with AsyncExitStack() as stack:
            await self.keys.load()
            stack.push_async_callback(self.keys.close)
            await self.audit.open()
            stack.push_async_callback(self.audit.close)
            stack.push_async_callback(self._tally.close)
            stack.push_async_callback(self._searches.close)
            stack.push_async_callback(self.status.close)
            if not watch:  # else keep_tidy does it in the background: it would delay the startup
                await self.chats.sweep()
                await self.responses.sweep()
            stack.push_async_callback(self.chats.close)
            stack.push_async_callback(self.responses.close)
            stack.push_async_callback(self.chat.close)
            await stack.enter_async_context(self.retrieval.running())
            await stack.enter_async_context(self.sandbox.running())
            stack.push_async_callback(self.runs.close)
            await self.runs.recover()
            await self.workspaces.load()
            if not watch:
                await self.workspaces.sweep()
            await self._approval_store.sweep()
            await self._searches.sweep()
            await self._call_days.sweep()
            await self._database.erase()  # a crash may have left deleted text in the WAL file
            # Without the vector length, or if other models made the vectors, every skill would look re-embedded.
            if not self.retrieval.dimensions or await self.skills.has_other_vectors():
                await self.retrieval.wake()
            await self.skills.initialize(progress, index=False)
            self._skill_changes.start()
            stack.callback(self._skill_changes.close)
            self._events.follow_approvals(await self.approvals.waiting())
            stack.callback(self._events.close)
            await stack.enter_async_context(self.mcp.running(eager=self._indexing != "on-demand"))
            if self._indexing == "wait":
                await self._index_skills()
            work = [self._keep_indexed()] if self._indexing != "on-demand" else []
            work.append(self.retrieval.models.run(self.skills.sync_index))
            if watch:
                tidy = (self.runs, self._approval_store, self.chats, self.responses, self.workspaces, self.skills)
                work += [watch_skills(self.skills), *(one.keep_tidy() for one in tidy)]
            await stack.enter_async_context(_background(work))
            yield

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        """What a caller holds of the resources that keys share; `create_app` adds those of the HTTP server."""
        disk = await in_thread(self.disk.usage, caller)
        queue = self.sandbox.queue.usage(caller)
        sources: tuple[UsageOf, ...] = (
            self.workspaces.usage,
            self._uploads.usage,
            self._run_store.usage,
            self.approvals.usage,
            self._suspended.usage,
            self.responses.usage,
            self._chat_store.usage,
            self.retrieval.usage,
            self.events.feed.usage,
        )
        return [disk, *queue, *[one for usage in sources for one in await usage(caller)]]

    async def revoke_key(self, identity: str) -> ApiKey:
        """Revoke a key, and drop what waits for its requests: suspended turns and approvals.

        Raises the errors of `KeyStore.revoke`.
        """
        try:
            return await self.keys.revoke(identity)
        finally:
            self._suspended.forget_caller(identity)
            try:
                await self.approvals.withdraw(identity)
            except (sqlite3.Error, ServerError):  # they expire within minutes, and no key can use them
                logger.warning("the approvals of the API key %s could not be deleted", identity, exc_info=True)

    def _keys_changed(self) -> None:
        self.sandbox.queue.limits_changed()
        self._events.keys_changed()

    def _count(self, tool: str, success: bool, duration_ms: int) -> None:
        """Count a call. `RunTracker` records the runs of skills."""
        self.metrics.tool_called(self.tools.find(tool), success=success, duration_ms=duration_ms)
        if not tool.startswith(SKILL_PREFIX):
            self._tally.count(f"{TOOL_KEY}{tool}", success, duration_ms)

    def _note_search(self, query: str, results: int, for_model: bool) -> None:
        """Record a search. The words of a model come from a chat, and a deleted chat must leave no text."""
        if not self.disk.is_short and not for_model:
            self._searches.note(query, results)

    async def _teach(self, text: str, skill: str, request: ChatRequest) -> None:
        if not self.disk.is_short:
            await self.retrieval.remember(text, skill, succeeded=True, caller=request.caller, chat=request.link)

    def _register_tools(self, workspace: Workspace) -> None:
        """Register the built-in tools and the tools of other packages."""
        backend = SkillToolBackend(self.skills, self.code)
        for tool in (
            file_read(workspace),
            file_write(workspace),
            list_files(workspace),
            calculate,
            datetime_tool,
            platform_detect(lambda: self.sandbox.node_version, own_version=apexbridge.__version__),
            vector_search(self._search),
            read_skill(backend),
            run_skill(backend),
            *([run_code(backend.run_code)] if self.settings.run_code else []),
        ):
            self.builtins.tools.register(tool)
        register_packages(self.tools)

    async def _search(self, query: str, *, limit: int | None, for_model: bool, caller: str) -> SearchAnswer:
        await self.prepare_search()
        return await self.retrieval.search(query, limit=limit, for_model=for_model, caller=caller)

    def open_workspace(self, id: str | None, caller: str) -> LastingWorkspace | None:
        """The workspace that a call names; None if it names none. Raises FORBIDDEN if it belongs to another key."""
        return None if id is None else self.workspaces.open(id, caller=caller)

    async def switch_tool(self, id: str, *, enabled: bool) -> None:
        """Enable or disable a tool: a skill permanently, any other tool until the next start."""
        if id.startswith(SKILL_PREFIX):
            await self.skills.set_enabled(id.removeprefix(SKILL_PREFIX), enabled)
        elif enabled:
            self.tools.enable(id)
        else:
            self.tools.disable(id)

    def content_hash(self, skill: str) -> str | None:
        """The content hash of a skill, by its name or its id in the skills APIs; None if missing."""
        if skill.startswith("skill_"):  # no name contains an underscore
            names = (tool.id.removeprefix(SKILL_PREFIX) for tool in self.tools.list())
            skill = next((name for name in names if skill_id(name) == skill), "")
        tool = self.tools.find(skill_tool_id(skill))
        return tool.metadata.content_hash or None if tool else None

    async def tool_counts(self) -> dict[str, CallCounts]:
        """Number and outcome of the calls of each tool, by tool id."""
        counts = await self._tally.all()
        return {
            key.removeprefix(TOOL_KEY) if key.startswith(TOOL_KEY) else skill_tool_id(key): own
            for key, own in counts.items()
        }

    async def prepare_sandbox(self) -> None:
        """Start the sandbox backend and the first interpreters, so that the first run does not wait for them."""
        try:
            await self.sandbox.warm_up()
        except ApexBridgeError as error:
            logger.warning("%s", error.message)

    async def use_models(self, names: Sequence[str] | None) -> EmbeddingModelList:
        """Choose the embedding models, by default those that are installed along. Raises INVALID_INPUT."""
        with storage_faults():
            return await self.embedding_models.use(names)

    async def prepare_search(self) -> None:
        """Fill the index if it is filled on demand. Otherwise searches use what is indexed so far."""
        if self._indexing == "on-demand":
            await self._index_skills()

    async def _index_skills(self) -> None:
        """Sync the index with the skills, unless that was done already."""
        async with self._index_lock:
            if not self.is_indexed:
                await self.retrieval.load_reranker()
                await self.retrieval.wake()
                await self.skills.reconcile(self._progress)
                await self.mcp.index.sync()
                if self._indexing != "background" and await self.retrieval.models.run_once(self._progress):
                    await self.skills.sync_index()
                self.is_indexed = True

    async def _keep_indexed(self) -> None:
        while not self.is_indexed:
            try:
                await self._index_skills()
            except Exception:
                logger.exception("the skills could not be indexed; trying again in %s s", RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
        self.retrieval.models.request()
        await self.skills.index_in_background()


@asynccontextmanager
async def _background(work: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run these while the block lasts. A task group would wrap the block's own errors in an exception group."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("a background task ended early", exc_info=outcome)


def _runs_folder(settings: Settings) -> Path:
    return settings.data_dir / "runs"


def _uploads_folder(settings: Settings) -> Path:
    return settings.data_dir / "uploads"


def _disk(settings: Settings, store: RunStore, quota_of: Callable[[str], int]) -> Disk:
    """Disk accounting for what callers write: their workspace, their runs and their uploads."""

    def measure(caller: str) -> int:
        runs, size = store.taken_by(caller)
        size += size_on_disk(settings.workspace / KEYS / caller)
        own_uploads = {name for name in _names_in(_uploads_folder(settings)) if upload_owner(name) == caller}
        for folder, own in ((_runs_folder(settings), runs), (_uploads_folder(settings), own_uploads)):
            size += sum(size_on_disk(folder / name) for name in _names_in(folder) if name in own)
        return size

    return Disk(settings.data_dir, quota_of=quota_of, measure=measure)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names, not paths
    except OSError:
        return []


def _workspace(settings: Settings, store: RunStore, keys: KeyStore, disk: Disk) -> Workspace:
    def folder_of(run: str, caller: str) -> Path | None:
        owner = keys.reach(caller)
        return _runs_folder(settings) / run if owner is None or store.owner(run) == owner else None

    return Workspace(settings.workspace, folder_of, disk=disk)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _open_database(data_dir: Path) -> Database:
    with storage_faults():
        return Database(data_dir / DATABASE_FILE)
