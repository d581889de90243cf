"""A real server with skills, and a scripted model behind it, for programs that users have."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.chat.upstream import KEY, Upstream, upstreams
from tests.clients.programs import Program
from tests.making import write_skill
from tests.surfaces.conftest import APEX, servers

LONG_SKILL, DANGEROUS_SKILL = "long-work", "format-disk"
SKILL = "pig-latin"
SCRIPT = "import json, sys\nword = json.load(sys.stdin)['word']\nprint('translated:', word[1:] + word[0] + 'ay')\n"
INPUT, OUTPUT = {"word": "banana"}, "translated: ananabay"
BODY = "# Pig Latin\n\nRun the script with the word.\n"
DESCRIPTION = "Translates a word into Pig Latin, the language game for children."
CONFIG_SECONDS = TIMEOUT_SECONDS = 60
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Served:
    """The server's address and data directory, and the model."""

    url: str
    data_dir: Path
    upstream: Upstream

    def configure(self, program: Program, client: str, *options: str) -> None:
        """Write the program's configuration as a user does: `apex mcp config CLIENT --write`."""
        program.folder.mkdir(parents=True, exist_ok=True)
        command = [*APEX, "mcp", "config", client, "--write", "--data-dir", str(self.data_dir), *options]
        environment = {"HOME": str(program.home), "PATH": str(Path(sys.executable).parent)}
        subprocess.run(command, cwd=program.folder, env=environment, check=True, timeout=CONFIG_SECONDS)

    def key(self, *scopes: str) -> str:
        """Create an API key, as the owner of the data directory."""
        created = self._ask("POST", "/api/keys", json={"name": "program", "scopes": scopes})
        return str(created["key"])

    def runs(self, skill: str) -> list[Json]:
        """Runs of a skill, the newest first."""
        found: list[Json] = self._ask("GET", "/api/executions", params={"skill": skill})["executions"]
        return found

    def is_cancelled(self, skill: str) -> bool:
        """Whether the newest run of a skill was cancelled."""
        run = self._ask("GET", f"/api/executions/{self.runs(skill)[0]['id']}")
        return bool(run["result"]) and run["result"].get("errorCode") == "CANCELLED"

    def _ask(self, method: str, path: str, **options: Any) -> Json:
        owner = json.loads((self.data_dir / "server.json").read_text())["key"]
        headers = {"authorization": f"Bearer {owner}"}
        with httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            answer: Json = client.request(method, path, **options).raise_for_status().json()
        return answer


@contextmanager
def served(data_dir: Path, **settings: str) -> Iterator[Served]:
    """Run the server and the model until the block ends."""
    write_skill(data_dir / "skills", LONG_SKILL, {"scripts/execute.py": "import time\ntime.sleep(300)\n"}, timeout=300)
    write_skill(data_dir / "skills", DANGEROUS_SKILL, {"scripts/execute.py": "print('formatted')\n"}, dangerous=True)
    write_skill(data_dir / "skills", SKILL, {"scripts/execute.py": SCRIPT}, description=DESCRIPTION, body=BODY)
    with upstreams() as upstream, servers(data_dir) as start:
        server = start(APEX_LLM_BASE_URL=upstream.url, APEX_LLM_API_KEY=KEY, APEX_LLM_TOOL_MODE="native", **settings)
        yield Served(url=server.url.rstrip("/"), data_dir=data_dir, upstream=upstream)


def tool_outputs(messages: list[Json]) -> dict[str, str]:
    """What the model got from each tool, by the tool's name."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    return {names[each["tool_call_id"]]: str(each["content"]) for each in messages if each["role"] == "tool"}
