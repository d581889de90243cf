import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.skills.package.frontmatter import parse, parse_leniently, replace_description
from apexbridge.skills.package.yaml_block import MAX_DEPTH, MAX_EVENTS, FrontmatterError, as_core_value, quote

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@pytest.mark.requirement("C1")
def test_the_block_is_at_the_top_and_the_markdown_follows() -> None:
    document = parse("---\nname: git-commit\ndescription: Commits.\n---\n# Title\n")
    assert {key: field.value for key, field in document.fields.items()} == {
        "name": "git-commit",
        "description": "Commits.",
    }
    assert document.body == "# Title\n"


@pytest.mark.requirement("C2")
def test_a_version_keeps_its_spelling() -> None:
    field = parse("---\nversion: 1.10\ndate: 2026-01-31\n---\n").fields["version"]
    assert (field.raw, field.value) == ("1.10", 1.1)
    assert parse("---\ndate: 2026-01-31\n---\n").value("date") == "2026-01-31"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("a: &x 1\nb: *x", "anchors"),
        ("a: !!python/object/apply:os.system [id]", "tag"),
        ("a: !custom x", "tag"),
        ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deeper"),
        ("a: [" + "1," * (MAX_EVENTS + 1) + "]", "nodes"),
        ("a: 1\na: 2", "twice"),
        ("a: b: c", "unquoted colon"),
        ("a: @b", "reserved character"),
        ("- a\n- b", "key: value"),
        ("? [a]\n: b", "plain text"),
        ("a: {[x]: y}", "plain text"),
        ("a: 'b", "not closed"),
        ("a: [b", "bracket"),
        ("a: b\nc\nd: e", "without a colon"),
        ("a: 'b' c", "closing quote"),
        ("a: \x01", "not allow"),
        ("a: " + "x" * 70_000, "larger"),
    ],
)
def test_a_refused_block_is_reported_with_its_line(block: str, reason: str) -> None:
    with pytest.raises(FrontmatterError, match=reason) as caught:
        parse(f"---\n{block}\n---\n")
    assert caught.value.line >= 1


def test_the_line_of_an_error_counts_from_the_start_of_the_file() -> None:
    with pytest.raises(FrontmatterError) as caught:
        parse("---\nname: x\ndescription: a: b\n---\n")
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "text", ["", "# only text", "--\nname: x\n---\n", "---js\nname: x\n---\n", " ---\na: b\n---\n"]
)
def test_a_file_without_a_block_at_the_top_is_refused(text: str) -> None:
    with pytest.raises(FrontmatterError, match="top"):
        parse(text)


