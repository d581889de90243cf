"""Skills, the files of runs, and the files of workspaces as resources."""

import base64
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from apexbridge._tasks import in_thread
from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.skills import OWN_FILES, SKILL_FILE
from apexbridge.skills.store.catalog import Row
from apexbridge.surfaces.mcp.calls import Context, caller_in
from apexbridge.surfaces.mcp.paging import PAGE_ENTRIES, cursor_after, name_before
from apexbridge.surfaces.mcp.uris import ResourceUri, parse_uri, skill_uri
from apexbridge.tools.naming import skill_tool_id

MAX_RESOURCE_BYTES = 16 * 1024 * 1024
MARKDOWN = "text/markdown"
MAX_COMPLETIONS = 100
SKILL_TEMPLATE = "skill://{name}/{+path}"
_TYPES = {".md": MARKDOWN, ".yaml": "application/yaml", ".yml": "application/yaml", ".toml": "application/toml"}
ReadAnswer = types.ReadResourceResult | types.InputRequiredResult
Contents = types.TextResourceContents | types.BlobResourceContents


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedResource:
    """A resource, or a template of resources, that does not come from the store."""

    listed: types.Resource | None = None
    template: types.ResourceTemplate | None = None
    matches: Callable[[str], bool]
    read: Callable[[Context, types.ReadResourceRequestParams], Awaitable[ReadAnswer]]


class ResourceCatalog:
    """Lists and reads resources."""

    def __init__(self, bridge: Bridge, fixed: Sequence[FixedResource] = ()) -> None:
        self._bridge = bridge
        self._fixed = fixed

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """The SKILL.md of each skill. Other files are found by `skills/get`, directories and templates."""
        after = name_before(params)
        rows = await self._bridge.skills.store.catalog.enabled_after(after, PAGE_ENTRIES + 1)
        fixed = [] if after else [one.listed for one in self._fixed if one.listed is not None]
        shown = rows[:PAGE_ENTRIES]
        return types.ListResourcesResult(
            resources=[*fixed, *(skill_resource(row) for row in shown)],
            next_cursor=cursor_after(shown[-1].name) if len(rows) > PAGE_ENTRIES else None,
        )

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        own = [
            types.ResourceTemplate(
                name="skill", uri_template=SKILL_TEMPLATE, description="A file of a skill; SKILL.md is its text."
            ),
            types.ResourceTemplate(
                name="run", uri_template="run://{id}/{+path}", description="A file that a run made."
            ),
            types.ResourceTemplate(
                name="workspace", uri_template="workspace://{id}/{+path}", description="A file of a workspace."
            ),
        ]
        fixed = [one.template for one in self._fixed if one.template is not None]
        return types.ListResourceTemplatesResult(resource_templates=[*own, *fixed])

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> ReadAnswer:
        for one in self._fixed:
            if one.matches(params.uri):
                return await one.read(context, params)
        uri = parse_uri(params.uri)
        if uri is None:
            raise not_found(params.uri)
        try:
            file = await self._open(uri, caller_in(context), params.uri)
        except ApexBridgeError as error:
            raise not_found(params.uri, error.message) from error
        with closing(file):
            data = await in_thread(file.read, MAX_RESOURCE_BYTES + 1)
        if len(data) > MAX_RESOURCE_BYTES:
            raise MCPError(
                INVALID_PARAMS,
                f"The file is larger than {MAX_RESOURCE_BYTES // 1024 // 1024} MB; download it over HTTP.",
                {"uri": params.uri},
            )
        return types.ReadResourceResult(contents=[await in_thread(contents_of, params.uri, uri.path, data)])

    async def _open(self, uri: ResourceUri, caller: str, written: str) -> BinaryIO:
        owner = self._bridge.keys.reach(caller)
        match uri.scheme:
            case "skill":
                return await self._open_skill_file(uri, written)
            case "run":
                return await self._bridge.runs.open_file(uri.owner, uri.path, owner=owner)
            case "workspace":
                return await self._bridge.workspaces.open_file(uri.owner, uri.path, owner=owner)
        raise not_found(written)

    async def _open_skill_file(self, uri: ResourceUri, written: str) -> BinaryIO:
        if not uri.path or uri.path in OWN_FILES:
            raise not_found(written)
        await enabled_row(self._bridge, uri.owner, written)
        file, found = await self._bridge.skills.open_named_file(uri.owner, uri.path)
        if found.path != uri.path:  # found by a similar name; a URI is exact
            file.close()
            raise not_found(written)
        return file

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Complete the name of a skill in the template of its files."""
        is_name = isinstance(params.ref, types.ResourceTemplateReference) and params.argument.name == "name"
        names: list[str] = []
        if is_name and isinstance(params.ref, types.ResourceTemplateReference) and params.ref.uri == SKILL_TEMPLATE:
            names = sorted(
                name
                for name in await self._bridge.skills.store.catalog.live_names()
                if name.startswith(params.argument.value) and self._bridge.tools.is_enabled(skill_tool_id(name))
            )
        shown = names[:MAX_COMPLETIONS]
        completion = types.Completion(values=shown, total=len(names), has_more=len(names) > len(shown))
        return types.CompleteResult(completion=completion)


async def enabled_row(bridge: Bridge, name: str, uri: str) -> Row:
    """The row of an enabled skill. Raises MCPError: there is none."""
    row = await bridge.skills.store.catalog.live(name)
    if row is None or not row.enabled:
        raise not_found(uri, f"No skill named {name[:64]}")
    return row


def skill_resource(row: Row) -> types.Resource:
    return types.Resource(
        uri=skill_uri(row.name, SKILL_FILE if row.filename == SKILL_FILE else row.filename),
        name=row.name,
        description=row.description,
        mime_type=MARKDOWN,
    )


def not_found(uri: str, reason: str = "There is no such resource") -> MCPError:
    return MCPError(INVALID_PARAMS, reason, {"uri": uri[:1024]})


def contents_of(uri: str, path: str, data: bytes) -> Contents:
    """A file as it is: text if it is UTF-8, so that its bytes can be restored, else base64."""
    mime_type = type_of(path)
    try:
        return types.TextResourceContents(uri=uri, mime_type=mime_type or "text/plain", text=data.decode("utf-8"))
    except UnicodeDecodeError:
        blob = base64.b64encode(data).decode("ascii")
        return types.BlobResourceContents(uri=uri, mime_type=mime_type or "application/octet-stream", blob=blob)


def type_of(path: str) -> str | None:
    """The media type by the name of a file; None if unknown."""
    suffix = path[path.rfind(".") :].lower() if "." in path else ""
    return _TYPES.get(suffix) or mimetypes.guess_type(path, strict=False)[0]
