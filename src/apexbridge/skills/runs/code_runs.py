"""Runs code that a model or a caller wrote, with the files of the conversation and the skills that it has loaded."""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from apexbridge._tasks import in_thread
from apexbridge.errors import InvalidInputError, PermissionDeniedError, ServerError, SkillError
from apexbridge.sandbox.models import ExecutionResult, Grants, Job, MountedSkill
from apexbridge.sandbox.workspace_files import CODE_NAME
from apexbridge.skills.runs.grants import SkillFolder
from apexbridge.skills.runs.run_progress import result_of
from apexbridge.skills.runs.skill_layers import SkillLayers
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.tool import OnRun, Progress, ignore_progress, ignore_run

Language = Literal["python", "javascript", "shell"]
MAX_CODE_BYTES = 256 * 1024
STDERR_CHARACTERS = 16 * 1024
_NOT_FOUND = re.compile(r"^.*(?:No such file|can't open file|Cannot find module|ENOENT).*", re.M)
"""A line of an error about a missing file."""
_PATH = re.compile(
    r"(?<![^\s'\":‘`])(?:/workspace/)?(?:\./)?((?:[\w-][\w.-]*/){0,5}[\w-][\w.-]{0,100})(?=$|[\s'\":,’`])"
)
"""A path relative to the workspace in such a line."""
_SKILL = re.compile(r"/skills/([a-z0-9][a-z0-9:-]{0,200})(?=/|$|[\s'\":,’`])")
MAX_PATHS = 50
"""Paths in errors that are looked for in skills."""
_SUFFIXES: Mapping[Language, str] = {"python": "py", "javascript": "js", "shell": "sh"}


class CodeRuns:
    def __init__(
        self,
        store: SkillStore,
        *,
        tracker: RunTracker | None,
        layers: SkillLayers,
        may_run: Callable[[str], bool],
        max_timeout_ms: int,
    ) -> None:
        """`may_run` returns whether a caller may run code."""
        self._store = store
        self._tracker = tracker
        self._layers = layers
        self.may_run = may_run
        self._max_timeout_ms = max_timeout_ms

    async def run(
        self,
        language: Language,
        code: str,
        *,
        timeout_ms: int | None = None,
        conversation: Conversation,
        progress: Progress = ignore_progress,
        on_run: OnRun = ignore_run,
    ) -> ExecutionResult:
        """Run code and wait for its result. If the caller is cancelled, the run is cancelled too.

        `on_run` is called when the run exists.

        Raises:
            PermissionDeniedError: the caller's key may not run code.
            InvalidInputError: the code is too long or not text.
            ServerError: QUEUE_FULL, STORAGE_FULL, SANDBOX_UNAVAILABLE.
        """
        if not self.may_run(conversation.caller):
            raise PermissionDeniedError("This API key may not run code; it needs the scope run.")
        if self._tracker is None:
            raise ServerError("No sandbox is available, so code is not run.", code="SANDBOX_UNAVAILABLE")
        _check(code)
        with ExitStack() as resources:
            resources.enter_context(await self._store.gate.enter())  # the roots cannot change until the run ends
            loaded = await self._loaded(conversation)
            await self._tracker.check_quota(conversation.caller)
            job = Job(
                script=f"{CODE_NAME}.{_SUFFIXES[language]}",
                code=code,
                input={"language": language, "code": code},
                skills=loaded.skills,
                python_packages=loaded.python_packages,
                node_packages=loaded.node_packages,
                workspace=conversation.workspace,
                timeout_ms=min(timeout_ms or self._store.config.sandbox_timeout, self._max_timeout_ms),
                layers=loaded.layers,
                warnings=tuple(loaded.warnings),
            )
            run = await self._tracker.start(
                uuid.uuid4().hex,
                job,
                caller=conversation.caller,
                content_hash="",
                files=(),
                grants=_no_grants,
                resources=resources,
                origin=conversation.origin,
            )
        on_run(run.id)
        result = await result_of(run, progress)
        paths, skills = unfound(result.stderr[-STDERR_CHARACTERS:])
        hints = await in_thread(_script_hints, paths, job) if job.skills and paths else []
        if conversation.workspace is not None:
            hints += await self._loading_hints(name for name in skills if name not in conversation.workspace.skills)
        return result.model_copy(update={"warnings": [*result.warnings, *hints]}) if hints else result

    async def _loading_hints(self, names: Iterable[str]) -> list[str]:
        """Name the installed skills whose files were looked for although they are not loaded."""
        hints = []
        for name in names:
            with suppress(SkillError):
                async with self._store.reading(name) as row:
                    if row.enabled:
                        hints.append(f"/skills/{name} is there only after the skill is loaded: call load_skill first.")
        return hints

    async def _loaded(self, conversation: Conversation) -> "_LoadedSkills":
        loaded = _LoadedSkills()
        for name in conversation.workspace.skills if conversation.workspace else ():
            try:
                async with self._store.reading(name) as row:
                    folder = await in_thread(SkillFolder.of, self._store.folder(row))
            except SkillError:
                loaded.warnings.append(f"/skills/{name} is missing: the skill was removed.")
                continue
            if not row.enabled:
                loaded.warnings.append(f"/skills/{name} is missing: the skill is disabled.")
            elif row.dangerous:
                loaded.warnings.append(
                    f"/skills/{name} is missing: each run of this skill needs approval. Use run_skill for its scripts."
                )
            else:
                layers, _ = await self._layers.for_run(row, folder.path)
                loaded.add(name, MountedSkill(folder=folder.path, identity=folder.identity), layers)
        return loaded


