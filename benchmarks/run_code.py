"""Code in a warm sandbox with a workspace, compared with `python3 -c` and `node -e`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from apexbridge.bridge import Bridge
from apexbridge.settings import Settings
from apexbridge.skills.runs.code_runs import Language
from apexbridge.tools.conversation import Conversation
from benchmarks.measuring import Comparison, compare

ROUNDS = 20
PAUSE_SECONDS = 0.1
"""Long enough for the next warm interpreter to be ready."""
CODE: dict[Language, str] = {
    "python": "import json\nprint(json.dumps({'answer': 42}))",
    "javascript": "console.log(JSON.stringify({ answer: 42 }))",
}
GOALS: dict[Language, float] = {"python": 0.35, "javascript": 0.35}


async def run() -> list[Comparison]:
    """Warm runs of code, each with a workspace of a few files."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(data_dir=Path(directory))
        async with Bridge.open(settings, watch=False, indexing="on-demand") as bridge:
            await bridge.prepare_sandbox()
            return [await _compare(bridge, language) for language in GOALS]


async def _compare(bridge: Bridge, language: Language) -> Comparison:
    workspace = bridge.workspaces.open(f"bench-{language}")

    def fill(top: Path) -> None:
        for number in range(5):
            (top / f"{number}.txt").write_text("some text\n" * 100)

    await workspace.change(fill)
    conversation = Conversation(workspace=workspace)
    node = bridge.sandbox.node_program or "node"
    plain = [sys.executable, "-c", CODE["python"]] if language == "python" else [node, "-e", CODE["javascript"]]

    async def ours() -> None:
        result = await bridge.code.run(language, CODE[language], conversation=conversation)
        assert result.success, result.error

    async def theirs() -> None:
        process = await asyncio.create_subprocess_exec(*plain, stdout=asyncio.subprocess.PIPE)
        await process.communicate()

    async def recover() -> None:
        await bridge.sandbox.warm_up()
        await asyncio.sleep(PAUSE_SECONDS)

    return await compare(
        f"warm run_code, {language}",
        ours,
        f"a plain {'python3 -c' if language == 'python' else 'node -e'}",
        theirs,
        goal=GOALS[language],
        rounds=ROUNDS,
        between=recover,
    )
