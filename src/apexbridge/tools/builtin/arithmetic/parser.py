"""Puts the words of an expression into the order in which they are done, without recursion.

The result is postfix: `2 + 3 * 4` becomes 2, 3, 4, multiply, add. What still waits for its right side, and every open
bracket, lies on a stack. What can be read in two ways, such as `6/2(1+2)`, is refused rather than guessed.
"""

from dataclasses import dataclass

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.arithmetic.functions import CONSTANTS, FUNCTIONS, Action
from apexbridge.tools.builtin.arithmetic.limits import MAX_DEPTH, MAX_NODES, refused
from apexbridge.tools.builtin.arithmetic.numbers import Number
from apexbridge.tools.builtin.arithmetic.operations import factorial, percent
from apexbridge.tools.builtin.arithmetic.operators import BEFORE, BETWEEN, Operator
from apexbridge.tools.builtin.arithmetic.tokens import Token

_TWO_WAYS = frozenset({"/", "//", "%", "^", "√"})
"""After one of these, a multiplication without its sign could belong to the left or to the right."""
_SPACES_THAT_TELL = frozenset({(False, True, True), (True, True, False)})
"""Around a `%` and the sign after it: `50% - 3` is a percentage, `50 % -3` a remainder."""
_END = Token(kind="sign", text="", position=-1, spaced=False)


@dataclass(slots=True, kw_only=True)
class Step:
    """Lays a number on the pile, or takes some from it and lays down what becomes of them."""

    name: str
    position: int
    value: Number = 0
    action: Action | None = None
    """None for a number."""
    takes: int = 0


@dataclass(slots=True, kw_only=True)
class Waiting:
    """An operator without its right side yet, or a bracket that is open."""

    token: Token
    operator: Operator | None = None
    """None for a bracket."""
    function: Token | None = None
    """Whose arguments the bracket holds."""
    arguments: int = 1


