"""Functions of as many numbers as there are."""

import math

from apexbridge.tools.builtin.arithmetic.curves import square_root
from apexbridge.tools.builtin.arithmetic.limits import Budget
from apexbridge.tools.builtin.arithmetic.numbers import Number, bits_of
from apexbridge.tools.builtin.arithmetic.operations import add, divide, multiply


def smallest(budget: Budget, *numbers: Number) -> Number:
    """The least of them."""
    _pay_for_comparing(budget, numbers)
    return min(numbers)


def largest(budget: Budget, *numbers: Number) -> Number:
    """The greatest of them."""
    _pay_for_comparing(budget, numbers)
    return max(numbers)


def total(budget: Budget, *numbers: Number) -> Number:
    """All of them together."""
    found: Number = 0
    for number in numbers:
        found = add(budget, found, number)
    return found


def mean(budget: Budget, *numbers: Number) -> Number:
    """Their average."""
    return divide(budget, total(budget, *numbers), len(numbers))


def median(budget: Budget, *numbers: Number) -> Number:
    """The one in the middle, or the average of the two that are."""
    _pay_for_comparing(budget, numbers)
    _pay_for_comparing(budget, numbers)
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else mean(budget, ordered[middle - 1], ordered[middle])


def hypotenuse(budget: Budget, *numbers: Number) -> Number:
    """How far it is to a point with these coordinates."""
    if any(isinstance(number, float) for number in numbers):
        budget.spend(64 * len(numbers))
        return math.hypot(*numbers)
    return square_root(budget, total(budget, *(multiply(budget, number, number) for number in numbers)))


def _pay_for_comparing(budget: Budget, numbers: tuple[Number, ...]) -> None:
    for number in numbers:
        budget.spend(bits_of(number))
