"""The extension `io.modelcontextprotocol/skills`: skills with their frontmatter, and each file with size and digest."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types

from apexbridge._tasks import in_thread
from apexbridge.bridge import Bridge
from apexbridge.errors import SkillError
from apexbridge.skills import MAX_DESCRIPTION_CHARACTERS, SKILL_FILE
from apexbridge.skills.package.fingerprint import FolderTooLargeError, hash_file, scan_folder
from apexbridge.skills.package.frontmatter import parse
from apexbridge.skills.package.skill import name_problem
from apexbridge.skills.package.yaml_block import FrontmatterError
from apexbridge.skills.store.catalog import Row
from apexbridge.surfaces.mcp.calls import Context
from apexbridge.surfaces.mcp.paging import cursor_after, name_before
from apexbridge.surfaces.mcp.resources import enabled_row, not_found, type_of
from apexbridge.surfaces.mcp.uris import parse_uri, skill_uri

EXTENSION = "io.modelcontextprotocol/skills"
MAX_FILES, MAX_BYTES = 512, 16 * 1024 * 1024
"""Limits of the extension for one skill. Larger skills are not listed; tools and resources serve them."""
PAGE_SKILLS = 50
TTL_MS = 5_000
DIRECTORY = "inode/directory"
REMEMBERED_SKILLS = 2_000


class SkillParams(types.RequestParams):
    uri: str


class DirectoryParams(types.PaginatedRequestParams):
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What the extension says about a skill, for one state of its folder."""

    signature: str
    skill: dict[str, Any] | None
    """None if the skill does not fit the rules of the extension."""


class SkillsExtension:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    async def list(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        """The skills that fit the rules of the extension, by name."""
        rows = await self._bridge.skills.store.catalog.enabled_after(name_before(params), PAGE_SKILLS + 1)
        shown = rows[:PAGE_SKILLS]
        found = [await self._entry(row) for row in shown]
        answer: dict[str, Any] = {"skills": [skill for skill in found if skill is not None]}
        if len(rows) > PAGE_SKILLS:
            answer["nextCursor"] = cursor_after(shown[-1].name)
        return _complete(answer)

    async def get(self, context: Context, params: SkillParams) -> dict[str, Any]:
        uri = parse_uri(params.uri)
        if uri is None or uri.scheme != "skill" or uri.path != SKILL_FILE:
            raise not_found(params.uri, "A skill's URI is skill://NAME/SKILL.md")
        skill = await self._entry(await enabled_row(self._bridge, uri.owner, params.uri))
        if skill is None:
            raise not_found(params.uri, "This skill does not fit the rules of the extension; its files can be read")
        return _complete({"skill": skill})

    async def read_directory(self, context: Context, params: DirectoryParams) -> dict[str, Any]:
        """The files and folders directly in a folder of a skill."""
        uri = parse_uri(params.uri.removesuffix("/"))
        if uri is None or uri.scheme != "skill":
            raise not_found(params.uri)
        row = await enabled_row(self._bridge, uri.owner, params.uri)
        try:
            async with self._bridge.skills.store.reading(row.name) as current:
                scan = await in_thread(scan_folder, self._bridge.skills.store.folder(current))
        except (SkillError, OSError, FolderTooLargeError) as error:
            raise not_found(params.uri) from error
        prefix = f"{uri.path}/" if uri.path else ""
        children: dict[str, types.Resource] = {}
        for file in scan.files:
            if not file.path.startswith(prefix):
                continue
            name, separator, _ = file.path[len(prefix) :].partition("/")
            children[name] = types.Resource(
                uri=skill_uri(row.name, prefix + name),
                name=name,
                mime_type=DIRECTORY if separator else type_of(name),
                size=None if separator else file.size,
            )
        if not children:
            raise not_found(params.uri, "This is not a directory")
        after = name_before(params)
        names = [name for name in sorted(children) if name > after]
        shown = names[:MAX_FILES]
        answer: dict[str, Any] = {
            "resources": [children[name].model_dump(by_alias=True, mode="json", exclude_none=True) for name in shown]
        }
        if len(names) > MAX_FILES:
            answer["nextCursor"] = cursor_after(shown[-1])
        return _complete(answer)

    async def _entry(self, row: Row) -> dict[str, Any] | None:
        """What the extension says about a skill; computed again if its folder has changed."""
        try:
            async with self._bridge.skills.store.reading(row.name) as current:
                folder = self._bridge.skills.store.folder(current)
                known = self._entries.get(row.name)
                entry = await in_thread(_read_entry, current, folder, known)
        except (SkillError, OSError, FolderTooLargeError):  # removed, or replaced by something else meanwhile
            return None
        self._entries[row.name] = entry
        self._entries.move_to_end(row.name)
        if len(self._entries) > REMEMBERED_SKILLS:
            self._entries.popitem(last=False)
        return entry.skill


def _complete(answer: dict[str, Any]) -> dict[str, Any]:
    return {"resultType": "complete", **answer, "ttlMs": TTL_MS, "cacheScope": "private"}


def _read_entry(row: Row, folder: Path, known: _Entry | None) -> _Entry:
    scan = scan_folder(folder)
    signature = hashlib.sha256(f"{row.root}\0{row.folder}\0{scan.signature}".encode("utf-8", "replace")).hexdigest()
    if known is not None and known.signature == signature:
        return known
    files = scan.files
    is_small = len(files) <= MAX_FILES and sum(file.size for file in files) <= MAX_BYTES
    frontmatter = _frontmatter(folder / row.filename) if is_small and row.filename == SKILL_FILE else None
    if frontmatter is None or not _follows_the_format(frontmatter, row.name):
        return _Entry(signature=signature, skill=None)
    skill = {
        "uri": skill_uri(row.name, SKILL_FILE),
        "frontmatter": frontmatter,
        "resources": [
            {
                "uri": skill_uri(row.name, file.path),
                "digest": f"sha256:{hash_file(folder / file.path)}",
                "size": file.size,
            }
            for file in files
        ],
    }
    return _Entry(signature=signature, skill=skill)


def _follows_the_format(frontmatter: dict[str, Any], name: str) -> bool:
    """Whether clients that verify skills accept these fields, which they get as they are written."""
    description = frontmatter.get("description")
    return (
        frontmatter.get("name") == name
        and name_problem(name, strict=True) is None
        and isinstance(description, str)
        and bool(description.strip())
        and len(description) <= MAX_DESCRIPTION_CHARACTERS
    )


def _frontmatter(path: Path) -> dict[str, Any] | None:
    """Every field of the frontmatter as it is written; None if it is not valid YAML."""
    try:
        fields = parse(path.read_bytes().decode("utf-8")).fields
    except (FrontmatterError, UnicodeDecodeError):
        return None
    return {key: field.value for key, field in fields.items()}
