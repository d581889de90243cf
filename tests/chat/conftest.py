"""A scripted model server, and a bridge in front of it."""

from collections.abc import Iterator

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, environment_of_servers, live
from tests.chat.upstream import Upstream, upstreams


@pytest.fixture(scope="package", autouse=True)
def _no_settings_for_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with environment_of_servers(tmp_path_factory.mktemp("cwd")):
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
