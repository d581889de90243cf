"""The tool `calculate`: arithmetic as people and models write it, exact if the result is rational."""

from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from pydantic import Field

from apexbridge.tools.builtin.calculator import SIGNIFICANT_DIGITS, Exact, Number, evaluate, without_noise
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput

_FLOAT_BITS = 53
_SHORT_CHARACTERS = 60
"""An exact value up to this length is part of the text."""


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
    """Calculate an expression, or raise `InvalidInputError` with the reason and the position."""
    return rendered(evaluate(args.expression))


def rendered(value: Number) -> ToolResult:
    """Render a value as `result`, a JSON number, and as `exact` if a float cannot represent it."""
    shown = without_noise(value)
    if isinstance(shown, bool):
        return _result(shown, None, str(shown).lower())
    if isinstance(shown, float):
        return _result(shown, None, str(shown))
    exact = None if _is_float(shown) else str(shown)
    if isinstance(shown, int):
        return _result(shown, exact, str(shown))
    nearest = _nearest(shown)
    if exact is None:
        return _result(nearest, None, str(nearest))
    suffix = f" (exactly {exact})" if len(exact) <= _SHORT_CHARACTERS else ""
    return _result(nearest, exact, _decimal(shown) + suffix)


def _result(result: int | float, exact: str | None, text: str) -> ToolResult:
    data: dict[str, Any] = {"success": True, "result": result}
    return ToolResult(output=text, data=data if exact is None else {**data, "exact": exact})


def _is_float(value: Exact) -> bool:
    """Whether the shortest decimal of the nearest float is exactly this value."""
    if isinstance(value, int) and value.bit_length() <= _FLOAT_BITS:
        return True
    try:
        return Fraction(repr(float(value))) == value
    except OverflowError:
        return False


def _nearest(value: Fraction) -> int | float:
    """Return the nearest float, or the nearest integer if the value is too large for a float."""
    try:
        return float(value)
    except OverflowError:
        return round(value)


def _decimal(value: Fraction) -> str:
    return str(Context(prec=SIGNIFICANT_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator)))
