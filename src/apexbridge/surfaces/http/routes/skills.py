"""Skills over HTTP, with their permissions, dependencies, secrets and plugins."""

import asyncio
import json
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import Field, ValidationError, field_validator

from apexbridge._json import loads_untrusted
from apexbridge._tasks import run_to_completion
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError, ServerError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.run_input import MAX_ARGUMENTS, MAX_INPUT_FILES
from apexbridge.skills import MAX_NAME_CHARACTERS, SERVED_NAME_PATTERN, Mode, Profile
from apexbridge.skills.fetched_packages import CheckedNote, CheckedPackage
from apexbridge.skills.manager import DEFAULT_TAGS
from apexbridge.skills.models import (
    BulkError,
    BulkReport,
    BulkResult,
    CallStatistics,
    DirectSkillResult,
    GrowthPoint,
    InstallReceipt,
    OriginItem,
    PluginSummary,
    Problem,
    Receipt,
    RemovalReceipt,
    RemovedItem,
    RollbackReceipt,
    ScanReport,
    SkillDetail,
    SkillHealth,
    SkillPage,
    SkillSort,
    SkillStatistics,
    SkillVersionList,
    TagList,
    UpdateReport,
    ValidationReport,
    VersionDiff,
)
from apexbridge.skills.package.dependencies import MAX_REQUIREMENT_CHARACTERS, MAX_REQUIREMENTS
from apexbridge.skills.remote.discovery import MAX_UNCHOSEN
from apexbridge.skills.remote.source_text import MAX_SOURCE_CHARACTERS, RemoteSource, parse_source
from apexbridge.skills.runs.grants import GrantView
from apexbridge.skills.runs.skill_layers import DependencyView
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.store.names import folder_of_name
from apexbridge.storage.audit import Act
from apexbridge.surfaces.http.deps import (
    APPROVAL_PATTERN,
    DEFAULT_LIMIT,
    Caller,
    PageLimit,
    PageNumber,
    ServedBridge,
    SkillName,
    Skills,
)
from apexbridge.surfaces.http.middleware.audit_trail import defer, note
from apexbridge.surfaces.http.routes.executions import Accepted
from apexbridge.surfaces.http.transport.disconnect import run_while_connected
from apexbridge.surfaces.http.transport.progress_stream import asks_for_events, line_stream, progress_stream
from apexbridge.surfaces.http.transport.requests import is_owner, request_id
from apexbridge.surfaces.http.transport.responses import (
    download,
    download_part,
    json_response,
    long_output,
    result_response,
)
from apexbridge.surfaces.http.transport.uploads import receive_upload
from apexbridge.tools.conversation import Conversation
from apexbridge.wire import WireInput, WireModel

MAX_PERMISSION_CHARACTERS = 4096
MAX_FILE_NAME_CHARACTERS = 4_096
MAX_VERSION = 2**53
_BINARY = {"type": "string", "format": "binary"}
_OPTIONS: dict[str, Any] = {
    "overwrite": {"type": "boolean", "default": False},
    "profile": {"type": "string", "enum": ["seed", "lenient", "strict"]},
    "strict": {"type": "boolean", "default": False},
}
_SKILLS = {"type": "array", "items": {"type": "string"}}
_SOURCE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"source": {"type": "string"}, "upload": {"type": "string"}, "skills": _SKILLS, **_OPTIONS},
}
_VALIDATED_SOURCE = {
    "type": "object",
    "required": ["source"],
    "additionalProperties": False,
    "properties": {
        "source": {"type": "string"},
        "skills": _SKILLS,
        **{name: schema for name, schema in _OPTIONS.items() if name != "overwrite"},
    },
}
_FORM = {"type": "object", "required": ["file"], "properties": {"file": _BINARY, **_OPTIONS}}
_ARCHIVE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FORM}, "application/zip": {"schema": _BINARY}},
    },
    "parameters": [
        {"name": name, "in": "query", "schema": schema, "description": "With application/zip."}
        for name, schema in {**_OPTIONS, "filename": {"type": "string"}}.items()
    ],
}


