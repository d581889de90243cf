"""`/v1/skills`: the skills APIs of OpenAI and Anthropic over the installed skills, by the request's headers."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from apexbridge.errors import InvalidInputError, SkillAlreadyExistsError
from apexbridge.skills.store.names import own_name
from apexbridge.skills.store.skill_versions import VersionedSkill, skill_id
from apexbridge.skills.store.versions import Version
from apexbridge.surfaces.http.deps import Caller, Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.routes.skill_objects import (
    AnthropicDeletedSkill,
    AnthropicDeletedSkillVersion,
    AnthropicSkill,
    AnthropicSkillPage,
    AnthropicSkillVersion,
    AnthropicSkillVersionPage,
    DeletedSkillObject,
    DeletedSkillVersionObject,
    SkillObject,
    SkillObjectList,
    SkillVersionObject,
    SkillVersionObjectList,
    anthropic_deleted_version,
    anthropic_skill,
    anthropic_version,
    find_version,
    items_after,
    items_of_page,
    openai_skill,
    openai_version,
)
from apexbridge.surfaces.http.transport.api_dialects import anthropic_betas, is_anthropic
from apexbridge.surfaces.http.transport.responses import download
from apexbridge.surfaces.http.transport.uploads import receive_skill_files

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
MAX_ANTHROPIC_LIMIT = 1000
MAX_DISPLAY_NAME = 255
MAX_ID = 200
_FIRST_BETA = "skills-2025-10-02"
_FIRST_VERSION_OF_GA_CLIENTS = "2026"
_TRUE, _FALSE = ("true", "1"), ("false", "0", "")

router = APIRouter(tags=["skills APIs"])
_FILES: dict[str, Any] = {"type": "array", "items": {"type": "string", "format": "binary"}}


def _form(**fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "required": ["files[]"], "properties": {"files[]": _FILES, **fields}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _answers(*models: Any) -> dict[str, Any]:
    first, second = models
    return {"response_model": None, "responses": {200: {"model": first | second}}}


SkillId = Annotated[str, Path(alias="id", max_length=MAX_ID, description="The skill's id, or its name.")]
VersionText = Annotated[
    str, Path(alias="version", max_length=MAX_ID, description="A version's number or id, or `latest`.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_ANTHROPIC_LIMIT, description="Items of a page; of OpenAI at most 100.")]
After = Annotated[str | None, Query(max_length=MAX_ID, description="OpenAI: only items after the one with this id.")]
Order = Annotated[Literal["asc", "desc"], Query(description="OpenAI: by the time of creation.")]
Page = Annotated[str | None, Query(max_length=1000, description="Anthropic: `next_page` of the previous page.")]


class SkillUpdate(BaseModel):
    default_version: str | int = Field(description="The number of the version to install, or `latest`.")


@router.post(
    "/v1/skills",
    openapi_extra=_form(display_name={"type": "string", "maxLength": MAX_DISPLAY_NAME}),
    **_answers(SkillObject, AnthropicSkill),
)
async def create_api_skill(request: Request, skills: Skills, caller: Caller) -> Response:
    """Install a skill from its files or a ZIP."""
    async with receive_skill_files(request, skills.staging) as upload:
        display_name = _display_name(upload.fields) if is_anthropic(request.scope) else None
        try:
            name = await skills.create_skill(upload.file, display_name=display_name, caller=caller)
        except SkillAlreadyExistsError as error:
            raise _taken(error) from error
    note(request, target=name)
    return _skill(request, await skills.versions.of(name))


@router.get("/v1/skills", **_answers(SkillObjectList, AnthropicSkillPage))
async def list_api_skills(
    request: Request,
    skills: Skills,
    limit: Limit = DEFAULT_LIMIT,
    after: After = None,
    order: Order = "desc",
    page: Page = None,
    source: Annotated[str | None, Query(max_length=MAX_ID, description="Anthropic: `custom` or `anthropic`.")] = None,
) -> Response:
    """List the skills."""
    rows = await skills.versions.served()
    if is_anthropic(request.scope):
        shown, token = items_of_page(rows if source in (None, "", "custom") else [], page, limit=limit)
        found = await skills.versions.of_rows(shown)
        is_old = _is_old(request)
        data = [anthropic_skill(skill, is_old=is_old) for skill in found]
        return _json(AnthropicSkillPage(data=data, has_more=token is not None, next_page=token))
    shown, has_more = items_after(rows, after, order=order, limit=_openai_limit(limit))
    objects = [openai_skill(skill) for skill in await skills.versions.of_rows(shown)]
    first, last = (objects[0].id, objects[-1].id) if objects else (None, None)
    return _json(SkillObjectList(data=objects, first_id=first, last_id=last, has_more=has_more))


@router.get("/v1/skills/{id}", **_answers(SkillObject, AnthropicSkill))
async def show_api_skill(id: SkillId, request: Request, skills: Skills) -> Response:
    """Show one skill."""
    return _skill(request, await _found(skills, id))


@router.post("/v1/skills/{id}", **_answers(SkillObject, AnthropicSkill))
async def update_api_skill(id: SkillId, request: Request, skills: Skills, body: SkillUpdate) -> Response:
    """Choose the default version: it is installed, and chat, search and runs use it."""
    skill = await _found(skills, id)
    note(request, target=skill.name, detail=f"version {body.default_version}"[:MAX_ID])
    version = find_version(skill, str(body.default_version))
    await skills.versions.rollback(skill.name, version.number)
    return _skill(request, await skills.versions.of(skill.name))


@router.delete("/v1/skills/{id}", **_answers(DeletedSkillObject, AnthropicDeletedSkill))
async def delete_api_skill(id: SkillId, request: Request, skills: Skills) -> Response:
    """Remove a skill with its versions. It can be restored for some days."""
    skill = await _found(skills, id)
    note(request, target=skill.name)
    await skills.uninstall_skill(skill.name)
    if is_anthropic(request.scope):
        return _json(AnthropicDeletedSkill(id=skill.id))
    return _json(DeletedSkillObject(id=skill.id))


@router.get("/v1/skills/{id}/content", response_class=StreamingResponse)
async def api_skill_content(id: SkillId, skills: Skills, caller: Caller) -> StreamingResponse:
    """Download the default version as a ZIP."""
    skill = await _found(skills, id)
    return await _content(skills, skill, skill.default, caller)


@router.post(
    "/v1/skills/{id}/versions",
    openapi_extra=_form(default={"type": "boolean", "default": False}),
    **_answers(SkillVersionObject, AnthropicSkillVersion),
)
async def create_api_version(id: SkillId, request: Request, skills: Skills, caller: Caller) -> Response:
    """Store a new version. It is installed with `default`, and always if the client is one of Anthropic's."""
    name = await skills.versions.named(id)
    note(request, target=name)
    async with receive_skill_files(request, skills.staging) as upload:
        default = is_anthropic(request.scope) or _flag(upload.fields, "default")
        version = await skills.add_version(name, upload.file, default=default, caller=caller)
    note(request, detail=f"version {version.number}")
    return _version(request, await skills.versions.of(name), version)


