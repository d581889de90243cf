"""Tools and approvals over HTTP."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.models import DirectSkillResult
from apexbridge.surfaces.http.deps import (
    APPROVAL_PATTERN,
    DEFAULT_LIMIT,
    Caller,
    PageLimit,
    PageNumber,
    ServedBridge,
)
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.transport.disconnect import run_while_connected
from apexbridge.surfaces.http.transport.responses import data_response, json_response, long_output_of
from apexbridge.tools.approvals import Approval, ApprovalDetail, ListedState
from apexbridge.tools.model_text import result_text
from apexbridge.tools.naming import MCP_CATEGORY, SKILL_PREFIX, WireNames, wire_name
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool, ToolResult
from apexbridge.tools.views import ToolList, ToolOutput, ToolView
from apexbridge.wire import WireInput, WireModel

MAX_NOTICE_CHARACTERS = 1024
router = APIRouter(tags=["tools"])
Id = Annotated[str, Path(description="The tool's id, such as calculate or skill:git-commit.")]


class ToolCounts(WireModel):
    id: str
    tool_name: str = Field(description="The id, or the name of the skill.")
    call_count: int
    success_count: int
    average_duration: int
    success_rate: float


class ToolStatistics(WireModel):
    total_tools: int
    disabled_tools: int
    categories: dict[str, int]
    tools: list[ToolCounts]


class ToolCall(WireInput):
    input: dict[str, Any] = Field(default_factory=dict)
    approval: str | None = Field(
        default=None, pattern=APPROVAL_PATTERN, description="The id of an approval, for dangerous tools."
    )
    conversation: str | None = Field(
        default=None, max_length=128, description="Repeated calls with the same id are detected as loops."
    )
    workspace: str | None = Field(
        default=None, description="The id of a workspace for the file tools, run-code and skills."
    )
    view: Literal["data", "model"] = Field(
        default="data", description="`model` responds with the text for a model, in place of the result object."
    )


class Decision(WireInput):
    approve: bool


@router.get("/api/tools")
async def list_tools(
    bridge: ServedBridge,
    category: Annotated[str | None, Query(description="Only this category: builtin, skill, mcp, …")] = None,
    tag: Annotated[str | None, Query(description="Only with this tag.")] = None,
    query: Annotated[str | None, Query(description="Words in the id, the description or the tags.")] = None,
) -> ToolList:
    """List the tools with their schemas."""
    tools = bridge.tools.search(query) if query else bridge.tools.list()
    if tag is not None:
        tagged = {tool.id for tool in bridge.tools.find_by_tag(tag)}
        tools = [tool for tool in tools if tool.id in tagged]
    names = WireNames([tool.id for tool in bridge.tools.list()])
    shown = [_view(bridge.tools, tool, names) for tool in tools if category in (None, tool.metadata.category)]
    return ToolList.model_construct(tools=shown, total=len(shown))


@router.get("/api/tools/stats")
async def tool_statistics(bridge: ServedBridge) -> ToolStatistics:
    """Show the counters of all tools that were called."""
    totals = bridge.tools.statistics()
    counts = [
        ToolCounts(
            id=id,
            tool_name=id.removeprefix(SKILL_PREFIX),
            call_count=own.calls,
            success_count=own.successes,
            average_duration=own.average_ms,
            success_rate=own.success_rate,
        )
        for id, own in sorted((await bridge.tool_counts()).items())
    ]
    return ToolStatistics(
        total_tools=totals.total_tools, disabled_tools=totals.disabled_tools, categories=totals.categories, tools=counts
    )


@router.get("/api/tools/{id}")
async def show_tool(id: Id, bridge: ServedBridge) -> ToolView:
    """Show one tool."""
    return _view(bridge.tools, bridge.tools.get(id))


@router.post(
    "/api/tools/{id}/execute",
    response_model=None,
    responses={
        200: {
            "description": "The tool's result object, of a run an ExecutionResult; with `view: model`, a ToolOutput.",
            "model": ExecutionResult | DirectSkillResult | ToolOutput | dict[str, Any] | list[Any],
        }
    },
)
async def execute_tool(
    id: Id, request: Request, bridge: ServedBridge, caller: Caller, call: ToolCall | None = None
) -> Response:
    """Call a tool and return its result object."""
    call = call or ToolCall()
    conversation = bridge.conversations.get(call.conversation, caller=caller)
    result = await run_while_connected(
        request,
        bridge.tools.execute(
            id, call.input, conversation=conversation, workspace=call.workspace, approval=call.approval
        ),
    )
    if call.view == "model":
        output = ToolOutput(
            output=result_text(bridge.tools, id, call.input, result),
            is_error=result.is_error,
            files=list(result.files),
            notices=list(result.notices),
        )
        return json_response(output, headers=_headers(result))
    return await data_response(result.data, long_output_of(bridge.runs, result.data), headers=_headers(result))


@router.post("/api/tools/{id}/{change}")
async def switch_tool(id: Id, change: Literal["enable", "disable"], bridge: ServedBridge) -> ToolView:
    """Enable or disable a tool. For the tool of a skill, this also applies to the skill."""
    await bridge.switch_tool(id, enabled=change == "enable")
    return _view(bridge.tools, bridge.tools.get(id))


# ------------------------------------------------------------------------------------------------------ approvals
@router.get("/api/approvals")
async def list_approvals(
    bridge: ServedBridge,
    state: Annotated[
        ListedState | None, Query(description="Only in this state, or all; default: all pending, the oldest first.")
    ] = None,
    page: PageNumber = 1,
    limit: PageLimit = DEFAULT_LIMIT,
) -> list[Approval]:
    """List the pending approvals, the oldest first, or a page of those in a state, the newest first.

    Pending approvals of removed tools are omitted.
    """
    if state is not None:
        return await bridge.approvals.page(state, page=page, limit=limit)
    return [question for question in await bridge.approvals.waiting() if bridge.tools.find(question.tool)]


@router.get("/api/approvals/{id}", response_model=None, responses={200: {"model": ApprovalDetail}})
async def show_approval(id: str, bridge: ServedBridge) -> Response:
    """Show one approval, with the whole call while it is pending."""
    detail = await bridge.approvals.detail(id)
    return await data_response(detail.model_dump(mode="json"), {})


@router.post("/api/approvals/{id}")
async def decide_approval(
    id: str, request: Request, decision: Decision, bridge: ServedBridge, caller: Caller
) -> Approval:
    """Approve or deny a call. An approval is valid for one call, until it expires."""
    note(request, detail="approve" if decision.approve else "deny")
    return await bridge.approvals.decide(id, approve=decision.approve, by=caller)


def _headers(result: ToolResult) -> dict[str, str]:
    """The headers of a result: its notices on one line, and the id of its run."""
    headers: dict[str, str] = {}
    if result.notices:
        line = "; ".join(result.notices)[:MAX_NOTICE_CHARACTERS].encode("ascii", "backslashreplace").decode()
        headers["x-apex-notice"] = "".join(letter if letter.isprintable() else " " for letter in line)
    if isinstance(result.data, dict) and "exitCode" in result.data:
        headers["x-execution-id"] = str(result.data["id"])
    return headers


def _view(registry: ToolRegistry, tool: Tool, names: WireNames | None = None) -> ToolView:
    metadata = tool.metadata
    return ToolView.model_construct(
        id=tool.id,
        name=tool.id if metadata.category == MCP_CATEGORY else names.name(tool.id) if names else wire_name(tool.id),
        description=tool.description,
        parameters=dict(tool.parameters.schema),
        category=metadata.category,
        tags=list(metadata.tags),
        permissions=list(metadata.permissions),
        timeout=metadata.timeout,
        dangerous=metadata.dangerous,
        confirm=metadata.confirm,
        enabled=registry.is_enabled(tool.id),
    )
