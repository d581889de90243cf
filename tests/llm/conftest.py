"""A scripted model server that can misbehave."""

from collections.abc import Iterator

import pytest

from tests.chat.upstream import Upstream, upstreams


@pytest.fixture(scope="package")
def upstream() -> Iterator[Upstream]:
    with upstreams() as opened:
        yield opened
