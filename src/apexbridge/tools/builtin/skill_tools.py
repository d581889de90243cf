"""The tools for skills: `vector-search`, `read-skill` and `run-skill`. The bridge passes the skills and the search.

Models see them as `search_skills`, `load_skill` and `run_skill`; see `tools/naming.py`.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO, Protocol

from pydantic import BaseModel, Field, model_validator

from apexbridge._tasks import in_thread
from apexbridge._text import estimated_tokens
from apexbridge.tools.allowance import RUN_CODE, RUN_SKILL, Allowance
from apexbridge.tools.builtin.files.paths import shown
from apexbridge.tools.builtin.files.text_files import LineRange, read_lines
from apexbridge.tools.naming import MCP_CATEGORY, SKILL_IDENTIFIER, skill_tool_id
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput, WireModel

DESCRIPTION_TOKENS = 85
ARGUMENT_TOKENS = 45
"""With the name and the score, a hit stays below 150 tokens and five of them below 800."""
CHARACTERS_PER_TOKEN = 8
"""A text is cut to this many characters per token before its tokens are counted: a token has at most four bytes."""
MAX_ARGUMENTS, MAX_ARGUMENT_CHARACTERS = 50, 200
"""Limits of a signature: number of arguments, and length of each."""
MAX_CHOICES = 8
MAX_FILES = 50
CUT = "…"
_COMMANDS = {"py": "python3", "js": "node", "mjs": "node", "cjs": "node", "sh": "sh"}
"""What starts a script, by the extension of its file."""
FILES_HEADING = "Files, for load_skill(name, path):"
NEXT_STEP = "Read one with load_skill(name) before you rely on it; run one with run_skill(name, input)."
NEXT_STEP_TOOLS = "Those marked function are not skills: call one by its name, or with run_skill(name, input)."


class SkillSearch(Protocol):
    """Finds skills, and tools of MCP servers, by meaning."""

    async def __call__(self, query: str, *, limit: int | None, for_model: bool, caller: str) -> BaseModel:
        """The answer of the search route; `for_model` omits skills that a model must not find on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """A skill's instructions, with its files and scripts."""

    name: str
    mode: str
    content: str
    """The text of its SKILL.md, without the frontmatter."""
    files: Sequence[str]
    scripts: Sequence[str]
    """Path of each script that can run, with its arguments if known."""
    dangerous: bool = False
    """Whether each run needs approval; then code does not see the skill's folder."""
    allowed_tools: Sequence[str] = ()
    available: Sequence[str] = ()
    """Packages and programs that its code uses and that runs have."""
    missing: Sequence[str] = ()
    """Those that runs do not have."""


class FoundFile(Protocol):
    """A file of a skill, found by a name that may differ from its path."""

    @property
    def path(self) -> str: ...
    @property
    def notice(self) -> str | None: ...


class Skills(Protocol):
    """The installed skills."""

    async def instructions(self, name: str, *, with_packages: bool = False) -> Instructions:
        """A skill's instructions; with the packages and programs that its code uses, on request."""

    async def open_file(self, name: str, path: str) -> tuple[BinaryIO, FoundFile]: ...
    def may_run_code(self, caller: str) -> bool: ...
    async def run(self, call: Any, context: ToolContext) -> ToolResult:
        """Run a skill, or one of its scripts, as `RunSkillInput` names it."""


# -------------------------------------------------------------------------------------------------------- vector-search
class VectorSearchInput(WireInput):
    query: str = Field(description="What is to be done, in plain words.")
    limit: int | None = Field(default=None, ge=1, le=100, description="At most this many; default 5.")


