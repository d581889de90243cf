"""The calculator: values, rejected input, limits, and properties of every expression."""

import math
import operator
import statistics
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction as F

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.calculator import (
    MAX_BITS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EXPONENT,
    MAX_FACTORIAL,
    MAX_NODES,
    MAX_STEPS,
    Number,
    evaluate,
    rendered,
    without_noise,
)

pytestmark = pytest.mark.requirement("A3")

# --------------------------------------------------------------------------------------------------------------- values
EXACT: dict[str, F | int] = {
    "1 + 2": F(1) + 2,
    "0.1 + 0.2": F("0.1") + F("0.2"),
    "0.1 * 3": F("0.1") * 3,
    "1.1 - 1": F("1.1") - 1,
    "4.35 * 100": F("4.35") * 100,
    "1.005 * 1000": F("1.005") * 1000,
    "1/3": F(1, 3),
    "1/3 + 1/6": F(1, 3) + F(1, 6),
    "1/3 * 3": F(1),
    "2/3 - 1/7 * 5": F(2, 3) - F(1, 7) * 5,
    "(1/2 + 1/3) / (1/4 - 1/5)": (F(1, 2) + F(1, 3)) / (F(1, 4) - F(1, 5)),
    "1 - 0.9 - 0.1": F(0),
    "123456789 * 987654321": 123456789 * 987654321,
    "99999999999999999999 + 1": 10**20,
    "0.1234567890123456789 + 1e-19": F("0.1234567890123456789") + F("1e-19"),
    "1e3": 1000,
    "1.5e-3": F("1.5e-3"),
    "1e800 / 1e799": 10,
    "12.5e2": 1250,
    "0xff": 0xFF,
    "0b1011 * 0o17": 0b1011 * 0o17,
    "7 // 2": 7 // 2,
    "-7 // 2": -7 // 2,
    "7 // -2": 7 // -2,
    "7.5 // 2": F("7.5") // 2,
    "(1/3) // (1/7)": F(1, 3) // F(1, 7),
    "7 % 3": 7 % 3,
    "-7 % 3": -7 % 3,
    "mod(7, -3)": 7 % -3,
    "5.5 % 2": F("5.5") % 2,
    "(22/7) % (1/3)": F(22, 7) % F(1, 3),
    "mod(-1/3, 2/7)": F(-1, 3) % F(2, 7),
    "0.3 % 0.1": F("0.3") % F("0.1"),
    "2^10": 2**10,
    "2^0": 1,
    "0^0": 1,
    "0^5": 0,
    "2^-3": F(2) ** -3,
    "(2/3)^4": F(2, 3) ** 4,
    "(2/3)^-4": F(2, 3) ** -4,
    "(-2)^5": (-2) ** 5,
    "1.01^30": F("1.01") ** 30,
    "3^2^3": 3 ** (2**3),
    "2^1000": 2**1000,
    "7^1000 % 1000": 7**1000 % 1000,
    "(-1)^(10^300+1)": -1,
    "1^(10^300)": 1,
    "4^0.5": 2,
    "8^(1/3)": 2,
    "(-8)^(1/3)": -2,
    "(-8)^(2/3)": 4,
    "(-32)^0.2": -2,
    "(4/9)^1.5": F(2, 3) ** 3,
    "(4/9)^-0.5": F(3, 2),
    "(7^140)^(1/7)": 7**20,
    "(12345678901234567890^5)^(1/5)": 12345678901234567890,
    "1024^0.1": 2,
    "(3^900)^(2/3)": 3**600,
    "sqrt(144)": math.isqrt(144),
    "sqrt(1/4)": F(1, 2),
    "sqrt(2.25)": F("1.5"),
    "sqrt(10^300)": 10**150,
    "sqrt(123456789^2)": 123456789,
    "sqrt(0)": 0,
    "cbrt(27)": 3,
    "cbrt(-27/8)": F(-3, 2),
    "cbrt(10^300)": 10**100,
    "√(49/64)": F(7, 8),
    "5!": math.factorial(5),
    "0!": math.factorial(0),
    "20! / 18!": math.factorial(20) // math.factorial(18),
    "factorial(100)": math.factorial(100),
    "comb(52, 5)": math.comb(52, 5),
    "comb(5, 6)": math.comb(5, 6),
    "comb(4000, 2000) % 1000": math.comb(4000, 2000) % 1000,
    "comb(10000, 3)": math.comb(10000, 3),
    "perm(10, 3)": math.perm(10, 3),
    "perm(6)": math.perm(6),
    "perm(3, 4)": math.perm(3, 4),
    "gcd(12, 18)": math.gcd(12, 18),
    "gcd(84, 126, 210)": math.gcd(84, 126, 210),
    "gcd(-4, 6)": math.gcd(-4, 6),
    "gcd(7)": math.gcd(7),
    "lcm(4, 6)": math.lcm(4, 6),
    "lcm(2, 3, 4, 5, 6, 7)": math.lcm(2, 3, 4, 5, 6, 7),
    "lcm(0, 5)": math.lcm(0, 5),
    "floor(7/2)": math.floor(F(7, 2)),
    "floor(-7/2)": math.floor(F(-7, 2)),
    "ceil(7/2)": math.ceil(F(7, 2)),
    "ceil(-3.2)": math.ceil(F("-3.2")),
    "trunc(-3.7)": math.trunc(F("-3.7")),
    "trunc(3.7)": math.trunc(F("3.7")),
    "floor(pi)": math.floor(math.pi),
    "ceil(e)": math.ceil(math.e),
    "abs(-5/3)": abs(F(-5, 3)),
    "abs(2)": 2,
    "sign(-0.1)": -1,
    "sign(0)": 0,
    "sign(10^9)": 1,
    "min(3, 1/2, 0.4)": min(F(3), F(1, 2), F("0.4")),
    "max(3, 1/2, 22/7)": max(F(3), F(1, 2), F(22, 7)),
    "min(5)": 5,
    "sum(0.1, 0.2, 0.3)": sum([F("0.1"), F("0.2"), F("0.3")]),
    "sum(1/2, 1/3, 1/6)": sum([F(1, 2), F(1, 3), F(1, 6)]),
    "mean(1, 2, 4)": statistics.mean([F(1), F(2), F(4)]),
    "avg(0.1, 0.2)": statistics.mean([F("0.1"), F("0.2")]),
    "median(5, 1, 3)": statistics.median([F(5), F(1), F(3)]),
    "median(4, 1, 3, 2)": statistics.median([F(4), F(1), F(3), F(2)]),
    "hypot(3, 4)": 5,
    "hypot(2, 3, 6)": 7,
    "hypot(0.3, 0.4)": F("0.5"),
    "pow(2, 0.5) < 1.5": True,
    "pow(1/2, 3)": F(1, 8),
    "50%": F(1, 2),
    "12.5% * 80": F("0.125") * 80,
    "1 < 2": True,
    "1/3 = 2/6": True,
    "0.1 + 0.2 != 0.3": False,
    "2^100 > 10^30": F(2) ** 100 > F(10) ** 30,
    "22/7 >= pi": True,
    "sqrt(2)^2 == 2": True,
    "1e-30 > 0": True,
    "2 <= 1.999999999999999999999": False,
}

