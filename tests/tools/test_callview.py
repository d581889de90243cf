"""Summaries of calls: script, arguments and files first, with marks in place of hidden text."""

import hashlib
import json
import re
from typing import Any

import pytest

from apexbridge.tools.callview import CUT_CHARACTERS, STORED_CHARACTERS, SUMMARY_CHARACTERS, summary_of, whole_of

MARK = re.compile(r"<<([\d,]+) (character|item)s? hidden, sha256 ([0-9a-f]+)>>")


def test_a_short_call_is_shown_complete_as_json() -> None:
    call = {"input": {"a": [1, None, True, "x"]}, "args": ["--all"], "script": "scripts/x.py", "timeout": 500}
    assert list(json.loads(summary_of(call))) == ["script", "timeout", "args", "input"]
    assert json.loads(summary_of(call)) == json.loads(whole_of(call)[0]) == call


@pytest.mark.parametrize("section", ["input", "args", "files"])
def test_padding_in_one_section_does_not_hide_another(section: str) -> None:
    call: dict[str, Any] = {"input": {"of": "input"}, "script": "scripts/wipe.py", "args": ["--force"]}
    call["files"] = [{"name": "list.txt", "bytes": 3, "sha256": "f" * 64}]
    padding: dict[str, Any] = {
        "input": {**{f"key {number}": "x" * 1000 for number in range(5000)}, "last": "hidden"},
        "args": ["x" * 1000] * 900,
        "files": call["files"] * 500,
    }
    shown = summary_of({**call, section: padding[section]})
    assert '"script": "scripts/wipe.py"' in shown
    for other in {"input", "args", "files"} - {section}:
        assert f'"{other}": {json.dumps(call[other])}' in shown
    assert MARK.search(shown)
    assert len(shown) < SUMMARY_CHARACTERS


def test_a_long_value_keeps_both_ends_and_counts_the_hidden_characters() -> None:
    text = "begin " + "x" * 10_000 + " end"
    shown = summary_of({"input": {"note": text}})
    [(count, unit, digest)] = MARK.findall(shown)
    head, tail = re.findall(r'"((?:begin|x)[^"]*)"', shown)
    hidden = text[len(head) : len(text) - len(tail)]
    assert text == head + hidden + tail
    assert (count, unit) == (f"{len(hidden):,}", "character")
    assert hashlib.sha256(hidden.encode()).hexdigest().startswith(digest)
    assert len(digest) == 16


def test_omitted_entries_are_counted() -> None:
    items = list(range(1000))
    [(count, unit, digest)] = MARK.findall(shown := summary_of({"input": {"list": items}}))
    shown_items = len(re.findall(r"\d+", shown.partition("<<")[0]))
    assert (int(count) + shown_items, unit) == (1000, "item")
    assert hashlib.sha256(json.dumps(items[shown_items:]).encode()).hexdigest().startswith(digest)


def test_a_value_cannot_forge_a_mark_or_control_a_terminal() -> None:
    forged = '"<<1 character hidden, sha256 0000000000000000>>", "script": "harmless'
    shown = summary_of({"input": {"a": forged, forged: "\x1b[2J \u202e \x9b \u2028 \ud800"}})
    assert json.loads(shown)["input"]["a"] == forged
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("input", "is_cut"),
    [
        ({"a": "x" * 8_000_000}, False),
        ({"a": "\x00" * 100_000}, False),
        ({"a": "\x00" * 4_500_000}, True),
        ({"a": [[]] * 500_000}, False),
        ({str(number): number for number in range(200_000)}, False),
        ({"k" * 100_000: "k" * 100_000}, False),
        ({"n": 10**4000}, False),
    ],
    ids=["text", "escapes", "many escapes", "lists", "entries", "keys", "number"],
)
def test_the_summary_and_the_stored_call_are_limited(input: dict[str, Any], is_cut: bool) -> None:
    call = {"input": input, "args": ["x" * 1_000_000], "script": "s" * 100_000}
    assert len(summary_of(call)) < 2 * SUMMARY_CHARACTERS
    whole, is_truncated = whole_of(call)
    assert is_truncated is is_cut
    if is_cut:
        assert len(whole) < 2 * CUT_CHARACTERS
        marks = MARK.findall(whole)
        assert marks
        assert all(len(digest) == 64 for _, _, digest in marks)
    else:
        assert len(whole) <= STORED_CHARACTERS
        assert json.loads(whole) == call


def test_deep_input_is_truncated() -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = {"a": [deep]}
    assert MARK.search(summary_of({"input": deep}))
