"""Tools and results of calls, as clients of the HTTP API see them."""

from typing import Any

from pydantic import Field

from apexbridge.wire import WireModel


class ToolView(WireModel):
    id: str
    name: str = Field(description="The name for models.")
    description: str
    parameters: dict[str, Any] = Field(description="JSON Schema of the input.")
    category: str
    tags: list[str]
    permissions: list[str]
    timeout: int | None
    dangerous: bool
    confirm: str | None
    enabled: bool


class ToolList(WireModel):
    tools: list[ToolView]
    total: int


class ToolOutput(WireModel):
    """The result of a call, for a model."""

    output: str
    is_error: bool = Field(default=False, description="Whether the tool ran and failed.")
    files: list[str] = Field(default_factory=list, description="Files that the call made, as paths for the file tools.")
    notices: list[str] = Field(default_factory=list)
