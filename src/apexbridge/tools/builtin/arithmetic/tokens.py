"""Cuts an expression into numbers, names and signs, whichever of many keyboards they came from."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from apexbridge.tools.builtin.arithmetic.limits import MAX_CHARACTERS, MAX_DIGITS, MAX_EXPONENT, refused
from apexbridge.tools.builtin.arithmetic.numbers import Exact, simplest

Kind = Literal["number", "name", "sign"]

_PLAIN = {0xFF01 + offset: chr(0x21 + offset) for offset in range(0x5E)} | str.maketrans(
    "【】×·⋅÷−\u3000\u00a0", "()***/-  "
)
"""Full-width forms and typographers' signs; one character for one, so that positions stay true."""
_SPACES = " \t\r\n"
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<number>0[xX][0-9A-Fa-f]+ | 0[bB][01]+ | 0[oO][0-7]+
        | (?:[0-9]+(?:\.[0-9]+|\.(?![A-Za-z_])|。[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*|[πτφ])
    | (?P<sign>\*\*|//|<=|>=|==|!=|加上?|减去?|乘以?|除以|[-+*/%^!<>=≤≥≠√(),])
    """,
    re.VERBOSE,
)
_ONE_SPELLING = {
    **{"**": "^", "==": "=", "≤": "<=", "≥": ">=", "≠": "!=", "π": "pi", "τ": "tau", "φ": "phi"},
    **{"加": "+", "加上": "+", "减": "-", "减去": "-", "乘": "*", "乘以": "*", "除以": "/"},
}
_HINTS = {
    **dict.fromkeys("[]{}", "only round brackets group"),
    **dict.fromkeys("'\"`", "there is no text in arithmetic"),
    ".": "a point belongs inside a number",
    "除": "write 除以",
    "²": "write ^2",
    "³": "write ^3",
}


@dataclass(slots=True, kw_only=True)
class Token:
    """One word of an expression."""

    kind: Kind
    text: str
    """In one spelling: `^` for `**`, names in lower case."""
    position: int
    spaced: bool
    """Whether a space stands before it."""
    value: Exact = 0


def tokens_of(expression: str) -> list[Token]:
    """The words of an expression, without the `=` or `=?` with which people end a question.

    Raises:
        InvalidInputError: it is too long, or holds what is no word of arithmetic.
    """
    if len(expression) > MAX_CHARACTERS:
        raise refused(f"it is longer than {MAX_CHARACTERS} characters", MAX_CHARACTERS)
    text = expression.translate(_PLAIN)
    text = text.rstrip(_SPACES).rstrip("?").rstrip(_SPACES).removesuffix("=")
    found: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise refused(_unexpected(expression[position], text[position]), position)
        word = match.group()
        if match.lastgroup == "space":
            spaced = True
        else:
            found.append(_token(match.lastgroup, word, position, spaced=spaced))
            spaced = False
        position = match.end()
    return found


def _token(group: str | None, word: str, position: int, *, spaced: bool) -> Token:
    if group == "number":
        return Token(kind="number", text=word, position=position, spaced=spaced, value=_read(word, position))
    spelling = _ONE_SPELLING.get(word) or word.lower()
    kind: Kind = "name" if group == "name" else "sign"
    return Token(kind=kind, text=spelling, position=position, spaced=spaced)


def _read(word: str, position: int) -> Exact:
    """The number as written, exactly: 0.1 is a tenth."""
    if len(word) > MAX_DIGITS:
        raise refused(f"a number has at most {MAX_DIGITS} digits", position)
    if word[:2].lower() in ("0x", "0b", "0o"):
        return int(word, 0)
    if word.isdigit():
        return int(word)
    mantissa, _, power = word.lower().replace("。", ".").partition("e")
    exponent = int(power or "0")
    if abs(exponent) > MAX_EXPONENT:
        raise refused(f"the exponent of a number is at most {MAX_EXPONENT}", position)
    before, _, after = mantissa.partition(".")
    exponent -= len(after)
    digits = int(before + after)
    return digits * 10**exponent if exponent >= 0 else simplest(Fraction(digits, 10**-exponent))


def _unexpected(given: str, plain: str) -> str:
    hint = _HINTS.get(plain)
    return f"{ascii(given) if not given.isprintable() else given} is not understood" + (f"; {hint}" if hint else "")