def vector_search(search: SkillSearch) -> Tool:
    @Tool.define(
        "vector-search",
        description="Find installed skills and further tools that can do something you have no tool for.",
        parameters=VectorSearchInput,
        metadata=ToolMetadata(category="builtin", tags=("skills", "search")),
    )
    async def tool(input: VectorSearchInput, context: ToolContext) -> ToolResult:
        found = await search(
            input.query,
            limit=input.limit,
            for_model=context.conversation_id is not None,
            caller=context.caller,
        )
        answer = found.model_dump(mode="json", by_alias=True)
        lines = []
        for rank, hit in enumerate(answer["results"], 1):
            is_tool = hit.get("kind") == "tool"
            kind = "function" if is_tool else "instructions" if hit["mode"] == "direct" else "runs"
            description = cut(hit["description"], DESCRIPTION_TOKENS)
            lines.append(f"{rank}. {hit['name']} ({hit['score']:.2f}, {kind}): {description}")
            found_tool = context.registry.find(hit["name"] if is_tool else skill_tool_id(hit["name"]))
            if found_tool is not None and (arguments := signature(found_tool.parameters.schema)):
                lines.append(f"   input: {cut(arguments, ARGUMENT_TOKENS)}")
        kinds = {hit.get("kind", "skill") for hit in answer["results"]}
        steps = [step for kind, step in (("skill", NEXT_STEP), ("tool", NEXT_STEP_TOOLS)) if kind in kinds]
        return ToolResult(
            output="\n".join([*lines, *steps]) if lines else "No skill fits. Go on with what you have.",
            data={"success": True, **answer},
            notices=tuple(answer["warnings"]),
        )

    return tool


def cut(text: str, limit: float) -> str:
    """The text on one line, cut to a number of tokens; `…` marks the cut."""
    # A token has at most four characters. White space is collapsed, so start with twice as many.
    start = text[: int(limit * CHARACTERS_PER_TOKEN)]
    line = " ".join(start.split())
    if len(start) == len(text) and estimated_tokens(line) <= limit:
        return line
    used = estimated_tokens(CUT)
    for index, character in enumerate(line):
        used += estimated_tokens(character)
        if used > limit:
            line = line[:index]
            break
    return line.rstrip() + CUT


