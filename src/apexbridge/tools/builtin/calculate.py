"""The tool `calculate`: arithmetic as people and models write it, exact where that is possible."""

from typing import Any

from pydantic import Field

from apexbridge.tools.builtin.arithmetic.answer import answer_of
from apexbridge.tools.builtin.arithmetic.evaluator import evaluate
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput


class CalculateInput(WireInput):
    """What to calculate."""

    expression: str = Field(strict=True, description="Such as sqrt(144) + 10")


@Tool.define(
    "calculate",
    description=(
        "Exact arithmetic: + - * / // % ^ ! and comparisons; sqrt, log (natural), sin (radians), round, gcd, comb, "
        "mean, median and more; pi, e."
    ),
    parameters=CalculateInput,
    metadata=ToolMetadata(category="builtin", tags=("math", "arithmetic", "计算")),
)
async def calculate(args: CalculateInput, context: ToolContext) -> ToolResult:
    """Calculate an expression; what is no arithmetic, or too much of it, is refused with the place and the reason."""
    answer = answer_of(evaluate(args.expression))
    data: dict[str, Any] = {"success": True, "result": answer.result}
    if answer.exact is not None:
        data["exact"] = answer.exact
    return ToolResult(output=answer.text, data=data)
