"""How much work one expression may ask for, and how it is told no."""

from apexbridge.errors import InvalidInputError

MAX_CHARACTERS = 1000
MAX_NODES = 500
"""Numbers, operators and calls together."""
MAX_DEPTH = 60
"""Brackets, signs and powers within each other."""
MAX_BITS = 4096
"""Of a whole number, or of either half of a fraction."""
MAX_STEPS = 1000
"""Of the whole calculation; see `Budget`."""
BITS_PER_STEP = 256
MAX_DIGITS = 400
"""Of a number as it is written."""
MAX_EXPONENT = 800
"""Of a number as it is written, 1e800; with all its digits it stays below `MAX_BITS`."""
MAX_FACTORIAL = 500
MAX_CHOICES = 10_000
"""The number of things of which `comb` and `perm` choose."""
MAX_PLACES = 400
"""Decimal places of `round`."""
MAX_ANGLE = 10**15
"""Beyond it a float no longer knows where on the circle it is."""


class Refusal(Exception):
    """Why something is not calculated; whoever knows the place in the text adds it by `refused`."""


class Budget:
    """Counts every operation, and one on long numbers as several; it ends a calculation that asks for too many."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.steps = steps
        self.spent = 0

    def spend(self, bits: int = 0) -> None:
        """Pay for an operation on numbers of so many bits together, before it is done.

        Raises:
            Refusal: nothing is left.
        """
        self.spent += 1 + bits // BITS_PER_STEP
        if self.spent > self.steps:
            raise Refusal(f"the calculation takes more than {self.steps} steps; split it")


def require_room(bits: int) -> None:
    """Refuse an operation whose result may need so many bits.

    Raises:
        Refusal: they are too many.
    """
    if bits > MAX_BITS:
        raise Refusal(f"the number would need more than {MAX_BITS} bits, about {MAX_BITS * 3 // 10} digits")


def refused(why: str, position: int) -> InvalidInputError:
    """The error for what is wrong at a place, which is counted from 0 and told from 1."""
    return InvalidInputError(f"Cannot calculate this: {why} (at character {position + 1})", position=position + 1)