def signature(schema: Mapping[str, Any]) -> str:
    """A schema as a signature: `message: string, scope?: "api"|"cli"`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    required = schema.get("required") or ()
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_text(own)}"[:MAX_ARGUMENT_CHARACTERS]
        for name, own in islice(properties.items(), MAX_ARGUMENTS)
        if name != "name" or not _is_identifier(own)
    )


def _type_text(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(choices := schema.get("enum"), list):
        return "|".join(json.dumps(choice, ensure_ascii=False) for choice in choices[:MAX_CHOICES])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    return f"{_type_text(schema.get('items', {}))}[]" if kind == "array" else str(kind)


def _is_identifier(schema: Any) -> bool:
    """Whether a `name` is the one that every skill tool takes, not a parameter of the skill."""
    return isinstance(schema, Mapping) and str(schema.get("description")).startswith(SKILL_IDENTIFIER)


# ----------------------------------------------------------------------------------------------------------- read-skill
class ReadSkillInput(WireInput):
    name: str = Field(description="The skill's name.")
    path: str | None = Field(default=None, description="One of its files; without it, the instructions.")
    offset: int = Field(default=0, ge=0, description="Lines to skip.")


def read_skill(skills: Skills) -> Tool:
    @Tool.define(
        "read-skill",
        description="Read a skill's instructions, or one of its files.",
        parameters=ReadSkillInput,
        metadata=ToolMetadata(category="builtin", tags=("skills",)),
    )
    async def tool(input: ReadSkillInput, context: ToolContext) -> ToolResult:
        if input.path is not None:
            file, found_file = await skills.open_file(input.name, input.path)
            with file:
                line_range = LineRange(name=shown(found_file.path), offset=input.offset)
                lines = await in_thread(read_lines, file, line_range)
            return ToolResult(
                output=lines.text,
                data={**lines.data, "name": input.name, "path": found_file.path},
                notices=(found_file.notice,) if found_file.notice else (),
            )
        mcp_tool = context.registry.find(input.name)
        if mcp_tool is not None and mcp_tool.metadata.category == MCP_CATEGORY:
            return _tool_result(mcp_tool)
        can_run_code = (
            context.conversation.workspace is not None
            and context.registry.is_enabled(RUN_CODE)
            and skills.may_run_code(context.caller)
        )
        found = await skills.instructions(input.name, with_packages=can_run_code)
        known = [tool.id for tool in context.registry.list()]
        allowance = Allowance.of(found.name, found.allowed_tools, known=known)
        context.conversation.allowance = allowance  # active until the next skill is read, or the request ends
        if context.conversation.workspace is not None:
            await context.conversation.workspace.add_skill(found.name)
        return _instructions_result(found, allowance, can_run_code=can_run_code)

    return tool


def _tool_result(tool: Tool) -> ToolResult:
    """A tool of an MCP server, which models can confuse with a skill. Searches show only a part of its schema."""
    schema = json.dumps(tool.parameters.schema, ensure_ascii=False)
    text = f"{tool.description}\n\nThis is a tool: call it by its name, or with run_skill(name, input). Input: {schema}"
    return ToolResult(output=text, data={"success": True, "name": tool.id, "mode": "tool", "content": text})


def _instructions_result(found: Instructions, allowance: Allowance | None, *, can_run_code: bool) -> ToolResult:
    files = [path for path in found.files if path.lower() != "skill.md"]
    sections = [found.content.strip()]
    if found.scripts and (allowance is None or allowance.permits(RUN_SKILL, {"name": found.name})):
        scripts = "Scripts, for run_skill(name, script, args or input):\n" + "\n".join(found.scripts)
        sections.append(scripts + _module_hint(found))
    if files:
        more = f"\n… and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
        sections.append(f"{FILES_HEADING}\n" + "\n".join(files[:MAX_FILES]) + more)
    if can_run_code and (allowance is None or allowance.permits(RUN_CODE, {})):
        sections += _code_sections(found)
    if allowance is not None:
        sections.append(f"While you follow these instructions, only these tools may be called: {allowance.text}.")
    data: dict[str, Any] = {
        "success": True,
        "name": found.name,
        "mode": found.mode,
        "content": found.content,
        "files": list(found.files),
        "scripts": list(found.scripts),
        "allowedTools": list(found.allowed_tools),
    }
    return ToolResult(output="\n\n".join(sections), data=data, notices=allowance.warnings if allowance else ())


def _module_hint(found: Instructions) -> str:
    """How to run scripts that import each other as a package."""
    names = [re.match(r"scripts/(\w+)\.py\b", script) for script in found.scripts]
    first = next(filter(None, names), None)
    if "scripts/__init__.py" not in found.files or first is None:
        return ""
    return f'\nThey are a package; script can also be a module of it, such as "-m scripts.{first[1]}".'


def _code_sections(found: Instructions) -> list[str]:
    """What code can use of the skill, and where its files are."""
    files = "The current directory /workspace keeps its files between calls; leave results there."
    if found.dangerous:
        where = f"Each run of this skill needs approval, so run_code does not have its folder: use run_skill. {files}"
    else:
        example = ""
        if found.scripts:
            script = found.scripts[0].partition(" (")[0]
            path = shlex.quote(f"/skills/{found.name}/{script}")
            command = f"{_COMMANDS[script.rpartition('.')[2]]} {path}"
            example = f"run its scripts by that path, such as `{command}`, or "
        where = (
            f"In run_code this skill's folder is /skills/{found.name} (read-only): {example}write code of your own as "
            f"the instructions say. {files}"
        )
    sections = [where]
    if found.available:
        sections.append(f"Packages and programs that are there: {', '.join(found.available[:MAX_FILES])}.")
    if found.missing:
        sections.append(f"Missing: {', '.join(found.missing[:MAX_FILES])}. Do without, or say what is missing.")
    return sections


# ------------------------------------------------------------------------------------------------------------ run-skill
class RunSkillInput(WireModel):
    name: str = Field(description="The skill's name.")
    input: dict[str, Any] = Field(default_factory=dict, description="Its input.")
    script: str | None = Field(default=None, description="One of its scripts, such as scripts/x.py, or -m scripts.x.")
    args: list[str] = Field(default_factory=list, description="The script's command-line arguments, one word each.")
    files: list[str] = Field(default_factory=list, description="Workspace files or folders it gets to read.")

    @model_validator(mode="before")
    @classmethod
    def _find_misplaced_input(cls, fields: Any) -> Any:
        """Models misplace a skill's input more often than anything else."""
        if not isinstance(fields, dict):
            return fields
        misplaced = [fields[key] for key in ("arguments", "parameters", "args") if isinstance(fields.get(key), dict)]
        fields = {key: value for key, value in fields.items() if key != "args" or not isinstance(value, dict)}
        if misplaced and not fields.get("input"):
            fields["input"] = misplaced[0]
        return fields


def run_skill(skills: Skills) -> Tool:
    tool = Tool.define(
        "run-skill",
        description="Run a skill, or one of its scripts, in the sandbox.",
        parameters=RunSkillInput,
        execute=skills.run,
        metadata=ToolMetadata(category="builtin", tags=("skills",)),
    )
    return replace(tool, admits_itself=True)
