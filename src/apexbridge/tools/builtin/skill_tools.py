"""The tools for skills: `vector-search`, `read-skill` and `run-skill`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, Protocol

import anyio.to_thread
from pydantic import Field, model_validator

from apexbridge.tools.allowance import Allowance
from apexbridge.tools.builtin.files.paths import shown
from apexbridge.tools.builtin.files.text_files import Wanted, read_stretch, told_to_model, told_to_programs
from apexbridge.tools.naming import SKILL_IDENTIFIER, skill_tool_id
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput, WireModel


class FoundSkill(Protocol):
    """A skill that a search found."""

    @property
    def name(self) -> str:
        """The skill's name."""

    @property
    def description(self) -> str:
        """The skill's description."""

    @property
    def score(self) -> float:
        """Confidence, 0 to 1."""

    @property
    def mode(self) -> str | None:
        """`sandbox` if the skill runs, `direct` if it consists of instructions."""


class FoundSkills(Protocol):
    """The result of a search."""

    @property
    def results(self) -> Sequence[FoundSkill]:
        """Best first."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the caller."""

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        """The result as the search route returns it."""


class SkillSearch(Protocol):
    """Finds skills by meaning."""

    async def __call__(self, query: str, *, limit: int | None, for_model: bool, caller: str) -> FoundSkills:
        """The skills that match; `for_model` omits skills that a model must not find on its own."""


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
    allowed_tools: Sequence[str] = field(default_factory=tuple)


class Skills(Protocol):
    """The installed skills."""

    async def instructions(self, name: str) -> Instructions:
        """The instructions of a skill."""

    async def open_file(self, name: str, path: str) -> BinaryIO:
        """Open one of the skill's files for reading."""

    async def run(self, name: str, call: "SkillCall", context: ToolContext) -> ToolResult:
        """Run a skill, or one of its scripts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillCall:
    input: dict[str, Any]
    script: str | None
    args: Sequence[str]
    files: Sequence[str]


DESCRIPTION_TOKENS = 85
ARGUMENT_TOKENS = 45
"""With the name and the score, a hit stays below 150 tokens and five of them below 800."""
CHARACTERS_PER_TOKEN = 8
"""A text is cut to this many characters per token before its tokens are counted: a token has at most four bytes."""
MAX_ARGUMENTS, MAX_ARGUMENT_CHARACTERS = 50, 200
"""Limits of a signature: number of arguments, and length of each."""
CUT = "…"
_CJK = (("⺀", "鿿"), ("豈", "﫿"), ("가", "힣"), ("！", "￦"))


def tokens(text: str) -> float:
    """Estimated tokens of a text: one for each CJK character, and one for four bytes of other text."""
    wide = sum(any(first <= letter <= last for first, last in _CJK) for letter in text)
    narrow = sum(len(letter.encode("utf-8", "replace")) for letter in text if not _is_wide(letter))
    return wide + narrow / 4


def cut(text: str, limit: float) -> str:
    """The text on one line, cut to a number of tokens; `…` marks the cut."""
    # A token has at most four characters. White space is collapsed, so start with twice as many.
    start = text[: int(limit * CHARACTERS_PER_TOKEN)]
    is_whole = len(start) == len(text)
    text = " ".join(start.split())
    if is_whole and tokens(text) <= limit:
        return text
    used, kept = tokens(CUT), []
    for letter in text:
        used += 1 if _is_wide(letter) else len(letter.encode("utf-8", "replace")) / 4
        if used > limit:
            break
        kept.append(letter)
    return "".join(kept).rstrip() + CUT


def told_hit(place: int, match: FoundSkill, schema: Mapping[str, Any] | None) -> str:
    """One hit: name, score, mode, description and arguments."""
    kind = "instructions" if match.mode == "direct" else "runs"
    lines = [f"{place}. {match.name} ({match.score:.2f}, {kind}): {cut(match.description, DESCRIPTION_TOKENS)}"]
    if told := told_arguments(schema or {}):
        lines.append(f"   input: {cut(told, ARGUMENT_TOKENS)}")
    return "\n".join(lines)


def told_arguments(schema: Mapping[str, Any]) -> str:
    """A schema as a signature: `message: string, scope?: "api"|"cli"`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    required = schema.get("required") or ()
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_kind(own)}"[:MAX_ARGUMENT_CHARACTERS]
        for name, own in islice(properties.items(), MAX_ARGUMENTS)
        if name != "name" or not _is_identifier(own)
    )


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(choices := schema.get("enum"), list):
        return "|".join(json.dumps(choice, ensure_ascii=False) for choice in choices[:8])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    return f"{_kind(schema.get('items', {}))}[]" if kind == "array" else str(kind)