@router.get("/v1/skills/{id}/versions", **_answers(SkillVersionObjectList, AnthropicSkillVersionPage))
async def list_api_versions(
    id: SkillId,
    request: Request,
    skills: Skills,
    limit: Limit = DEFAULT_LIMIT,
    after: After = None,
    order: Order = "desc",
    page: Page = None,
) -> Response:
    """List the versions of a skill."""
    skill = await _found(skills, id)
    if is_anthropic(request.scope):
        shown, token = items_of_page(skill.versions, page, limit=limit)
        data = [anthropic_version(skill, version) for version in shown]
        return _json(AnthropicSkillVersionPage(data=data, has_more=token is not None, next_page=token))
    shown, has_more = items_after(skill.versions, after, order=order, limit=_openai_limit(limit))
    objects = [openai_version(skill, version) for version in shown]
    first, last = (objects[0].id, objects[-1].id) if objects else (None, None)
    return _json(SkillVersionObjectList(data=objects, first_id=first, last_id=last, has_more=has_more))


@router.get("/v1/skills/{id}/versions/{version}", **_answers(SkillVersionObject, AnthropicSkillVersion))
async def show_api_version(id: SkillId, version: VersionText, request: Request, skills: Skills) -> Response:
    """Show one version."""
    skill = await _found(skills, id)
    return _version(request, skill, find_version(skill, version))


