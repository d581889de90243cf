"""Tools of a server for LangChain and LangGraph: `create_agent(model, await apexbridge_tools(client))`."""

from collections.abc import Sequence
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from apexbridge.client import Client
from apexbridge.integrations.offer import Approve, call_tool, offered_tools
from apexbridge.tools.views import ToolView


async def apexbridge_tools(
    client: Client, *, tools: Sequence[str] | None = None, workspace: str | None = None, approve: Approve | None = None
) -> list[BaseTool]:
    """The server's tools, for `ainvoke`. The client stays yours: close it when the agent is done.

    `tools` are ids, by default those for skills, code and files. `workspace` is the id of a workspace whose files the
    calls share. `approve` asks a person about a dangerous call: it gets the details, and returns whether to run it.
    Without it, the model reads that the call needs approval. Approving needs a key with the scope admin.

    The artifact of a tool message has `files`: paths of files that the call made.
    """
    return [_tool(client, tool, workspace, approve) for tool in await offered_tools(client, tools)]


def _tool(client: Client, tool: ToolView, workspace: str | None, approve: Approve | None) -> BaseTool:
    async def call(**arguments: Any) -> tuple[str, dict[str, Any]]:
        answer = await call_tool(client, tool.id, arguments, workspace=workspace, approve=approve)
        if answer.is_error:
            raise ToolException(answer.text)
        return answer.text, {"files": list(answer.files)}

    return StructuredTool.from_function(
        coroutine=call,
        name=tool.name,
        description=tool.description,
        args_schema=tool.parameters,
        response_format="content_and_artifact",
        handle_tool_error=True,  # the text goes to the model, with the status "error"
    )
