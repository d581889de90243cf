"""Calls that a model writes into its text are extracted; everything else stays text."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.llm.text_calls import MAX_TEXT_CHARACTERS, TextGate, extract_calls

KNOWN = {"calculate", "search_skills", "天气"}
CALL = '{"name": "calculate", "arguments": {"expression": "1+1"}}'
READ = ("calculate", {"expression": "1+1"})


def is_known(name: str) -> bool:
    return name in KNOWN


def found(text: str) -> tuple[str, list[tuple[str, object]]] | None:
    salvaged = extract_calls(text, is_known)
    if salvaged is None:
        return None
    return salvaged.before, [(name, json.loads(written)) for name, written in salvaged.calls]


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n  {CALL}\n",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```",
        f"```tool_call\n{CALL}```",
        f"<tool_call>{CALL}</tool_call>",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}",
        f"<function_call>{CALL}</function_call>",
        f"<TOOL_CALL>{CALL}</TOOL_CALL>",
        '<function=calculate>{"expression": "1+1"}</function>',
        '{"tool": "calculate", "args": {"expression": "1+1"}}',
        '{"action": "calculate", "action_input": {"expression": "1+1"}}',
        '{"function": "calculate", "parameters": {"expression": "1+1"}}',
        '{"type": "function", "function": {"name": "calculate", "arguments": "{\\"expression\\": \\"1+1\\"}"}}',
        f"[{CALL}]",
    ],
)
def test_a_call_is_found_bare_fenced_or_in_a_tag(text: str) -> None:
    assert found(text) == ("", [READ])


def test_several_calls_are_found_in_a_list_or_in_tags() -> None:
    other = '{"name": "search_skills", "arguments": {"query": "发票"}}'
    both = [READ, ("search_skills", {"query": "发票"})]
    assert found(f"[{CALL}, {other}]") == ("", both)
    assert found(f"<tool_call>{CALL}</tool_call>\n<tool_call>{other}</tool_call>") == ("", both)


def test_text_before_a_call_is_preserved() -> None:
    assert found(f"我来算一下。\n<tool_call>{CALL}</tool_call> 好了") == ("我来算一下。", [READ])
    assert found(f"I will compute it:\n```json\n{CALL}\n```") == ("I will compute it:", [READ])


def test_names_and_arguments_may_be_chinese() -> None:
    assert found('{"name": "天气", "arguments": {"城市": "上海"}}') == ("", [("天气", {"城市": "上海"})])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 2.",
        '{"name": "rm", "arguments": {}}',
        f'[{CALL}, {{"name": "rm"}}]',
        '{"answer": 42}',
        '{"name": 7}',
        f"Here is an example: {CALL} as you see.",
        '```python\nprint("calculate")\n```',
        "<tool_call>calculate</tool_call>",
        "<tool_call>{broken</tool_call>",
        "<tool_call>",
        "```json\n{broken\n```",
        '{"name": "calculate", "arguments": {"expression": "1',
    ],
)
def test_everything_else_stays_text(text: str) -> None:
    assert found(text) is None


def test_missing_arguments_are_an_empty_object_and_broken_ones_are_unchanged() -> None:
    assert found('{"name": "calculate"}') == ("", [("calculate", {})])
    assert found('{"name": "calculate", "arguments": null}') == ("", [("calculate", {})])
    salvaged = extract_calls('{"name": "calculate", "arguments": "{oops"}', is_known)
    assert salvaged is not None
    assert salvaged.calls == (("calculate", "{oops"),)


HOSTILE = {
    "nested lists": "[" * 60_000,
    "nested objects": '{"a":' * 12_000,
    "nested after a mark": "<tool_call>" + "[" * 60_000,
    "nested in arguments": json.dumps({"name": "calculate", "arguments": "[" * 60_000}),
    "marks": "<tool>" * 10_000,
    "marks and brackets": "<tool>[" * 9_000,
    "marks and objects": '<tool>{"a":' * 5_500,
    "marks in a text": '<tool>{"' * 7_500,
    "marks and white space": "<tool>" + " " * 60_000 + "x",
    "marks each with white space": ("<tool>" + " " * 60) * 900,
    "fences": "```json\n" * 7_500,
    "white space": " \n" * 32_000,
    "long number": '{"name": "calculate", "arguments": ' + "9" * 60_000 + "}",
    "too long": CALL + " " * MAX_TEXT_CHARACTERS,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_searched_quickly_and_is_not_a_call_of_another_tool(kind: str) -> None:
    """Quadratic work would take minutes here."""
    salvaged = extract_calls(HOSTILE[kind], is_known)
    assert salvaged is None or salvaged.calls[0][0] == "calculate"


# ------------------------------------------------------------------------------------------------------------ the gate
FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "<function_call>",
        "<tool>",
        "<function",
        "<tool=",
        CALL,
        "```json\n",
        "```",
        "{",
        '{"name"',
        "[",
        "<",
        "</",
        ">",
        "tool_call",
        "words ",
        "\n",
        " ",
        "你好",
        '"',
    ]
)
TEXTS = st.one_of(st.text(), st.lists(FRAGMENTS, max_size=12).map("".join))


def chunks_of(text: str, cuts: Sequence[int]) -> list[str]:
    borders = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(borders)]


@given(TEXTS, st.lists(st.integers(0, 200)))
def test_shown_and_held_text_together_are_the_whole_text(text: str, cuts: list[int]) -> None:
    gate = TextGate(is_known)
    shown = "".join(gate.feed(chunk) for chunk in chunks_of(text, cuts))
    assert shown + gate.held == text


def test_held_text_is_not_searched_again_for_each_chunk() -> None:
    """Searching it again would take minutes here."""
    gate = TextGate(is_known)
    assert gate.feed('```json\n{"name": "') == ""
    assert {gate.feed("<") for _ in range(40_000)} == {""}


@given(st.lists(st.integers(0, 200)))
def test_a_text_that_is_only_a_call_is_never_shown(cuts: list[int]) -> None:
    for call in (CALL, f"<tool_call>{CALL}</tool_call>", f"```json\n{CALL}\n```"):
        gate = TextGate(is_known)
        assert [gate.feed(chunk) for chunk in chunks_of(call, cuts)] == [""] * len(chunks_of(call, cuts))
        assert gate.held == call


@pytest.mark.parametrize("cut", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "Just words, some of them about <b>tools</b> and 1 < 2.",
        "{curly} words are no call, and there are enough of them to know that this is none. " * 6,
        "```python\nprint(1)\n```\nThat was it.",
        "In HTML you write <function> or <tool> and go on with other words, and with words after them.",
        "[1] a footnote, which begins like a list and goes on as what it is. " * 8,
    ],
)
def test_text_without_a_call_is_shown_completely(text: str, cut: int) -> None:
    gate = TextGate(is_known)
    shown = "".join(gate.feed(text[index : index + cut]) for index in range(0, len(text), cut))
    assert shown == text


def test_a_long_text_after_a_tag_takes_linear_time() -> None:
    """Quadratic work would take minutes here."""
    for begin in ('<tool_call>{"name": "', '{"name": "', "words <", " "):
        gate = TextGate(is_known)
        shown = gate.feed(begin) + "".join(gate.feed("word") for _ in range(100_000))
        assert shown + gate.held == begin + "word" * 100_000
        assert len(gate.held) < MAX_TEXT_CHARACTERS


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_fenced_call_after_text_is_not_shown(size: int) -> None:
    text = f"I use `calculate` for that.\n```json\n{CALL}\n```"
    gate = TextGate(is_known)
    shown = "".join(gate.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert shown == "I use `calculate` for that.\n"
    assert extract_calls(gate.held, is_known) is not None


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("block", ['json\n{"name": "Ada", "age": 36}', "python\nprint({})", "\nplain", "", "json"])
def test_a_fence_without_a_call_is_shown_as_soon_as_it_is_closed(block: str, size: int) -> None:
    text = f"Look:\n```{block}\n```\nThat is `all`."
    gate = TextGate(is_known)
    shown = "".join(gate.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert shown + gate.held == text
    assert "all" in shown