def _or_json(schema: dict[str, Any]) -> dict[str, Any]:
    content = {**_ARCHIVE_BODY["requestBody"]["content"], "application/json": {"schema": schema}}
    return {**_ARCHIVE_BODY, "requestBody": {"required": True, "content": content}}


_INSTALL_BODY, _VALIDATE_BODY = _or_json(_SOURCE), _or_json(_VALIDATED_SOURCE)
MAX_SOURCE_BYTES = 64 * 1024
MAX_BULK = 500
_END = r"\Z"
"""Not in the syntax of pydantic's patterns."""

router = APIRouter(tags=["skills"])
VersionNumber = Annotated[int, Path(alias="version", ge=1, le=MAX_VERSION, description="The version's number.")]
PackageSpec = Annotated[str, Field(max_length=MAX_REQUIREMENT_CHARACTERS)]
SecretName = Annotated[str, Path(alias="name", description="The secret's name.")]


class ExecuteInput(WireInput):
    input: dict[str, Any] = Field(default_factory=dict)
    args: list[str] = Field(default_factory=list, max_length=MAX_ARGUMENTS)
    script: str | None = None
    files: list[Annotated[str, Field(max_length=MAX_FILE_NAME_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_INPUT_FILES
    )
    mode: Mode | None = None
    timeout: int | None = Field(default=None, gt=0, description="Milliseconds.")
    approval: str | None = Field(
        default=None, pattern=APPROVAL_PATTERN, description="The id of an approval, for dangerous skills."
    )
    wait: bool = Field(default=True, description="Respond when the run has ended.")
    workspace: str | None = Field(
        default=None, description="The id of a workspace whose files the run gets and whose changes are kept."
    )

    @field_validator("input")
    @classmethod
    def _is_text(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("contains a lone surrogate") from error
        return value


class ValidateInput(WireInput):
    source: str = Field(max_length=MAX_SOURCE_CHARACTERS)
    profile: Profile | None = None
    strict: bool = False
    skills: list[Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_UNCHOSEN, description="Of a server that publishes skills; default: all."
    )


class InstallInput(WireInput):
    source: str | None = Field(default=None, max_length=MAX_SOURCE_CHARACTERS)
    upload: str | None = Field(
        default=None, max_length=64, description="The `upload` of a validation, in place of `source`."
    )
    overwrite: bool = False
    profile: Profile | None = None
    strict: bool = False
    skills: list[Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_UNCHOSEN, description="Of a server that publishes skills; default: all."
    )


class UpdateInput(WireInput):
    apply: bool = Field(default=False, description="Install what changed; default: report it.")
    revision: str | None = Field(default=None, max_length=64, description="Install only this `newRevision`.")


class SourceUpdateInput(UpdateInput):
    source: str = Field(max_length=MAX_SOURCE_CHARACTERS, description="The `source` of an origin.")


class BulkInput(WireInput):
    action: Literal["enable", "disable", "uninstall"]
    names: list[Annotated[str, Field(pattern=f"^{SERVED_NAME_PATTERN.pattern.removesuffix(_END)}$")]] = Field(
        min_length=1, max_length=MAX_BULK, description="The skills."
    )


class RestoreInput(WireInput):
    id: str | None = Field(default=None, max_length=64, description="One of several; default: the newest.")


class RollbackInput(WireInput):
    version: int | None = Field(default=None, ge=1, description="Default: the one before the installed one.")


class GrantInput(WireInput):
    permission: str = Field(
        max_length=MAX_PERMISSION_CHARACTERS, description="net:HOST:PORT, env:NAME, secret:NAME or fs:ro:PATH."
    )


class DependencyChange(WireInput):
    """Packages by name and version: `pypdf>=4` for Python, `npm:docx@^9` for Node."""

    add: list[PackageSpec] = Field(default_factory=list, max_length=MAX_REQUIREMENTS)
    remove: list[PackageSpec] = Field(default_factory=list, max_length=MAX_REQUIREMENTS)
    install: bool = Field(default=False, description="Install them first; if that fails, nothing is changed.")


class SecretInput(WireInput):
    """The value of a secret. It is never returned."""

    value: str


class SecretNames(WireModel):
    names: list[str]


@router.get("/api/skills")
async def list_skills(
    skills: Skills,
    name: Annotated[str | None, Query(description="A substring of the name, in any case.")] = None,
    query: Annotated[
        str | None,
        Query(description="Words that all occur in the name or the description, in any case.", max_length=200),
    ] = None,
    tags: Annotated[str | None, Query(description="Comma-separated; any of them matches.", max_length=2000)] = None,
    mode: Annotated[Mode | None, Query(description="Only skills that run like this.")] = None,
    enabled: Annotated[bool | None, Query(description="Only enabled skills, or only disabled ones.")] = None,
    source: Annotated[str | None, Query(description="Only of this source.", max_length=1000)] = None,
    plugin: Annotated[str | None, Query(description="Only of this plugin.", max_length=1000)] = None,
    health: Annotated[
        SkillHealth | None,
        Query(
            description="Only with `warnings`, without all of the `access` or `packages` that they need, or with a "
            "confirmation before each run (`confirm`)."
        ),
    ] = None,
    sort: Annotated[
        SkillSort, Query(description="`updated`, `installed`: the newest first; `calls`, `failures`: the most.")
    ] = "name",
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> SkillPage:
    """List the installed skills."""
    any_of = [tag.strip() for tag in (tags or "").split(",") if tag.strip()]
    return await skills.list_skills(
        name=name,
        query=query,
        tags=any_of,
        mode=mode,
        enabled=enabled,
        source=source,
        plugin=plugin,
        health=health,
        sort=sort,
        page=page,
        limit=limit,
    )


@router.get("/api/skills/tags")
async def list_tags(
    skills: Skills,
    prefix: Annotated[str, Query(description="Only tags that begin like this, in any case.", max_length=200)] = "",
    limit: PageLimit = DEFAULT_TAGS,
) -> TagList:
    """List the tags of the skills, declared and derived ones, the most frequent first."""
    return await skills.list_tags(prefix, limit)


@router.post("/api/skills/install", status_code=201, response_model=InstallReceipt, openapi_extra=_INSTALL_BODY)
@router.post("/api/skills", status_code=201, response_model=InstallReceipt, openapi_extra=_INSTALL_BODY)
async def install_skill(
    request: Request, response: Response, bridge: ServedBridge, skills: Skills, caller: Caller
) -> InstallReceipt | StreamingResponse:
    """Install a skill, a plugin or a marketplace: an archive, a source that is fetched, or a validated upload.

    The status is 200 if one was replaced. With `Accept: text/event-stream`, the answer is its progress as events.
    """
    async with AsyncExitStack() as stack:
        installing = await _installing(request, bridge, caller, stack)
        if asks_for_events(request):
            return progress_stream(request, installing, stack.pop_all(), defer(request))
        receipt = await (run_while_connected(request, installing) if _is_json(request) else installing)
    response.status_code = 200 if receipt.replaced else 201
    return receipt


def _signers(receipt: InstallReceipt) -> str | None:
    """Who signed the installed skills, for the audit log."""
    signers = sorted({one.signature.signer for one in receipt.scans if one.signature.signer})
    return f"signed by {', '.join(signers)}"[:1000] if signers else None


async def _installing(
    request: Request, bridge: ServedBridge, caller: str, stack: AsyncExitStack
) -> Coroutine[Any, Any, InstallReceipt]:
    """Read the request, and return the work that it asks for. `stack` holds an uploaded file."""
    skills = bridge.skills

    async def install(work: Awaitable[InstallReceipt]) -> InstallReceipt:
        receipt = await work
        note(request, target=receipt.name, detail=_signers(receipt))
        return receipt

    if not _is_json(request):
        upload = await stack.enter_async_context(receive_upload(request, skills.staging))
        return install(
            skills.install_skill(
                upload.file,
                overwrite=upload.overwrite,
                profile=upload.profile,
                filename=upload.filename,
                strict=upload.strict,
                caller=caller,
            )
        )
    body = await _json_input(request, InstallInput)
    if (body.source is None) == (body.upload is None):
        raise InvalidInputError("Name either `source` or `upload`")
    if body.upload is not None:
        return install(_install_upload(bridge, body, caller))
    return install(
        skills.install_skill(
            _remote_source(request, body.source or ""),
            overwrite=body.overwrite,
            profile=body.profile,
            strict=body.strict,
            skills=body.skills,
            local=is_owner(request.scope),
            caller=caller,
        )
    )


@router.post(
    "/api/skills/validate",
    response_model=None,
    responses={200: {"model": ValidationReport}},
    openapi_extra=_VALIDATE_BODY,
)
async def validate_skill(request: Request, bridge: ServedBridge, skills: Skills, caller: Caller) -> Response:
    """Check whether a package can be installed, what it asks for and what it would replace. Nothing is installed.

    A valid package is kept for an hour, so that it can be installed by its `upload`. With `Accept: text/event-stream`,
    the answer is its progress as events.
    """
    async with AsyncExitStack() as stack:
        validating = await _validating(request, bridge, caller, stack)
        if asks_for_events(request):
            return progress_stream(request, validating, stack.pop_all(), defer(request))
        return json_response(await (run_while_connected(request, validating) if _is_json(request) else validating))


async def _validating(
    request: Request, bridge: ServedBridge, caller: str, stack: AsyncExitStack
) -> Coroutine[Any, Any, ValidationReport]:
    skills = bridge.skills
    if not _is_json(request):
        upload = await stack.enter_async_context(receive_upload(request, skills.staging))
        options: dict[str, Any] = {"profile": upload.profile, "filename": upload.filename, "strict": upload.strict}
        return _validate(bridge, upload.file, options, caller=caller)
    body = await _json_input(request, ValidateInput)
    if bridge.keys.reach(caller) is not None:
        raise RequestError("Only keys with the scope admin let the server fetch a source.", code="FORBIDDEN")
    options = {"profile": body.profile, "strict": body.strict, "skills": body.skills}
    options["local"] = is_owner(request.scope)
    return _validate(bridge, _remote_source(request, body.source), options, caller=caller)


async def _validate(
    bridge: ServedBridge, source: BinaryIO | RemoteSource, options: dict[str, Any], *, caller: str
) -> ValidationReport:
    async with bridge.skills.checked(source, caller=caller, **options) as checked:
        return await _kept_report(bridge, checked, caller)


async def _kept_report(bridge: ServedBridge, checked: CheckedPackage, caller: str) -> ValidationReport:
    """The report, with the id under which the package is kept; without one if the caller has no room for it."""
    if checked.file is None or checked.note is None:
        return checked.report
    note_text = checked.note.model_dump_json()
    try:
        kept_as = await bridge.runs.uploads.add(
            checked.file, checked.note.filename or "package.zip", caller=caller, note=note_text
        )
    except (RequestError, ServerError) as error:
        if error.code not in ("QUEUE_FULL", "STORAGE_FULL"):
            raise
        return checked.report
    return checked.report.model_copy(update={"upload": kept_as.id})


async def _install_upload(bridge: ServedBridge, body: InstallInput, caller: str) -> InstallReceipt:
    """Install a package that this key has validated. It is removed then; if the install fails, it stays."""
    identity = body.upload or ""
    if body.skills:
        raise InvalidInputError("`skills` chooses from a source, not from an upload")
    file, note_text = await bridge.runs.uploads.open_noted(identity, owner=caller)
    with file:
        if note_text is None:
            raise InvalidInputError(f"{identity} was not validated: send it to /api/skills/validate first")
        receipt = await bridge.skills.install_checked(
            file,
            CheckedNote.model_validate_json(note_text),
            overwrite=body.overwrite,
            profile=body.profile,
            strict=body.strict,
            caller=caller,
        )
    await bridge.runs.uploads.remove(identity, owner=caller)
    return receipt


def _remote_source(request: Request, text: str) -> RemoteSource:
    source = parse_source(text)  # refuses passwords, which must not be in the audit log
    note(request, detail=text)
    if source is None:
        raise InvalidInputError(
            "source is a path. Upload the archive, or name owner/repo[/path][@ref], a Git URL, the URL of a .zip, "
            "or that of a server that publishes skills."
        )
    return source


@router.get("/api/skills/stats")
async def statistics(skills: Skills) -> SkillStatistics:
    """Count skills and their calls."""
    return await skills.statistics()


@router.get("/api/skills/growth")
async def growth(skills: Skills, by: Literal["day", "week"] = "day") -> list[GrowthPoint]:
    """Count first installs by day, or by week with the date of its Monday (UTC)."""
    return await skills.growth(by)


@router.get("/api/skills/problems")
async def problems(skills: Skills) -> list[Problem]:
    """List the folders that are not served, and why."""
    return await skills.problems()


@router.get("/api/skills/origins")
async def list_origins(request: Request, skills: Skills) -> list[OriginItem]:
    """List the skills and plugins that were fetched from a source."""
    return [_shown(request, item) for item in await skills.origins()]


@router.get("/api/skills/removed")
async def list_removed(skills: Skills) -> list[RemovedItem]:
    """List the skills and plugins that can be restored."""
    return await skills.removed_skills()


@router.post("/api/skills/reindex")
async def reindex(skills: Skills) -> ScanReport:
    """Scan all roots again and index what changed."""
    return await skills.reconcile()


@router.post("/api/skills/update")
async def update_source(
    request: Request, skills: Skills, caller: Caller, body: SourceUpdateInput
) -> list[UpdateReport]:
    """Fetch a source once for all plugins that were installed from it; report or install what changed."""
    parse_source(body.source)  # refuses passwords, which must not be in the audit log
    options = _update_options(request, caller, body)
    note(request, detail=f"{'apply' if body.apply else 'report'} {body.source}")
    return await run_while_connected(request, skills.update_source(body.source, **options))


@router.post("/api/skills/bulk")
async def change_many(
    request: Request, bridge: ServedBridge, skills: Skills, caller: Caller, body: BulkInput
) -> BulkReport:
    """Enable, disable or uninstall several skills. Each is audited like a single one; a failure does not end it."""
    note(request, detail=f"{body.action} {len(body.names)}")
    results = []
    for name in dict.fromkeys(body.names):
        before, error, is_restorable = bridge.content_hash(name), None, False
        try:
            if body.action == "uninstall":
                removed = await skills.uninstall_skill(name)
                is_restorable = removed.hidden or removed.restorable_until is not None
            else:
                await skills.set_enabled(name, body.action == "enable")
        except ApexBridgeError as refusal:
            error = refusal
        act = Act(
            what=f"skills.{body.action}",
            who=caller,
            target=name,
            content_hash=bridge.content_hash(name) or before,
            outcome=error.status if error else 200,
            request_id=request_id(request.scope),
        )
        await run_to_completion(bridge.audit.append(act))
        problem = BulkError(code=error.code, message=error.message) if error else None
        results.append(BulkResult(name=name, success=error is None, error=problem, restorable=is_restorable))
    return BulkReport(results=results)


@router.get("/api/skills/{name}")
async def show_skill(name: SkillName, request: Request, skills: Skills) -> SkillDetail:
    """Show one skill."""
    return _shown(request, await skills.get_skill(name))


@router.delete("/api/skills/{name}")
async def uninstall_skill(
    name: SkillName,
    skills: Skills,
    delete: Annotated[bool, Query(description="Delete the folder of a skill in another root too.")] = False,
) -> RemovalReceipt:
    """Remove a skill with everything except its history. It can be restored for some days."""
    return await skills.uninstall_skill(name, delete=delete)


@router.post("/api/skills/{name}/restore")
async def restore_skill(name: SkillName, skills: Skills, body: RestoreInput | None = None) -> Receipt:
    """Bring a removed or hidden skill back, without its grants."""
    return await skills.restore_skill(name, id=body.id if body else None)


@router.get("/api/skills/{name}/versions")
async def list_versions(name: SkillName, skills: Skills) -> SkillVersionList:
    """List the versions of a skill, the newest first."""
    return await skills.versions.listed(name)


@router.post("/api/skills/{name}/versions/rollback")
async def roll_back(
    name: SkillName, request: Request, skills: Skills, body: RollbackInput | None = None
) -> RollbackReceipt:
    """Install an earlier version of a skill, or a later one again."""
    receipt = await skills.versions.rollback(name, body.version if body else None)
    note(request, detail=f"version {receipt.version}")
    return receipt


@router.get("/api/skills/{name}/versions/{version}/export", response_class=StreamingResponse)
async def export_version(name: SkillName, version: VersionNumber, skills: Skills, caller: Caller) -> StreamingResponse:
    """Download a version of a skill as a ZIP."""
    file = await skills.versions.open(name, version, caller=caller)
    return download(file, f"{folder_of_name(name)}.zip", "application/zip")


@router.get("/api/skills/{name}/versions/{version}/diff")
async def diff_version(
    name: SkillName,
    version: VersionNumber,
    skills: Skills,
    caller: Caller,
    against: Annotated[
        int | None, Query(ge=1, le=MAX_VERSION, description="Another version; default: the one before it.")
    ] = None,
) -> VersionDiff:
    """Show what changed between two versions of a skill, file by file."""
    return await skills.versions.diff(name, version, against, caller=caller)


@router.delete("/api/skills/{name}/versions/{version}")
async def delete_version(name: SkillName, version: VersionNumber, request: Request, skills: Skills) -> Receipt:
    """Delete a version of a skill. The installed one cannot be deleted."""
    note(request, detail=f"version {version}")
    await skills.versions.remove(name, version)
    return Receipt(name=name, message=f"Version {version} of {name} deleted")


@router.post("/api/skills/{name}/update")
async def update_skill(
    name: SkillName, request: Request, skills: Skills, caller: Caller, body: UpdateInput | None = None
) -> UpdateReport:
    """Fetch a skill's source again and report what changed; with `apply`, install it."""
    return await run_while_connected(request, skills.update_skill(name, **_update_options(request, caller, body)))


@router.post("/api/skills/{name}/reload")
async def reload_skill(name: SkillName, request: Request, skills: Skills) -> SkillDetail:
    """Read a skill from disk again."""
    return _shown(request, await skills.reload_skill(name))


@router.post("/api/skills/{name}/enable")
async def enable_skill(name: SkillName, request: Request, skills: Skills) -> SkillDetail:
    """Enable a skill."""
    return _shown(request, await skills.set_enabled(name, True))


@router.post("/api/skills/{name}/disable")
async def disable_skill(name: SkillName, request: Request, skills: Skills) -> SkillDetail:
    """Disable a skill; it stays installed."""
    return _shown(request, await skills.set_enabled(name, False))


@router.post(
    "/api/skills/{name}/execute",
    response_model=None,
    responses={200: {"model": ExecutionResult | DirectSkillResult}, 202: {"model": Accepted}},
)
async def execute_skill(
    name: SkillName,
    request: Request,
    bridge: ServedBridge,
    skills: Skills,
    caller: Caller,
    call: ExecuteInput | None = None,
) -> Response:
    """Run a skill, or return a direct skill's instructions with the input filled in.

    With `wait: false` the run continues without the client: follow it under `/api/executions`. Otherwise a disconnect
    cancels it.
    """
    call = call or ExecuteInput()
    started = await skills.runner.call(
        SkillCall(
            skill=name,
            input=call.input,
            mode=call.mode,
            script=call.script,
            args=call.args,
            files=call.files,
            timeout=call.timeout,
            conversation=Conversation(caller=caller, workspace=bridge.open_workspace(call.workspace, caller)),
            approval=call.approval,
        )
    )
    if isinstance(started, DirectSkillResult):
        return json_response(started)
    headers = {"x-execution-id": started.id}
    if not call.wait:
        return json_response(Accepted(id=started.id), status_code=202, headers=headers)
    result = await run_while_connected(request, started.result())
    return result_response(result, long_output(bridge.runs, result), headers=headers)


@router.get("/api/skills/{name}/stats")
async def skill_statistics(name: SkillName, skills: Skills) -> CallStatistics:
    """Count the calls of one skill."""
    return await skills.skill_statistics(name)


@router.get("/api/skills/{name}/files/{path:path}", response_class=StreamingResponse)
async def download_file(name: SkillName, path: str, request: Request, skills: Skills) -> Response:
    """Download one of the skill's files, or a range of it. If it was found by another name, `Content-Location` is its
    own."""
    file, found = await skills.open_named_file(name, path)
    response = download_part(request, file, found.path.rsplit("/", 1)[-1])
    if found.notice:
        response.headers["content-location"] = quote(f"/api/skills/{name}/files/{found.path}", errors="surrogateescape")
    return response


@router.get("/api/skills/{name}/export", response_class=StreamingResponse)
async def export_skill(name: SkillName, skills: Skills, caller: Caller) -> StreamingResponse:
    """Download the skill as a ZIP."""
    return download(await skills.export_skill(name, caller=caller), f"{folder_of_name(name)}.zip", "application/zip")


# ------------------------------------------------------------------------ permissions, dependencies, secrets, plugins
@router.get("/api/skills/{name}/grants")
async def show_grants(name: SkillName, skills: Skills) -> list[GrantView]:
    """Show the permissions that a skill requests and those that are granted."""
    return await skills.grants_of(name)


@router.post("/api/skills/{name}/grants")
async def grant(name: SkillName, request: Request, skills: Skills, body: GrantInput) -> GrantView:
    """Grant a skill a permission that it requests. A change of its content revokes it."""
    note(request, detail=body.permission)
    return await skills.grant(name, body.permission)


@router.delete("/api/skills/{name}/grants")
async def revoke(
    name: SkillName,
    request: Request,
    skills: Skills,
    permission: Annotated[str, Query(max_length=MAX_PERMISSION_CHARACTERS)],
) -> Receipt:
    """Revoke a permission."""
    note(request, detail=permission)
    await skills.revoke(name, permission)
    return Receipt(name=name, message="Permission revoked")


@router.get("/api/skills/{name}/dependencies")
async def show_dependencies(
    name: SkillName,
    skills: Skills,
    detect: Annotated[bool, Query(description="Also read which packages and programs the skill's code uses.")] = False,
) -> DependencyView:
    """Show the packages that a skill declares and those that were added, and whether they are installed."""
    return await skills.dependencies_of(name, detect=detect)


@router.put("/api/skills/{name}/dependencies", response_model=DependencyView)
async def change_dependencies(
    name: SkillName, request: Request, skills: Skills, body: DependencyChange
) -> DependencyView | StreamingResponse:
    """Add packages to a skill, or remove added ones, on request if they can be installed. An overwrite keeps them.

    With `install` and `Accept: text/event-stream`, the answer is the installer's lines as events.
    """
    changes = [*(f"add {spec}" for spec in body.add), *(f"remove {spec}" for spec in body.remove)]
    note(request, detail=", ".join(changes)[:MAX_PERMISSION_CHARACTERS])
    change = partial(skills.change_dependencies, name, add=body.add, remove=body.remove, install=body.install)
    if body.install and asks_for_events(request):
        return line_stream(request, lambda progress: change(progress=progress), defer(request))
    return await change()


@router.post("/api/skills/{name}/dependencies", response_model=DependencyView)
async def install_dependencies(name: SkillName, request: Request, skills: Skills) -> DependencyView | StreamingResponse:
    """Install the packages that a skill declares and those that were added, and respond when they are installed.

    With `Accept: text/event-stream`, the answer is the installer's lines as events.
    """
    if asks_for_events(request):
        return line_stream(request, partial(skills.install_dependencies, name), defer(request))
    return await skills.install_dependencies(name)


@router.get("/api/secrets")
async def list_secrets(skills: Skills) -> SecretNames:
    """List the names of the secrets."""
    return SecretNames(names=await asyncio.to_thread(skills.grants.secrets.names))


@router.put("/api/secrets/{name}")
async def set_secret(name: SecretName, skills: Skills, secret: SecretInput) -> Receipt:
    """Save a secret for the skills to which it is granted."""
    await asyncio.to_thread(skills.grants.secrets.set, name, secret.value)
    return Receipt(name=name, message="Secret saved")


@router.delete("/api/secrets/{name}")
async def remove_secret(name: SecretName, skills: Skills) -> Receipt:
    """Delete a secret."""
    await asyncio.to_thread(skills.grants.secrets.remove, name)
    return Receipt(name=name, message="Secret removed")


@router.get("/api/plugins")
async def list_plugins(request: Request, skills: Skills) -> list[PluginSummary]:
    """List the installed plugins with their skills."""
    return [_shown(request, plugin) for plugin in await skills.list_plugins()]


@router.delete("/api/plugins/{name}")
async def uninstall_plugin(name: str, skills: Skills) -> RemovalReceipt:
    """Remove a plugin with all its skills. It can be restored for some days."""
    return await skills.uninstall_plugin(name)


@router.post("/api/plugins/{name}/restore")
async def restore_plugin(name: str, skills: Skills, body: RestoreInput | None = None) -> Receipt:
    """Bring a removed plugin back with all its skills, without their grants."""
    return await skills.restore_plugin(name, id=body.id if body else None)


@router.post("/api/plugins/{name}/update")
async def update_plugin(
    name: str, request: Request, skills: Skills, caller: Caller, body: UpdateInput | None = None
) -> UpdateReport:
    """Fetch a plugin's source again and report what changed; with `apply`, install it."""
    return await run_while_connected(request, skills.update_plugin(name, **_update_options(request, caller, body)))


def _update_options(request: Request, caller: str, body: UpdateInput | None) -> dict[str, Any]:
    body = body or UpdateInput()
    note(request, detail="apply" if body.apply else "report")
    return {"apply": body.apply, "revision": body.revision, "local": is_owner(request.scope), "caller": caller}


Body = TypeVar("Body", InstallInput, ValidateInput)
WithOrigin = TypeVar("WithOrigin", SkillDetail, PluginSummary, OriginItem)


def _shown(request: Request, item: WithOrigin) -> WithOrigin:
    """Hide the path of a repository on the server's disk from everyone but the owner of the data directory."""
    origin = item.origin
    if origin is None or not origin.url.startswith("file:") or is_owner(request.scope):
        return item
    return item.model_copy(update={"origin": origin.model_copy(update={"source": "file:", "url": "file:"})})


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def _json_input(request: Request, model: type[Body]) -> Body:
    """The JSON body. The path also takes uploads, so the general limit of a body is not checked."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_SOURCE_BYTES:
            raise RequestError(f"The body is larger than {MAX_SOURCE_BYTES // 1024} KB", code="PAYLOAD_TOO_LARGE")
    try:
        body = loads_untrusted(data.decode("utf-8"))
    except ValueError as error:
        raise InvalidInputError("The body is not valid JSON") from error
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
