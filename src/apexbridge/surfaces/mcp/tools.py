"""The tools that MCP clients see: few, and independent of the installed skills."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.storage.key_store import KeyScope
from apexbridge.surfaces.mcp.approvals import McpApprovals
from apexbridge.surfaces.mcp.calls import CALLS, CallAnswer, Context, McpCall, McpTool, caller_in, has_links, is_modern
from apexbridge.surfaces.mcp.progress import reporting
from apexbridge.surfaces.mcp.uris import run_uri, workspace_uri
from apexbridge.tools.builtin.skill_tools import FILES_HEADING
from apexbridge.tools.conversation import Conversation, Origin
from apexbridge.tools.executor import bounded
from apexbridge.tools.tool import ToolResult

MAX_LINKS = 50
"""Files of a run that are linked in its result."""
LIST_LIMIT, MAX_LIST_LIMIT = 50, 200
_CONVERSATION = "mcp"
"""Calls by a model: `vector-search` hides skills that a model must not find on its own."""
_WORKSPACE = {
    "type": "string",
    "description": "A name of your choice. Calls with the same workspace share files; without it, each run is alone.",
}
_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


_FILE = _object(["path"], path=_TEXT, size=_NUMBER, type=_TEXT, modified=_TEXT)
_HIT = _object(
    ["name", "description"],
    kind={"type": "string", "enum": ["skill", "tool"]},
    name=_TEXT,
    description=_TEXT,
    score={"type": "number"},
    tags=_TEXTS,
    mode=_TEXT,
    dangerous=_FLAG,
)
_RUN = _object(
    ["success"],
    id=_TEXT,
    success=_FLAG,
    status=_TEXT,
    stdout=_TEXT,
    stderr=_TEXT,
    duration=_NUMBER,
    error=_TEXT,
    errorCode=_TEXT,
    truncated=_FLAG,
    files={"type": "array", "items": _FILE},
    workspace=_TEXT,
    warnings=_TEXTS,
    content={"type": "string", "description": "The instructions of a skill without a script, or a tool's text."},
    structuredContent={"description": "The data of a tool that search_skills found, as its server sent it."},
)
_LINES = _object(["content"], path=_TEXT, name=_TEXT, content=_TEXT, truncated=_FLAG)
_RUN_FIELDS = frozenset(_RUN["properties"]) | {"exitCode", "missing"}
"""Fields of a run's result that a client gets. `output` repeats stdout; `GET /api/executions/ID` has all."""


class ToolCatalog:
    """The tools by name, and their calls."""

    def __init__(self, bridge: Bridge, tools: Sequence[McpTool]) -> None:
        self._bridge = bridge
        self._tools = {tool.definition.name: tool for tool in tools}

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.definition.input_schema

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """The tools that the caller's key may call. They fit on one page."""
        caller = caller_in(context)
        shown = [tool.definition for tool in self._tools.values() if self._is_shown(tool, caller)]
        return types.ListToolsResult(tools=shown)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> CallAnswer:
        caller = caller_in(context)
        tool = self._tools.get(params.name)
        if tool is None or not self._is_shown(tool, caller):
            missing = tool is not None and not self._bridge.keys.allows(caller, tool.scope)
            reason = f"needs the scope {tool.scope}" if tool is not None and missing else "is not a tool of this server"
            raise MCPError(INVALID_PARAMS, f"{params.name[:128]} {reason}")
        call = McpCall(context=context, params=params, caller=caller)
        try:
            return await (tool.call(call) if is_modern(context) else _while_connected(tool, call))
        except ApexBridgeError as error:
            return refused(error)

    def _is_shown(self, tool: McpTool, caller: str) -> bool:
        return tool.is_enabled() and self._bridge.keys.allows(caller, tool.scope)


