"""The tool `calculate`: its results, the notations it reads, and its errors."""

import json
import math
from typing import Any

import pytest

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.calculator import calculate
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import ToolResult

pytestmark = pytest.mark.anyio


async def _call(expression: Any) -> ToolResult:
    registry = ToolRegistry()
    registry.register(calculate)
    return await registry.execute("calculate", {"expression": expression})


@pytest.mark.requirement("A3")
async def test_the_square_root_of_144_and_ten_is_the_whole_number_22() -> None:
    result = await _call("sqrt(144) + 10")
    assert json.dumps(result.data) == '{"success": true, "result": 22}'
    assert result.output == "22"


@pytest.mark.requirement("A3")
async def test_a_fraction_that_a_float_cannot_represent_has_an_exact_value() -> None:
    result = await _call("1/3")
    assert result.data == {"success": True, "result": 1 / 3, "exact": "1/3"}
    assert result.output == f"{1 / 3:.15f} (exactly 1/3)"


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        *(("0.1 + 0.2", 0.3), ("1/3*3", 1), ("1/4", 0.25), ("2.50", 2.5), ("10^20", 10**20), ("sqrt(2)^2", 2)),
        *(("exp(0)", 1), ("-0.0", 0), ("sin(pi) * -1", 0)),
    ],
)
async def test_a_result_that_a_json_number_represents_has_no_exact_value(expression: str, result: float) -> None:
    data = (await _call(expression)).data
    assert data == {"success": True, "result": result}
    assert type(data["result"]) is type(result)


async def test_an_integer_too_large_for_a_float_has_an_exact_value() -> None:
    data = (await _call("100!")).data
    assert data["result"] == math.factorial(100)
    assert data["exact"] == str(math.factorial(100))


async def test_a_fraction_too_large_for_a_float_is_rounded_to_an_integer() -> None:
    data = (await _call("10^400/3")).data
    assert data["result"] == 10**400 // 3
    assert data["exact"] == f"{10**400}/3"


async def test_a_fraction_too_small_for_a_float_is_readable_in_the_text() -> None:
    result = await _call("10^-500")
    assert result.data == {"success": True, "result": 0.0, "exact": f"1/{10**500}"}
    assert result.output == "1E-500"


@pytest.mark.parametrize(("expression", "result"), [("1 < 2", True), ("0.1 + 0.2 == 0.3", True), ("2 ≥ 3", False)])
async def test_a_comparison_is_true_or_false(expression: str, result: bool) -> None:
    answer = await _call(expression)
    assert answer.data == {"success": True, "result": result}
    assert answer.output == str(result).lower()


@pytest.mark.parametrize("expression", [None, 5, 1.5, True, ["1+1"], {"a": 1}, b"1+1"])
async def test_an_expression_is_text(expression: Any) -> None:
    with pytest.raises(InvalidInputError, match="expression"):
        await _call(expression)


async def test_an_unknown_field_is_rejected() -> None:
    registry = ToolRegistry()
    registry.register(calculate)
    with pytest.raises(InvalidInputError, match="precision"):
        await registry.execute("calculate", {"expression": "1", "precision": 5})


async def test_an_error_has_a_reason_and_a_position() -> None:
    with pytest.raises(InvalidInputError) as rejected:
        await _call("1 + foo(2)")
    assert rejected.value.status == 422
    assert rejected.value.details["position"] == 5
    assert "foo is not known; there are sqrt" in rejected.value.message
    assert rejected.value.message.endswith("(at character 5)")