APPROXIMATE: dict[str, float] = {
    "pi": math.pi,
    "e": math.e,
    "tau": math.tau,
    "phi": statistics.mean([1, math.sqrt(5)]),
    "sqrt(2)": math.sqrt(2),
    "sqrt(2e400)": math.sqrt(2) * 1e200,
    "cbrt(2)": math.cbrt(2),
    "cbrt(-5)": math.cbrt(-5),
    "cbrt(pi)": math.cbrt(math.pi),
    "2^0.5": math.pow(2, 0.5),
    "2^pi": math.pow(2, math.pi),
    "pi^2": math.pow(math.pi, 2),
    "(-pi)^3": math.pow(-math.pi, 3),
    "(-pi)^(1/3)": -math.cbrt(math.pi),
    "(-2)^(1/3)": -math.cbrt(2),
    "10^-0.3": math.pow(10, -0.3),
    "(10^300+1)^(1/3)": 1e100,
    "e^2": math.exp(2),
    "e^100": math.exp(100),
    "exp(1)": math.e,
    "exp(-3.5)": math.exp(-3.5),
    "(1 + 10^-300)^(10^299 + 1/3)": math.exp(0.1),
    "ln(10)": math.log(10),
    "ln(e^5)": 5.0,
    "ln(1 + 1e-20)": math.log1p(1e-20),
    "ln(2 * 10^400)": math.log(2 * 10**400),
    "ln(3 * 10^400 / 10^401)": math.log(0.3),
    "log(20)": math.log(20),
    "log(8, 2)": math.log2(8),
    "log(100, 10)": math.log10(100),
    "log(81, 3)": 4.0,
    "log(2, 4)": 0.5,
    "log(8, 1/2)": -3.0,
    "log2(10)": math.log2(10),
    "log2(0.125)": math.log2(0.125),
    "log10(1000)": math.log10(1000),
    "log10(0.001)": math.log10(0.001),
    "log10(2)": math.log10(2),
    "sin(1)": math.sin(1),
    "sin(pi/6)": 0.5,
    "sin(-pi/2)": -1.0,
    "sin(1e-20)": math.sin(1e-20),
    "sin(355)": math.sin(355),
    "cos(1)": math.cos(1),
    "cos(pi/3)": 0.5,
    "cos(pi)": math.cos(math.pi),
    "tan(1)": math.tan(1),
    "tan(pi/4)": 1.0,
    "asin(0.5)": math.asin(0.5),
    "asin(1)": math.asin(1),
    "acos(0.5)": math.acos(0.5),
    "acos(-1)": math.acos(-1),
    "atan(1)": math.atan(1),
    "atan(-1/3)": math.atan(-1 / 3),
    "atan2(1, -1)": math.atan2(1, -1),
    "atan2(-1, 2)": math.atan2(-1, 2),
    "sinh(1)": math.sinh(1),
    "cosh(2)": math.cosh(2),
    "tanh(0.5)": math.tanh(0.5),
    "degrees(pi)": math.degrees(math.pi),
    "degrees(1)": math.degrees(1),
    "radians(180)": math.radians(180),
    "radians(30)": math.radians(30),
    "hypot(1, 1)": math.hypot(1, 1),
    "hypot(pi, e)": math.hypot(math.pi, math.e),
    "pi * 2.5^2": math.pi * 2.5**2,
    "pi // 1 + pi % 1": math.pi,
    "-pi % 2": -math.pi % 2,
    "sum(pi, 1/2, -e)": math.fsum([math.pi, 0.5, -math.e]),
    "mean(pi, e)": statistics.mean([math.pi, math.e]),
    "max(pi, 3)": math.pi,
    "min(pi, 22/7)": math.pi,
    "abs(-pi)": math.pi,
    "1000 * (1 + 0.05/12)^(12*10)": float(1000 * (1 + F("0.05") / 12) ** 120),
    "5 * 9.81^2 / 2": float(5 * F("9.81") ** 2 / 2),
}

