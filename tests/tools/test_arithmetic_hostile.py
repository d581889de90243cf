"""Expressions that were never meant to be answered: each is refused at once, and says why."""

import sys

import pytest

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.arithmetic.evaluator import evaluate
from apexbridge.tools.builtin.arithmetic.limits import (
    MAX_BITS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EXPONENT,
    MAX_FACTORIAL,
    MAX_NODES,
    MAX_STEPS,
    Budget,
)

pytestmark = pytest.mark.requirement("A3")

LENGTH = f"longer than {MAX_CHARACTERS} characters"
NODES = f"more than {MAX_NODES} numbers and signs"
DEPTH = f"deeper than {MAX_DEPTH}"
BITS = f"more than {MAX_BITS} bits"
STEPS = f"more than {MAX_STEPS} steps"
DIGITS = f"at most {MAX_DIGITS} digits"
EXPONENT = f"exponent of a number is at most {MAX_EXPONENT}"
FACTORIAL = f"a factorial is taken of 0 to {MAX_FACTORIAL}"
CHOICE = "choosing works with 0 to 10,000 things"
LARGE = "the number is too large"
UNREAL = "has no real result"
ZERO = "division by zero"
WHOLE = "takes whole numbers only"
UNKNOWN = "is not known"
STRANGE = "is not understood"
DEAREST = 300
"""Steps of the dearest operation that fits all other limits."""

