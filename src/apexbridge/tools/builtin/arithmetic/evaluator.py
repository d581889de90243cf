"""Does what a parsed expression says, step by step, on a pile of numbers."""

import math
from collections.abc import Sequence

from apexbridge.tools.builtin.arithmetic.functions import Action
from apexbridge.tools.builtin.arithmetic.limits import Budget, Refusal, refused
from apexbridge.tools.builtin.arithmetic.numbers import Number
from apexbridge.tools.builtin.arithmetic.parser import Parser, Step
from apexbridge.tools.builtin.arithmetic.tokens import tokens_of


def evaluate(expression: str, budget: Budget | None = None) -> Number:
    """The value of an expression: exact where that is possible, a float where it is not, a bool for a comparison.

    Raises:
        InvalidInputError: it is no arithmetic, has no real and finite value, or asks for too much; the message says
            where.
    """
    if not isinstance(expression, str):
        raise refused("an expression is text", 0)
    budget = Budget() if budget is None else budget
    pile: list[Number] = []
    for step in Parser(tokens_of(expression)).steps():
        if step.action is None:
            pile.append(step.value)
            continue
        operands = pile[-step.takes :]
        del pile[-step.takes :]
        pile.append(_done(step, step.action, operands, budget))
    return pile[0]


def _done(step: Step, action: Action, operands: Sequence[Number], budget: Budget) -> Number:
    if any(isinstance(operand, bool) for operand in operands):
        raise refused(f"{step.name} takes numbers, not the true or false of a comparison", step.position)
    try:
        value = action(budget, *operands)
        if isinstance(value, float) and not math.isfinite(value):
            raise OverflowError
    except Refusal as refusal:
        raise refused(f"{step.name}: {refusal}", step.position) from refusal
    except ZeroDivisionError as error:
        raise refused(f"{step.name}: division by zero", step.position) from error
    except OverflowError as error:
        raise refused(f"{step.name}: the number is too large", step.position) from error
    except ValueError as error:
        raise refused(f"{step.name} has no real result here", step.position) from error
    return value