NOISE_ONLY = [
    "sin(pi)",
    "sin(100 pi)",
    "cos(pi/2)",
    "tan(pi)",
    "cos(-3pi/2)",
    "sqrt(2)^2 - 2",
    "sqrt(2)*sqrt(3) - sqrt(6)",
    "sin(1)^2 + cos(1)^2 - 1",
    "acos(sqrt(2)^2 / 2)",
    "(pi * 3) % pi",
    "ln(1)",
]


@pytest.mark.parametrize(("expression", "value"), EXACT.items())
def test_rational_results_are_exact(expression: str, value: F | int) -> None:
    found = evaluate(expression)
    assert not isinstance(found, float)
    assert found == value
    assert isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize(("expression", "value"), APPROXIMATE.items())
def test_irrational_results_are_correct_to_fifteen_digits(expression: str, value: float) -> None:
    assert float(without_noise(evaluate(expression))) == pytest.approx(value, rel=6e-15, abs=0)


@pytest.mark.parametrize("expression", NOISE_ONLY)
def test_rounding_noise_is_zero(expression: str) -> None:
    assert without_noise(evaluate(expression)) == 0


@pytest.mark.parametrize("places", [0, 1, 2, 5])
@pytest.mark.parametrize("number", ["2.5", "-2.5", "0.5", "2.675", "-1.005", "1234.56789", "0.000005", "99.995"])
def test_halves_are_rounded_as_decimal_rounds_half_up(number: str, places: int) -> None:
    expected = Decimal(number).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    assert evaluate(f"round({number}, {places})") == F(expected)