async def _while_connected(tool: McpTool, call: McpCall) -> CallAnswer:
    """Call a tool in a session, in a task that ends if the client of the call disconnects."""
    task = asyncio.ensure_future(tool.call(call))
    request = call.context.request
    calls: set[asyncio.Task[Any]] = request.scope["state"].get(CALLS, set()) if request is not None else set()
    calls.add(task)
    try:
        return await task
    except asyncio.CancelledError:
        this = asyncio.current_task()
        if this is not None and this.cancelling():
            raise
        raise MCPError(INTERNAL_ERROR, "The client disconnected") from None
    finally:
        calls.discard(task)


def refused(error: ApexBridgeError) -> types.CallToolResult:
    """The result of a call that could not run: the reason, and what to do."""
    text = error.message
    if error.code == "CONFIRMATION_REQUIRED" and (id := error.details.get("approvalId")):
        text = (
            f"{text}\nThe approval {id} is pending. Somebody can approve it with: apex approvals approve {id}, or "
            f'POST /api/approvals/{id} {{"approve": true}}. Then make the same call again.'
        )
    details = json.loads(json.dumps(error.details, default=str))
    return types.CallToolResult(
        content=[types.TextContent(text=_clean(text))],
        is_error=True,
        _meta={"apexbridge/error": {"code": error.code, "details": details}},
    )


def product_tools(bridge: Bridge) -> list[McpTool]:
    """All tools of this server. Those of the registry are called by its rules, with the caller's key."""
    make = _RegistryTools(bridge)
    tools = [
        make.tool(
            "search_skills",
            "vector-search",
            title="Search skills",
            description="Find installed skills, and tools of other servers, by what is to be done. Start here; then "
            "load_skill(name) for a skill, or run_skill(name, input) for a tool.",
            scope="read",
            output=_object(
                ["results"], results={"type": "array", "items": _HIT}, took={"type": "number"}, warnings=_TEXTS
            ),
        ),
        make.tool(
            "load_skill",
            "read-skill",
            title="Load a skill",
            description="Read a skill's instructions, with its scripts and files. With a workspace, run_code there "
            "has the skill's folder at /skills/NAME.",
            scope="read",
            fields=("name",),
            has_workspace=True,
            wording={FILES_HEADING: "Files, for read_skill_resource(name, path):"},
            output=_object(
                ["name", "content"],
                name=_TEXT,
                mode=_TEXT,
                content=_TEXT,
                files=_TEXTS,
                scripts=_TEXTS,
                allowedTools=_TEXTS,
            ),
        ),
        make.tool(
            "read_skill_resource",
            "read-skill",
            title="Read a skill's file",
            description="Read one of a skill's text files, such as references/guide.md.",
            scope="read",
            required=("path",),
            output=_LINES,
        ),
        _list_skills(bridge),
        make.tool(
            "run_skill",
            "run-skill",
            title="Run a skill",
            description="Run a skill, or one of its scripts, in the sandbox. Its result names the files that it made. "
            "Also calls a tool that search_skills found.",
            has_workspace=True,
            changes=True,
            is_open=True,
            output=_RUN,
        ),
        make.tool(
            "run_code",
            "run-code",
            title="Run code",
            description="Run code in the sandbox, without network. With a workspace, its current directory has the "
            "files of file_read and file_write there, files that it makes stay, and loaded skills are at /skills/NAME.",
            has_workspace=True,
            changes=True,
            output=_RUN,
        ),
        make.tool(
            "file_read",
            "file-read",
            title="Read a file",
            scope="read",
            has_workspace=True,
            output=_LINES,
        ),
        make.tool(
            "file_write",
            "file-write",
            title="Write a file",
            has_workspace=True,
            changes=True,
            output=_object(["path", "bytes"], path=_TEXT, bytes=_NUMBER, backup=_TEXT),
        ),
        make.tool(
            "list_files",
            "list-files",
            title="List files",
            scope="read",
            has_workspace=True,
            output=_object(["files"], files={"type": "array", "items": _FILE}, truncated=_FLAG),
        ),
    ]
    return [tool for tool in tools if tool is not None]


