"""The examples of the page about frameworks run, with the scripted model server as the model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chat.live import Live
from tests.chat.upstream import KEY, Step, Upstream, call
from tests.docs.test_docs import blocks_of, matches
from tests.waiting import PATIENCE_SECONDS

PAGE = Path(__file__).parents[2] / "docs/guides/frameworks.md"
BLOCKS = list(blocks_of(PAGE.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number, block in enumerate(BLOCKS) if block.language == "python"])
def test_an_example_prints_what_the_page_shows(server: Live, upstream: Upstream, number: int) -> None:
    add = call("run_skill", {"name": "add-numbers", "input": {"numbers": [20, 22]}})
    model = upstream.play(Step(calls=[add]), Step(text="It is 42."))
    variables = {"APEX_URL": server.url, "OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": KEY}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number].text.replace("gpt-5", model)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert matches(BLOCKS[number + 1].text, done.stdout), done.stdout
    if "gpt-5" in BLOCKS[number].text:
        assert "sum 42" in str(upstream.bodies(model)[-1]["messages"])