def test_rounding_to_zero_and_to_negative_places() -> None:
    assert evaluate("round(3.5)") == 4
    assert evaluate("round(1250, -2)") == 1300
    assert evaluate("round(2/3, 3)") == F("0.667")
    assert evaluate("round(pi, 4)") == F("3.1416")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("floor(log(1000)/log(10))", 3), ("factorial(exp(ln(5)))", 120), ("(3 * pi) // pi", 3), ("gcd(sqrt(2)^4, 6)", 2)],
)
def test_rounding_noise_does_not_change_an_integer_result(expression: str, value: Number) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize("number", ["2", "3", "0.1", "12345.678", "1e-30", "7/3", "10^40 + 1"])
@pytest.mark.parametrize("exponent", ["0.5", "1/3", "-2/7", "1.25"])
def test_irrational_powers_agree_with_decimal_at_fifty_digits(number: str, exponent: str) -> None:
    base, power = F(evaluate(number)), F(evaluate(exponent))
    with localcontext(prec=50):
        expected = (Decimal(base.numerator) / base.denominator) ** (Decimal(power.numerator) / power.denominator)
    assert float(evaluate(f"({number})^({exponent})")) == pytest.approx(float(expected), rel=1e-15, abs=0)


# ------------------------------------------------------------------------------------------------------ rejected input
LENGTH = f"longer than {MAX_CHARACTERS} characters"
NODES = f"more than {MAX_NODES} numbers and operators"
DEPTH = f"deeper than {MAX_DEPTH}"
BITS = f"more than {MAX_BITS} bits"
STEPS = f"more than {MAX_STEPS} steps"
DIGITS = f"at most {MAX_DIGITS} digits"
EXPONENT = f"exponent of a number is at most {MAX_EXPONENT}"
FACTORIAL = f"a factorial is taken of 0 to {MAX_FACTORIAL}"
CHOICE = "the arguments are 0 to 10,000"
LARGE = "the number is too large"
NOT_REAL = "has no real result"
ZERO = "division by zero"
WHOLE = "takes whole numbers only"
UNKNOWN = "is not known"
NOT_UNDERSTOOD = "is not understood"


def _each(reason: str, *expressions: str) -> list[tuple[str, str]]:
    return [(expression, reason) for expression in expressions]


