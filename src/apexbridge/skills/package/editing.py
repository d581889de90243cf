"""Edits a skill's description, the only field that can be edited."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apexbridge.errors import FieldNotEditableError, InvalidInputError, SkillParseError
from apexbridge.skills.models import MAX_DESCRIPTION_CHARACTERS
from apexbridge.skills.package.frontmatter import replace_description
from apexbridge.skills.package.yaml_block import FrontmatterError


def checked_description(given: str | Mapping[str, Any], *, skill: str) -> str:
    """Validate a new description: a string, or a mapping with no other field.

    Raises:
        FieldNotEditableError: the mapping has another field.
        InvalidInputError: the description is not a string, is empty or too long, or has a lone surrogate.
    """
    description: object = given
    if isinstance(given, Mapping):
        if others := [str(key) for key in given if key != "description"]:
            raise FieldNotEditableError(others, skill=skill)
        description = given.get("description")
    if not isinstance(description, str) or not description.strip():
        raise InvalidInputError("description must be text and not empty")
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        raise InvalidInputError(
            f"description has {len(description)} characters; at most {MAX_DESCRIPTION_CHARACTERS} are allowed"
        )
    try:
        description.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError("description holds half a character (a lone surrogate)") from error
    return description.strip()


def with_description(path: Path, description: str, *, skill: str) -> bytes:
    """The file's content with a new description. Bytes that are not UTF-8 are preserved.

    Raises:
        SkillParseError: the description cannot be replaced without changing something else.
    """
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        return replace_description(text, description, name=skill).encode("utf-8", "surrogateescape")
    except FrontmatterError as error:
        raise SkillParseError(
            f"{path.name} line {error.line}: {error.message}", skill=skill, line=error.line
        ) from error
