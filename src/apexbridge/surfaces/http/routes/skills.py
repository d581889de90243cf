"""Skills over HTTP."""

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
    Problem,
    Receipt,
    ScanReport,
    SkillDetail,
    SkillPage,
    SkillStatistics,
    ValidationReport,
)
from apexbridge.skills.runs.service import SkillCall
from apexbridge.surfaces.http.deps import Caller, ServedBridge, Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.routes.executions import Accepted
from apexbridge.surfaces.http.transport.disconnect import unless_left
from apexbridge.surfaces.http.transport.downloads import download
from apexbridge.surfaces.http.transport.json_response import json_response, long_output, result_response
from apexbridge.surfaces.http.transport.uploads import receive_upload
from apexbridge.tools.conversation import Conversation
from apexbridge.wire import WireInput

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
MAX_FILE_NAME_CHARACTERS = 4_096
_ARCHIVE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "The ZIP or .skill archive."},
                        "overwrite": {"type": "boolean", "default": False},
                        "profile": {"type": "string", "enum": ["seed", "lenient", "strict"]},
                    },
                }
            },
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        {"name": "overwrite", "in": "query", "schema": {"type": "boolean"}, "description": "With application/zip."},
        {
            "name": "profile",
            "in": "query",
            "schema": {"type": "string", "enum": ["seed", "lenient", "strict"]},
            "description": "With application/zip.",
        },
        {"name": "filename", "in": "query", "schema": {"type": "string"}, "description": "With application/zip."},
    ],
}

router = APIRouter(prefix="/api/skills", tags=["skills"])
Name = Annotated[str, Path(description="The skill's name.")]


class ExecuteInput(WireInput):
    """A call of a skill."""

    input: dict[str, Any] = Field(default_factory=dict)
    args: list[str] = Field(default_factory=list, max_length=MAX_ARGUMENTS)
    script: str | None = None
    files: list[Annotated[str, Field(max_length=MAX_FILE_NAME_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_INPUT_FILES
    )
    mode: Mode | None = None
    timeout: int | None = Field(default=None, gt=0, description="Milliseconds.")
    approval: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The id of a confirmation, for dangerous skills."
    )
    wait: bool = Field(default=True, description="Whether to answer when the run has ended.")

    @field_validator("input")
    @classmethod
    def _is_text(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("holds half a character (a lone surrogate)") from error
        return value


@router.get("")
async def list_skills(
    skills: Skills,
    name: Annotated[str | None, Query(description="A part of the name, any case.")] = None,
    tags: Annotated[str | None, Query(description="Comma-separated; any of them.", max_length=2000)] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
) -> SkillPage:
    """Installed skills, sorted by name."""
    wanted = [tag for part in (tags or "").split(",") if (tag := part.strip())]
    return await skills.list_skills(name=name, tags=wanted, page=page, limit=limit)


@router.post("/install", status_code=201, openapi_extra=_ARCHIVE_BODY)
@router.post("", status_code=201, openapi_extra=_ARCHIVE_BODY)
async def install_skill(request: Request, response: Response, skills: Skills) -> InstallReceipt:
    """Install a skill or a plugin from an archive; 200 where one was replaced."""
    async with receive_upload(request, skills.staging) as upload:
        receipt = await skills.install_skill(
            upload.file, overwrite=upload.overwrite, profile=upload.profile, filename=upload.filename
        )
    note(request, target=receipt.name)
    response.status_code = 200 if receipt.replaced else 201
    return receipt


@router.post("/validate", openapi_extra=_ARCHIVE_BODY)
async def validate_skill(request: Request, skills: Skills) -> ValidationReport:
    """Say whether an archive could be installed; nothing is written."""
    async with receive_upload(request, skills.staging) as upload:
        return await skills.validate_skill(upload.file, profile=upload.profile, filename=upload.filename)


@router.get("/stats")
async def statistics(skills: Skills) -> SkillStatistics:
    """The library in numbers."""
    return await skills.statistics()


@router.get("/growth")
async def growth(skills: Skills, by: Literal["day", "week"] = "day") -> list[GrowthPoint]:
    """First installs by day, or by week under its Monday's date (UTC)."""
    return await skills.growth(by)


@router.get("/problems")
async def problems(skills: Skills) -> list[Problem]:
    """Folders that are not served, and why."""
    return await skills.problems()


@router.post("/reindex")
async def reindex(skills: Skills) -> ScanReport:
    """Look at every root again, settle what differs and index what is not indexed."""
    return await skills.reconcile()


@router.get("/{name}")
async def show_skill(name: Name, skills: Skills) -> SkillDetail:
    """Everything about one skill."""
    return await skills.get_skill(name)


@router.delete("/{name}")
async def uninstall_skill(name: Name, skills: Skills) -> Receipt:
    """Remove a skill with everything but its history."""
    return await skills.uninstall_skill(name)


@router.post("/{name}/reload")
async def reload_skill(name: Name, skills: Skills) -> SkillDetail:
    """Read a skill from disk again."""
    return await skills.reload_skill(name)


@router.post("/{name}/enable")
async def enable_skill(name: Name, skills: Skills) -> SkillDetail:
    """Switch a skill on."""
    return await skills.set_enabled(name, True)


@router.post("/{name}/disable")
async def disable_skill(name: Name, skills: Skills) -> SkillDetail:
    """Switch a skill off; it stays installed."""
    return await skills.set_enabled(name, False)


@router.post(
    "/{name}/execute",
    response_model=None,
    responses={200: {"model": ExecutionResult | DirectSkillResult}, 202: {"model": Accepted}},
)
async def execute_skill(
    name: Name,
    request: Request,
    bridge: ServedBridge,
    skills: Skills,
    caller: Caller,
    call: ExecuteInput | None = None,
) -> Response:
    """Run a skill, or return a direct skill's instructions with the input filled in.

    With `wait: false` a run goes on by itself: follow it under `/api/executions`. Otherwise it ends with the
    connection that asked for it.
    """
    call = call or ExecuteInput()
    started = await skills.runs.call(
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
    result = await unless_left(request, started.result())
    return result_response(result, long_output(bridge.runs, result), headers=headers)


@router.get("/{name}/stats")
async def skill_statistics(name: Name, skills: Skills) -> CallStatistics:
    """How often one skill was called and how it went."""
    return await skills.skill_statistics(name)


@router.get("/{name}/files/{path:path}", response_class=StreamingResponse)
async def download_file(name: Name, path: str, skills: Skills) -> StreamingResponse:
    """One of the skill's files, as a download."""
    file = await skills.open_skill_file(name, path)
    return download(file, path.rsplit("/", 1)[-1], "application/octet-stream")


@router.get("/{name}/export", response_class=StreamingResponse)
async def export_skill(name: Name, skills: Skills, caller: Caller) -> StreamingResponse:
    """The skill as a ZIP."""
    return download(await skills.export_skill(name, caller=caller), f"{name}.zip", "application/zip")
