"""Values of expressions against `fractions`, `decimal`, `math` and `statistics`."""

import math
import statistics
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction as F

import pytest

from apexbridge.tools.builtin.arithmetic.evaluator import evaluate
from apexbridge.tools.builtin.arithmetic.numbers import Number, settled

pytestmark = pytest.mark.requirement("A3")

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

NOTHING_BUT_NOISE = [
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
def test_other_results_are_right_to_fifteen_digits(expression: str, value: float) -> None:
    assert float(settled(evaluate(expression))) == pytest.approx(value, rel=6e-15, abs=0)


@pytest.mark.parametrize("expression", NOTHING_BUT_NOISE)
def test_what_is_only_the_noise_of_floats_is_zero(expression: str) -> None:
    assert settled(evaluate(expression)) == 0


def test_there_are_enough_of_them() -> None:
    assert len(EXACT) + len(APPROXIMATE) >= 150


@pytest.mark.parametrize("places", [0, 1, 2, 5])
@pytest.mark.parametrize("number", ["2.5", "-2.5", "0.5", "2.675", "-1.005", "1234.56789", "0.000005", "99.995"])
def test_halves_are_rounded_as_decimal_rounds_half_up(number: str, places: int) -> None:
    expected = Decimal(number).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    assert evaluate(f"round({number}, {places})") == F(expected)


def test_rounding_without_places_and_with_negative_ones_gives_whole_numbers() -> None:
    assert evaluate("round(3.5)") == 4
    assert evaluate("round(1250, -2)") == 1300
    assert evaluate("round(2/3, 3)") == F("0.667")
    assert evaluate("round(pi, 4)") == F("3.1416")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("floor(log(1000)/log(10))", 3), ("factorial(exp(ln(5)))", 120), ("(3 * pi) // pi", 3), ("gcd(sqrt(2)^4, 6)", 2)],
)
def test_noise_does_not_turn_a_whole_number_into_the_one_below(expression: str, value: Number) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize("number", ["2", "3", "0.1", "12345.678", "1e-30", "7/3", "10^40 + 1"])
@pytest.mark.parametrize("exponent", ["0.5", "1/3", "-2/7", "1.25"])
def test_irrational_powers_agree_with_decimal_at_fifty_digits(number: str, exponent: str) -> None:
    base, power = F(evaluate(number)), F(evaluate(exponent))
    with localcontext(prec=50):
        expected = (Decimal(base.numerator) / base.denominator) ** (Decimal(power.numerator) / power.denominator)
    assert float(evaluate(f"({number})^({exponent})")) == pytest.approx(float(expected), rel=1e-15, abs=0)
