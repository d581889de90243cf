"""Skills and their versions as the clients of OpenAI and Anthropic expect them, and the pages of their lists."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, Field

from apexbridge._time import from_ms
from apexbridge.errors import InvalidInputError
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.names import own_name
from apexbridge.skills.store.skill_versions import VersionedSkill, skill_id, version_not_found
from apexbridge.skills.store.versions import Version

LATEST = "latest"
MICROSECONDS = 1000
"""Per millisecond."""
SortKey = tuple[int, str]
"""Time in milliseconds and a name, by which lists are sorted."""
T = TypeVar("T", Row, Version)


class SkillObject(BaseModel):
    """A skill in OpenAI's format."""

    id: str
    object: Literal["skill"] = "skill"
    created_at: int = Field(description="Seconds since 1970.")
    default_version: str
    latest_version: str
    name: str
    description: str


class SkillVersionObject(BaseModel):
    """A version of a skill in OpenAI's format."""

    id: str
    object: Literal["skill.version"] = "skill.version"
    created_at: int
    version: str
    skill_id: str
    name: str
    description: str


class SkillObjectList(BaseModel):
    object: Literal["list"] = "list"
    data: list[SkillObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class SkillVersionObjectList(BaseModel):
    object: Literal["list"] = "list"
    data: list[SkillVersionObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedSkillObject(BaseModel):
    id: str
    object: Literal["skill.deleted"] = "skill.deleted"
    deleted: bool = True


class DeletedSkillVersionObject(BaseModel):
    id: str
    object: Literal["skill.version.deleted"] = "skill.version.deleted"
    deleted: bool = True
    version: str


class AnthropicSkillSource(BaseModel):
    type: Literal["custom", "plugin"]


class AnthropicSkill(BaseModel):
    """A skill in Anthropic's format. `display_title` and `latest_version` are for older clients."""

    id: str
    type: Literal["skill"] = "skill"
    display_name: str
    latest_version_id: str
    source: AnthropicSkillSource | str = Field(description="A string for older clients.")
    created_at: datetime
    updated_at: datetime
    display_title: str | None
    latest_version: str


class AnthropicSkillVersion(BaseModel):
    """A version of a skill in Anthropic's format. `version` and `directory` are for older clients."""

    id: str
    type: Literal["skill_version"] = "skill_version"
    skill_id: str
    name: str
    description: str
    created_at: datetime
    version: str
    directory: str


class AnthropicSkillPage(BaseModel):
    data: list[AnthropicSkill]
    has_more: bool
    next_page: str | None


class AnthropicSkillVersionPage(BaseModel):
    data: list[AnthropicSkillVersion]
    has_more: bool
    next_page: str | None


class AnthropicDeletedSkill(BaseModel):
    id: str
    type: Literal["skill_deleted"] = "skill_deleted"


class AnthropicDeletedSkillVersion(BaseModel):
    id: str
    type: Literal["skill_version_deleted"] = "skill_version_deleted"


def openai_skill(skill: VersionedSkill) -> SkillObject:
    return SkillObject(
        id=skill.id,
        created_at=skill.row.installed_at // 1000,
        default_version=str(skill.default.number),
        latest_version=str(skill.latest.number),
        name=skill.name,
        description=skill.row.description,
    )


def openai_version(skill: VersionedSkill, version: Version) -> SkillVersionObject:
    return SkillVersionObject(
        id=version.id,
        created_at=version.created_at // 1000,
        version=str(version.number),
        skill_id=skill.id,
        name=version.name,
        description=version.description,
    )


def anthropic_skill(skill: VersionedSkill, *, is_old: bool) -> AnthropicSkill:
    """`is_old` is for clients of the first beta."""
    kind: Literal["custom", "plugin"] = "plugin" if skill.row.plugin else "custom"
    return AnthropicSkill(
        id=skill.id,
        display_name=skill.display_name or skill.name,
        latest_version_id=skill.latest.id,
        source="custom" if is_old else AnthropicSkillSource(type=kind),
        created_at=from_ms(skill.row.installed_at),
        updated_at=from_ms(max(skill.row.updated_at, skill.latest.created_at)),
        display_title=skill.display_name or skill.name,
        latest_version=_epoch(skill.latest),
    )


def anthropic_version(skill: VersionedSkill, version: Version) -> AnthropicSkillVersion:
    return AnthropicSkillVersion(
        id=version.id,
        skill_id=skill.id,
        name=version.name,
        description=version.description,
        created_at=from_ms(version.created_at),
        version=_epoch(version),
        directory=own_name(version.name),
    )


def anthropic_deleted_version(version: Version, *, is_old: bool) -> AnthropicDeletedSkillVersion:
    return AnthropicDeletedSkillVersion(id=_epoch(version) if is_old else version.id)


def find_version(skill: VersionedSkill, text: str) -> Version:
    """A version by its number, its id, `latest`, or the time by which clients of Anthropic's first beta name it.

    Raises:
        SkillError: VERSION_NOT_FOUND.
    """
    if text == LATEST:
        return skill.latest
    for version in skill.versions:
        if text in (str(version.number), version.id, _epoch(version)):
            return version
    raise version_not_found(skill.name, text)


def _epoch(version: Version) -> str:
    """The microsecond of its creation; different for all versions of a skill, whose milliseconds differ."""
    return str(version.created_at * MICROSECONDS + version.number % MICROSECONDS)


def sort_key(item: Row | Version) -> SortKey:
    """By the time of the first install, or of the version."""
    return (item.installed_at, item.name) if isinstance(item, Row) else (item.created_at, "")


def id_of(item: Row | Version) -> str:
    return skill_id(item.name) if isinstance(item, Row) else item.id


def items_after(
    items: Sequence[T], after: str | None, *, order: Literal["asc", "desc"], limit: int
) -> tuple[list[T], bool]:
    """A page in OpenAI's way, after the item with this id, and whether more follow. Raises InvalidInputError."""
    ordered = sorted(items, key=sort_key, reverse=order == "desc")
    start = 0
    if after is not None:
        found = (index + 1 for index, item in enumerate(ordered) if id_of(item) == after)
        start = next(found, -1)
        if start < 0:
            raise InvalidInputError(f"after: there is no item with the id {after[:80]}; it may have been deleted")
    return ordered[start : start + limit], len(ordered) > start + limit


def items_of_page(items: Sequence[T], page: str | None, *, limit: int) -> tuple[list[T], str | None]:
    """A page in Anthropic's way, the newest first, and the token of the next one. Raises InvalidInputError.

    The token has the position of the last item, so that pages neither repeat nor skip items if some are deleted.
    """
    ordered = sorted(items, key=sort_key, reverse=True)
    if page:
        last = _position(page)
        ordered = [item for item in ordered if sort_key(item) < last]
    shown = ordered[:limit]
    return shown, _token(sort_key(shown[-1])) if len(ordered) > limit else None


def _token(position: SortKey) -> str:
    return "page_" + base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def _position(token: str) -> SortKey:
    text = token.removeprefix("page_")
    try:
        time, name = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if isinstance(time, int) and isinstance(name, str):
            return time, name
    except (binascii.Error, ValueError, TypeError, RecursionError):
        pass
    raise InvalidInputError("page: not a token of this server; use `next_page` of the previous page")
