"""From any number to one with fewer digits, and what is left of it without its sign."""

import math
from fractions import Fraction

from apexbridge.tools.builtin.arithmetic.limits import MAX_PLACES, Budget, Refusal
from apexbridge.tools.builtin.arithmetic.numbers import (
    Number,
    bits_of,
    magnitude,
    settled,
    settled_exactly,
    whole,
)
from apexbridge.tools.builtin.arithmetic.operations import divide, multiply, power

_HALF = Fraction(1, 2)


def floor(budget: Budget, number: Number) -> Number:
    """The next whole number below."""
    budget.spend(bits_of(number))
    return math.floor(settled(number))


def ceiling(budget: Budget, number: Number) -> Number:
    """The next whole number above."""
    budget.spend(bits_of(number))
    return math.ceil(settled(number))


def truncate(budget: Budget, number: Number) -> Number:
    """The whole number in front of the point."""
    budget.spend(bits_of(number))
    return math.trunc(settled(number))


def rounded(budget: Budget, number: Number, places: Number = 0) -> Number:
    """The nearest with so many decimal places; halves go away from zero, as they are taught in school."""
    count = whole(places)
    if abs(count) > MAX_PLACES:
        raise Refusal(f"at most {MAX_PLACES} decimal places")
    scale = power(budget, 10, count)
    scaled = multiply(budget, settled_exactly(number), scale)
    nearest = math.floor(magnitude(scaled) + _HALF)
    return divide(budget, nearest if number >= 0 else -nearest, scale)


def absolute(budget: Budget, number: Number) -> Number:
    """The number without its sign."""
    budget.spend(bits_of(number))
    return magnitude(number)


def sign(budget: Budget, number: Number) -> Number:
    """-1, 0 or 1."""
    budget.spend()
    return (number > 0) - (number < 0)
