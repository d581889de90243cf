"""Tools of a server for agents of Pydantic AI: `Agent(model, toolsets=[ApexBridgeToolset(client)])`."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import ApprovalRequired, RunContext, ToolDefinition
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from apexbridge.client import Client
from apexbridge.integrations.offer import call_tool, offered_tools
from apexbridge.tools.views import ToolView

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema())  # the server validates the input, and explains problems better


class ApexBridgeToolset(AbstractToolset[Any]):
    """The server's tools. The client stays yours: close it when the agent is done.

    `tools` are ids, by default those for skills, code and files. `workspace` is the id of a workspace whose files the
    calls share. A dangerous call raises `ApprovalRequired`, so the run ends with `DeferredToolRequests`; with
    `approvals=False`, the model reads that the call needs approval. Approving needs a key with the scope admin.
    """

    def __init__(
        self,
        client: Client,
        *,
        tools: Sequence[str] | None = None,
        workspace: str | None = None,
        approvals: bool = True,
        id: str = "apexbridge",
    ) -> None:
        self._client = client
        self._ids = tools
        self._workspace = workspace
        self._approvals = approvals
        self._id = id
        self._tools: dict[str, ToolView] | None = None

    @property
    def id(self) -> str:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools by name; asked from the server once."""
        if self._tools is None:
            self._tools = {tool.name: tool for tool in await offered_tools(self._client, self._ids)}
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name, description=tool.description, parameters_json_schema=tool.parameters, strict=False
                ),
                max_retries=1,
                args_validator=_ANY_OBJECT,
            )
            for name, tool in self._tools.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Call a tool. Raises ToolFailed, which the model can read, or ApprovalRequired."""

        async def approve(details: Mapping[str, Any]) -> bool:
            if not ctx.tool_call_approved:
                raise ApprovalRequired(metadata=dict(details))
            return True

        answer = await call_tool(
            self._client,
            (self._tools or {})[name].id,
            tool_args,
            workspace=self._workspace,
            approve=approve if self._approvals else None,
        )
        if answer.is_error:
            raise ToolFailed(answer.text)
        return answer.text