class _RegistryTools:
    """Makes MCP tools of the tools of the registry."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._approvals = McpApprovals(bridge)

    def tool(
        self,
        name: str,
        id: str,
        *,
        title: str,
        output: dict[str, Any],
        description: str | None = None,
        scope: KeyScope = "run",
        fields: Sequence[str] | None = None,
        required: Sequence[str] = (),
        has_workspace: bool = False,
        changes: bool = False,
        is_open: bool = False,
        wording: Mapping[str, str] | None = None,
    ) -> McpTool | None:
        """The tool for a registry id, with some of its parameters; None if the operator left it out.

        `wording` replaces parts of the result's text that name a tool as models of the chat loop know it.
        """
        registered = self._bridge.tools.find(id)
        if registered is None:
            return None
        schema = registered.parameters.schema
        properties = {
            key: _without_null(own)
            for key, own in schema.get("properties", {}).items()
            if fields is None or key in fields
        }
        if has_workspace:
            properties["workspace"] = _WORKSPACE
        needed = [key for key in (*schema.get("required", ()), *required) if key in properties]
        input_schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}

        async def call(call: McpCall) -> CallAnswer:
            result = await self._call(id, call, input_schema, has_workspace=has_workspace)
            if isinstance(result, types.InputRequiredResult):
                return result
            text = result.output
            for own, here in (wording or {}).items():
                text = text.replace(own, here)
            return answer_of(replace(result, output=text), call.context)

        return McpTool(
            definition=types.Tool(
                name=name,
                title=title,
                description=description or registered.description,
                input_schema=input_schema,
                output_schema=output,
                annotations=_annotations(title, changes=changes, is_open=is_open),
            ),
            scope=scope,
            call=call,
            is_enabled=lambda: self._bridge.tools.is_enabled(id),
        )

    async def _call(
        self, id: str, call: McpCall, schema: Mapping[str, Any], *, has_workspace: bool
    ) -> ToolResult | types.InputRequiredResult:
        input = dict(call.arguments)
        workspace = input.pop("workspace", None) if has_workspace else None
        if workspace is not None and not isinstance(workspace, str):
            raise InvalidInputError("workspace must be text, a name of your choice.")
        if missing := [key for key in schema["required"] if key not in input]:
            raise InvalidInputError(f"The arguments do not fit: {', '.join(missing)} is missing.")
        async with reporting(call.context) as progress:

            async def run(approval: str | None) -> ToolResult:
                return await self._bridge.tools.execute(
                    id,
                    input,
                    conversation=Conversation(id=_CONVERSATION, caller=call.caller, origin=Origin(kind="mcp")),
                    workspace=workspace,
                    approval=approval,
                    progress=progress,
                )

            return await self._approvals.run(call, run)


def answer_of(result: ToolResult, context: Context) -> types.CallToolResult:
    """A tool's result: text for the model, data for programs, and links to files."""
    text = "\n".join([result.output, *(f"[{notice}]" for notice in result.notices)]).strip()
    content: list[types.ContentBlock] = [types.TextContent(text=_clean(text))]
    if not has_links(context):
        return types.CallToolResult(content=content, is_error=result.is_error)
    data = _structured(result)
    content += _links(data)
    return types.CallToolResult(content=content, structured_content=data, is_error=result.is_error)


def _structured(result: ToolResult) -> Any:
    """The result object without what a model does not need, and with long texts cut."""
    data = result.data
    if not isinstance(data, dict):
        return {"success": not result.is_error, "content": _shortened(str(data), None)}
    if data.get("mode") == "direct" and "metadata" in data:  # a skill without a script was run
        data = {"success": True, "content": data.get("content"), "warnings": data.get("warnings", [])}
    elif isinstance(data.get("content"), list):  # the blocks of another MCP server's tool, whose text is the output
        data = {"success": not result.is_error, **_without(data, "content", "output"), "content": data.get("output")}
    elif "exitCode" in data:
        data = {key: value for key, value in data.items() if key in _RUN_FIELDS and value is not None}
    elif isinstance(hits := data.get("results"), list):  # tools have no mode; the schema has no null
        data = {**data, "results": [{key: value for key, value in hit.items() if value is not None} for hit in hits]}
    return {key: _shortened(value, result.whole) if isinstance(value, str) else value for key, value in data.items()}