async def test_the_schema_and_description_are_short() -> None:
    text = calculate.description + json.dumps(calculate.parameters.schema)
    assert len(text.encode()) / 4 < 120
    assert calculate.metadata.category == "builtin"


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        *(("（１＋２）×３", (1 + 2) * 3), ("【1＋2】＊３", 9), ("１２ ÷ ４", 3), ("１０／４＝", 2.5)),
        *(("７－２＝？", 5), ("3。5 + 1", 4.5), ("３．５", 3.5), ("ｍａｘ（１，２）", 2), ("ＳＱＲＴ（１６）", 4)),
        *(("５！", 120), ("５０％", 0.5), ("３＜４", True), ("2 − 3", -1), ("2 · 3", 6), ("2 ⋅ 3", 6), ("√16", 4)),
        *(("2√9", 6), ("√√16", 2), ("3 ≠ 4", True), ("3加4", 7), ("10减去4", 6)),
        *(("3乘4", 12), ("3乘以4加上1", 13), ("12除以5", 2.4), ("1+1=", 2), ("1+1 = ?", 2), ("1+1？", 2), ("5!=", 120)),
        *(("1\u3000+\u00a01\t", 2), ("PI > 3", True), ("2 ** 3", 8)),
    ],
)
async def test_full_width_typographic_and_chinese_notation_is_read(expression: str, result: float) -> None:
    assert (await _call(expression)).data["result"] == result


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        *(("-2^2", -4), ("(-2)^2", 4), ("2^3^2", 512), ("2^-2", 0.25), ("2^-2*3", 0.75), ("-2^-2", -0.25), ("--5", 5)),
        *(("-+5", -5), ("2*-3", -6), ("-3!", -6), ("2^3!", 64), ("(3!)!", 720), ("-7 % 3", 2), ("-7 // 2", -4)),
        *(("50%", 0.5), ("200 * 15%", 30), ("50%^2", 0.25), ("(10%)+1", 1.1), ("50% - 3", -2.5), ("50 % -3", -1)),
        *(("50 % 3", 2), ("50%3", 2), ("7%(5)", 2), ("5%*100", 5), ("max(5%, 1%)", 0.05), ("2(3+4)", 14)),
        *(("(1+2)(3+4)", 21), ("2(3)^2", 18), ("2(3)(4)", 24), ("2sqrt(9)", 6), ("3!(2)", 12), ("-2(3)", -6)),
        *(("2e3", 2000), ("5. + .5", 5.5), ("1.5E-1", 0.15), ("0xFF + 0b101 + 0o17", 275), ("5 != 120", True)),
        *(("5! = 120", True), ("1 + 1 == 2", True), ("hypot(3, 4)", 5), ("√9^2", 9), ("max(5, 007)", 7)),
    ],
)
async def test_operators_bind_as_in_mathematics(expression: str, result: float) -> None:
    assert (await _call(expression)).data["result"] == result


async def test_a_constant_after_a_number_is_a_product() -> None:
    assert (await _call("2pi")).data["result"] == pytest.approx(2 * math.pi, rel=1e-14)
    assert (await _call("2e")).data["result"] == pytest.approx(2 * math.e, rel=1e-14)
    assert (await _call("2πe")).data["result"] == pytest.approx(2 * math.pi * math.e, rel=1e-14)


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        *(("6/2(1+2)", 4), ("1/2pi", 4), ("10 % 3(2)", 7), ("7//2(3)", 5), ("1/-2(3)", 5), ("2^3(4)", 4), ("√2pi", 3)),
        *(("√9!", 3), ("√50%", 4), ("3!!", 3), ("50%-3", 3), ("50%+3", 3), ("50 % - 3", 4), ("√-9!", 4)),
    ],
)
async def test_an_ambiguous_expression_is_rejected(expression: str, position: int) -> None:
    with pytest.raises(InvalidInputError, match="two ways") as rejected:
        await _call(expression)
    assert rejected.value.details["position"] == position


@pytest.mark.parametrize("expression", ["1,000", "1,000,000 + 1", "(1,000)", "max(1,000)", "1，000"])
async def test_thousands_separators_are_rejected(expression: str) -> None:
    with pytest.raises(InvalidInputError, match="write 1000, not 1,000"):
        await _call(expression)


async def test_too_many_arguments_point_to_the_comma() -> None:
    with pytest.raises(InvalidInputError, match=r"sqrt takes 1 argument, not 2; commas separate arguments only"):
        await _call("sqrt(1,234)")
