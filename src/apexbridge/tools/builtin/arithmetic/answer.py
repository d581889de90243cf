"""How a value is shown: as a number of JSON, and exactly where such a number cannot say it."""

from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from apexbridge.tools.builtin.arithmetic.numbers import SIGNIFICANT_DIGITS, Exact, Number, settled

FLOAT_BITS = 53
SHORT_CHARACTERS = 60
"""An exact value up to this length is part of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A value for programs and for people."""

    result: int | float
    exact: str | None
    """The value as `1/3`, where a float cannot show it."""
    text: str


def answer_of(value: Number) -> Answer:
    """A value as it is shown; a float without the noise of its last digits."""
    shown = settled(value)
    if isinstance(shown, bool):
        return Answer(result=shown, exact=None, text=str(shown).lower())
    if isinstance(shown, float):
        return Answer(result=shown, exact=None, text=str(shown))
    exact = None if _float_shows(shown) else str(shown)
    if isinstance(shown, int):
        return Answer(result=shown, exact=exact, text=str(shown))
    text = str(_nearest(shown)) if exact is None else _decimal(shown)
    if exact is not None and len(exact) <= SHORT_CHARACTERS:
        text += f" (exactly {exact})"
    return Answer(result=_nearest(shown), exact=exact, text=text)


def _float_shows(value: Exact) -> bool:
    if isinstance(value, int) and value.bit_length() <= FLOAT_BITS:
        return True
    try:
        return Fraction(repr(float(value))) == value
    except OverflowError:
        return False


def _nearest(value: Fraction) -> int | float:
    """The nearest float, or where it is too large for one the nearest whole number."""
    try:
        return float(value)
    except OverflowError:
        return round(value)


def _decimal(value: Fraction) -> str:
    digits = Context(prec=SIGNIFICANT_DIGITS)
    return str(digits.divide(Decimal(value.numerator), Decimal(value.denominator)))
