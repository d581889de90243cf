"""`apex chat --out`: saves the files of each answer, with a scripted model."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import UPSTREAM_KEY_VARIABLE, Live, live
from tests.chat.upstream import KEY, Step, Upstream, call, upstreams
from tests.surfaces.conftest import Apex, CommandResult

Converse = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with upstreams() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(UPSTREAM_KEY_VARIABLE, KEY)
        with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
            yield opened


@pytest.fixture
def converse(server: Live, upstream: Upstream, apex: Apex, monkeypatch: pytest.MonkeyPatch) -> Converse:
    """A conversation in which the model runs one piece of Python code for each question."""

    def run(out: Path, *codes: str, before: Callable[[int], None] = lambda number: None) -> CommandResult:
        def step(number: int, code: str) -> Callable[[dict[str, object]], Step]:
            def play(body: dict[str, object]) -> Step:
                before(number)
                return Step(calls=[call("run_code", {"language": "python", "code": code})])

            return play

        steps = [part for number, code in enumerate(codes) for part in (step(number, code), Step(text="Done."))]
        model = upstream.play(*steps)
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"question {n}\n" for n in range(len(codes))) + "\n"))
        return apex("chat", "--model", model, "--out", out, "--url", server.url)

    return run


def test_a_later_answer_replaces_the_files_of_an_earlier_one(converse: Converse, tmp_path: Path) -> None:
    out = tmp_path / "out"
    append = "import os\nos.makedirs('sub', exist_ok=True)\nfor n in 'a.txt', 'sub/b.txt': open(n, 'a').write('x')"
    completed = converse(out, append, append, append)
    assert completed.code == 0, completed.err
    assert (out / "a.txt").read_text() == (out / "sub/b.txt").read_text() == "xxx"
    assert completed.err.count(f"2 files in {out}") == 3
    assert sorted(path.name for path in out.iterdir()) == ["a.txt", "sub"]


def test_a_file_that_the_command_did_not_write_is_never_replaced(converse: Converse, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    completed = converse(
        out, "for n in 'mine.txt', 'new.txt': open(n, 'w').write('x')", "open('new.txt', 'a').write('y')"
    )
    assert completed.code == 1
    assert (out / "mine.txt").read_text() == "mine"
    assert (out / "new.txt").read_text() == "xy"
    assert completed.err.count("mine.txt was not written: exists already") == 1
    assert completed.err.count(f"1 file in {out}") == 2
    assert completed.err.index("mine.txt was not written") < completed.err.index(f"1 file in {out}")


def test_a_file_that_was_changed_since_is_not_replaced(converse: Converse, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def edit(number: int) -> None:
        if number == 1:
            (out / "a.txt").write_text("edited")
            (out / "b.txt").unlink()

    write = "for n in 'a.txt', 'b.txt': open(n, 'a').write('x')"
    completed = converse(out, write, write, before=edit)
    assert completed.code == 1
    assert ((out / "a.txt").read_text(), (out / "b.txt").read_text()) == ("edited", "xx")
    assert f"1 file in {out}" in completed.err


def test_a_file_that_a_later_answer_can_save_does_not_fail_the_command(converse: Converse, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("in the way")
    completed = converse(
        out,
        "open('a.txt', 'a').write('x')",
        "open('a.txt', 'a').write('x')",
        before=lambda number: (out / "a.txt").unlink() if number else None,
    )
    assert (completed.code, (out / "a.txt").read_text()) == (0, "xx")
