"""A scripted model server, and a bridge in front of it, for clients."""

from collections.abc import Iterator

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, environment_of_servers, live
from tests.chat.upstream import Upstream, upstreams

ADD = "import json, sys\nnumbers = json.load(sys.stdin)['numbers']\nprint('sum', sum(numbers))\n"
MAKE = "import os\nopen('output/made.txt', 'w').write('made')\nprint(open('input/note.txt').read())\n"
SLEEP = "import sys, time\nprint('started', flush=True)\ntime.sleep(120)\n"


@pytest.fixture(scope="package", autouse=True)
def _no_settings_for_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with environment_of_servers(tmp_path_factory.mktemp("cwd")):
        yield


@pytest.fixture(scope="package")
def upstream() -> Iterator[Upstream]:
    with upstreams() as opened:
        yield opened


@pytest.fixture(scope="package")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server with skills for all tests of clients."""
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        opened.install("add-numbers", {"scripts/execute.py": ADD}, description="Adds numbers to a sum.")
        opened.install("make-file", {"scripts/execute.py": MAKE}, description="Makes a file from a note.")
        opened.install("sleep-long", {"scripts/execute.py": SLEEP}, description="Waits for a long time.")
        opened.install("style-guide", description="How the team writes texts.")
        opened.install(
            "wipe-disk",
            {"scripts/execute.py": "print('wiped')\n"},
            description="Deletes everything.",
            dangerous=True,
            confirm="This wipes everything.",
        )
        yield opened
