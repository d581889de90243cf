"""A scripted model server, and a bridge in front of it."""

import os
from collections.abc import Iterator

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import UPSTREAM_KEY_VARIABLE, Live, live
from tests.chat.upstream import KEY, Upstream, upstreams


@pytest.fixture(scope="package", autouse=True)
def _no_settings_for_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers outlive single tests, so the function-scoped fixture for this runs too late for them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("APEX_", "OPENAI_", "LANGSMITH_", "LANGCHAIN_"))]:
            patch.delenv(name)
        patch.setenv(UPSTREAM_KEY_VARIABLE, KEY)
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        yield


@pytest.fixture(scope="package")
def upstream() -> Iterator[Upstream]:
    """A model server that plays the steps a test scripted."""
    with upstreams() as opened:
        yield opened


@pytest.fixture(scope="module")
def bridge_server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for all tests of a module. Each scripted conversation has its own model name."""
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        yield opened


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def is_stream(request: pytest.FixtureRequest) -> bool:
    """Run the test with a whole response and with a stream."""
    return bool(request.param)
