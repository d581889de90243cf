"""If one component is down, the others continue to work, and the model gets a clear error."""

from pathlib import Path
from typing import Any

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import live
from tests.chat.upstream import Step, Upstream, call

pytestmark = pytest.mark.requirement("G6")
ECHO = {"scripts/execute.py": "print('ran')\n"}


def results(upstream: Upstream, model: str) -> list[str]:
    return [str(message["content"]) for message in upstream.bodies(model)[-1]["messages"] if message["role"] == "tool"]


def test_built_in_tools_and_direct_skills_work_without_a_sandbox(
    upstream: Upstream, embedder: Embedder, tmp_path: Path
) -> None:
    with live(tmp_path / "data", upstream, embedder, sandbox_backend="plain") as server:
        server.install("runner", ECHO)
        server.install("reader", body="# The instructions\n")
        calls = [
            call("run_skill", {"name": "runner"}),
            call("calculate", {"expression": "6*7"}),
            call("load_skill", {"name": "reader"}),
        ]
        model = upstream.play(Step(calls=calls), Step(text="Done."))
        answer = server.answer(False, model)
    assert answer["content"] == "Done."
    refused, sum_, read = results(upstream, model)
    assert "SANDBOX_UNAVAILABLE" in refused
    assert "ran" not in refused.split()
    assert sum_ == "42"
    assert "# The instructions" in read


def test_keyword_search_and_named_skills_work_without_embeddings(upstream: Upstream, tmp_path: Path) -> None:
    address = "http://127.0.0.1:9/v1"
    settings: dict[str, Any] = {"embedding": "openai", "embedding_base_url": address, "embedding_model": "none"}
    with live(tmp_path / "data", upstream, None, indexing="background", **settings) as server:
        server.install("runner", ECHO, description="Runs around the block.")
        calls = [
            call("search_skills", {"query": "run around the block"}),
            call("skill__runner"),
            call("calculate", {"expression": "6*7"}),
        ]
        model = upstream.play(Step(calls=calls), Step(text="Done."))
        answer = server.answer(False, model, x_bridge={"skills": ["runner"]})
    assert answer["content"] == "Done."
    found, ran, sum_ = results(upstream, model)
    assert "runner" in found
    assert "[Note:" in found
    assert "ran" in ran
    assert sum_ == "42"