def _is_identifier(schema: Any) -> bool:
    """Whether a `name` is the one that every skill tool takes, not a parameter of the skill."""
    return isinstance(schema, Mapping) and str(schema.get("description")).startswith(SKILL_IDENTIFIER)


def _is_wide(letter: str) -> bool:
    return any(first <= letter <= last for first, last in _CJK)


HOW_TO_GO_ON = "Read one with load_skill(name) before you rely on it; run one with run_skill(name, input)."


class VectorSearchInput(WireInput):
    """What is looked for."""

    query: str = Field(description="What is to be done, in plain words.")
    limit: int | None = Field(default=None, ge=1, le=100, description="At most this many; 5 unless told.")


def vector_search(search: SkillSearch) -> Tool:
    """Create the tool for a search."""

    @Tool.define(
        "vector-search",
        description="Find installed skills that can do something you have no tool for.",
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
        hits = []
        for place, match in enumerate(found.results, 1):
            known = context.registry.find(skill_tool_id(match.name))
            hits.append(told_hit(place, match, known.parameters.schema if known else None))
        return ToolResult(
            output="\n".join([*hits, HOW_TO_GO_ON]) if hits else "No skill fits. Go on with what you have.",
            data={"success": True, **found.model_dump(mode="json", by_alias=True)},
            notices=tuple(found.warnings),
        )

    return tool


SHOWN_FILES = 50


class ReadSkillInput(WireInput):
    """Which skill, and which of its files."""

    name: str = Field(description="The skill's name.")
    path: str | None = Field(default=None, description="One of its files; without it, the instructions.")
    offset: int = Field(default=0, ge=0, description="Lines to skip.")


def read_skill(skills: Skills) -> Tool:
    """Create the tool for these skills."""

    @Tool.define(
        "read-skill",
        description="Read a skill's instructions, or one of its files.",
        parameters=ReadSkillInput,
        metadata=ToolMetadata(category="builtin", tags=("skills",)),
    )
    async def tool(input: ReadSkillInput, context: ToolContext) -> ToolResult:
        if input.path is not None:
            return await _file(skills, input.name, input.path, input.offset)
        found = await skills.instructions(input.name)
        known = [tool.id for tool in context.registry.list()]
        allowance = Allowance.of(found.name, found.allowed_tools, known=known)
        context.conversation.allowance = allowance  # active until the next skill is read, or the request ends
        return _told(found, allowance)

    return tool


def _told(found: Instructions, allowance: Allowance | None) -> ToolResult:
    files = [path for path in found.files if path.lower() != "skill.md"]
    parts = [found.content.strip()]
    if found.scripts:
        parts.append("Scripts, for run_skill(name, script, args or input):\n" + "\n".join(found.scripts))
    if files:
        more = f"\n… and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        parts.append("Files, for load_skill(name, path):\n" + "\n".join(files[:SHOWN_FILES]) + more)
    if allowance is not None:
        parts.append(f"While you follow these instructions, only these tools may be called: {allowance.text}.")
    data: dict[str, Any] = {
        "success": True,
        "name": found.name,
        "mode": found.mode,
        "content": found.content,
        "files": list(found.files),
        "scripts": list(found.scripts),
        "allowedTools": list(found.allowed_tools),
    }
    return ToolResult(output="\n\n".join(parts), data=data, notices=allowance.warnings if allowance else ())


async def _file(skills: Skills, name: str, path: str, offset: int) -> ToolResult:
    with await skills.open_file(name, path) as file:
        stretch = await anyio.to_thread.run_sync(read_stretch, file, Wanted(name=shown(path), offset=offset))
    data = {"success": True, "name": name, "path": path, **told_to_programs(stretch)}
    return ToolResult(output=told_to_model(stretch), data=data)


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

    @Tool.define(
        "run-skill",
        description="Run a skill, or one of its scripts, in the sandbox.",
        parameters=RunSkillInput,
        metadata=ToolMetadata(category="builtin", tags=("skills",)),
    )
    async def tool(input: RunSkillInput, context: ToolContext) -> ToolResult:
        call = SkillCall(input=input.input, script=input.script, args=input.args, files=input.files)
        return await skills.run(input.name, call, context)

    return tool
