"""A scripted model server, and a bridge in this process that uses it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from tests.chat.upstream import KEY, Upstream, upstreams


@pytest.fixture(scope="package")
def upstream() -> Iterator[Upstream]:
    with upstreams() as opened:
        yield opened


@pytest.fixture
async def chatting(data_dir: Path, embedder: Embedder, upstream: Upstream) -> AsyncIterator[Bridge]:
    settings = Settings(
        data_dir=data_dir, llm_base_url=upstream.url, llm_api_key=SecretStr(KEY), llm_model="the-set-one"
    )
    async with Bridge.open(settings, watch=False, embedder=embedder) as opened:
        yield opened
