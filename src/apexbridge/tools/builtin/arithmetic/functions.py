"""The functions and constants that an expression may name, with how many arguments each takes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from apexbridge.tools.builtin.arithmetic import curves, gatherings, operations, rounding, wholes
from apexbridge.tools.builtin.arithmetic.limits import MAX_NODES
from apexbridge.tools.builtin.arithmetic.numbers import Number

Action = Callable[..., Number]
"""Takes the budget and the operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """What a name does."""

    action: Action
    least: int
    most: int

    def arity(self) -> str:
        """How many arguments it takes, in words."""
        if self.least == self.most:
            return "1 argument" if self.least == 1 else f"{self.least} arguments"
        return f"{self.least} or {self.most} arguments"


def _takes(least: int, most: int, **actions: Action) -> dict[str, Function]:
    return {name: Function(action=action, least=least, most=most) for name, action in actions.items()}


FUNCTIONS: Mapping[str, Function] = {
    **_takes(1, 1, sqrt=curves.square_root, cbrt=curves.cube_root, exp=curves.exponential),
    **_takes(1, 1, ln=curves.logarithm, log2=curves.binary_logarithm, log10=curves.common_logarithm),
    **_takes(1, 2, log=curves.logarithm),
    **_takes(1, 1, sin=curves.sine, cos=curves.cosine, tan=curves.tangent),
    **_takes(1, 1, asin=curves.arcsine, acos=curves.arccosine, atan=curves.arctangent),
    **_takes(2, 2, atan2=curves.direction),
    **_takes(1, 1, sinh=curves.hyperbolic_sine, cosh=curves.hyperbolic_cosine, tanh=curves.hyperbolic_tangent),
    **_takes(1, 1, degrees=curves.degrees, radians=curves.radians),
    **_takes(1, 1, floor=rounding.floor, ceil=rounding.ceiling, trunc=rounding.truncate),
    **_takes(1, 1, abs=rounding.absolute, sign=rounding.sign),
    **_takes(1, 2, round=rounding.rounded),
    **_takes(1, MAX_NODES, gcd=wholes.greatest_common_divisor, lcm=wholes.least_common_multiple),
    **_takes(1, 1, factorial=operations.factorial),
    **_takes(2, 2, comb=wholes.combinations, pow=operations.power, mod=operations.modulo),
    **_takes(1, 2, perm=wholes.permutations),
    **_takes(1, MAX_NODES, min=gatherings.smallest, max=gatherings.largest, sum=gatherings.total),
    **_takes(1, MAX_NODES, mean=gatherings.mean, avg=gatherings.mean, median=gatherings.median),
    **_takes(1, MAX_NODES, hypot=gatherings.hypotenuse),
}
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau, "phi": (1 + math.sqrt(5)) / 2}
