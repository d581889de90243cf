"""Roots, logarithms and angles: exact where the result is rational and that is easily known, else floats."""

import math
from fractions import Fraction

from apexbridge.tools.builtin.arithmetic.limits import MAX_ANGLE, Budget, Refusal
from apexbridge.tools.builtin.arithmetic.numbers import NOISE, Number, bits_of, magnitude, natural_logarithm, settled
from apexbridge.tools.builtin.arithmetic.operations import power


def square_root(budget: Budget, number: Number) -> Number:
    """The number that, times itself, gives this one."""
    return _root(budget, number, 2)


def cube_root(budget: Budget, number: Number) -> Number:
    """The number whose cube this is."""
    return _root(budget, number, 3)


def exponential(budget: Budget, number: Number) -> Number:
    """E to this power."""
    budget.spend()
    return math.exp(number)


def logarithm(budget: Budget, number: Number, base: Number | None = None) -> Number:
    """Natural, or to a base."""
    budget.spend(2 * bits_of(number))
    if base is None:
        return _natural(number)
    if base == 2:
        return binary_logarithm(budget, number)
    if base == 10:
        return common_logarithm(budget, number)
    if base == 1:
        raise Refusal("the base of a logarithm cannot be 1")
    return _natural(number) / _natural(base)


def binary_logarithm(budget: Budget, number: Number) -> Number:
    """To base 2."""
    budget.spend(2 * bits_of(number))
    return math.log2(number) if isinstance(number, int | float) else _natural(number) / math.log(2)


def common_logarithm(budget: Budget, number: Number) -> Number:
    """To base 10."""
    budget.spend(2 * bits_of(number))
    return math.log10(number) if isinstance(number, int | float) else _natural(number) / math.log(10)


def sine(budget: Budget, angle: Number) -> Number:
    """Of an angle in radians."""
    turned = _angle(budget, angle)
    return _heard(math.sin(turned), turned)


def cosine(budget: Budget, angle: Number) -> Number:
    """Of an angle in radians."""
    turned = _angle(budget, angle)
    return _heard(math.cos(turned), turned)


def tangent(budget: Budget, angle: Number) -> Number:
    """Of an angle in radians."""
    turned = _angle(budget, angle)
    if _heard(math.cos(turned), turned) == 0:
        raise ValueError("upright")
    return _heard(math.tan(turned), turned)


def arcsine(budget: Budget, number: Number) -> Number:
    """The angle whose sine this is."""
    budget.spend()
    return math.asin(_ratio(number))


def arccosine(budget: Budget, number: Number) -> Number:
    """The angle whose cosine this is."""
    budget.spend()
    return math.acos(_ratio(number))


def arctangent(budget: Budget, number: Number) -> Number:
    """The angle whose tangent this is."""
    budget.spend()
    return math.atan(number)


def direction(budget: Budget, upwards: Number, sidewards: Number) -> Number:
    """The angle of a point, y before x."""
    budget.spend()
    return math.atan2(upwards, sidewards)


def hyperbolic_sine(budget: Budget, number: Number) -> Number:
    """The odd part of the exponential."""
    budget.spend()
    return math.sinh(number)


def hyperbolic_cosine(budget: Budget, number: Number) -> Number:
    """The even part of the exponential."""
    budget.spend()
    return math.cosh(number)


def hyperbolic_tangent(budget: Budget, number: Number) -> Number:
    """One over the other."""
    budget.spend()
    return math.tanh(number)


def degrees(budget: Budget, number: Number) -> Number:
    """From radians."""
    budget.spend()
    return math.degrees(number)


def radians(budget: Budget, number: Number) -> Number:
    """From degrees."""
    budget.spend()
    return math.radians(number)


def _root(budget: Budget, number: Number, degree: int) -> Number:
    if not isinstance(number, float):
        return power(budget, number, Fraction(1, degree))
    budget.spend()
    return math.sqrt(number) if degree == 2 else math.cbrt(number)


def _natural(number: Number) -> float:
    if isinstance(number, float):
        return math.log(number)
    if number <= 0:
        raise ValueError("no logarithm")
    return float(natural_logarithm(number))


def _angle(budget: Budget, angle: Number) -> float:
    budget.spend()
    if magnitude(angle) > MAX_ANGLE:
        raise Refusal("the angle is too large to tell where on the circle it is; take it modulo tau first")
    return float(angle)


def _heard(value: float, angle: float) -> float:
    """A value of the circle, or 0 where it is less than the angle's own error, as in the sine of pi."""
    return 0.0 if abs(value) < NOISE / 2 * abs(angle) else value


def _ratio(number: Number) -> Number:
    return settled(number) if magnitude(number) > 1 else number