@dataclass(slots=True)
class _LoadedSkills:
    """The skills that a conversation has loaded, with their packages."""

    skills: dict[str, MountedSkill] = field(default_factory=dict)
    layers: dict[str, Path] = field(default_factory=dict)
    python_packages: dict[str, Path] = field(default_factory=dict)
    node_packages: dict[str, Path] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, name: str, skill: MountedSkill, layers: Mapping[str, Path]) -> None:
        self.skills[name] = skill
        if (python := layers.get("python")) is not None:
            self.python_packages[name] = python
        if (node := layers.get("node_modules")) is not None:
            self.node_packages[name] = node
            self.layers["node_modules"] = node  # the last one is also found by `import`, which ignores NODE_PATH


def _check(code: str) -> None:
    size = len(code.encode("utf-8", "surrogatepass"))
    if size > MAX_CODE_BYTES:
        raise InvalidInputError(
            f"The code has {size} bytes; at most {MAX_CODE_BYTES // 1024} KB are possible. Write data to a file of the "
            "workspace with file_write, and read it from there."
        )
    if "\0" in code:
        raise InvalidInputError("The code contains a NUL character; send text.")
    if not code.strip():
        raise InvalidInputError("The code is empty.")


def unfound(stderr: str) -> tuple[list[str], list[str]]:
    """The paths in the workspace, and the skills by their paths, that errors about missing files name."""
    lines = _NOT_FOUND.findall(stderr)
    paths = dict.fromkeys(path for line in lines for path in _PATH.findall(line))
    skills = dict.fromkeys(name for line in lines for name in _SKILL.findall(line))
    return [*paths][:MAX_PATHS], [*skills][:MAX_PATHS]


def _script_hints(paths: Sequence[str], job: Job) -> list[str]:
    """Say where files are that the code looked for in the workspace. Skills name their files by relative paths."""
    hints = []
    for path in paths:
        for name, skill in reversed([*job.skills.items()]):
            if (skill.folder / path).exists():
                hints.append(f"{path} is not in the workspace; the skill {name} has it at /skills/{name}/{path}")
                break
    return hints


async def _no_grants() -> Grants:
    return Grants()
