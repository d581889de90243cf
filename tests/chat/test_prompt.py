"""The system prompt: ours or the operator's, joined with that of the client."""

from pathlib import Path

import pytest

from apexbridge.agent.loop import default_prompt
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import Step, Upstream

pytestmark = pytest.mark.requirement("G8")
USER = {"role": "user", "content": "hello"}


def test_our_prompt_is_the_first_message_if_the_client_has_no_system_message(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(Step(text="Hi."))
    bridge_server.answer(is_stream, model, [USER])
    assert upstream.bodies(model)[0]["messages"] == [{"role": "system", "content": default_prompt()}, USER]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_our_prompt_is_appended_to_that_of_the_client(bridge_server: Live, upstream: Upstream, role: str) -> None:
    model = upstream.play(Step(text="Hi."))
    second = {"role": "system", "content": "Later."}
    bridge_server.ask(model, [{"role": role, "content": "Be kind."}, USER, second])
    first, *others = upstream.bodies(model)[0]["messages"]
    assert first == {"role": role, "content": f"Be kind.\n\n{default_prompt()}"}
    assert others == [USER, second]


@pytest.mark.parametrize("more", [{}, {"x_bridge": {"tools": False}}], ids=["with our tools", "without"])
@pytest.mark.parametrize("kind", ["text", "file"])
def test_the_prompt_of_the_operator_reaches_every_model(
    upstream: Upstream, embedder: Embedder, tmp_path: Path, kind: str, more: dict[str, object]
) -> None:
    (tmp_path / "prompt.md").write_text("Answer in rhymes. 押韵")
    settings = (
        {"system_prompt": "Answer in rhymes. 押韵"}
        if kind == "text"
        else {"system_prompt_file": tmp_path / "prompt.md"}
    )
    with live(tmp_path / "data", upstream, embedder, **settings) as server:
        model = upstream.play(Step(text="Hi."))
        server.ask(model, [{"role": "system", "content": "Be kind."}, USER], **more)
        server.stream(model, [USER], **more)
    first, second = (body["messages"] for body in upstream.bodies(model))
    assert first == [{"role": "system", "content": "Be kind.\n\nAnswer in rhymes. 押韵"}, USER]
    assert second == [{"role": "system", "content": "Answer in rhymes. 押韵"}, USER]


def test_the_prompt_of_the_operator_does_not_change_a_passed_through_answer(
    upstream: Upstream, embedder: Embedder, tmp_path: Path
) -> None:
    with live(tmp_path / "data", upstream, embedder, system_prompt="Answer in rhymes.") as server:
        model = upstream.play(Step(text="Hi."))
        assert len(server.ask(model, [USER], n=2, x_bridge={"tools": False})["choices"]) == 2


def test_an_empty_prompt_of_the_operator_adds_no_message(
    upstream: Upstream, embedder: Embedder, tmp_path: Path
) -> None:
    with live(tmp_path / "data", upstream, embedder, system_prompt="") as server:
        model = upstream.play(Step(text="Hi."))
        server.ask(model, [USER])
    assert upstream.bodies(model)[0]["messages"] == [USER]
