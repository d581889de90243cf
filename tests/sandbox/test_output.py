"""Output in chunks: nothing is lost between them, nothing above the limit is stored, and secrets are masked."""

import base64
import codecs
import html
import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.sandbox.masking import MIN_CHARACTERS, StreamMasker, secret_patterns
from apexbridge.sandbox.output import TRUNCATED, OutputStream, RunOutput
from tests.sandbox.properties import unhurried

LARGE = 1 << 20
chunks_of_both = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=40)), max_size=20)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    """The data in chunks."""
    indexes = [0, *sorted(index % (len(data) + 1) for index in borders), len(data)]
    return [data[begin:end] for begin, end in pairwise(indexes)]


def collected(data: bytes, borders: list[int], secrets: list[str], *, limit: int = LARGE) -> tuple[str, str]:
    """One stream in chunks: the stored text, and the text that a listener received."""
    received: list[str] = []
    output = RunOutput(limit, secrets=secrets, listener=lambda _, text: received.append(text))
    for chunk in cut(data, borders):
        output.add("stdout", chunk)
    return output.finish()[0], "".join(received)


@given(st.text(), st.lists(st.integers(min_value=0)))
@unhurried
def test_characters_are_decoded_wherever_a_chunk_ends(text: str, borders: list[int]) -> None:
    assert collected(text.encode(), borders, []) == (text, text)


@given(st.binary(), st.lists(st.integers(min_value=0)))
@unhurried
def test_invalid_utf_8_is_replaced_the_same_way_wherever_a_chunk_ends(data: bytes, borders: list[int]) -> None:
    whole = data.decode("utf-8", "replace")
    assert collected(data, borders, []) == (whole, whole)


@given(chunks_of_both)
@unhurried
def test_a_listener_receives_everything_in_order(chunks: list[tuple[OutputStream, bytes]]) -> None:
    received: dict[OutputStream, str] = {"stdout": "", "stderr": ""}

    def listen(stream: OutputStream, text: str) -> None:
        received[stream] += text

    output = RunOutput(LARGE, listener=listen)
    assert all(output.add(stream, data) for stream, data in chunks)
    assert output.finish() == (received["stdout"], received["stderr"])


@pytest.mark.requirement("B6")
@given(chunks_of_both, st.integers(min_value=0, max_value=200))
@unhurried
def test_both_streams_share_one_budget(chunks: list[tuple[OutputStream, bytes]], limit: int) -> None:
    output = RunOutput(limit)
    report = [output.add(stream, data) for stream, data in chunks]
    total = sum(len(data) for _, data in chunks)
    assert output.is_truncated == (total > limit)
    assert all(report) == (total <= limit)
    stdout, stderr = output.finish()
    if output.is_truncated:
        assert stdout.endswith(TRUNCATED)
        decoded = stdout.removesuffix(TRUNCATED) + stderr.removesuffix(TRUNCATED)
        assert len(decoded) <= limit
    else:
        assert TRUNCATED not in stdout + stderr


@pytest.mark.requirement("B6")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_exactly_the_limit_is_allowed_and_one_byte_more_is_not(stream: OutputStream) -> None:
    output = RunOutput(10)
    assert output.add(stream, b"x" * 10)
    assert not output.is_truncated
    assert not output.add(stream, b"y")
    assert not output.add("stdout", b"z" * 100)
    stdout, stderr = output.finish()
    assert (stdout if stream == "stdout" else stderr) == "x" * 10 + TRUNCATED
    assert stdout.endswith(TRUNCATED)


def test_an_incomplete_character_at_the_cut_is_dropped() -> None:
    output = RunOutput(4)
    output.add("stdout", "日本".encode())
    assert output.finish() == (f"日{TRUNCATED}", "")


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    output = RunOutput(100)
    output.add("stdout", "日本".encode()[:-1])
    assert output.finish() == ("日\N{REPLACEMENT CHARACTER}", "")


