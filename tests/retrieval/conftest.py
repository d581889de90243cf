"""Retrieval services with the real models and a real LanceDB in a temporary folder."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.service import ToolRetrievalService
from tests.retrieval.endpoint import Endpoint, embedding_endpoint

LIBRARY = [
    Document(name="git-commit", description="自动生成提交信息"),
    Document(name="excel-analysis", description="Analyze Excel files: statistics, pivots and charts", tags=("office",)),
    Document(name="weather", description="Weather forecast for a city"),
    Document(name="pdf-merge", description="Merge PDF files into one"),
    Document(name="translator", description="Translate text between languages", derived_tags=("translator",)),
]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with embedding_endpoint() as opened:
        yield opened


class Searching:
    """Opens services on one data directory, one after the other."""

    def __init__(self, data_dir: Path, embedder: Embedder) -> None:
        self.data_dir = data_dir
        self.embedder = embedder

    @asynccontextmanager
    async def open(self, embedder: Embedder | None = None, **settings: Any) -> AsyncIterator[ToolRetrievalService]:
        self.data_dir.mkdir(exist_ok=True)
        service = ToolRetrievalService(self.data_dir, embedder or self.embedder, RetrievalSettings(**settings))
        async with service.running():
            yield service


@pytest.fixture
def searching(data_dir: Path, embedder: Embedder) -> Searching:
    return Searching(data_dir, embedder)


@pytest.fixture
async def service(searching: Searching) -> AsyncIterator[ToolRetrievalService]:
    async with searching.open() as opened:
        await opened.index_skills(LIBRARY)
        yield opened
