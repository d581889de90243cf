"""Exact numbers while that is possible, floats where a function forces them, and the way from one to the other."""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import TypeVar

from apexbridge.tools.builtin.arithmetic.limits import Refusal

Exact = int | Fraction
Number = int | Fraction | float
SomeNumber = TypeVar("SomeNumber", Exact, Number)
SIGNIFICANT_DIGITS = 15
"""Of a float; what comes after them is the noise of its last bits."""
NOISE = 2.0**-50
"""What two floats of size 1 may differ by and still mean the same."""
PRECISE = Context(prec=28)
"""For steps on the way to a float, in which a float would lose its last digits."""
NEAR = Decimal("1e-9")


def simplest(fraction: Fraction) -> Exact:
    """A whole number where it is one."""
    return fraction.numerator if fraction.denominator == 1 else fraction


def bits_of(number: Number) -> int:
    """How much there is to work on."""
    if isinstance(number, float):
        return 64
    return number.numerator.bit_length() + number.denominator.bit_length()


def magnitude(number: SomeNumber) -> SomeNumber:
    """The number without its sign."""
    return -number if number < 0 else number


def settled(number: Number) -> Number:
    """A float without the noise in its last digits, and whole where that leaves it whole; exact numbers as they are."""
    if not isinstance(number, float):
        return number
    rounded = float(f"{number:.{SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 10**SIGNIFICANT_DIGITS else rounded


def settled_exactly(number: Number) -> Exact:
    """The decimal that a settled float shows, as an exact number."""
    shown = settled(number)
    return simplest(Fraction(repr(shown))) if isinstance(shown, float) else shown


def whole(number: Number) -> int:
    """A whole number, which a float may be as well.

    Raises:
        Refusal: it is none.
    """
    exact = settled(number)
    if not isinstance(exact, int):
        raise Refusal("takes whole numbers only")
    return exact


def as_decimal(number: Exact) -> Decimal:
    """An exact number with more digits than a float has, however large it is."""
    return PRECISE.divide(Decimal(number.numerator), Decimal(number.denominator))


def natural_logarithm(number: Exact) -> Decimal:
    """Of a positive number, to more digits than a float has."""
    beyond_one = as_decimal(number - 1)
    if abs(beyond_one) > NEAR:
        return PRECISE.ln(as_decimal(number))
    with localcontext(PRECISE):  # so near to 1 the digits that matter are those of the difference
        return beyond_one - beyond_one**2 / 2 + beyond_one**3 / 3


def exact_root(number: Exact, degree: int) -> Exact | None:
    """The root where it is rational, None where it is not.

    Raises:
        ValueError: no real number is the root.
    """
    if number < 0:
        if degree % 2 == 0:
            raise ValueError("an even root of a negative number")
        root = exact_root(-number, degree)
        return None if root is None else -root
    above = _whole_root(number.numerator, degree)
    below = _whole_root(number.denominator, degree)
    return None if above is None or below is None else simplest(Fraction(above, below))


def _whole_root(number: int, degree: int) -> int | None:
    if number < 2:
        return number
    if degree == 2:
        root = math.isqrt(number)
    elif degree >= number.bit_length():
        return None
    else:
        root = _root_below(number, degree)
    return root if root**degree == number else None


def _root_below(number: int, degree: int) -> int:
    """The whole part of a root."""
    size = math.log2(number) / degree
    if size < 40:
        return round(math.exp2(size))
    shift = int(size) - 40
    guess = (int(math.exp2(size - shift)) + 2) << shift  # above the root: from there Newton's steps only fall
    while True:
        better = int(((degree - 1) * guess + number // guess ** (degree - 1)) // degree)
        if better >= guess:
            return guess
        guess = better