def _without(data: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def _shortened(text: str, whole: str | None) -> str:
    return _clean(bounded(text, whole=whole))


def _clean(text: str) -> str:
    """The text without lone surrogates, which JSON in UTF-8 does not have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _links(data: Any) -> list[types.ContentBlock]:
    """Links to the files that a run made."""
    if not isinstance(data, dict) or ("exitCode" not in data and "status" not in data):
        return []
    workspace, id = data.get("workspace"), data.get("id")
    return [
        types.ResourceLink(
            name=file["path"].rpartition("/")[2],
            uri=run_uri(str(id), file["path"]) if workspace is None else workspace_uri(workspace, file["path"]),
            size=file["size"],
        )
        for file in data.get("files", ())[:MAX_LINKS]
    ]


def _annotations(title: str, *, changes: bool, is_open: bool) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        title=title,
        read_only_hint=not changes,
        destructive_hint=changes,
        idempotent_hint=not changes,
        open_world_hint=is_open,
    )


def _without_null(schema: Any) -> Any:
    """A schema that does not allow null: clients leave out what they do not set, and some do not read `anyOf`."""
    if not isinstance(schema, dict):
        return schema
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    merged = {**choices[0], **{key: value for key, value in schema.items() if key != "anyOf"}}
    return {key: value for key, value in merged.items() if (key, value) != ("default", None)}


# --------------------------------------------------------------------------------------------------------- list_skills
def _list_skills(bridge: Bridge) -> McpTool:
    """Not in the registry: models of the chat loop search instead."""
    title = "List skills"

    async def call(call: McpCall) -> CallAnswer:
        after, limit = call.arguments.get("after", ""), call.arguments.get("limit", LIST_LIMIT)
        is_number = isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= MAX_LIST_LIMIT
        if not isinstance(after, str) or not is_number:
            raise InvalidInputError(f"after must be a name, and limit a number from 1 to {MAX_LIST_LIMIT}.")
        rows = await bridge.skills.store.catalog.enabled_after(after, limit + 1)
        mode = bridge.skills.store.catalog.default_mode
        summaries = [row.to_summary(mode, "") for row in rows[:limit] if not row.metadata.disable_model_invocation]
        skills = [
            {"name": one.name, "description": one.description, "mode": one.mode, "tags": one.tags}
            | ({"dangerous": True} if one.dangerous else {})
            for one in summaries
        ]
        data: dict[str, Any] = {"skills": skills}
        lines = [f"{one.name}: {one.description}" for one in summaries]
        if len(rows) > limit:
            data["next"] = rows[limit - 1].name
            lines.append(f"[There are more: list_skills with after={data['next']}]")
        return answer_of(ToolResult(output="\n".join(lines) or "No skill is installed.", data=data), call.context)

    return McpTool(
        definition=types.Tool(
            name="list_skills",
            title=title,
            description="List the installed skills by name. To find one for a task, use search_skills.",
            input_schema={
                "type": "object",
                "properties": {
                    "after": {"type": "string", "description": "Go on after this name: `next` of the last answer."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIST_LIMIT, "default": LIST_LIMIT},
                },
                "required": [],
                "additionalProperties": False,
            },
            output_schema=_object(["skills"], skills={"type": "array", "items": _HIT}, next=_TEXT),
            annotations=_annotations(title, changes=False, is_open=False),
        ),
        scope="read",
        call=call,
    )
