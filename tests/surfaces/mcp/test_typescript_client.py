"""The official TypeScript client, over HTTP and over stdio, in both eras."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chat.live import Live
from tests.clients.install import installed, node
from tests.surfaces.conftest import APEX, environment

pytestmark = pytest.mark.slow
SECONDS = 120


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_typescript_client_uses_everything(served: Live, tmp_path: Path, mode: str, transport: str) -> None:
    script = tmp_path / "client.mjs"
    shutil.copy(Path(__file__).with_name("typescript_client.mjs"), script)
    (tmp_path / "node_modules").symlink_to(installed() / "node_modules")
    target = [f"{served.url}/mcp"] if transport == "http" else [*APEX, "mcp", "--url", served.url]
    done = subprocess.run(
        [str(node()), str(script), mode, *target], capture_output=True, text=True, timeout=SECONDS, env=environment()
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen["tools"]) == 9
    assert (seen["found"], seen["stdout"]) == ("shouter", "LOUD\n")
    assert "running" in seen["progress"]
    assert seen["resources"] >= 6
    assert seen["text"].startswith("---\n")
    assert "Greet Ada kindly." in seen["prompt"]
    assert seen["skills"] is None or "guide" in seen["skills"]
