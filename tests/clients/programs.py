"""Claude Code and Codex as a user starts them, each with a home and an environment of its own and a time limit."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.install import claude_code, codex

Json = dict[str, Any]
LIMIT_SECONDS = 60
"""Guards against hanging; a run takes about a second."""
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a program, which printed one JSON object a line."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def of_type(self, kind: str) -> list[Json]:
        return [event for event in self.events if event.get("type") == kind]


@dataclass(kw_only=True)
class Program:
    """A program in the home of a user and in a folder of a project."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.home / "project"

    def start(self, command: Sequence[str | Path]) -> Finished:
        """Run to the end."""
        with self.started(command) as process:
            try:
                out, err = process.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                raise AssertionError(f"{command[0]} did not end:\n{out}\n{err}") from None
        return Finished(code=process.returncode, out=out, err=err)

    @contextmanager
    def started(self, command: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
        """Run in a process group of its own, which is killed at the end of the block."""
        self.folder.mkdir(parents=True, exist_ok=True)
        variables = {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        with subprocess.Popen(
            [str(argument) for argument in command],
            cwd=self.folder,
            env=variables | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


class ClaudeCode(Program):
    """Claude Code without a terminal, with a model behind the Messages API."""

    def connect(self, url: str, key: str = "unused") -> None:
        """Chat through the server at a URL."""
        self.environment |= {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MCP_STARTUP_WAIT_MS": f"{LIMIT_SECONDS}000",  # on a busy machine it starts without servers
            "IS_SANDBOX": "1",  # it refuses to run as root elsewhere
        }

    def ask(self, prompt: str, *options: str, model: str) -> Finished:
        """Ask once; tools of the server `apexbridge` and the shell are allowed."""
        return self.start(self.asking(prompt, *options, model=model))

    def asking(self, prompt: str, *options: str, model: str) -> list[str | Path]:
        allowed = ("--allowedTools", "Bash", "mcp__apexbridge")
        shown = ("--output-format", "stream-json", "--verbose")
        return [claude_code(), "-p", prompt, "--model", model, *shown, *options, *allowed]

    def command(self, *arguments: str) -> Finished:
        return self.start([claude_code(), *arguments])


def claude_tool_results(finished: Finished) -> dict[str, str]:
    """The text of each tool's result, by the tool's name."""
    names = {
        block["id"]: block["name"]
        for event in finished.of_type("assistant")
        for block in event["message"]["content"]
        if block["type"] == "tool_use"
    }
    return {
        names[block["tool_use_id"]]: _text(block["content"])
        for event in finished.of_type("user")
        for block in event["message"]["content"]
        if block["type"] == "tool_result"
    }


class Codex(Program):
    """Codex without a terminal, with a model behind the Responses API."""

    @property
    def config(self) -> Path:
        return self.home / ".codex/config.toml"

    def connect(self, url: str, key: str = "unused") -> None:
        """Chat through the server at a URL."""
        self.environment["APEX_API_KEY"] = key
        self.config.parent.mkdir(parents=True)
        self.config.write_text(
            'model_provider = "apexbridge"\n\n'
            "[model_providers.apexbridge]\n"
            'name = "apexbridge"\n'
            f'base_url = "{url}/v1"\n'
            'env_key = "APEX_API_KEY"\n'
            'wire_api = "responses"\n'
            "request_max_retries = 0\n"
            "stream_max_retries = 0\n"
        )

    def ask(self, prompt: str, *options: str, model: str, resume: bool = False) -> Finished:
        """Ask once; with `resume` in the last conversation."""
        return self.start(self.asking(prompt, *options, model=model, resume=resume))

    def asking(self, prompt: str, *options: str, model: str, resume: bool = False) -> list[str | Path]:
        command = ["exec", *(["resume", "--last"] if resume else []), "--skip-git-repo-check", "--json"]
        return [codex(), *command, "--model", model, *options, prompt]

    def command(self, *arguments: str) -> Finished:
        return self.start([codex(), *arguments])


def codex_items(finished: Finished) -> list[Json]:
    """What happened in a turn, as Codex shows it."""
    return [event["item"] for event in finished.of_type("item.completed")]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text") or json.dumps(block) for block in content)
