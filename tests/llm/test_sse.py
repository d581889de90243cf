"""Events are found in a byte stream, independent of chunk boundaries, line ends and other fields."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.llm import response
from apexbridge.llm.response import EventLines
from apexbridge.llm.upstream_errors import UpstreamError


def events_in(chunks: list[bytes]) -> list[bytes]:
    lines = EventLines()
    return [data for chunk in chunks for data in lines.feed(chunk)] + lines.end()


@pytest.mark.parametrize(
    "stream",
    [
        b"data: one\n\ndata: two\n\n",
        b"data: one\r\n\r\ndata: two\r\n\r\n",
        b"data:one\ndata:two\n",
        b": ping\n\nevent: message\nid: 1\nretry: 5\ndata: one\n\n: more\ndata: two\n\n",
        b"data: one\n\ndata:\n\ndata: two",
        b"data: one\r\rdata: two\r\r",
        b"\xef\xbb\xbfdata: one\n\ndata: two\n\n",
    ],
    ids=[
        "usual",
        "crlf",
        "no spaces and no blank lines",
        "comments and other fields",
        "no last line end",
        "cr",
        "byte order mark",
    ],
)
def test_data_is_found_with_any_line_ends_and_other_fields(stream: bytes) -> None:
    assert events_in([stream]) == [b"one", b"two"]
    assert events_in([stream[index : index + 1] for index in range(len(stream))]) == [b"one", b"two"]


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc", "Z"]), min_size=1), max_size=8), st.data())
def test_chunk_boundaries_make_no_difference(texts: list[str], data: st.DataObject) -> None:
    stream = b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))) | {0, len(stream)})
    chunks = [stream[start:end] for start, end in itertools.pairwise(cuts)]
    assert events_in(chunks) == [text.encode() for text in texts]


def test_many_comments_are_skipped_quickly() -> None:
    lines = EventLines()
    # Reading line by line would take a minute.
    assert [lines.feed(b":\n" * 1_000_000) for _ in range(100)] == [[]] * 100
    assert lines.feed(b"data: one\n") == [b"one"]


def test_an_overlong_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "MAX_LINE_BYTES", 100)
    lines = EventLines()
    lines.feed(b"data: " + b"x" * 90)
    with pytest.raises(UpstreamError):
        lines.feed(b"x" * 20)
