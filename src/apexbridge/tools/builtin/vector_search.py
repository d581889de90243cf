"""The tool `vector-search`: finds skills for a request by meaning."""

from pydantic import Field

from apexbridge.tools.builtin.disclosure import told_hit
from apexbridge.tools.builtin.ports import SkillSearch
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput

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
