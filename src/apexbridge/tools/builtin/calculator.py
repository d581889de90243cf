"""The tool `calculate`: exact arithmetic on text, in bounded time.

Numbers are integers and fractions while results are rational, and floats otherwise. Each operation checks the size of
its result, and operations on long numbers use up a budget, so that no expression takes long.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import Field

from apexbridge.errors import InvalidInputError
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireInput

Exact = int | Fraction
Number = int | Fraction | float

MAX_CHARACTERS = 1000
MAX_NODES = 500
"""Numbers, operators and calls together."""
MAX_DEPTH = 60
"""Brackets, signs, roots and powers within each other. The parser recurses this deep."""
MAX_BITS = 4096
"""Of an integer, or of the numerator and the denominator of a fraction."""
MAX_STEPS = 1000
"""An operation is one step, plus one for every `BITS_PER_STEP` bits it works on."""
BITS_PER_STEP = 256
MAX_DIGITS = 400
"""Of a number as it is written."""
MAX_EXPONENT = 800
"""Of a number as it is written, such as 1e800. Together with `MAX_DIGITS` it stays below `MAX_BITS`."""
MAX_FACTORIAL = 500
MAX_CHOICES = 10_000
"""The largest argument of `comb` and `perm`."""
MAX_PLACES = 400
"""Decimal places of `round`."""
MAX_ANGLE = 10**15
"""Floats above it are too coarse to be reduced to one turn."""
SIGNIFICANT_DIGITS = 15
"""Of a float; the digits after them are rounding noise."""
NOISE = 2.0**-50
"""Relative error that a few operations on floats may add up to."""

_PRECISE = Context(prec=28)
_LARGEST_EXPONENT = Decimal(1000)
"""exp(1000) overflows a float, exp(-1000) is 0."""
_CLOSE_TO_ONE = Decimal("1e-9")
_FLOAT_BITS = 53
_SHORT_CHARACTERS = 60
"""An exact value up to this length is part of the text."""


class CalculateInput(WireInput):
    expression: str = Field(strict=True, description="Such as sqrt(144) + 10")


@Tool.define(
    "calculate",
    description=(
        "Exact arithmetic: + - * / // % ^ ! and comparisons; sqrt, log (natural), sin (radians), round, gcd, comb, "
        "mean, median and more; pi, e."
    ),
    parameters=CalculateInput,
    metadata=ToolMetadata(category="builtin", tags=("math", "arithmetic", "计算")),
)
async def calculate(args: CalculateInput, context: ToolContext) -> ToolResult:
    return rendered(evaluate(args.expression))


def rendered(value: Number) -> ToolResult:
    """Render a value as `result`, a JSON number, and as `exact` if a float cannot represent it."""
    shown = without_noise(value)
    data: dict[str, Any] = {"success": True, "result": shown}
    text = str(shown).lower() if isinstance(shown, bool) else str(shown)
    if not isinstance(shown, float) and not _is_float(shown):
        data["exact"] = str(shown)
    if isinstance(shown, Fraction):
        try:
            data["result"] = float(shown)
        except OverflowError:
            data["result"] = round(shown)
        text = str(data["result"])
        if "exact" in data:
            suffix = f" (exactly {shown})" if len(str(shown)) <= _SHORT_CHARACTERS else ""
            text = f"{_decimal(shown, Context(prec=SIGNIFICANT_DIGITS))}{suffix}"
    return ToolResult(output=text, data=data)


def _is_float(value: Exact) -> bool:
    """Whether the shortest decimal of the nearest float is exactly this value."""
    if isinstance(value, int) and value.bit_length() <= _FLOAT_BITS:
        return True
    try:
        return Fraction(repr(float(value))) == value
    except OverflowError:
        return False


def without_noise(value: Number) -> Number:
    """Round a float to 15 significant digits, and to an integer if that is the same; return exact numbers unchanged."""
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 10**SIGNIFICANT_DIGITS else rounded


def evaluate(expression: str) -> Number:
    """Calculate an expression: exactly if the result is rational, as a bool for a comparison, else as a float.

    Raises:
        InvalidInputError: it is not arithmetic, has no real and finite value, or takes too much work. `position` in the
            details counts from 1.
    """
    return _Calculation(expression).result()


# ---------------------------------------------------------------------------------------------------------- operations
class _OperationError(Exception):
    """An operation cannot be done; the calculation adds the position."""


def _error(reason: str, position: int) -> InvalidInputError:
    return InvalidInputError(f"Cannot calculate this: {reason} (at character {position + 1})", position=position + 1)


def _bits(value: Number) -> int:
    return 64 if isinstance(value, float) else value.numerator.bit_length() + value.denominator.bit_length()


def _check_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise _OperationError(f"the number would need more than {MAX_BITS} bits, about {MAX_BITS * 3 // 10} digits")


def _bounded(value: Number) -> Number:
    """Check the size of a result, and make an integer of a fraction that is one."""
    if isinstance(value, float):
        return value
    _check_bits(max(value.numerator.bit_length(), value.denominator.bit_length()))
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def _integer(value: Number) -> int:
    integer = without_noise(value)
    if not isinstance(integer, int):
        raise _OperationError("takes whole numbers only")
    return integer


def _add(left: Number, right: Number) -> Number:
    total = _bounded(left + right)
    # If two floats cancel each other out, the remainder is noise.
    return 0.0 if isinstance(total, float) and abs(total) < NOISE * abs(float(left)) else total


def _subtract(left: Number, right: Number) -> Number:
    return _add(left, -right)


def _divide(left: Number, right: Number) -> Number:
    return _bounded((left if isinstance(left, float) else Fraction(left)) / right)


def _floor_divide(left: Number, right: Number) -> Number:
    return math.floor(without_noise(_divide(left, right)))


def _modulo(left: Number, right: Number) -> Number:
    return _subtract(left, right * _floor_divide(left, right))


def _comparison(test: Callable[[Any, Any], bool]) -> Callable[[Number, Number], bool]:
    def compare(left: Number, right: Number) -> bool:
        if isinstance(left, float) or isinstance(right, float):
            left, right = without_noise(float(left)), without_noise(float(right))
        return test(left, right)

    return compare


# ------------------------------------------------------------------------------------------------ powers and logarithms
def _power(base: Number, exponent: Number) -> Number:
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    if isinstance(base, float) or isinstance(exponent, float):
        return _float_power(base, exponent)
    if isinstance(exponent, int):
        return _integer_power(base, exponent)
    root = _exact_root(base, exponent.denominator)
    return _irrational_power(base, exponent) if root is None else _integer_power(root, exponent.numerator)


def _float_power(base: Number, exponent: Number) -> float:
    if base == math.e and isinstance(base, float):
        return math.exp(exponent)  # more accurate: pow would amplify the rounding error of the constant
    if base < 0 and isinstance(exponent, Fraction) and exponent.denominator % 2:
        size = math.pow(-base, exponent)
        return -size if exponent.numerator % 2 else size
    return math.pow(base, exponent)


def _integer_power(base: Exact, exponent: int) -> Exact:
    if exponent < 0:
        base, exponent = 1 / Fraction(base), -exponent
    longest = max(abs(base.numerator), base.denominator)
    if longest == 1:  # -1, 0 or 1, with an exponent of any size
        return base ** min(exponent, 2 - exponent % 2)
    _check_bits(exponent)  # before the product, which overflows a float if the exponent is huge
    _check_bits(math.ceil(exponent * math.log2(longest)) + 1)
    return base**exponent


def _irrational_power(base: Exact, exponent: Fraction) -> float:
    size = _PRECISE.multiply(_decimal(exponent), _natural_logarithm(max(base, -base)))
    if size > _LARGEST_EXPONENT:
        raise OverflowError
    result = float(_PRECISE.exp(max(size, -_LARGEST_EXPONENT)))
    return -result if base < 0 and exponent.numerator % 2 else result


def _exact_root(value: Exact, degree: int) -> Exact | None:
    """Return the real root if it is rational, None if it is irrational. Raises ValueError if the root is not real."""
    if value < 0 and degree % 2 == 0:
        raise ValueError
    numerator = _integer_root(abs(value.numerator), degree)
    denominator = _integer_root(value.denominator, degree)
    if numerator is None or denominator is None:
        return None
    return Fraction(-numerator if value < 0 else numerator, denominator)


def _integer_root(value: int, degree: int) -> int | None:
    if value < 2:
        return value
    if degree >= value.bit_length():
        return None
    root = math.isqrt(value) if degree == 2 else _floor_root(value, degree)
    return root if root**degree == value else None


def _floor_root(value: int, degree: int) -> int:
    size = math.log2(value) / degree
    if size < 40:
        return round(math.exp2(size))
    shift = int(size) - 40
    guess = (int(math.exp2(size - shift)) + 2) << shift  # above the root: from there Newton's method only descends
    while (better := ((degree - 1) * guess + value // guess ** (degree - 1)) // degree) < guess:
        guess = better
    return guess


def _root(degree: int, of_float: Callable[[float], float]) -> Callable[[Number], Number]:
    return lambda value: of_float(value) if isinstance(value, float) else _power(value, Fraction(1, degree))


_sqrt = _root(2, math.sqrt)


def _decimal(value: Exact, context: Context = _PRECISE) -> Decimal:
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def _natural_logarithm(value: Exact) -> Decimal:
    """Of a number above 0, to more digits than a float has."""
    above_one = _decimal(value - 1)
    if abs(above_one) > _CLOSE_TO_ONE:
        return _PRECISE.ln(_decimal(value))
    with localcontext(_PRECISE):  # close to 1, only the difference has enough digits
        return above_one - above_one**2 / 2 + above_one**3 / 3


def _log(value: Number, base: Number | None = None) -> Number:
    if base == 1:
        raise _OperationError("the base of a logarithm cannot be 1")
    if base in (2, 10) and isinstance(value, int | float):
        return math.log2(value) if base == 2 else math.log10(value)
    if base is not None:
        return float(_log(value)) / float(_log(base))
    if isinstance(value, float):
        return math.log(value)
    if value <= 0:
        raise ValueError
    return float(_natural_logarithm(value))


# ----------------------------------------------------------------------------------------------------- other functions
def _of_angle(function: Callable[[float], float]) -> Callable[[Number], float]:
    def value_at(angle: Number) -> float:
        if not -MAX_ANGLE <= angle <= MAX_ANGLE:
            raise _OperationError("the angle is too large; take it modulo tau first")
        value = function(float(angle))
        return 0.0 if abs(value) < NOISE / 2 * abs(float(angle)) else value

    return value_at


_sin, _cos = _of_angle(math.sin), _of_angle(math.cos)


def _tan(angle: Number) -> float:
    if _cos(angle) == 0:
        raise ValueError
    return _of_angle(math.tan)(angle)


def _of_ratio(function: Callable[[float], float]) -> Callable[[Number], float]:
    """Noise may put a float above 1, where asin and acos are not defined."""
    return lambda value: function(float(value if -1 <= value <= 1 else without_noise(value)))


def _to_integer(function: Callable[[Number], int]) -> Callable[[Number], int]:
    return lambda value: function(without_noise(value))


def _factorial(value: Number) -> int:
    count = _integer(value)
    if not 0 <= count <= MAX_FACTORIAL:
        raise _OperationError(f"a factorial is taken of 0 to {MAX_FACTORIAL}")
    return math.factorial(count)


def _choose(function: Callable[[int, int], int]) -> Callable[..., int]:
    def choose(things: Number, chosen: Number | None = None) -> int:
        count = _integer(things)
        taken = count if chosen is None else _integer(chosen)
        if not (0 <= count <= MAX_CHOICES and 0 <= taken <= MAX_CHOICES):
            raise _OperationError(f"the arguments are 0 to {MAX_CHOICES:,}")
        if taken <= count:
            bits = _factorial_bits(count) - _factorial_bits(count - taken) + 1
            _check_bits(bits - _factorial_bits(taken) if function is math.comb else bits)
        return function(count, taken)

    return choose


def _factorial_bits(count: int) -> float:
    return math.lgamma(count + 1) / math.log(2)


def _round(value: Number, places: Number = 0) -> Number:
    """Round halves away from zero."""
    count = _integer(places)
    if abs(count) > MAX_PLACES:
        raise _OperationError(f"at most {MAX_PLACES} decimal places")
    shown = without_noise(value)
    exact = Fraction(repr(shown)) if isinstance(shown, float) else shown
    scale = Fraction(10) ** count
    nearest = math.floor(_bounded(abs(exact * scale)) + Fraction(1, 2))
    return (nearest if value >= 0 else -nearest) / scale


def _lcm(*values: Number) -> int:
    multiple = 1
    for value in map(_integer, values):
        multiple = math.lcm(multiple, value)
        _check_bits(multiple.bit_length())
    return multiple


def _sum(*values: Number) -> Number:
    total: Number = 0
    for value in values:
        total = _add(total, value)
    return total


def _mean(*values: Number) -> Number:
    return _divide(_sum(*values), len(values))


def _median(*values: Number) -> Number:
    ordered, count = sorted(values), len(values)
    return _mean(*ordered[(count - 1) // 2 : count // 2 + 1])


def _hypot(*values: Number) -> Number:
    if any(isinstance(value, float) for value in values):
        return math.hypot(*values)
    return _sqrt(_sum(*(_bounded(value * value) for value in values)))


_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "sqrt": _sqrt,
    "cbrt": _root(3, math.cbrt),
    "exp": math.exp,
    "ln": _log,
    "log": _log,
    "log2": lambda value: _log(value, 2),
    "log10": lambda value: _log(value, 10),
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "asin": _of_ratio(math.asin),
    "acos": _of_ratio(math.acos),
    **{name: getattr(math, name) for name in ("atan", "atan2", "sinh", "cosh", "tanh", "degrees", "radians")},
    "floor": _to_integer(math.floor),
    "ceil": _to_integer(math.ceil),
    "trunc": _to_integer(math.trunc),
    "round": _round,
    "abs": abs,
    "sign": lambda value: (value > 0) - (value < 0),
    "gcd": lambda *values: math.gcd(*map(_integer, values)),
    "lcm": _lcm,
    "factorial": _factorial,
    "comb": _choose(math.comb),
    "perm": _choose(math.perm),
    "pow": _power,
    "mod": _modulo,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": _sum,
    "mean": _mean,
    "avg": _mean,
    "median": _median,
    "hypot": _hypot,
}
_ARITIES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("log", "round", "perm"), (1, 2)),
    **dict.fromkeys(("atan2", "comb", "pow", "mod"), (2, 2)),
    **dict.fromkeys(("gcd", "lcm", "min", "max", "sum", "mean", "avg", "median", "hypot"), (1, MAX_NODES)),
}
"""Fewest and most arguments; all other functions take one."""
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau, "phi": (1 + math.sqrt(5)) / 2}

# --------------------------------------------------------------------------------------------------------------- parser
_PRODUCT, _SIGN, _POWER, _ROOT = 3, 4, 5, 6
"""How tightly operators bind; comparisons are 1, sums 2."""
_BINARY: Mapping[str, tuple[int, Callable[[Number, Number], Number]]] = {
    "<": (1, _comparison(operator.lt)),
    "<=": (1, _comparison(operator.le)),
    "=": (1, _comparison(operator.eq)),
    "!=": (1, _comparison(operator.ne)),
    ">=": (1, _comparison(operator.ge)),
    ">": (1, _comparison(operator.gt)),
    "+": (2, _add),
    "-": (2, _subtract),
    "*": (_PRODUCT, operator.mul),
    "/": (_PRODUCT, _divide),
    "//": (_PRODUCT, _floor_divide),
    "%": (_PRODUCT, _modulo),
    "^": (_POWER, _power),
}
_PREFIX: Mapping[str, tuple[int, Callable[..., Number]]] = {
    "-": (_SIGN, operator.neg),
    "+": (_SIGN, operator.pos),
    "√": (_ROOT, _sqrt),
}
_AMBIGUOUS = frozenset({"/", "//", "%", "^", "√"})
"""After one of these, a product without `*` could belong to the left or to the right, as in 6/2(1+2)."""

_PLAIN = {0xFF01 + offset: chr(0x21 + offset) for offset in range(0x5E)} | str.maketrans(
    "【】×·⋅÷−\u3000\u00a0", "()***/-  "
)
"""Full-width and typographic characters. One replaces one, so that positions stay the same."""
_SPACES = " \t\r\n"
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<number>0[xX][0-9A-Fa-f]+ | 0[bB][01]+ | 0[oO][0-7]+
        | (?:[0-9]+(?:\.[0-9]+|\.(?![A-Za-z_])|。[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*|[πτφ])
    | (?P<sign>\*\*|//|<=|>=|==|!=|加上?|减去?|乘以?|除以|[-+*/%^!<>=≤≥≠√(),])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SPELLINGS = {
    **{"**": "^", "==": "=", "≤": "<=", "≥": ">=", "≠": "!=", "π": "pi", "τ": "tau", "φ": "phi"},
    **{"加": "+", "加上": "+", "减": "-", "减去": "-", "乘": "*", "乘以": "*", "除以": "/"},
}
_HINTS = {
    **dict.fromkeys("[]{}", "; group with round brackets"),
    **dict.fromkeys("'\"`", "; text is not arithmetic"),
    ".": "; a point belongs inside a number",
    "除": "; write 除以",
    "²": "; write ^2",
    "³": "; write ^3",
}
_COMMA = "a comma only separates arguments; write 1000, not 1,000"


class _Token(NamedTuple):
    kind: str
    text: str
    """In one spelling: `^` for `**`, names in lower case."""
    position: int
    spaced: bool
    """Whether a space precedes it."""

    @property
    def starts_operand(self) -> bool:
        return self.kind in ("number", "name") or self.text in ("(", "√")


def _tokens(expression: str) -> list[_Token]:
    """Split an expression, without a final `=` or `=?`. Three end tokens follow, because the parser looks ahead."""
    if len(expression) > MAX_CHARACTERS:
        raise _error(f"it is longer than {MAX_CHARACTERS} characters", MAX_CHARACTERS)
    text = expression.translate(_PLAIN)
    text = text.rstrip(_SPACES).rstrip("?").rstrip(_SPACES).removesuffix("=")
    tokens: list[_Token] = []
    spaced = False
    for match in _TOKEN.finditer(text):
        kind, word, position = match.lastgroup or "", match.group(), match.start()
        if kind == "other":
            original = expression[position]
            shown = original if original.isprintable() else ascii(original)
            raise _error(f"{shown} is not understood{_HINTS.get(word, '')}", position)
        if kind != "space":
            spelling = word if kind == "number" else _SPELLINGS.get(word) or word.lower()
            tokens.append(_Token(kind, spelling, position, spaced))
        spaced = kind == "space"
    end = _Token("end", "", len(text), spaced)
    return [*tokens, end, end, end]


class _Calculation:
    """A Pratt parser that calculates while it reads. It rejects text that can be read in two ways."""

    def __init__(self, expression: str) -> None:
        self._tokens = _tokens(expression)
        self._index = 0
        self._depth = 0
        self._nodes = 0
        self._steps_left = MAX_STEPS

    def result(self) -> Number:
        if self._token().kind == "end":
            raise _error("it is empty", 0)
        value = self._expression(0)
        token = self._token()
        if token.text == ",":
            raise _error(_COMMA, token.position)
        if token.text == ")":
            raise _error("this bracket was never opened", token.position)
        return value

    def _token(self, offset: int = 0) -> _Token:
        return self._tokens[self._index + offset]

    def _take(self) -> _Token:
        token = self._token()
        self._index += 1
        return token

    def _count_node(self, token: _Token) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _error(f"it has more than {MAX_NODES} numbers and operators", token.position)

    def _apply(self, token: _Token, function: Callable[..., Number], *operands: Number, name: str = "") -> Number:
        name, position = name or token.text, token.position
        self._count_node(token)
        if any(isinstance(operand, bool) for operand in operands):
            raise _error(f"{name} takes numbers, not the result of a comparison", position)
        try:
            value = _bounded(function(*operands))
            if isinstance(value, float) and not math.isfinite(value):
                raise OverflowError
        except _OperationError as error:
            raise _error(f"{name}: {error}", position) from error
        except ZeroDivisionError as error:
            raise _error(f"{name}: division by zero", position) from error
        except OverflowError as error:
            raise _error(f"{name}: the number is too large", position) from error
        except ValueError as error:
            raise _error(f"{name} has no real result here", position) from error
        self._steps_left -= 1 + (sum(map(_bits, operands)) + len(operands) * _bits(value)) // BITS_PER_STEP
        if self._steps_left < 0:
            raise _error(f"{name}: the calculation takes more than {MAX_STEPS} steps; split it into parts", position)
        return value

    def _expression(self, minimum: int, left: str = "") -> Number:
        """Calculate an operand and the operators after it that bind at least as tightly as `minimum`.

        Args:
            minimum: the least binding strength.
            left: the operator before the operand, ignoring signs; empty at the start and after a bracket or comma.
        """
        value = self._operand(left)
        while True:
            token = self._token()
            if token.text == "!" or (token.text == "%" and self._is_percent()):
                value = self._postfix(self._take(), value, left)
            elif token.text in _BINARY:
                binding, function = _BINARY[token.text]
                if binding < minimum:
                    return value
                self._take()
                is_power = token.text == "^"
                right = self._nested(token, binding, "^") if is_power else self._expression(binding + 1, token.text)
                value = self._apply(token, function, value, right)
            elif token.starts_operand:
                self._check_implicit_product(token, left)
                if minimum > _PRODUCT:
                    return value
                value = self._apply(token, operator.mul, value, self._expression(_PRODUCT + 1, "*"), name="*")
            else:
                return value

    def _nested(self, token: _Token, minimum: int, left: str = "") -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(f"it is nested deeper than {MAX_DEPTH} brackets, signs and powers", token.position)
        value = self._expression(minimum, left)
        self._depth -= 1
        return value

    def _operand(self, left: str) -> Number:
        token = self._take()
        if token.kind == "number" or token.text in _CONSTANTS:
            self._count_node(token)
            return _number(token) if token.kind == "number" else _CONSTANTS[token.text]
        if token.text in _FUNCTIONS:
            return self._call(token)
        if token.kind == "name":
            raise self._unknown(token)
        if token.text == "(":
            value = self._nested(token, 0)
            self._close(token)
            return value
        if token.text in _PREFIX:
            binding, function = _PREFIX[token.text]
            value = self._nested(token, binding, "√" if token.text == "√" else left)
            return self._apply(token, function, value)
        if token.kind == "end":
            last = self._tokens[self._index - 2]
            raise _error(f"a number is missing after {last.text}", last.position)
        raise _error(f"a number is missing before {token.text}", token.position)

    def _call(self, name: _Token) -> Number:
        bracket = self._take()
        if bracket.text != "(":
            raise _error(f"{name.text} needs its arguments in brackets", name.position)
        arguments = [self._nested(bracket, 0)]
        while self._token().text == ",":
            comma, following = self._take(), self._token()
            if not following.spaced and re.fullmatch(r"0[0-9]{2}", following.text):
                raise _error(_COMMA, comma.position)
            arguments.append(self._nested(bracket, 0))
        self._close(bracket)
        least, most = _ARITIES.get(name.text, (1, 1))
        if not least <= len(arguments) <= most:
            expected = f"{least} or {most} arguments" if least != most else f"{most} argument{'s' * (most > 1)}"
            reason = f"{name.text} takes {expected}, not {len(arguments)}; commas separate arguments only"
            raise _error(reason, name.position)
        return self._apply(name, _FUNCTIONS[name.text], *arguments)

    def _close(self, bracket: _Token) -> None:
        token = self._take()
        if token.text == ",":
            raise _error(_COMMA, token.position)
        if token.text != ")":
            raise _error("this bracket is never closed", bracket.position)

    def _postfix(self, token: _Token, value: Number, left: str) -> Number:
        if left == "√":
            raise _error(f"√ and {token.text} can be read in two ways; write brackets", token.position)
        if token.text == "!" and self._tokens[self._index - 2].text == "!":
            raise _error("!! can be read in two ways; write (n!)! if that is meant", token.position)
        return self._apply(token, _factorial, value) if token.text == "!" else self._apply(token, _divide, value, 100)

    def _is_percent(self) -> bool:
        """Distinguish 50% from a remainder, which has an operand after it."""
        percent, following = self._token(), self._token(1)
        if following.text not in ("+", "-"):
            return not following.starts_operand
        match percent.spaced, following.spaced, self._token(2).spaced:
            case False, True, True:  # 50% - 3
                return True
            case True, True, False:  # 50 % -3
                return False
        raise _error("% before a sign can be read in two ways; write (50%) or mod(50, -3)", percent.position)

    def _check_implicit_product(self, token: _Token, left: str) -> None:
        """`2(3+4)` and `2pi` are products, unless that is ambiguous."""
        if token.kind == "number":
            raise _error("an operator is missing before this number; write digits without spaces", token.position)
        if token.kind == "name" and token.text not in _CONSTANTS and token.text not in _FUNCTIONS:
            raise self._unknown(token)
        if left in _AMBIGUOUS:
            raise _error(f"after {left} this can be read in two ways; write * or more brackets", token.position)

    def _unknown(self, name: _Token) -> InvalidInputError:
        index = self._tokens.index(name)
        if name.text.startswith("_") and not name.spaced and self._tokens[index - 1].kind == "number":
            return _error("write numbers without underscores", name.position)
        known = ", ".join([*_FUNCTIONS, *_CONSTANTS])
        return _error(f"{name.text[:40]} is not known; there are {known}", name.position)


def _number(token: _Token) -> Number:
    """Read a number exactly: 0.1 is a tenth."""
    word = token.text
    if len(word) > MAX_DIGITS:
        raise _error(f"a number has at most {MAX_DIGITS} digits", token.position)
    if word[:2].lower() in ("0x", "0b", "0o"):
        return int(word, 0)
    if word.isdigit():
        return int(word)
    if abs(int(word.lower().partition("e")[2] or "0")) > MAX_EXPONENT:
        raise _error(f"the exponent of a number is at most {MAX_EXPONENT}", token.position)
    return _bounded(Fraction(word.replace("。", ".")))
