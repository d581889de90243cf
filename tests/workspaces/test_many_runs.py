"""Many runs in one workspace, and runs that are killed at any moment."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.tools.conversation import Conversation

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNS = 1000


@pytest.fixture
async def bridge(tmp_path: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    async with Bridge.open(Settings(data_dir=tmp_path / "data"), watch=False, embedder=embedder) as opened:
        yield opened


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_a_thousand_runs_in_one_workspace_leave_nothing_behind(bridge: Bridge, tmp_path: Path) -> None:
    conversation = Conversation(workspace=bridge.workspaces.open("w"))
    code = "n = int(open('n').read()) + 1\nopen('n', 'w').write(str(n))"
    first = await bridge.code.run("python", "open('n', 'w').write('0')", conversation=conversation)
    assert first.success
    await bridge.sandbox.warm_up()
    before = open_files()
    for _ in range(RUNS):
        result = await bridge.code.run("python", code, conversation=conversation)
        assert result.success, result.error
        await bridge.runs.delete(result.id)
    with await bridge.workspaces.open_file("w", "n") as file:
        assert file.read() == str(RUNS).encode()
    assert sorted(path.name for path in (tmp_path / "data/workspaces/w").iterdir())[0] == "current"
    assert len(list((tmp_path / "data/workspaces/w").iterdir())) == 2
    await bridge.sandbox.warm_up()
    assert open_files() <= before + 5
    assert bridge.workspaces.get("w").files == 1


async def test_a_run_that_is_cancelled_at_any_moment_leaves_one_whole_state(bridge: Bridge) -> None:
    workspace = bridge.workspaces.open("w")
    conversation = Conversation(workspace=workspace)
    write = "import sys\nfor n in range(40): open(f'{n}', 'w').write('%s' * 5000)"
    assert (await bridge.code.run("python", write % "a", conversation=conversation)).success
    for step in range(40):
        letter = "abcdefgh"[step % 8]
        task = asyncio.create_task(bridge.code.run("python", write % letter, conversation=conversation))
        await asyncio.sleep(step / 400)  # another moment each time
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with workspace.reading() as top:
            texts = {path.read_text() for path in top.iterdir()}
            assert len(list(top.iterdir())) == 40
        assert len(texts) == 1, [text[:3] for text in texts]


async def test_runs_at_once_in_one_workspace_keep_all_their_files(bridge: Bridge) -> None:
    conversation = Conversation(workspace=bridge.workspaces.open("w"))

    async def one(number: int) -> None:
        try:
            code = f"open('{number}.txt', 'w').write('{number}')"
            assert (await bridge.code.run("python", code, conversation=conversation)).success
        except ApexBridgeError as error:
            raise AssertionError(error.message) from error

    await asyncio.gather(*map(one, range(30)))
    names = {entry.path for entry in await bridge.workspaces.files("w")}
    assert names == {f"{number}.txt" for number in range(30)}