HOSTILE = [
    *_each(LENGTH, "1+" * 5000 + "1", "-" * 5000 + "1", "(" * 100_000, "9" * 1_000_000),
    *_each(NODES, "1+" * 400 + "1"),
    *_each(STEPS, "9" + "%" * 900),
    *_each(DEPTH, "-" * 999 + "1", "(" * 499 + "1" + ")" * 499, "(" * 999, "√" * 500 + "2", "2" + "^2" * 100),
    *_each(DEPTH, "abs(" * 100 + "1" + ")" * 100, "2^-" * 100 + "1"),
    *_each(BITS, "9^9^9^9", "2^4096", "10^2000", "(2^2048)^3", "3^3000 * 3^3000", "1/3^4000", "9^9^9", "2^5000"),
    *_each(BITS, "2^-5000", "2^(10^300)", "(1/3)^(10^9)", "10^800 * 10^800", "1e800 / 1e-800"),
    *_each(BITS, "((((1.0001^2)^2)^2)^2)^999", "(" * 40 + "1.5" + ")^2" * 40, "(" * 20 + "10/3" + ")^(3/1)" * 20),
    *_each(BITS, "1/7^1000 + 1/3^1200", "lcm(3^2000, 7^1000)", "500! * 500!", "comb(10000, 5000)"),
    *_each(BITS, "perm(10000, 5000)", "pow(9, pow(9, 9))", "1e800 % 1e-800", "hypot(1e800, 1)"),
    *_each(EXPONENT, "1e801", "1e-801", "1e999999999", "1e-999999999", "1e" + "9" * 300),
    *_each(DIGITS, "1." + "3" * 401, "9" * 401, "0x" + "f" * 500, "0." + "0" * 500 + "1"),
    *_each(FACTORIAL, "501!", "((5!)!)!", "(((3!)!)!)!", "factorial(10^100)", "(-1)!"),
    *_each(CHOICE, "comb(10001, 2)", "comb(10^9, 2)", "comb(10, 10^9)", "perm(10^300)", "comb(-1, 2)"),
    *_each(STEPS, "3^2000//1" + "+3^2000//1" * 60, "comb(4090,2045)" + "+comb(4090,2045)" * 50),
    *_each(STEPS, "cbrt(3^2577)" + "+cbrt(3^2577)" * 60, "gcd(3^2580,7^1400)" + "+gcd(3^2580,7^1400)" * 40),
    *_each(STEPS, "sum(" + ",".join(["500!"] * 180) + ")"),
    *_each(WHOLE, "0.5!", "gcd(1/2, 3)"),
    *_each("at most 400 decimal places", "round(1, 10^9)"),
    *_each("the angle is too large", "sin(10^300)"),
    *_each(LARGE, "exp(1000)", "sinh(10^6)", "pi^10000", "pi * 10^400", "exp(700) * exp(700)", "exp(700) / exp(-700)"),
    *_each(LARGE, "3^(10^300 + 1/3)"),
    *_each(NOT_REAL, "sqrt(-1)", "√-4", "(-1)^0.5", "(-pi)^pi", "ln(0)", "log(-1/2)", "asin(2)", "tan(pi/2)"),
    *_each("base of a logarithm cannot be 1", "log(2, 1)"),
    *_each(ZERO, "1/0", "1 // 0", "1 % (1-1)", "0^-1", "1/sin(pi)", "pi/0"),
    *_each(UNKNOWN, "__import__", "__import__(1)", "eval(1)", "exec(open(1))", "lambda", "os", "inf", "nan", "True"),
    *_each(UNKNOWN, "x = 5", "1 if 1 else 2", "a" * 1000, "1j"),
    *_each(NOT_UNDERSTOOD, "().__class__", "(1).real", "1.real", "5.sqrt(4)", "pi.__class__"),
    *_each(NOT_UNDERSTOOD, "__import__('os').system('id')", "lambda: 1", "'a' * 9", '"a"', "`id`", "[1, 2]", "{1: 2}"),
    *_each(NOT_UNDERSTOOD, "1; 2", "1\\2", "$HOME", "1 & 2", "1 | 2", "~1", "@", "1 # 2", "٣ + ٤", "½"),
    *_each(r"'\x00' is not understood", "1\x00"),
    *_each(r"'\x1f' is not understood", "1+1\x1f"),
    *_each(r"'\x1b' is not understood", "\x1b[31m1"),
    *_each(r"'\u202e' is not understood", "1\u202e+1"),
    *_each(r"'\ud800' is not understood", "1\ud800"),
    *_each(r"'\udfff' is not understood", "\udfff"),
    *_each("write ^2", "5²"),
    *_each("write 除以", "10除2"),
    *_each("without underscores", "1_000"),
    *_each("write 1000, not 1,000", "1,000"),
    *_each("an operator is missing", "3 4", "1 000", "1.2.3", "pi 2"),
    *_each("it is empty", "", " \t ", "=?"),
    *_each("a number is missing after", "1 +"),
    *_each("a number is missing before *", "* 2"),
    *_each("a number is missing before )", "()", "max(1,)", "sqrt()"),
    *_each("never closed", "(1"),
    *_each("never opened", "1)"),
    *_each("needs its arguments in brackets", "sqrt", "sqrt 4"),
    *_each("takes 1 argument, not 2", "sqrt(1, 2)"),
    *_each("takes 2 arguments, not 1", "atan2(1)"),
    *_each("takes 1 or 2 arguments, not 3", "round(1, 2, 3)"),
    *_each("not the result of a comparison", "1 < 2 < 3", "(1 < 2) + 1", "max(1 = 1, 2)"),
]