def test_an_unclosed_block_is_refused() -> None:
    with pytest.raises(FrontmatterError, match="not closed"):
        parse("---\nname: x\n")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("", None),
        ("~", None),
        ("true", True),
        ("FALSE", False),
        ("12", 12),
        ("-1.5e3", -1500.0),
        ("yes", "yes"),
        ("9" * 400, "9" * 400),
        (".inf", ".inf"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_plain_scalars_follow_the_core_schema(written: str, value: object) -> None:
    assert as_core_value(written) == value


@pytest.mark.parametrize(
    ("text", "description", "body"),
    [
        ("---\nname: x\ndescription: Use when: asked\n---\nB", "Use when: asked", "B"),
        ("---\ndescription: *bold* words\nname: x\n---\nB", "*bold* words", "B"),
        ("---\ndescription: 'don't stop'\nname: x\n---\nB", "don't stop", "B"),
        ("\n\n---\nname: x\ndescription: d\n---\nB", "d", "B"),
        ("---\nname: x\ndescription: d\n\n# Heading\ntext", "d", "\n# Heading\ntext"),
        ("name: x\ndescription: d\n\ntext", "d", "\ntext"),
        ("name: x\ndescription: d\n---\ntext", "d", "text"),
        ("---\nname:x\ndescription:tight\n---\nB", "tight", "B"),
        ("---\nstray line\n# why\nname: x\ndescription: a: b\n  more: c\n---\nB", "a: b more: c", "B"),
        ("---\nname: x\ndescription: d\nname: y\n---\nB", "d", "B"),
        ("---\nname: x\n  description: Does something useful\n---\nB", "Does something useful", "B"),
    ],
)
def test_a_broken_block_is_parsed_leniently(text: str, description: str, body: str) -> None:
    document = parse_leniently(text)
    assert document.value("name") == "x"
    assert document.value("description") == description
    assert document.body == body
    assert document.notices


def test_a_file_without_any_block_is_all_body() -> None:
    document = parse_leniently("# Title\n\ntext")
    assert document.fields == {}
    assert document.body == "# Title\n\ntext"


@pytest.mark.requirement("D6")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "---\nname: x\ndescription: old # why\ntags: [a]\n---\nB\n",
            '---\nname: x\ndescription: "new" # why\ntags: [a]\n---\nB\n',
        ),
        ("---\ndescription: 'old'\nname: x\n---\n", '---\ndescription: "new"\nname: x\n---\n'),
        ("---\ndescription: |\n  a\n  b\n\nname: x\n---\n", '---\ndescription: "new"\n\nname: x\n---\n'),
        ("---\ndescription: >-\n  a\n  b\nname: x\n---\n", '---\ndescription: "new"\nname: x\n---\n'),
        ("---\r\nname: x\r\ndescription: old\r\n---\r\nB\r\n", '---\r\nname: x\r\ndescription: "new"\r\n---\r\nB\r\n'),
        ("\ufeff---\nname: x\ndescription: old\n---\n", '\ufeff---\nname: x\ndescription: "new"\n---\n'),
        ("---\ndescription:\nname: x\n---\n", '---\ndescription: "new"\nname: x\n---\n'),
        ("---\n{name: x, description: old}\n---\n", '---\n{name: x, description: "new"}\n---\n'),
        ("---\ndescription:\n  - a\n  - b\nname: x\n---\n", '---\ndescription:\n  "new"\nname: x\n---\n'),
        ("---\nname: x\n---\nB", '---\ndescription: "new"\nname: x\n---\nB'),
        ("---\nname: x\ndescription: a: b\n---\nB", '---\nname: x\ndescription: "new"\n---\nB'),
        ("---\nname: x\ndescription:tight\n---\nB", '---\nname: x\ndescription: "new"\n---\nB'),
        ("# Title\r\n", '---\r\nname: "x"\r\ndescription: "new"\r\n---\r\n# Title\r\n'),
        (
            '---\nname: x\ndescription: Use when: needed\n# comment\n"version": 1.0\n作者: me\nDisplay Name: y\n---\nb',
            '---\nname: x\ndescription: "new"\n# comment\n"version": 1.0\n作者: me\nDisplay Name: y\n---\nb',
        ),
        (
            "---\nname: x\ndescription: a: b\n# one\n\n# two\n---\nB",
            '---\nname: x\ndescription: "new"\n# one\n\n# two\n---\nB',
        ),
        ("---\ndescription:\n- a\n- b\n# why\nname: x\n---\n", '---\ndescription:\n "new"\n# why\nname: x\n---\n'),
        ("---\ndescription: |- # short\n  a\nname: x\n---\n", '---\ndescription: "new" # short\nname: x\n---\n'),
        ("---\nname: x\ndescription: d\n---\n\ufeffB", '---\nname: x\ndescription: "new"\n---\n\ufeffB'),
        ("---\n{name: x}\n---\n", '---\n{description: "new", name: x}\n---\n'),
        ("\ufefftext", '\ufeff---\nname: "x"\ndescription: "new"\n---\ntext'),
    ],
)
def test_an_edit_changes_only_the_description(before: str, after: str) -> None:
    assert replace_description(before, "new", name="x") == after


@pytest.mark.requirement("D6")
@settings(max_examples=300, deadline=None)
@given(
    description=TEXT,
    old=st.one_of(
        TEXT.map(lambda text: quote(text)),
        st.text("abc :#-é中🙂'\"", min_size=1, max_size=30),
        st.lists(st.text("ab :#'\"é", max_size=12), min_size=1, max_size=4).map(
            lambda lines: "|\n" + "\n".join(f"  x{line}" for line in lines)
        ),
        st.text("ab :'é", max_size=20).map(lambda text: f">-\n  x{text}\n  y"),
    ),
    before=st.sampled_from(["", "name: x\n", "# note\nname: x\n", "tags: [a, b]\n", "metadata:\n  k: {a: 1}\n"]),
    after=st.sampled_from(["", "version: 1.10\n", "allowed-tools: Read\n# end\n", "list:\n- a\n- b\n"]),
    newline=st.sampled_from(["\n", "\r\n"]),
    body=st.text(max_size=60).filter(lambda text: "\r" not in text),
)
def test_an_edit_preserves_the_other_fields_and_the_body(
    description: str, old: str, before: str, after: str, newline: str, body: str
) -> None:
    head, tail = f"---\n{before}description: ", f"\n{after}---\n{body}"
    text = (head + old + tail).replace("\n", newline)
    try:
        document = parse(text)
    except FrontmatterError:
        document = parse_leniently(text)
    if "description" not in document.fields or document.block_start is None:
        return
    edited = replace_description(text, description, name="x")
    assert edited.startswith(head.replace("\n", newline).rstrip(" "))
    assert parse_leniently(edited).value("description") == description
    assert parse_leniently(edited).body == document.body
    others = {key: field.value for key, field in document.fields.items() if key != "description"}
    assert {k: f.value for k, f in parse_leniently(edited).fields.items() if k != "description"} == others


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_any_text_can_be_parsed_leniently(text: str) -> None:
    document = parse_leniently(f"---\n{text}\n---\nbody")
    assert document.text.endswith("body")


@settings(max_examples=300, deadline=None)
@given(TEXT)
def test_a_quoted_value_round_trips(text: str) -> None:
    assert parse(f"---\nvalue: {quote(text)}\n---\n").value("value") == text
    assert "\n" not in quote(text)


def test_quoting_does_not_escape_unicode() -> None:
    assert quote('提交 "x"') == json.dumps('提交 "x"', ensure_ascii=False)
