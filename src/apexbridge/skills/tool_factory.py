"""Builds tools from skills, and keeps the tool registry in sync with them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from apexbridge.errors import InvalidSchemaError, InvalidSkillStructureError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills import SKILL_FILE, Mode
from apexbridge.skills.models import DirectSkillResult
from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.package.parameters import tool_schema
from apexbridge.skills.package.skill import SkillMetadata, effective_mode
from apexbridge.skills.package.skill_md import read_skill_markdown
from apexbridge.skills.runs.direct import render
from apexbridge.skills.runs.run_views import INLINE_CHARACTERS
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.store.catalog import Catalog, Row
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.schema import InputProblem, SchemaParameters
from apexbridge.tools.tool import MAX_DESCRIPTION_CHARACTERS, Tool, ToolContext, ToolMetadata, ToolResult

CATEGORY = "skill"
STDERR_CHARACTERS = 2000
SHOWN_FILES = 50
"""Length of the tail of stderr that is shown for a failed run."""
CallSkill = Callable[[SkillCall], Awaitable[ExecutionResult | DirectSkillResult]]
"""Runs a skill, or renders its instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillToolSource:
    """What a tool is built from."""

    metadata: SkillMetadata
    mode: Mode
    entry: str | None
    content_hash: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the input; None if unknown."""


class SkillToolFactory:
    def __init__(self, call: CallSkill) -> None:
        self._call = call

    def create_tool(self, source: SkillToolSource) -> Tool:
        """The tool of a skill, in the mode of the skill."""
        return self.create_sandbox_tool(source) if source.mode == "sandbox" else self.create_direct_tool(source)

    def create_sandbox_tool(self, source: SkillToolSource) -> Tool:
        """A tool that runs the skill's entry script."""
        return self._tool(source, self._call, dangerous=source.metadata.dangerous)

    def create_direct_tool(self, source: SkillToolSource) -> Tool:
        """A tool that returns the skill's instructions. Reading them never needs approval."""
        return self._tool(source, self._call, dangerous=False)

    def from_skill_markdown(self, markdown: str, *, entry: str | None = None) -> Tool:
        """Build a tool from the text of a SKILL.md. In direct mode, a call renders this text.

        Raises:
            InvalidSkillStructureError: it is not a valid SKILL.md; the error lists all reasons.
        """
        data = markdown.encode("utf-8", "replace")
        reading = read_skill_markdown(data, folder=str(parse_leniently(markdown).value("name")), profile="seed")
        metadata = reading.metadata
        if metadata is None:
            raise InvalidSkillStructureError([str(error) for error in reading.errors])
        mode = metadata.mode or ("sandbox" if entry else "direct")
        source = SkillToolSource(metadata=metadata, mode=mode, entry=entry, content_hash="", schema=metadata.parameters)
        if mode == "sandbox":
            return self.create_sandbox_tool(source)

        async def rendered(call: SkillCall) -> DirectSkillResult:
            path = f"{metadata.name}/{SKILL_FILE}"
            return render(name=metadata.name, body=reading.body, source_path=path, input=call.input)

        return self._tool(source, rendered, dangerous=False)

    def _tool(self, source: SkillToolSource, call: CallSkill, *, dangerous: bool) -> Tool:
        metadata = source.metadata

        async def execute(input: Mapping[str, Any], context: ToolContext) -> ToolResult:
            return tool_result(
                await call(
                    SkillCall(
                        skill=metadata.name,
                        input=input,
                        mode=source.mode,
                        conversation=context.conversation,
                        approval=context.approval,
                        call_id=context.call_id,
                        on_run=context.on_run,
                    )
                )
            )

        return Tool(
            id=skill_tool_id(metadata.name),
            description=metadata.description[:MAX_DESCRIPTION_CHARACTERS].strip(),
            parameters=SkillParameters(source),
            execute=execute,
            metadata=ToolMetadata(
                category=CATEGORY,
                permissions=metadata.permissions,
                dangerous=dangerous,
                confirm=metadata.confirm,
                tags=metadata.tags,
                content_hash=source.content_hash,
            ),
            admits_itself=True,
        )


class SkillTools:
    """Registers, replaces and removes the tools of skills as the skills change."""

    def __init__(
        self,
        registry: ToolRegistry,
        factory: SkillToolFactory,
        catalog: Catalog,
        on_indexed: Callable[[Sequence[str]], None],
    ) -> None:
        self.skills_indexed = on_indexed
        self._registry = registry
        self._factory = factory
        self._catalog = catalog

    def register(self, row: Row) -> Tool:
        """Register or replace the skill's tool; returns it."""
        tool = self._factory.create_tool(
            SkillToolSource(
                metadata=row.metadata,
                mode=effective_mode(row.declared_mode, row.entry, self._catalog.default_mode),
                entry=row.entry,
                content_hash=row.content_hash,
                schema=row.parameters,
            )
        )
        self._registry.put(tool, enabled=row.enabled)
        return tool

    def skill_changed(self, row: Row) -> None:
        self.register(row)

    def skill_removed(self, name: str) -> None:
        self._registry.unregister(skill_tool_id(name))


class SkillParameters:
    """A skill's schema, built on first use: building thousands of them would slow down the start."""

    def __init__(self, source: SkillToolSource) -> None:
        self._source = source

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        own = self._source.schema
        if self._source.mode == "direct" and own is not None:  # missing input is only a warning in direct mode
            own = {key: value for key, value in own.items() if key != "required"}
        return tool_schema(own, self._source.metadata.name)

    def read(self, input: Mapping[str, Any]) -> tuple[Any, list[InputProblem]]:
        """The validated input, and its problems."""
        return self._checked.read(input)

    @cached_property
    def _checked(self) -> SchemaParameters:
        try:
            return SchemaParameters(self.schema)
        except InvalidSchemaError:  # already a warning when the skill was parsed; accept any input
            return SchemaParameters(tool_schema(None, self._source.metadata.name))


def tool_result(result: ExecutionResult | DirectSkillResult, *, with_stderr: bool = False) -> ToolResult:
    """The tool result: `output` for the model, `data` for programs.

    The text of stderr is part of the output if the run failed, or always, `with_stderr`.
    """
    data = result.model_dump(mode="json")
    if isinstance(result, DirectSkillResult):
        return ToolResult(output=result.content, data=data, notices=tuple(result.warnings))
    if result.workspace_files is None:
        files = tuple(f"runs/{result.id}/{file.path}" for file in result.files)
    else:
        files = tuple(file.path for file in result.workspace_files)
    parts = [result.stdout.rstrip("\n")]
    if not result.success:
        parts = [f"Failed: {result.error} ({result.error_code}, exit code {result.exit_code})", *parts]
    if with_stderr or not result.success:
        parts += [f"stderr: {result.stderr[-STDERR_CHARACTERS:].strip()}"] if result.stderr.strip() else []
    if files:
        more = f" and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        parts.append(f"Files: {', '.join(files[:SHOWN_FILES])}{more}")
    return ToolResult(
        output="\n".join(part for part in parts if part) or "(the script succeeded without output)",
        data=data,
        files=files,
        whole=f"runs/{result.id}/stdout" if len(result.stdout) > INLINE_CHARACTERS else None,
        notices=tuple(result.warnings),
        is_error=not result.success,
    )
