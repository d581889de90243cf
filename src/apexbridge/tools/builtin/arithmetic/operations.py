"""What the operators do, each with its price paid and its size known to fit before it is done."""

import math
from decimal import Decimal
from fractions import Fraction

from apexbridge.tools.builtin.arithmetic.limits import MAX_FACTORIAL, Budget, Refusal, require_room
from apexbridge.tools.builtin.arithmetic.numbers import (
    NOISE,
    PRECISE,
    Exact,
    Number,
    as_decimal,
    bits_of,
    exact_root,
    magnitude,
    natural_logarithm,
    settled,
    simplest,
    whole,
)

FARTHEST_GROWTH = Decimal(1000)
"""A float has long overflowed at e to this power, and is long 0 at one over it."""


def add(budget: Budget, left: Number, right: Number) -> Number:
    """Left and right together."""
    budget.spend(bits_of(left) + bits_of(right))
    if isinstance(left, float) or isinstance(right, float):
        one, other = float(left), float(right)
        total = one + other
        # What remains where two floats cancel out is the noise of their last bits, not a number.
        return 0.0 if abs(total) < NOISE * abs(one) else total
    _require_room_for_sum(left, right)
    return _simple(left + right)


def subtract(budget: Budget, left: Number, right: Number) -> Number:
    """Left without right."""
    return add(budget, left, -right)


def multiply(budget: Budget, left: Number, right: Number) -> Number:
    """Left times right."""
    budget.spend(bits_of(left) + bits_of(right))
    if isinstance(left, float) or isinstance(right, float):
        return float(left) * float(right)
    require_room(left.numerator.bit_length() + right.numerator.bit_length())
    require_room(left.denominator.bit_length() + right.denominator.bit_length())
    return _simple(left * right)


def divide(budget: Budget, left: Number, right: Number) -> Number:
    """Left over right, exactly where both are exact."""
    if isinstance(left, float) or isinstance(right, float):
        budget.spend()
        return float(left) / float(right)
    return multiply(budget, left, simplest(1 / Fraction(right)))


def floor_divide(budget: Budget, left: Number, right: Number) -> Number:
    """How often right fits into left, downwards."""
    quotient = settled(divide(budget, left, right))
    return math.floor(quotient)


def modulo(budget: Budget, left: Number, right: Number) -> Number:
    """What is left of left when right has been taken out as often as it fits; it has the sign of right."""
    return subtract(budget, left, multiply(budget, right, floor_divide(budget, left, right)))


def negate(budget: Budget, number: Number) -> Number:
    """The number with the other sign."""
    budget.spend(bits_of(number))
    return -number


def keep(budget: Budget, number: Number) -> Number:
    """The number with a plus before it."""
    budget.spend()
    return number


def percent(budget: Budget, number: Number) -> Number:
    """A hundredth."""
    return divide(budget, number, 100)


def factorial(budget: Budget, number: Number) -> Number:
    """All whole numbers from 1 to this one, multiplied."""
    count = whole(number)
    if not 0 <= count <= MAX_FACTORIAL:
        raise Refusal(f"a factorial is taken of 0 to {MAX_FACTORIAL}")
    budget.spend(count * 9)
    return math.factorial(count)


def power(budget: Budget, base: Number, exponent: Number) -> Number:
    """Base to the exponent: exactly where the result is rational, the real root where there is one."""
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    if isinstance(base, float) or isinstance(exponent, float):
        return _power_of_floats(budget, base, exponent)
    if isinstance(exponent, int):
        return _whole_power(budget, base, exponent)
    budget.spend(4 * bits_of(base) + bits_of(exponent))
    root = exact_root(base, exponent.denominator)
    return _irrational_power(base, exponent) if root is None else _whole_power(budget, root, exponent.numerator)


def compare(budget: Budget, left: Number, right: Number) -> int:
    """-1, 0 or 1; floats that differ by noise only are equal."""
    budget.spend(bits_of(left) + bits_of(right))
    if isinstance(left, float) or isinstance(right, float):
        left, right = settled(float(left)), settled(float(right))
    return (left > right) - (left < right)


def _whole_power(budget: Budget, base: Exact, exponent: int) -> Exact:
    if exponent < 0:
        base, exponent = simplest(1 / Fraction(base)), -exponent
    longest = max(abs(base.numerator), base.denominator)
    if longest == 1:
        budget.spend()
        return base ** min(exponent, 2 - exponent % 2)
    require_room(exponent)
    size = math.ceil(exponent * math.log2(longest)) + 1
    require_room(size)
    budget.spend(2 * size)
    return _simple(base**exponent)


def _power_of_floats(budget: Budget, base: Number, exponent: Number) -> float:
    budget.spend()
    if base == math.e and isinstance(base, float):  # by the function, because the constant's error would be raised too
        return math.exp(exponent)
    if base < 0 and isinstance(exponent, Fraction) and exponent.denominator % 2:
        size = math.pow(-base, exponent)
        return -size if exponent.numerator % 2 else size
    return math.pow(base, exponent)


def _irrational_power(base: Exact, exponent: Fraction) -> float:
    growth = PRECISE.multiply(as_decimal(exponent), natural_logarithm(magnitude(base)))
    if growth > FARTHEST_GROWTH:
        raise OverflowError
    size = float(PRECISE.exp(max(growth, -FARTHEST_GROWTH)))
    return -size if base < 0 and exponent.numerator % 2 else size


def _require_room_for_sum(left: Exact, right: Exact) -> None:
    if isinstance(left, int) and isinstance(right, int):
        require_room(max(left.bit_length(), right.bit_length()) + 1)
        return
    below, other = left.denominator.bit_length(), right.denominator.bit_length()
    require_room(below + other)
    require_room(max(left.numerator.bit_length() + other, right.numerator.bit_length() + below) + 1)


def _simple(number: Exact) -> Exact:
    return simplest(number) if isinstance(number, Fraction) else number
