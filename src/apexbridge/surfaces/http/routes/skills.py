"""Skills over HTTP, with their permissions, dependencies, secrets and plugins."""

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, field_validator

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.run_input import MAX_ARGUMENTS, MAX_INPUT_FILES
from apexbridge.skills.models import (
    CallStatistics,
    DirectSkillResult,
    GrowthPoint,
    InstallReceipt,
    Mode,
    PluginSummary,
    Problem,
    Receipt,
    ScanReport,
    SkillDetail,
    SkillPage,
    SkillStatistics,
    ValidationReport,
)
from apexbridge.skills.runs.grants import GrantView
from apexbridge.skills.runs.skill_layers import DependencyView
from apexbridge.skills.runs.skill_runs import SkillCall
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
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.routes.executions import Accepted
from apexbridge.surfaces.http.transport.disconnect import run_while_connected
from apexbridge.surfaces.http.transport.responses import download, json_response, long_output, result_response
from apexbridge.surfaces.http.transport.uploads import receive_upload
from apexbridge.tools.conversation import Conversation
from apexbridge.wire import WireInput, WireModel

MAX_PERMISSION_CHARACTERS = 4096
MAX_FILE_NAME_CHARACTERS = 4_096
_BINARY = {"type": "string", "format": "binary"}
_OPTIONS: dict[str, Any] = {
    "overwrite": {"type": "boolean", "default": False},
    "profile": {"type": "string", "enum": ["seed", "lenient", "strict"]},
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

router = APIRouter(tags=["skills"])
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

    @field_validator("input")
    @classmethod
    def _is_text(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("contains a lone surrogate") from error
        return value


class GrantInput(WireInput):
    permission: str = Field(
        max_length=MAX_PERMISSION_CHARACTERS, description="net:HOST:PORT, env:NAME, secret:NAME or fs:ro:PATH."
    )


class SecretInput(WireInput):
    """The value of a secret. It is never returned."""

    value: str


class SecretNames(WireModel):
    names: list[str]


@router.get("/api/skills")
async def list_skills(
    skills: Skills,
    name: Annotated[str | None, Query(description="A substring of the name, in any case.")] = None,
    tags: Annotated[str | None, Query(description="Comma-separated; any of them matches.", max_length=2000)] = None,
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> SkillPage:
    """List the installed skills by name."""
    any_of = [tag.strip() for tag in (tags or "").split(",") if tag.strip()]
    return await skills.list_skills(name=name, tags=any_of, page=page, limit=limit)


@router.post("/api/skills/install", status_code=201, openapi_extra=_ARCHIVE_BODY)
@router.post("/api/skills", status_code=201, openapi_extra=_ARCHIVE_BODY)
async def install_skill(request: Request, response: Response, skills: Skills) -> InstallReceipt:
    """Install a skill or a plugin from an archive. The status is 200 if one was replaced."""
    async with receive_upload(request, skills.staging) as upload:
        receipt = await skills.install_skill(
            upload.file, overwrite=upload.overwrite, profile=upload.profile, filename=upload.filename
        )
    note(request, target=receipt.name)
    response.status_code = 200 if receipt.replaced else 201
    return receipt


@router.post("/api/skills/validate", openapi_extra=_ARCHIVE_BODY)
async def validate_skill(request: Request, skills: Skills) -> ValidationReport:
    """Check whether an archive can be installed; nothing is written."""
    async with receive_upload(request, skills.staging) as upload:
        return await skills.validate_skill(upload.file, profile=upload.profile, filename=upload.filename)


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


@router.post("/api/skills/reindex")
async def reindex(skills: Skills) -> ScanReport:
    """Scan all roots again and index what changed."""
    return await skills.reconcile()


@router.get("/api/skills/{name}")
async def show_skill(name: SkillName, skills: Skills) -> SkillDetail:
    """Show one skill."""
    return await skills.get_skill(name)


@router.delete("/api/skills/{name}")
async def uninstall_skill(name: SkillName, skills: Skills) -> Receipt:
    """Remove a skill with everything except its history."""
    return await skills.uninstall_skill(name)


@router.post("/api/skills/{name}/reload")
async def reload_skill(name: SkillName, skills: Skills) -> SkillDetail:
    """Read a skill from disk again."""
    return await skills.reload_skill(name)


@router.post("/api/skills/{name}/enable")
async def enable_skill(name: SkillName, skills: Skills) -> SkillDetail:
    """Enable a skill."""
    return await skills.set_enabled(name, True)


@router.post("/api/skills/{name}/disable")
async def disable_skill(name: SkillName, skills: Skills) -> SkillDetail:
    """Disable a skill; it stays installed."""
    return await skills.set_enabled(name, False)


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
            conversation=Conversation(caller=caller),
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
async def download_file(name: SkillName, path: str, skills: Skills) -> StreamingResponse:
    """Download one of the skill's files."""
    file = await skills.open_skill_file(name, path)
    return download(file, path.rsplit("/", 1)[-1], "application/octet-stream")


@router.get("/api/skills/{name}/export", response_class=StreamingResponse)
async def export_skill(name: SkillName, skills: Skills, caller: Caller) -> StreamingResponse:
    """Download the skill as a ZIP."""
    return download(await skills.export_skill(name, caller=caller), f"{name}.zip", "application/zip")


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
async def show_dependencies(name: SkillName, skills: Skills) -> DependencyView:
    """Show a skill's declared dependencies, and whether they are installed."""
    return await skills.dependencies_of(name)


@router.post("/api/skills/{name}/dependencies")
async def install_dependencies(name: SkillName, skills: Skills) -> DependencyView:
    """Install a skill's declared dependencies, and respond when they are installed."""
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
async def list_plugins(skills: Skills) -> list[PluginSummary]:
    """List the installed plugins with their skills."""
    return await skills.list_plugins()


@router.delete("/api/plugins/{name}")
async def uninstall_plugin(name: str, skills: Skills) -> Receipt:
    """Remove a plugin with all its skills."""
    return await skills.uninstall_plugin(name)
