"""What a run prints, piece by piece: nothing is lost at a border, nothing above the budget, no secret at all."""

import codecs
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.sandbox.masking import MIN_CHARACTERS, masks
from apexbridge.sandbox.output import TRUNCATED, Output, Stream
from tests.sandbox.properties import unhurried

LARGE = 1 << 20
pieces_of_both = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=40)), max_size=20)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    """The data in pieces."""
    places = [0, *sorted(place % (len(data) + 1) for place in borders), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def collected(data: bytes, borders: list[int], secrets: list[str], *, limit: int = LARGE) -> tuple[str, str]:
    """One stream fed in pieces: what is kept, and what a listener heard."""
    heard: list[str] = []
    output = Output(limit, secrets=secrets, listener=lambda _, text: heard.append(text))
    for piece in cut(data, borders):
        output.add("stdout", piece)
    return output.finish()[0], "".join(heard)


@given(st.text(), st.lists(st.integers(min_value=0)))
@unhurried
def test_characters_stay_whole_wherever_a_piece_ends(text: str, borders: list[int]) -> None:
    assert collected(text.encode(), borders, []) == (text, text)


@given(st.binary(), st.lists(st.integers(min_value=0)))
@unhurried
def test_what_is_no_text_is_replaced_the_same_way_wherever_a_piece_ends(data: bytes, borders: list[int]) -> None:
    whole = data.decode("utf-8", "replace")
    assert collected(data, borders, []) == (whole, whole)


@given(pieces_of_both)
@unhurried
def test_a_listener_hears_everything_in_order(pieces: list[tuple[Stream, bytes]]) -> None:
    heard: dict[Stream, str] = {"stdout": "", "stderr": ""}

    def listen(stream: Stream, text: str) -> None:
        heard[stream] += text

    output = Output(LARGE, listener=listen)
    assert all(output.add(stream, data) for stream, data in pieces)
    assert output.finish() == (heard["stdout"], heard["stderr"])


@pytest.mark.requirement("B6")
@given(pieces_of_both, st.integers(min_value=0, max_value=200))
@unhurried
def test_both_streams_share_one_budget(pieces: list[tuple[Stream, bytes]], limit: int) -> None:
    output = Output(limit)
    told = [output.add(stream, data) for stream, data in pieces]
    total = sum(len(data) for _, data in pieces)
    assert output.is_over == (total > limit)
    assert all(told) == (total <= limit)
    stdout, stderr = output.finish()
    if output.is_over:
        assert stdout.endswith(TRUNCATED)
        decoded = stdout.removesuffix(TRUNCATED) + stderr.removesuffix(TRUNCATED)
        assert len(decoded) <= limit
    else:
        assert TRUNCATED not in stdout + stderr


@pytest.mark.requirement("B6")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_exactly_the_limit_is_allowed_and_one_byte_more_is_not(stream: Stream) -> None:
    output = Output(10)
    assert output.add(stream, b"x" * 10)
    assert not output.is_over
    assert not output.add(stream, b"y")
    assert not output.add("stdout", b"z" * 100)
    stdout, stderr = output.finish()
    assert (stdout if stream == "stdout" else stderr) == "x" * 10 + TRUNCATED
    assert stdout.endswith(TRUNCATED)


def test_half_a_character_at_the_cut_is_left_out() -> None:
    output = Output(4)
    output.add("stdout", "日本".encode())
    assert output.finish() == (f"日{TRUNCATED}", "")


def test_half_a_character_at_the_end_shows_as_damage() -> None:
    output = Output(100)
    output.add("stdout", "日本".encode()[:-1])
    assert output.finish() == ("日\N{REPLACEMENT CHARACTER}", "")


# ------------------------------------------------------------------------------------------------------- secrets
words = st.text(alphabet="abcdé", min_size=1, max_size=6)
letters = st.text(alphabet="abcdé-\n", max_size=60)


@pytest.mark.requirement("B20")
@given(letters, words, st.lists(st.integers(min_value=0)))
@unhurried
def test_a_secret_is_masked_the_same_way_wherever_a_piece_ends(text: str, secret: str, borders: list[int]) -> None:
    masked = text.replace(secret, "***")
    assert collected(text.encode(), borders, [secret]) == (masked, masked)


@pytest.mark.requirement("B20")
@given(letters, st.lists(words, max_size=4), st.lists(st.integers(min_value=0)), st.integers(1, 80))
@unhurried
def test_no_secret_is_ever_shown_or_told(text: str, secrets: list[str], borders: list[int], limit: int) -> None:
    kept, heard = collected(text.encode(), borders, secrets, limit=limit)
    assert kept == heard
    assert not [secret for secret in secrets if secret in kept.removesuffix(TRUNCATED)]


@pytest.mark.requirement("B20")
def test_what_may_become_a_secret_is_held_back_until_it_is_clear() -> None:
    heard: list[str] = []
    output = Output(100, secrets=["hunter2"], listener=lambda _, text: heard.append(text))
    output.add("stdout", b"it is hun")
    assert heard == ["it is "]
    output.add("stdout", b"gry")
    output.add("stdout", b" hunter")
    output.add("stdout", b"2.")
    assert "".join(heard) == "it is hungry ***."
    output.add("stdout", b"hunt")
    assert output.finish()[0] == "it is hungry ***.hunt"


@pytest.mark.requirement("B20")
@given(st.text(min_size=MIN_CHARACTERS, max_size=30).filter(lambda text: text.strip()))
@unhurried
def test_a_secret_is_known_in_every_usual_shape(value: str) -> None:
    shapes = masks({"KEY": value})
    raw = value.encode()
    base64 = codecs.encode(raw, "base64").decode().replace("\n", "")
    for shape in (value, base64, raw.hex(), raw.hex().upper()):
        assert shape in shapes


def test_a_value_too_short_to_be_a_secret_masks_nothing() -> None:
    assert masks({"A": "abc", "B": ""}) == []
