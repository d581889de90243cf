"""The tool `run-skill`: runs a skill, or one of its scripts, in the sandbox."""

from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from apexbridge.tools.builtin.ports import Skills
from apexbridge.tools.tool import Tool, ToolMetadata
from apexbridge.wire import WireModel


class RunSkillInput(WireModel):
    """Which skill, and with what. Models misplace a skill's input more often than anything else, so that is read
    generously."""

    name: str = Field(description="The skill's name.")
    input: dict[str, Any] = Field(default_factory=dict, description="Its input.")
    script: str | None = Field(default=None, description="One of its scripts, such as scripts/x.py.")
    args: list[str] = Field(default_factory=list, description="The script's command-line arguments, one word each.")
    files: list[str] = Field(default_factory=list, description="Workspace files it gets to read.")

    @model_validator(mode="before")
    @classmethod
    def _input_by_another_name(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        misplaced = [given[key] for key in ("arguments", "parameters", "args") if isinstance(given.get(key), dict)]
        kept = {key: value for key, value in given.items() if key != "args" or not isinstance(value, dict)}
        if misplaced and not kept.get("input"):
            kept["input"] = misplaced[0]
        return kept


def run_skill(skills: Skills) -> Tool:
    """Create the tool for these skills."""

    tool = Tool.define(
        "run-skill",
        description="Run a skill, or one of its scripts, in the sandbox.",
        parameters=RunSkillInput,
        execute=skills.run,
        metadata=ToolMetadata(category="builtin", tags=("skills",)),
    )
    return replace(tool, admits_calls=True)