HOSTILE = [
    ("1+" * 5000 + "1", LENGTH),
    ("-" * 5000 + "1", LENGTH),
    ("(" * 100_000, LENGTH),
    ("9" * 1_000_000, LENGTH),
    ("1+" * 400 + "1", NODES),
    ("9" + "%" * 900, NODES),
    ("-" * 999 + "1", DEPTH),
    ("(" * 499 + "1" + ")" * 499, DEPTH),
    ("(" * 999, DEPTH),
    ("√" * 500 + "2", DEPTH),
    ("2" + "^2" * 100, DEPTH),
    ("abs(" * 100 + "1" + ")" * 100, DEPTH),
    ("2^-" * 100 + "1", DEPTH),
    ("9^9^9^9", BITS),
    ("2^4096", BITS),
    ("10^2000", BITS),
    ("(2^2048)^3", BITS),
    ("3^3000 * 3^3000", BITS),
    ("1/3^4000", BITS),
    ("1e801", EXPONENT),
    ("1e-801", EXPONENT),
    ("1." + "3" * 401, DIGITS),
    ("501!", FACTORIAL),
    ("comb(10001, 2)", CHOICE),
    ("9^9^9", BITS),
    ("2^5000", BITS),
    ("2^-5000", BITS),
    ("2^(10^300)", BITS),
    ("(1/3)^(10^9)", BITS),
    ("10^800 * 10^800", BITS),
    ("1e800 / 1e-800", BITS),
    ("((((1.0001^2)^2)^2)^2)^999", BITS),
    ("(" * 40 + "1.5" + ")^2" * 40, BITS),
    ("(" * 20 + "10/3" + ")^(3/1)" * 20, BITS),
    ("1/7^1000 + 1/3^1200", BITS),
    ("lcm(3^2000, 7^1000)", BITS),
    ("500! * 500!", BITS),
    ("comb(10000, 5000)", BITS),
    ("perm(10000, 5000)", BITS),
    ("pow(9, pow(9, 9))", BITS),
    ("1e800 % 1e-800", BITS),
    ("hypot(1e800, 1)", BITS),
    ("3^2000//1" + "+3^2000//1" * 60, STEPS),
    ("comb(4090,2045)" + "+comb(4090,2045)" * 50, STEPS),
    ("cbrt(3^2577)" + "+cbrt(3^2577)" * 60, STEPS),
    ("gcd(3^2580,7^1400)" + "+gcd(3^2580,7^1400)" * 40, STEPS),
    ("sum(" + ",".join(["500!"] * 180) + ")", STEPS),
    ("9" * 401, DIGITS),
    ("0x" + "f" * 500, DIGITS),
    ("0." + "0" * 500 + "1", DIGITS),
    ("1e999999999", EXPONENT),
    ("1e-999999999", EXPONENT),
    ("1e" + "9" * 300, EXPONENT),
    ("1e801", EXPONENT),
    ("501!", FACTORIAL),
    ("((5!)!)!", FACTORIAL),
    ("(((3!)!)!)!", FACTORIAL),
    ("factorial(10^100)", FACTORIAL),
    ("(-1)!", FACTORIAL),
    ("0.5!", WHOLE),
    ("gcd(1/2, 3)", WHOLE),
    ("comb(10^9, 2)", CHOICE),
    ("comb(10, 10^9)", CHOICE),
    ("perm(10^300)", CHOICE),
    ("comb(-1, 2)", CHOICE),
    ("round(1, 10^9)", "at most 400 decimal places"),
    ("sin(10^300)", "the angle is too large"),
    ("exp(1000)", LARGE),
    ("sinh(10^6)", LARGE),
    ("pi^10000", LARGE),
    ("pi * 10^400", LARGE),
    ("exp(700) * exp(700)", LARGE),
    ("exp(700) / exp(-700)", LARGE),
    ("3^(10^300 + 1/3)", LARGE),
    ("sqrt(-1)", UNREAL),
    ("√-4", UNREAL),
    ("(-1)^0.5", UNREAL),
    ("(-pi)^pi", UNREAL),
    ("ln(0)", UNREAL),
    ("log(-1/2)", UNREAL),
    ("asin(2)", UNREAL),
    ("tan(pi/2)", UNREAL),
    ("log(2, 1)", "base of a logarithm cannot be 1"),
    ("1/0", ZERO),
    ("1 // 0", ZERO),
    ("1 % (1-1)", ZERO),
    ("0^-1", ZERO),
    ("1/sin(pi)", ZERO),
    ("pi/0", ZERO),
    ("__import__", UNKNOWN),
    ("__import__(1)", UNKNOWN),
    ("eval(1)", UNKNOWN),
    ("exec(open(1))", UNKNOWN),
    ("lambda", UNKNOWN),
    ("os", UNKNOWN),
    ("inf", UNKNOWN),
    ("nan", UNKNOWN),
    ("True", UNKNOWN),
    ("x = 5", UNKNOWN),
    ("1 if 1 else 2", UNKNOWN),
    ("a" * 1000, UNKNOWN),
    ("1j", UNKNOWN),
    ("().__class__", STRANGE),
    ("(1).real", STRANGE),
    ("1.real", STRANGE),
    ("5.sqrt(4)", STRANGE),
    ("pi.__class__", STRANGE),
    ("__import__('os').system('id')", STRANGE),
    ("lambda: 1", STRANGE),
    ("'a' * 9", STRANGE),
    ('"a"', STRANGE),
    ("`id`", STRANGE),
    ("[1, 2]", STRANGE),
    ("{1: 2}", STRANGE),
    ("1; 2", STRANGE),
    ("1\\2", STRANGE),
    ("$HOME", STRANGE),
    ("1 & 2", STRANGE),
    ("1 | 2", STRANGE),
    ("~1", STRANGE),
    ("@", STRANGE),
    ("1 # 2", STRANGE),
    ("1\x00", r"'\x00' is not understood"),
    ("1+1\x1f", r"'\x1f' is not understood"),
    ("\x1b[31m1", r"'\x1b' is not understood"),
    ("1\u202e+1", r"'\u202e' is not understood"),
    ("1\ud800", r"'\ud800' is not understood"),
    ("\udfff", r"'\udfff' is not understood"),
    ("٣ + ٤", STRANGE),
    ("5²", "write ^2"),
    ("½", STRANGE),
    ("10除2", "write 除以"),
    ("1_000", "without underscores"),
    ("1,000", "write 1000, not 1,000"),
    ("3 4", "a sign is missing"),
    ("1 000", "a sign is missing"),
    ("1.2.3", "a sign is missing"),
    ("pi 2", "a sign is missing"),
    ("", "it is empty"),
    (" \t ", "it is empty"),
    ("=?", "it is empty"),
    ("1 +", "a number should follow"),
    ("* 2", "a number should stand before *"),
    ("()", "a number should stand before )"),
    ("max(1,)", "a number should stand before )"),
    ("(1", "never closed"),
    ("1)", "never opened"),
    ("sqrt", "needs its arguments in brackets"),
    ("sqrt 4", "needs its arguments in brackets"),
    ("sqrt()", "a number should stand before )"),
    ("sqrt(1, 2)", "takes 1 argument, not 2"),
    ("atan2(1)", "takes 2 arguments, not 1"),
    ("round(1, 2, 3)", "takes 1 or 2 arguments, not 3"),
    ("1 < 2 < 3", "not the true or false of a comparison"),
    ("(1 < 2) + 1", "not the true or false of a comparison"),
    ("max(1 = 1, 2)", "not the true or false of a comparison"),
]


