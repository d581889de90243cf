"""Functions of whole numbers: divisors, multiples, and ways to choose."""

import math

from apexbridge.tools.builtin.arithmetic.limits import MAX_CHOICES, Budget, Refusal, require_room
from apexbridge.tools.builtin.arithmetic.numbers import Number, whole


def greatest_common_divisor(budget: Budget, *numbers: Number) -> Number:
    """The largest number that divides them all."""
    found = 0
    for number in map(whole, numbers):
        budget.spend(found.bit_length() + number.bit_length())
        found = math.gcd(found, number)
    return found


def least_common_multiple(budget: Budget, *numbers: Number) -> Number:
    """The smallest number that they all divide."""
    found = 1
    for number in map(whole, numbers):
        require_room(found.bit_length() + number.bit_length())
        budget.spend(2 * (found.bit_length() + number.bit_length()))
        found = math.lcm(found, number)
    return found


def combinations(budget: Budget, things: Number, chosen: Number) -> Number:
    """In how many ways so many of them can be chosen, their order aside."""
    count, taken = _choice(things, chosen)
    taken = min(taken, count - taken)
    budget.spend()
    if taken < 0:
        return 0
    size = _size(count) - _size(count - taken) - _size(taken)
    require_room(math.ceil(size) + 1)
    budget.spend(taken * 32)
    return math.comb(count, taken)


def permutations(budget: Budget, things: Number, chosen: Number | None = None) -> Number:
    """In how many ways so many of them, or all, can be put in a row."""
    count, taken = _choice(things, things if chosen is None else chosen)
    budget.spend()
    if taken > count:
        return 0
    size = _size(count) - _size(count - taken)
    require_room(math.ceil(size) + 1)
    budget.spend(taken * 32)
    return math.perm(count, taken)


def _choice(things: Number, chosen: Number) -> tuple[int, int]:
    count, taken = whole(things), whole(chosen)
    if not 0 <= count <= MAX_CHOICES or not 0 <= taken <= MAX_CHOICES:
        raise Refusal(f"choosing works with 0 to {MAX_CHOICES:,} things")
    return count, taken


def _size(count: int) -> float:
    """The bits of a factorial."""
    return math.lgamma(count + 1) / math.log(2)
