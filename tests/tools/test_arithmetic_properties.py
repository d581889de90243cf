"""What holds for every expression, not only for those somebody thought of."""

import operator
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.arithmetic.answer import Answer, answer_of
from apexbridge.tools.builtin.arithmetic.evaluator import evaluate
from apexbridge.tools.builtin.arithmetic.limits import MAX_STEPS, Budget
from apexbridge.tools.builtin.arithmetic.numbers import settled

Tree = tuple[str, Fraction]
"""An expression as text, and its value."""
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
NUMERALS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.decimals(0, 1000, places=3, allow_nan=False).map(str),
    st.tuples(st.integers(1, 99), st.integers(-5, 5)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
)
ARITHMETIC = "0123456789.,+-*/%^!()<>= eEpixsqrtlogmax√π×÷（）＋？。加减"


def _outcome(text: str) -> Answer | InvalidInputError:
    budget = Budget()
    try:
        answer = answer_of(evaluate(text, budget))
    except InvalidInputError as refusal:
        return refusal
    assert budget.spent <= MAX_STEPS
    return answer


def _leaf(numeral: str) -> Tree:
    return numeral, Fraction(numeral)


def _pair(parts: tuple[Tree, str, Tree]) -> Tree:
    (left, one), sign, (right, other) = parts
    if other == 0 and sign in ("/", "//", "%"):
        sign = "+"
    return f"({left} {sign} {right})", Fraction(OPERATORS[sign](one, other))


def _signed(tree: Tree) -> Tree:
    return f"(-{tree[0]})", -tree[1]


def _squared(tree: Tree) -> Tree:
    return f"{tree[0]}^2" if tree[0].endswith(")") else f"({tree[0]})^2", tree[1] ** 2


TREES = st.recursive(
    NUMERALS.map(_leaf),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(sorted(OPERATORS)), inner).map(_pair),
        inner.map(_signed),
        inner.map(_squared),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(TREES)
def test_a_tree_of_rationals_has_the_value_that_fractions_give_it(tree: Tree) -> None:
    text, value = tree
    assume(value.numerator.bit_length() < 1000 and value.denominator.bit_length() < 1000 and len(text) < 1000)
    assert evaluate(text) == value


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*", "/", " // ", " % "]), st.integers(1, 50)), max_size=15))
def test_without_brackets_signs_bind_as_they_do_in_python(chain: list[tuple[str, int]]) -> None:
    text = "7" + "".join(f"{sign}{number}" for sign, number in chain)
    python = "F(7)" + "".join(f"{sign}F({number})" for sign, number in chain)
    assert evaluate(text) == eval(python, {"F": Fraction})


@settings(max_examples=300, deadline=None)
@given(st.integers(-9, 9), st.lists(st.sampled_from(["-", "+"]), max_size=3), st.integers(0, 6))
def test_signs_and_powers_bind_as_they_do_in_python(base: int, signs: list[str], exponent: int) -> None:
    text = f"{''.join(signs)}{base} ** {''.join(signs)}{exponent}"
    assume(base != 0 or exponent == 0)
    assert evaluate(text) == eval(text.replace(str(abs(base)), f"F({abs(base)})", 1), {"F": Fraction})


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(st.text(), st.text(ARITHMETIC, max_size=80), st.text(st.characters(categories=["Cs", "Cc", "Nd", "Sm"])))
)
def test_garbage_is_calculated_or_refused_and_nothing_else(text: str) -> None:
    outcome = _outcome(text)
    if isinstance(outcome, InvalidInputError):
        assert 1 <= outcome.details["position"] <= len(text) + 1


NAMES = [
    "sqrt",
    "cbrt",
    "exp",
    "log",
    "ln",
    "sin",
    "tan",
    "acos",
    "sinh",
    "floor",
    "round",
    "abs",
    "sum",
    "hypot",
    "lcm",
]
BUSY = st.recursive(
    st.sampled_from(["0", "1", "2", "0.5", "1e800", "1e-800", "9" * 50, "pi", "e", "3^2000", "500!", "1/3"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", " % ", "^", "<", "="]), inner).map(
            lambda parts: f"({parts[0]}){parts[1]}({parts[2]})"
        ),
        st.tuples(st.sampled_from(NAMES), inner).map(lambda parts: f"{parts[0]}({parts[1]})"),
        st.tuples(st.sampled_from(["max", "mod", "comb", "atan2", "log", "pow", "round"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
        inner.map(lambda part: f"({part})!"),
        inner.map(lambda part: f"-({part})"),
    ),
    max_leaves=15,
)


@settings(max_examples=600, deadline=None)
@given(BUSY)
def test_extreme_numbers_in_every_place_are_calculated_or_refused_and_nothing_else(text: str) -> None:
    outcome = _outcome(text)
    if isinstance(outcome, InvalidInputError):
        assert "at character" in outcome.message


@settings(max_examples=300, deadline=None)
@given(st.fractions())
def test_an_answer_says_the_exact_value_in_one_of_its_forms(value: Fraction) -> None:
    answer = answer_of(value)
    shown = answer.exact if answer.exact is not None else repr(answer.result)
    assert Fraction(shown) == value
    assert evaluate(shown) == value


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_a_float_that_was_shown_is_read_back_as_the_same_float(value: float) -> None:
    shown = answer_of(value)
    assert float(evaluate(shown.text)) == shown.result == settled(value)
    assert float(shown.result) == pytest.approx(value, rel=1e-14, abs=0)


@given(st.integers(0, 10**30), st.integers(2, 9))
def test_a_root_undoes_a_power(base: int, degree: int) -> None:
    assert evaluate(f"({base}^{degree})^(1/{degree})") == base


@given(st.integers(2, 10**30), st.integers(3, 9))
def test_next_to_a_power_there_is_no_exact_root(base: int, degree: int) -> None:
    assert isinstance(evaluate(f"({base}^{degree} + 1)^(1/{degree})"), float)
