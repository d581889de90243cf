"""The index in memory, compared with simple and slow implementations."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.retrieval import usage
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.index.keyword_index import K1, KeywordIndex
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.usage import MAX_PER_SKILL, UsageMemory

WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "epsilon", "x"]), max_size=6)


def plain_rarity(documents: list[list[str]], word: str) -> float:
    spread = sum(word in other for other in documents)
    return (0.5 if word == "x" else 1) * math.log1p((len(documents) - spread + 0.5) / (spread + 0.5))


def plain_bm25(documents: list[list[str]], query: list[str], b: float) -> list[float]:
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query:
            if counts[word]:
                damp = K1 * (1 - b + b * len(document) / mean)
                score += plain_rarity(documents, word) * counts[word] * (K1 + 1) / (counts[word] + damp)
        scores.append(score)
    return scores


@pytest.mark.parametrize("recent", [1, 4, 512])
@settings(max_examples=40)
@given(
    changes=st.lists(st.tuples(st.sampled_from(["put", "replace", "drop"]), st.integers(0, 9), WORDS), max_size=25),
    query=WORDS,
)
def test_keyword_scores_equal_plain_bm25_after_any_changes(
    recent: int, changes: list[tuple[str, int, list[str]]], query: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:  # a document becomes a segment sooner or later
        patch.setattr("apexbridge.retrieval.index.keyword_index.RECENT_DOCUMENTS", recent)
        _compare_with_plain_bm25(changes, query)


def plain_overlap(documents: list[list[str]], query: list[str], translated: str) -> list[tuple[float, float, float]]:
    """What `KeywordIndex.overlap` promises, for documents whose first word is their name."""
    rarity = {word: plain_rarity(documents, word) for word in set(query)}
    total = max(sum(rarity.values()), 1e-9)
    return [
        (
            sum(rarity[word] for word in rarity if word in words) / total,
            sum(rarity[word] for word in rarity if word in words[:1]) / total,
            float(not {*query, translated}.isdisjoint(words[:1])),
        )
        for words in documents
    ]


def _compare_with_plain_bm25(changes: list[tuple[str, int, list[str]]], query: list[str]) -> None:
    index, plain = KeywordIndex(), list[list[str]]()
    for change, number, words in changes:
        if change == "put":
            index.put(len(plain), words, name=words[:1])
            plain.append(words)
        elif plain and change == "replace":
            slot = number % len(plain)
            index.put(slot, words, name=words[:1])
            plain[slot] = words
        elif plain:
            slot = number % len(plain)
            index.drop(slot)
            plain[slot] = plain[-1]
            plain.pop()
        if number % 3 == 0:
            index.score(query)
    if plain and sum(map(len, plain)):
        mean = sum(map(len, plain)) / len(plain)
        b = float(np.interp(mean, (14.0, 22.0), (0.75, 0.4)))
        assert np.allclose(index.score(query), plain_bm25(plain, query, b), atol=1e-5)
        restored = KeywordIndex()
        restored.restore(index.packed(np.arange(len(plain))))
        np.testing.assert_array_equal(restored.score(query), index.score(query))
        for own in (index, restored):
            overlap = own.overlap(query, ["beta"])
            request, by_name, name = zip(*plain_overlap(plain, query, "beta"), strict=True)
            assert np.allclose(overlap.request, request, atol=1e-5)
            assert np.allclose(overlap.request_by_name, by_name, atol=1e-5)
            np.testing.assert_array_equal(overlap.name, name)
        for slot, words in enumerate(plain):
            assert set(index.matched(slot, query)[0]) == set(words) & set(query)
            found, share = restored.matched(slot, query)
            assert found == index.matched(slot, query)[0]
            assert share == pytest.approx(index.matched(slot, query)[1])
        assert restored.corrections(["alpah", "gam", "epsilom"]) == index.corrections(["alpah", "gam", "epsilom"])


@pytest.mark.parametrize("exact_limit", [1000, 10])
@settings(max_examples=60)
@given(changes=st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=250))
def test_memory_holds_each_name_once_with_its_own_vector(exact_limit: int, changes: list[tuple[bool, int]]) -> None:
    index, known = VectorIndex((3, 2), exact_limit=exact_limit), dict[str, float]()
    for version, (put, number) in enumerate(changes):
        name = f"skill-{number}"
        if put:
            index.put(Document(name=name, description="x"), np.full(5, version, np.float32))
            known[name] = float(version)
        else:
            assert index.drop([name]) == ([name] if name in known else [])
            known.pop(name, None)
    assert len(index) == len(known)
    assert {document.name for document in index.documents} == set(known)
    for name, value in known.items():
        slot = index.slot(name)
        assert slot is not None
        assert index.documents[slot].name == name
        assert index.vector(slot).tolist() == [value] * 5
    assert len(index.vectors) == len(known)


def test_documents_without_a_vector_are_listed() -> None:
    index = VectorIndex((2,))
    index.put(Document(name="a", description="x"), None)
    index.put(Document(name="b", description="x"), np.ones(2, np.float32))
    assert index.without_vector() == ["a"]
    before = index.version
    index.reshape((4,))
    assert index.version > before
    assert index.without_vector() == ["a", "b"]


def test_usage_memory_is_bounded_and_keeps_the_newest() -> None:
    memory = UsageMemory((MAX_PER_SKILL + 10,))
    vectors = np.eye(MAX_PER_SKILL + 10, dtype=np.float32)
    keys = [memory.teach("a", vector, caller="", now=number)[0].key for number, vector in enumerate(vectors)]
    assert len(memory) == MAX_PER_SKILL
    assert memory.pairs()[0][0].key == keys[10]
    memory.teach("a", vectors[10], caller="", now=999)
    assert (len(memory), memory.pairs()[-1][0].key) == (MAX_PER_SKILL, keys[10])
    assert len(memory.forget(lambda pair: pair.skill == "a")) == MAX_PER_SKILL
    assert len(memory) == 0


def test_many_requests_of_one_key_do_not_push_out_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_PAIRS", 5)
    memory = UsageMemory((20,))
    first, *vectors = np.eye(20, dtype=np.float32)
    memory.teach("pdf", first, caller="quiet")
    for number, vector in enumerate(vectors):
        memory.teach(f"skill{number % 3}", vector, caller="loud")
    assert (memory.count_of("quiet"), memory.count_of("loud"), len(memory)) == (1, 4, 5)


def test_a_repeated_request_is_recognised_by_its_vector() -> None:
    memory = UsageMemory((8,))
    vector = np.ones(8, np.float32)
    first, _ = memory.teach("a", vector, caller="", chat="one", now=1)
    rounded, _ = memory.teach("a", vector + np.float32(1e-4) * np.arange(8, dtype=np.float32), caller="", now=2)
    assert (rounded.key, rounded.chat, len(memory)) == (first.key, "", 1)
    for skill, caller in (("b", ""), ("a", "other-key")):
        assert memory.teach(skill, vector, caller=caller)[0].key != first.key
    near = vector.copy()
    near[0] = 2
    assert memory.teach("a", near, caller="")[0].key != first.key


def test_a_repeated_word_counts_as_often_as_it_occurs() -> None:
    index = KeywordIndex()
    for slot, words in enumerate((["merge", "pdf"], ["pdf"], ["weather"])):
        index.put(slot, words)
    once, often = index.score(["pdf"]), index.score(["pdf"] * 8 + ["merge"])
    np.testing.assert_allclose(often, 8 * once + index.score(["merge"]), rtol=1e-5)


def test_a_single_letter_counts_half() -> None:
    index = KeywordIndex()
    for slot, words in enumerate((["x", "post"], ["todo", "list"], ["a1", "zip"])):
        index.put(slot, words)
    np.testing.assert_allclose(index.score(["x"])[0], index.score(["todo"])[1] / 2, rtol=1e-6)
    np.testing.assert_allclose(index.overlap(["x", "todo"]).request, [1 / 3, 2 / 3, 0], rtol=1e-6)
    assert index.rarity("x") == index.rarity("todo") / 2
    assert index.rarity("y") == 0.5


def test_mistyped_and_half_typed_words_find_those_that_were_meant() -> None:
    index = KeywordIndex()
    for slot, words in enumerate(
        ["commit", "calendar", "spreadsheet", "merg", "calend", "天气", "pdf2text", "compress"]
    ):
        index.put(slot, [words])
    meant = {
        "comit": ["commit"],  # a letter is missing
        "cmomit": ["commit"],  # two have changed places
        "spreadshet": ["spreadsheet"],
        "spraedsheets": ["spreadsheet"],  # two mistakes in a long word
        "calenda": ["calend", "calendar"],
        "spre": ["spreadsheet"],  # its beginning
    }
    assert {word: sorted(found) for word, found in index.corrections([*meant, "commit"]).items()} == meant
    for word in ("vommit", "kalendar", "mreg", "天汽", "com", "zzzzzz", "pdf2tex", "", "\ud800"):
        assert index.corrections([word]) == {}, word
    index.drop(0)
    assert "comit" not in index.corrections(["comit"])


def test_corrections_are_bounded() -> None:
    index = KeywordIndex()
    index.put(0, [f"prefix{letter}" for letter in "abcdefghijklmnop"])
    assert all(len(found) <= 2 for found in index.corrections(["prefi", "prefixy", "pref"]).values())
    assert len(index.corrections([f"prefix{letter}" for letter in "qrstuvwxyz"])) == 8
