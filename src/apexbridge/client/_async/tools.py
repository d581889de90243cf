"""Tools of the server, and code that runs in its sandbox."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from apexbridge.client.protocol import path_of, without_none
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.tools.views import ToolList, ToolOutput, ToolView

if TYPE_CHECKING:
    from apexbridge.client._async.client import Client


class Tools:
    """`client.tools`"""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list(
        self, *, category: str | None = None, tag: str | None = None, query: str | None = None
    ) -> list[ToolView]:
        """The tools with their schemas."""
        params = without_none(category=category, tag=tag, query=query)
        return (await self._client.read(ToolList, "GET", "/api/tools", params=params)).tools

    async def show(self, id: str) -> ToolView:
        """One tool."""
        return await self._client.read(ToolView, "GET", path_of("api", "tools", id))

    async def execute(
        self,
        id: str,
        input: Mapping[str, Any] | None = None,
        *,
        workspace: str | None = None,
        conversation: str | None = None,
        approval: str | None = None,
    ) -> Any:
        """Call a tool and return its result object."""
        return await self._call(id, input, workspace, conversation, approval, view="data")

    async def call(
        self,
        id: str,
        input: Mapping[str, Any] | None = None,
        *,
        workspace: str | None = None,
        conversation: str | None = None,
        approval: str | None = None,
    ) -> ToolOutput:
        """Call a tool for a model: the text that the model should read, of bounded length."""
        return ToolOutput.model_validate(await self._call(id, input, workspace, conversation, approval, view="model"))

    async def _call(
        self,
        id: str,
        input: Mapping[str, Any] | None,
        workspace: str | None,
        conversation: str | None,
        approval: str | None,
        *,
        view: Literal["data", "model"],
    ) -> Any:
        body = without_none(
            input=dict(input or {}), workspace=workspace, conversation=conversation, approval=approval, view=view
        )
        return await self._client.ask("POST", path_of("api", "tools", id, "execute"), json=body)


class Code:
    """`client.code`"""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def run(
        self,
        language: Literal["python", "javascript", "shell"],
        code: str,
        *,
        timeout: int | None = None,
        workspace: str | None = None,
    ) -> ExecutionResult:
        """Run code in the sandbox, without network. `timeout` is in milliseconds.

        With the id of a `workspace`, its current directory has the files of that workspace, and changes are kept.
        """
        body = without_none(language=language, code=code, timeout=timeout)
        answer = await self._client.tools.execute("run-code", body, workspace=workspace)
        return ExecutionResult.model_validate(answer)