@pytest.mark.parametrize(("expression", "reason"), HOSTILE, ids=lambda value: ascii(value)[:40])
def test_it_is_refused_and_says_why_and_where(expression: str, reason: str) -> None:
    budget = Budget()
    with pytest.raises(InvalidInputError) as refusal:
        evaluate(expression, budget)
    assert reason in refusal.value.message
    assert refusal.value.message.endswith(f"(at character {refusal.value.details['position']})")
    assert 1 <= refusal.value.details["position"] <= len(expression) + 1
    assert len(refusal.value.message) < 600
    refusal.value.message.encode()  # whatever was in it, the message can be sent


CAPS = (LENGTH, NODES, DEPTH, BITS, STEPS, DIGITS, EXPONENT, FACTORIAL, CHOICE, "decimal places", "an angle")


def test_there_are_enough_of_them() -> None:
    capped = [reason for _, reason in HOSTILE if any(cap in reason for cap in CAPS)]
    assert len(HOSTILE) >= 60
    assert len(capped) >= 60


@pytest.mark.parametrize(
    ("expression", "position"),
    [("1 + $", 5), ("2 * (3 + foo)", 10), ("12 / 0", 4), ("1 + sqrt(-1)", 5), ("（1 + @）", 6), ("2 + 501!", 8)],
)
def test_the_place_is_the_one_in_the_text_as_it_was_given(expression: str, position: int) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        evaluate(expression)
    assert refusal.value.details["position"] == position


@pytest.mark.parametrize(
    "expression",
    [
        "1" + " " * (MAX_CHARACTERS - 1),
        "+".join(["1"] * (MAX_NODES // 2)),
        "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH,
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
def test_exactly_the_limit_is_allowed(expression: str) -> None:
    evaluate(expression)


def test_every_operation_is_counted() -> None:
    budget = Budget()
    evaluate("1 + 2 * 3 - 4", budget)
    assert budget.spent == 3


def test_an_operation_on_long_numbers_counts_as_several() -> None:
    short, long = Budget(), Budget()
    evaluate("2 * 3", short)
    evaluate(f"{'9' * 300} * {'9' * 300}", long)
    assert short.spent == 1
    assert long.spent > 5


def test_a_calculation_ends_where_its_budget_ends() -> None:
    assert MAX_STEPS == 1000
    assert evaluate("1 + 1 + 1", Budget(2)) == 3
    with pytest.raises(InvalidInputError, match="more than 2 steps") as refusal:
        evaluate("1 + 1 + 1 + 1 + 1", Budget(2))
    assert refusal.value.details["position"] == 11


def test_no_expression_goes_further_than_one_operation_beyond_its_budget() -> None:
    for expression, _ in HOSTILE:
        budget = Budget()
        with pytest.raises(InvalidInputError):
            evaluate(expression, budget)
        assert budget.spent < MAX_STEPS + DEAREST


def test_a_deep_expression_needs_no_deep_stack() -> None:
    deepest = 0

    def watch(frame: object, event: str, argument: object) -> None:
        nonlocal deepest
        if event == "call":
            depth, place = 0, frame
            while place is not None:
                depth, place = depth + 1, place.f_back  # type: ignore[attr-defined]
            deepest = max(deepest, depth)

    sys.setprofile(watch)
    try:
        evaluate("1")
        flat, deepest = deepest, 0
        evaluate("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH)
    finally:
        sys.setprofile(None)
    assert deepest <= flat + 5


@pytest.mark.parametrize("given", [None, 5, b"1+1", ["1"], object()])
def test_what_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(InvalidInputError, match="an expression is text"):
        evaluate(given)  # type: ignore[arg-type]