@router.delete(
    "/v1/skills/{id}/versions/{version}", **_answers(DeletedSkillVersionObject, AnthropicDeletedSkillVersion)
)
async def delete_api_version(id: SkillId, version: VersionText, request: Request, skills: Skills) -> Response:
    """Delete a version. The default version cannot be deleted."""
    skill = await _found(skills, id)
    found = find_version(skill, version)
    note(request, target=skill.name, detail=f"version {found.number}")
    await skills.versions.remove(skill.name, found.number)
    if is_anthropic(request.scope):
        return _json(anthropic_deleted_version(found, is_old=_is_old(request)))
    return _json(DeletedSkillVersionObject(id=found.id, version=str(found.number)))


@router.get("/v1/skills/{id}/versions/{version}/content", response_class=StreamingResponse)
async def api_version_content(id: SkillId, version: VersionText, skills: Skills, caller: Caller) -> StreamingResponse:
    """Download a version as a ZIP."""
    skill = await _found(skills, id)
    return await _content(skills, skill, find_version(skill, version), caller)


def _taken(error: SkillAlreadyExistsError) -> SkillAlreadyExistsError:
    """The same error with the advice for these APIs, which do not overwrite."""
    name = error.details["skillName"]
    remedy = f"Store a version of it instead: POST /v1/skills/{skill_id(name)}/versions"
    return SkillAlreadyExistsError(name, remedy=remedy)


async def _found(skills: Skills, id: str) -> VersionedSkill:
    return await skills.versions.of(await skills.versions.named(id))


async def _content(skills: Skills, skill: VersionedSkill, version: Version, caller: str) -> StreamingResponse:
    file = await skills.versions.open(skill.name, version.number, caller=caller)
    return download(file, f"{own_name(skill.name)}.zip", "application/zip")


def _skill(request: Request, skill: VersionedSkill) -> Response:
    if is_anthropic(request.scope):
        return _json(anthropic_skill(skill, is_old=_is_old(request)))
    return _json(openai_skill(skill))


def _version(request: Request, skill: VersionedSkill, version: Version) -> Response:
    if is_anthropic(request.scope):
        return _json(anthropic_version(skill, version))
    return _json(openai_version(skill, version))


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json().encode("utf-8", "replace"), media_type="application/json")


def _is_old(request: Request) -> bool:
    """Whether the client is one of Anthropic's first beta. Newer clients may send its header too."""
    version = request.headers.get("anthropic-version", "")
    return _FIRST_BETA in anthropic_betas(request.scope) and version < _FIRST_VERSION_OF_GA_CLIENTS


def _openai_limit(limit: int) -> int:
    if limit > MAX_LIMIT:
        raise InvalidInputError(f"limit: at most {MAX_LIMIT}")
    return limit


def _flag(fields: dict[str, str], name: str) -> bool:
    value = fields.get(name, "").lower()
    if value not in _TRUE + _FALSE:
        raise InvalidInputError(f"{name} must be true or false")
    return value in _TRUE


def _display_name(fields: dict[str, str]) -> str | None:
    name = (fields.get("display_name") or fields.get("display_title") or "").strip()
    if len(name) > MAX_DISPLAY_NAME or not name.isprintable():
        raise InvalidInputError(f"display_name must be one line of at most {MAX_DISPLAY_NAME} characters")
    return name or None