# ------------------------------------------------------------------------------------------------------- secrets
def masked_by_hand(text: str, secrets: list[str]) -> str:
    """Every character of every occurrence is masked; occurrences that overlap share one mask."""
    found = [
        (at, at + len(secret))
        for secret in secrets
        for at in range(len(text) - len(secret) + 1)
        if text.startswith(secret, at)
    ]
    shown, until, at = "", 0, 0
    for first, last in sorted(found, key=lambda index: (index[0], -index[1])):
        if first >= until:
            shown += text[at:first] + "***"
        until = max(until, last)
        at = until
    return shown + text[at:]


words = st.text(alphabet="abcdé", min_size=1, max_size=6)
letters = st.text(alphabet="abcdé-\n", max_size=60)


@pytest.mark.requirement("B20")
@given(letters, words, st.lists(st.integers(min_value=0)))
@unhurried
def test_a_secret_is_masked_the_same_way_wherever_a_chunk_ends(text: str, secret: str, borders: list[int]) -> None:
    masked = masked_by_hand(text, [secret])
    assert collected(text.encode(), borders, [secret]) == (masked, masked)


@pytest.mark.requirement("B20")
@given(letters, st.lists(words, min_size=1, max_size=5), st.lists(st.integers(min_value=0)))
@unhurried
def test_secrets_that_overlap_are_masked_as_a_whole_wherever_a_chunk_ends(
    text: str, secrets: list[str], borders: list[int]
) -> None:
    masked = masked_by_hand(text, secrets)
    assert collected(text.encode(), borders, secrets) == (masked, masked)
    assert not [secret for secret in secrets if secret in masked]


@pytest.mark.parametrize("borders", [[], list(range(20))])
def test_three_overlapping_secrets_are_masked_completely(borders: list[int]) -> None:
    secrets = ["abcdef", "defghi", "ghijkl"]
    assert collected(b"-abcdefghijkl-", borders, secrets)[0] == "-***-"
    assert collected(b"-abcdef-defghijk-", borders, secrets)[0] == "-***-***jk-"
    assert collected(b"abcdefabcdef", borders, secrets)[0] == "******", "adjacent secrets have separate masks"


def receive(received: list[str], _: OutputStream, text: str) -> None:
    received.append(text)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("sizes", [[100], [1] * 100, [7, 3, 90]])
def test_the_beginning_of_a_secret_at_the_cut_is_not_shown(stream: OutputStream, sizes: list[int]) -> None:
    secret = "hunter2-is-long"
    text = f"the key is {secret} and more".encode()
    for limit in range(12, 11 + len(secret)):
        received: list[str] = []
        output = RunOutput(limit, secrets=[secret], listener=partial(receive, received))
        at = 0
        for size in sizes:
            output.add(stream, text[at : at + size])
            at += size
        shown = output.finish()[0 if stream == "stdout" else 1]
        assert shown == f"the key is {TRUNCATED}", limit
        assert "hunt" not in "".join(received)


# ------------------------------------------------------------------------------------------------------------- cost
HARD: dict[str, tuple[list[str], Callable[[str], str]]] = {
    "one long secret, a character at a time": (["".join(map(str, range(2000)))], lambda secret: secret[:-1] * 2),
    "a secret that repeats itself": (["ab" * 2000 + "c"], lambda secret: secret[:-1] * 2),
    "a secret of one character and another at its end": (["a" * 4000 + "b"], lambda secret: "a" * 10000),
    "text that nearly is the secret again and again": (["a" * 200 + "b"], lambda secret: ("a" * 199 + "b") * 50),
    "secrets that are ends of each other": (["x" * n + "y" for n in range(1, 200)], lambda secret: "x" * 5000),
    "ordinary text": (["hunter2", "s3cr3t"], lambda secret: "it is hungry and such " * 500),
}


@pytest.mark.requirement("B20")
@pytest.mark.parametrize("case", list(HARD))
@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_masking_examines_each_character_a_few_times(case: str, size: int) -> None:
    secrets, make = HARD[case]
    text = make(secrets[0])
    masker = StreamMasker(secrets)
    shown = "".join(masker.add(text[at : at + size]) for at in range(0, len(text), size)) + masker.end()
    assert masker.examined <= 6 * len(text)
    whole = StreamMasker(secrets)
    assert shown == whole.add(text) + whole.end()


