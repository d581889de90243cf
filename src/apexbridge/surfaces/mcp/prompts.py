"""Skills that people may start, as prompts."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.skills.runs.direct import render
from apexbridge.skills.store.catalog import Row
from apexbridge.surfaces.mcp.calls import Context, caller_in
from apexbridge.surfaces.mcp.paging import PAGE_ENTRIES, cursor_after, name_before
from apexbridge.tools.conversation import Conversation

MAX_ARGUMENTS = 50
MAX_ARGUMENT_CHARACTERS = 1_000
PromptAnswer = types.GetPromptResult | types.InputRequiredResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPrompt:
    """A prompt that does not come from a skill."""

    definition: types.Prompt
    get: Callable[[Context, types.GetPromptRequestParams], Awaitable[PromptAnswer]]


class PromptCatalog:
    """Lists prompts and fills them in."""

    def __init__(self, bridge: Bridge, fixed: Sequence[FixedPrompt] = ()) -> None:
        self._bridge = bridge
        self._fixed = {one.definition.name: one for one in fixed}

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        after = name_before(params)
        rows = await self._bridge.skills.store.catalog.enabled_after(after, PAGE_ENTRIES + 1)
        shown = rows[:PAGE_ENTRIES]
        fixed = [] if after else [one.definition for one in self._fixed.values()]
        return types.ListPromptsResult(
            prompts=[*fixed, *(_prompt(row) for row in shown if row.metadata.user_invocable)],
            next_cursor=cursor_after(shown[-1].name) if len(rows) > PAGE_ENTRIES else None,
        )

    async def get(self, context: Context, params: types.GetPromptRequestParams) -> PromptAnswer:
        """A skill's instructions as a message of the user, with the arguments filled in."""
        if fixed := self._fixed.get(params.name):
            return await fixed.get(context, params)
        row = await self._bridge.skills.store.catalog.live(params.name)
        if row is None or not row.enabled or not row.metadata.user_invocable:
            raise MCPError(INVALID_PARAMS, f"There is no prompt {params.name[:64]}")
        arguments = params.arguments or {}
        if missing := [one.name for one in _arguments(row) if one.required and one.name not in arguments]:
            raise MCPError(INVALID_PARAMS, f"The prompt {row.name} needs: {', '.join(missing)}")
        conversation = Conversation(caller=caller_in(context))
        try:
            loaded = await self._bridge.tools.execute("read-skill", {"name": row.name}, conversation=conversation)
            text = render(name=row.name, body=loaded.output, source_path="", input=arguments).content
        except ApexBridgeError as error:
            raise MCPError(INVALID_PARAMS, error.message) from error
        sections = [f"Follow the instructions of the skill {row.name}.", text]
        if arguments:
            sections.append(f"Arguments: {json.dumps(arguments, ensure_ascii=False)}")
        content = types.TextContent(text="\n\n".join(sections).encode("utf-8", "replace").decode())
        return types.GetPromptResult(
            description=row.description, messages=[types.PromptMessage(role="user", content=content)]
        )


def _prompt(row: Row) -> types.Prompt:
    return types.Prompt(name=row.name, description=row.description, arguments=_arguments(row))


def _arguments(row: Row) -> list[types.PromptArgument]:
    """The skill's parameters. Arguments of prompts are always text."""
    schema: Mapping[str, Any] = row.parameters or {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return []
    required = schema.get("required")
    needed = required if isinstance(required, list) else ()
    return [
        types.PromptArgument(name=str(name)[:128], description=_description(own), required=name in needed)
        for name, own in list(properties.items())[:MAX_ARGUMENTS]
    ]


def _description(schema: Any) -> str | None:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return text[:MAX_ARGUMENT_CHARACTERS] if isinstance(text, str) else None
