"""The signs that stand before or between numbers: what each does and how tightly it binds."""

from collections.abc import Mapping
from dataclasses import dataclass

from apexbridge.tools.builtin.arithmetic import operations
from apexbridge.tools.builtin.arithmetic.curves import square_root
from apexbridge.tools.builtin.arithmetic.functions import Action
from apexbridge.tools.builtin.arithmetic.limits import Budget
from apexbridge.tools.builtin.arithmetic.numbers import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A sign."""

    action: Action
    binds: int
    """The higher, the tighter."""
    takes: int = 2
    nests: bool = False
    """Whether it can stand within its own right side, as a power can."""


def _less(budget: Budget, left: Number, right: Number) -> bool:
    return operations.compare(budget, left, right) < 0


def _less_or_equal(budget: Budget, left: Number, right: Number) -> bool:
    return operations.compare(budget, left, right) <= 0


def _equal(budget: Budget, left: Number, right: Number) -> bool:
    return operations.compare(budget, left, right) == 0


def _unequal(budget: Budget, left: Number, right: Number) -> bool:
    return operations.compare(budget, left, right) != 0


def _greater_or_equal(budget: Budget, left: Number, right: Number) -> bool:
    return operations.compare(budget, left, right) >= 0


def _greater(budget: Budget, left: Number, right: Number) -> bool:
    return operations.compare(budget, left, right) > 0


BETWEEN: Mapping[str, Operator] = {
    "<": Operator(action=_less, binds=1),
    "<=": Operator(action=_less_or_equal, binds=1),
    "=": Operator(action=_equal, binds=1),
    "!=": Operator(action=_unequal, binds=1),
    ">=": Operator(action=_greater_or_equal, binds=1),
    ">": Operator(action=_greater, binds=1),
    "+": Operator(action=operations.add, binds=2),
    "-": Operator(action=operations.subtract, binds=2),
    "*": Operator(action=operations.multiply, binds=3),
    "/": Operator(action=operations.divide, binds=3),
    "//": Operator(action=operations.floor_divide, binds=3),
    "%": Operator(action=operations.modulo, binds=3),
    "^": Operator(action=operations.power, binds=5, nests=True),
}
BEFORE: Mapping[str, Operator] = {
    "-": Operator(action=operations.negate, binds=4, takes=1, nests=True),
    "+": Operator(action=operations.keep, binds=4, takes=1, nests=True),
    "√": Operator(action=square_root, binds=6, takes=1, nests=True),
}