@pytest.mark.requirement("B20")
def test_the_steps_of_masking_grow_linearly_with_the_text() -> None:
    secrets = secret_patterns({"KEY": "".join(map(chr, range(33, 127))) * 40})
    counts = []
    for times in (1, 2, 4, 8):
        masker = StreamMasker(secrets)
        for at in range(0, 5000 * times):
            masker.add(secrets[0][at % len(secrets[0])])
        counts.append(masker.examined / times)
    assert max(counts) < 2 * min(counts)


@pytest.mark.requirement("B20")
@given(letters, st.lists(words, max_size=4), st.lists(st.integers(min_value=0)), st.integers(1, 80))
@unhurried
def test_no_secret_is_ever_stored_or_reported(text: str, secrets: list[str], borders: list[int], limit: int) -> None:
    stored, received = collected(text.encode(), borders, secrets, limit=limit)
    assert stored == received
    assert not [secret for secret in secrets if secret in stored.removesuffix(TRUNCATED)]


@pytest.mark.requirement("B20")
def test_a_possible_beginning_of_a_secret_is_held_back() -> None:
    received: list[str] = []
    output = RunOutput(100, secrets=["hunter2"], listener=lambda _, text: received.append(text))
    output.add("stdout", b"it is hun")
    assert received == ["it is "]
    output.add("stdout", b"gry")
    output.add("stdout", b" hunter")
    output.add("stdout", b"2.")
    assert "".join(received) == "it is hungry ***."
    output.add("stdout", b"hunt")
    assert output.finish()[0] == "it is hungry ***.hunt"


@pytest.mark.requirement("B20")
@given(st.text(min_size=MIN_CHARACTERS, max_size=30).filter(lambda text: text.strip()))
@unhurried
def test_a_secret_is_masked_in_every_usual_encoding(value: str) -> None:
    shapes = secret_patterns({"KEY": value})
    raw = value.encode()
    encoded = codecs.encode(raw, "base64").decode().replace("\n", "")
    for shape in (value, encoded, raw.hex(), raw.hex().upper()):
        assert shape in shapes


PRINTED: dict[str, Callable[[str], str]] = {
    "plain": str,
    "basic authentication": lambda value: codecs.encode(f"user:{value}".encode(), "base64").decode().replace("\n", ""),
    "base64 behind one byte": lambda value: base64.b64encode(f"x{value}".encode()).decode(),
    "base64 between bytes": lambda value: base64.urlsafe_b64encode(f"xy{value}zz".encode()).decode(),
    "a form": lambda value: urlencode({"k": value}),
    "a path of a URL": quote,
    "a URL in lower case": lambda value: re.sub("%..", lambda code: code[0].lower(), quote(value, safe="")),
    "HTML": html.escape,
    "HTML with quotes left": lambda value: html.escape(value, quote=False),
    "HTML with decimal quotes": lambda value: html.escape(value).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
    "a shell": shlex.quote,
    "a shell with backslashes": lambda value: value.replace("'", "'\\''"),
    "repr": repr,
    "repr with both quotes": lambda value: repr(value + "\"'"),
    "ascii": ascii,
    "JSON": json.dumps,
    "JSON in JSON": lambda value: json.dumps({"body": json.dumps({"key": value})}).removeprefix(
        '{"body": "{\\"key\\": '
    ),
    "JSON without escapes": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON for a page": lambda value: (
        json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    ),
    "hexadecimal": lambda value: value.encode().hex(),
}


@pytest.mark.requirement("B20")
@pytest.mark.parametrize("how", list(PRINTED))
@pytest.mark.parametrize("value", ["p4ss'wOrd &<x>/é 9+Zq", "hunter2", "plain words", 'say "it"', "日本語の秘密"])
def test_a_secret_is_masked_as_programs_print_it(how: str, value: str) -> None:
    printed = PRINTED[how](value)
    shown, _ = collected(f"before {printed} after".encode(), [], secret_patterns({"KEY": value}))
    assert "***" in shown
    left = shown.removeprefix("before ").removesuffix(" after")
    stored = max(left.split("***"), key=len)
    assert len(stored) <= 8, "at most quotes, the bytes around, or base64 of both"


def test_a_value_too_short_to_be_a_secret_masks_nothing() -> None:
    assert secret_patterns({"A": "abc", "B": ""}) == []
