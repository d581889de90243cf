"""A server whose metrics are read."""

from collections.abc import Iterator

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import environment_of_servers
from tests.chat.upstream import upstreams
from tests.monitoring.metrics_server import MetricsServer, metrics_server


@pytest.fixture(scope="module")
def served(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetricsServer]:
    with (
        environment_of_servers(tmp_path_factory.mktemp("cwd")),
        upstreams() as upstream,
        metrics_server(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened,
    ):
        yield opened
