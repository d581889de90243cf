"""Search measured on a corpus and requests with known answers."""

import pytest

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.evaluation import Corpus, Question
from tests.retrieval.conftest import LIBRARY, Searching


def test_ids_that_are_names_of_other_skills_are_told_apart(embedder: Embedder) -> None:
    texts = {"merge": "Merges PDF files", "b": "Bakes bread", "c": "Forecasts the weather", "d": "Commits code"}
    names = {"merge": "b", "b": "merge", "c": "merge", "d": "c"}
    entries = [(id, Document(name=names[id], description=text)) for id, text in texts.items()]
    corpus = Corpus(embedder, entries, None)
    for id, text in texts.items():
        assert corpus.search(Question(query=text, gold=frozenset({id})))[0] == id


@pytest.mark.anyio
@pytest.mark.computes_in_loop
@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.5])
async def test_what_is_shown_at_the_threshold_is_what_a_search_shows(
    searching: Searching, embedder: Embedder, threshold: float
) -> None:
    corpus = Corpus(embedder, [(document.name, document) for document in LIBRARY], None)
    shown = []
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        for text in ("merge pdf files", "will it rain in Paris", "you look tired today", "合并PDF"):
            _, own = corpus.search_and_show(Question(query=text, gold=frozenset({"x"})), threshold)
            assert own == [match.name for match in await service.find_relevant_skills(text, threshold=threshold)]
            shown.append(own)
    assert any(shown)
    assert ([] in shown) == (threshold > 0)