@pytest.mark.parametrize(("expression", "reason"), HOSTILE, ids=lambda value: ascii(value)[:40])
def test_an_invalid_expression_is_rejected_with_reason_and_position(expression: str, reason: str) -> None:
    with pytest.raises(InvalidInputError) as rejected:
        evaluate(expression)
    assert reason in rejected.value.message
    assert rejected.value.message.endswith(f"(at character {rejected.value.details['position']})")
    assert 1 <= rejected.value.details["position"] <= len(expression) + 1
    assert len(rejected.value.message) < 600
    rejected.value.message.encode()  # lone surrogates are escaped


@pytest.mark.parametrize(
    ("expression", "position"),
    [("1 + $", 5), ("2 * (3 + foo)", 10), ("12 / 0", 4), ("1 + sqrt(-1)", 5), ("（1 + @）", 6), ("2 + 501!", 8)],
)
def test_the_position_is_that_in_the_original_text(expression: str, position: int) -> None:
    with pytest.raises(InvalidInputError) as rejected:
        evaluate(expression)
    assert rejected.value.details["position"] == position


@pytest.mark.parametrize(
    "expression",
    [
        "1" + " " * (MAX_CHARACTERS - 1),
        "+".join(["1"] * (MAX_NODES // 2)),
        "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH,
        "(0+1*" * MAX_DEPTH + "1" + ")" * MAX_DEPTH,
        "-" * MAX_DEPTH + "1",
        f"2^{MAX_BITS - 1}",
        f"2^-{MAX_BITS - 1}",
        "9" * MAX_DIGITS,
        "9" * (MAX_DIGITS - 4) + f"e{MAX_EXPONENT}",
        f"{MAX_FACTORIAL}!",
        "comb(4090, 2045)",
        "max(" + "1," * 490 + "1)",
        "median(" + "1," * 490 + "1)",
    ],
    ids=lambda value: value[:30],
)
def test_input_at_a_limit_is_allowed(expression: str) -> None:
    evaluate(expression)


# ----------------------------------------------------------------------------------------------------------- properties
Tree = tuple[str, F]
"""An expression as text, and its value."""
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
NUMERALS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.decimals(0, 1000, places=3, allow_nan=False).map(str),
    st.tuples(st.integers(1, 99), st.integers(-5, 5)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
)
ARITHMETIC = "0123456789.,+-*/%^!()<>= eEpixsqrtlogmax√π×÷（）＋？。加减"


def _outcome(text: str) -> Number | InvalidInputError:
    try:
        return evaluate(text)
    except InvalidInputError as error:
        return error


def _leaf(numeral: str) -> Tree:
    return numeral, F(numeral)


def _pair(operands: tuple[Tree, str, Tree]) -> Tree:
    (left, one), sign, (right, other) = operands
    if other == 0 and sign in ("/", "//", "%"):
        sign = "+"
    return f"({left} {sign} {right})", F(OPERATORS[sign](one, other))


def _signed(tree: Tree) -> Tree:
    return f"(-{tree[0]})", -tree[1]


def _squared(tree: Tree) -> Tree:
    return f"{tree[0]}^2" if tree[0].endswith(")") else f"({tree[0]})^2", tree[1] ** 2


TREES = st.recursive(
    NUMERALS.map(_leaf),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(sorted(OPERATORS)), inner).map(_pair),
        inner.map(_signed),
        inner.map(_squared),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(TREES)
def test_rational_expressions_agree_with_fractions(tree: Tree) -> None:
    text, value = tree
    assume(value.numerator.bit_length() < 1000 and value.denominator.bit_length() < 1000 and len(text) < 1000)
    assert evaluate(text) == value


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*", "/", " // ", " % "]), st.integers(1, 50)), max_size=15))
def test_operators_bind_as_in_python(chain: list[tuple[str, int]]) -> None:
    text = "7" + "".join(f"{sign}{number}" for sign, number in chain)
    python = "F(7)" + "".join(f"{sign}F({number})" for sign, number in chain)
    assert evaluate(text) == eval(python, {"F": F})


@settings(max_examples=300, deadline=None)
@given(st.integers(-9, 9), st.lists(st.sampled_from(["-", "+"]), max_size=3), st.integers(0, 6))
def test_signs_and_powers_bind_as_in_python(base: int, signs: list[str], exponent: int) -> None:
    text = f"{''.join(signs)}{base} ** {''.join(signs)}{exponent}"
    assume(base != 0 or exponent == 0)
    assert evaluate(text) == eval(text.replace(str(abs(base)), f"F({abs(base)})", 1), {"F": F})


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(st.text(), st.text(ARITHMETIC, max_size=80), st.text(st.characters(categories=["Cs", "Cc", "Nd", "Sm"])))
)
def test_garbage_is_calculated_or_rejected(text: str) -> None:
    outcome = _outcome(text)
    if isinstance(outcome, InvalidInputError):
        assert 1 <= outcome.details["position"] <= len(text) + 1


NAMES = ["sqrt", "cbrt", "exp", "log", "sin", "tan", "acos", "sinh", "floor", "round", "abs", "sum", "hypot", "lcm"]
BUSY = st.recursive(
    st.sampled_from(["0", "1", "2", "0.5", "1e800", "1e-800", "9" * 50, "pi", "e", "3^2000", "500!", "1/3"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", " % ", "^", "<", "="]), inner).map(
            lambda operands: f"({operands[0]}){operands[1]}({operands[2]})"
        ),
        st.tuples(st.sampled_from(NAMES), inner).map(lambda operands: f"{operands[0]}({operands[1]})"),
        st.tuples(st.sampled_from(["max", "mod", "comb", "atan2", "log", "pow", "round"]), inner, inner).map(
            lambda operands: f"{operands[0]}({operands[1]}, {operands[2]})"
        ),
        inner.map(lambda operand: f"({operand})!"),
        inner.map(lambda operand: f"-({operand})"),
    ),
    max_leaves=15,
)


@settings(max_examples=600, deadline=None)
@given(BUSY)
def test_extreme_numbers_are_calculated_or_rejected(text: str) -> None:
    outcome = _outcome(text)
    if isinstance(outcome, InvalidInputError):
        assert "at character" in outcome.message


@settings(max_examples=300, deadline=None)
@given(st.fractions())
def test_the_result_or_exact_is_the_exact_value(value: F) -> None:
    data = rendered(value).data
    shown = data.get("exact", repr(data["result"]))
    assert F(shown) == value
    assert evaluate(shown) == value


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_a_rendered_float_is_read_back_as_the_same_float(value: float) -> None:
    result = rendered(value)
    assert float(evaluate(result.output)) == result.data["result"] == without_noise(value)
    assert float(result.data["result"]) == pytest.approx(value, rel=1e-14, abs=0)


@given(st.integers(0, 10**30), st.integers(2, 9))
def test_a_root_undoes_a_power(base: int, degree: int) -> None:
    assert evaluate(f"({base}^{degree})^(1/{degree})") == base


@given(st.integers(2, 10**30), st.integers(3, 9))
def test_a_number_next_to_a_power_has_no_exact_root(base: int, degree: int) -> None:
    assert isinstance(evaluate(f"({base}^{degree} + 1)^(1/{degree})"), float)