class Parser:
    """Reads one expression from left to right, expecting an operand or an operator by turns."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._steps: list[Step] = []
        self._stack: list[Waiting] = []
        self._depth = 0

    def steps(self) -> list[Step]:
        """The program.

        Raises:
            InvalidInputError: the expression is none, or larger than allowed.
        """
        if not self._tokens:
            raise refused("it is empty", 0)
        wants_operand = True
        for index, token in enumerate(self._tokens):
            self._index = index
            wants_operand = self._operand(token) if wants_operand else self._operator(token)
        if wants_operand:
            last = self._tokens[-1]
            raise refused(f"it ends where a number should follow {last.text}", last.position)
        self._reduce(0)
        if self._stack:
            raise refused("this bracket is never closed", self._stack[-1].token.position)
        return self._steps

    # ------------------------------------------------------------------------------------- where a number may begin
    def _operand(self, token: Token) -> bool:
        """Take a token where an operand may begin; whether one is still wanted."""
        if token.kind == "number":
            self._emit(Step(name=token.text, position=token.position, value=token.value))
            return False
        if token.kind == "name":
            return self._name(token)
        if token.text == "(":
            before = self._neighbour(-1)
            self._push(Waiting(token=token, function=before if before.text in FUNCTIONS else None))
            return True
        if (operator := BEFORE.get(token.text)) is not None:
            self._push(Waiting(token=token, operator=operator))
            return True
        raise refused(f"a number should stand before {token.text}", token.position)

    def _name(self, token: Token) -> bool:
        if token.text in CONSTANTS:
            self._emit(Step(name=token.text, position=token.position, value=CONSTANTS[token.text]))
            return False
        if token.text not in FUNCTIONS:
            raise self._unknown(token)
        if self._neighbour(1).text != "(":
            raise refused(f"{token.text} needs its arguments in brackets", token.position)
        return True

    def _unknown(self, token: Token) -> InvalidInputError:
        if token.text.startswith("_") and not token.spaced and self._neighbour(-1).kind == "number":
            return refused("write numbers without underscores", token.position)
        known = ", ".join([*FUNCTIONS, *CONSTANTS])
        return refused(f"{token.text[:40]} is not known; there are {known}", token.position)

    # ---------------------------------------------------------------------------------- where a number has just ended
    def _operator(self, token: Token) -> bool:
        """Take a token that follows an operand; whether the next operand is wanted."""
        if token.text == ")":
            self._close(token)
            return False
        if token.text == ",":
            self._comma(token)
            return True
        if token.text == "!":
            self._factorial(token)
            return False
        if token.text == "%" and self._is_percent(token):
            self._after(token, percent)
            return False
        if (operator := BETWEEN.get(token.text)) is not None:
            self._between(token, operator)
            return True
        return self._without_sign(token)

    def _between(self, token: Token, operator: Operator) -> None:
        self._reduce(operator.binds + 1 if operator.nests else operator.binds)
        self._push(Waiting(token=token, operator=operator))

    def _without_sign(self, token: Token) -> bool:
        """`2(3+4)` and `2pi` multiply."""
        if token.kind == "number":
            raise refused("a sign is missing before this number; write digits without spaces between", token.position)
        if token.kind == "name" and token.text not in CONSTANTS and token.text not in FUNCTIONS:
            raise self._unknown(token)
        if (sign := self._sign_on_the_left()) in _TWO_WAYS:
            raise refused(f"after {sign} this can be read in two ways; write * or more brackets", token.position)
        times = Token(kind="sign", text="*", position=token.position, spaced=False)
        self._between(times, BETWEEN["*"])
        return self._operand(token)

    def _sign_on_the_left(self) -> str:
        for waiting in reversed(self._stack):
            if waiting.operator not in (BEFORE["-"], BEFORE["+"]):
                return waiting.token.text
        return ""

    def _factorial(self, token: Token) -> None:
        if self._neighbour(-1).text == "!":
            raise refused("!! can be read in two ways; write (n!)! if that is meant", token.position)
        self._after(token, factorial)

    def _is_percent(self, token: Token) -> bool:
        """Whether nothing follows that a remainder could be taken by."""
        following = self._neighbour(1)
        if following.text not in ("+", "-"):
            return following.kind == "sign" and following.text not in ("(", "√")
        spaces = (token.spaced, following.spaced, self._neighbour(2).spaced)
        if spaces in _SPACES_THAT_TELL:
            return not token.spaced
        raise refused("% before a sign can be read in two ways; write (50%) or mod(50, -3)", token.position)

    def _after(self, token: Token, action: Action) -> None:
        if self._stack and self._stack[-1].token.text == "√":
            raise refused(f"√ and {token.text} can be read in two ways; write brackets", token.position)
        self._emit(Step(name=token.text, position=token.position, action=action, takes=1))

    # -------------------------------------------------------------------------------------------- brackets and commas
    def _close(self, token: Token) -> None:
        self._reduce(0)
        if not self._stack:
            raise refused("this bracket was never opened", token.position)
        bracket = self._stack.pop()
        self._depth -= 1
        if (name := bracket.function) is None:
            return
        function = FUNCTIONS[name.text]
        if not function.least <= bracket.arguments <= function.most:
            told = f"{name.text} takes {function.arity()}, not {bracket.arguments}; commas separate arguments only"
            raise refused(told, name.position)
        step = Step(name=name.text, position=name.position, action=function.action, takes=bracket.arguments)
        self._emit(step)

    def _comma(self, token: Token) -> None:
        self._reduce(0)
        if not self._stack or self._stack[-1].function is None:
            raise refused("a comma only separates arguments; write 1000, not 1,000", token.position)
        following = self._neighbour(1)
        if not following.spaced and following.text[:1] == "0" and len(following.text) == 3 and following.text.isdigit():
            raise refused("a comma only separates arguments; write 1000, not 1,000", token.position)
        self._stack[-1].arguments += 1

    # ---------------------------------------------------------------------------------------------------- bookkeeping
    def _neighbour(self, offset: int) -> Token:
        place = self._index + offset
        return self._tokens[place] if 0 <= place < len(self._tokens) else _END

    def _reduce(self, binds: int) -> None:
        """Give their right side to all operators that bind at least so tightly, down to the last open bracket."""
        while self._stack and (operator := self._stack[-1].operator) is not None and operator.binds >= binds:
            token = self._stack.pop().token
            self._depth -= operator.nests
            self._emit(Step(name=token.text, position=token.position, action=operator.action, takes=operator.takes))

    def _push(self, waiting: Waiting) -> None:
        self._depth += waiting.operator is None or waiting.operator.nests
        if self._depth > MAX_DEPTH:
            raise refused(f"it goes deeper than {MAX_DEPTH} brackets, signs and powers", waiting.token.position)
        self._stack.append(waiting)

    def _emit(self, step: Step) -> None:
        if len(self._steps) == MAX_NODES:
            raise refused(f"it has more than {MAX_NODES} numbers and signs", step.position)
        self._steps.append(step)
