"""Search measured on a corpus and requests with known answers."""

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.evaluation import Corpus, Question


def test_ids_that_are_names_of_other_skills_are_told_apart(embedder: Embedder) -> None:
    texts = {"merge": "Merges PDF files", "b": "Bakes bread", "c": "Forecasts the weather", "d": "Commits code"}
    names = {"merge": "b", "b": "merge", "c": "merge", "d": "c"}
    entries = [(id, Document(name=names[id], description=text)) for id, text in texts.items()]
    corpus = Corpus(embedder, entries, None)
    for id, text in texts.items():
        assert corpus.search(Question(query=text, gold=frozenset({id})))[0] == id
