"""The tool `run-code`: runs code that the model wrote, in the sandbox. The bridge passes what runs it."""

from typing import Any, Literal, Protocol

from pydantic import Field, field_validator

from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput

RUN_CODE = "run-code"
_LANGUAGES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "node": "javascript",
    "bash": "shell",
    "sh": "shell",
}
"""Other names that models use."""


class RunCodeInput(WireInput):
    language: Literal["python", "javascript", "shell"]
    code: str
    timeout: int | None = Field(default=None, ge=100, description="Milliseconds.")

    @field_validator("language", mode="before")
    @classmethod
    def _usual_name(cls, language: Any) -> Any:
        return _LANGUAGES.get(language.lower(), language.lower()) if isinstance(language, str) else language


class CodeRunner(Protocol):
    async def __call__(self, input: RunCodeInput, context: ToolContext) -> ToolResult: ...


def run_code(runner: CodeRunner) -> Tool:
    return Tool.define(
        RUN_CODE,
        description=(
            "Run code in the sandbox, without network. Its current directory /workspace has the files of file_read and "
            "file_write; files that it makes there stay. Loaded skills are at /skills/NAME."
        ),
        parameters=RunCodeInput,
        execute=runner,
        metadata=ToolMetadata(category="builtin", tags=("code",)),
    )
