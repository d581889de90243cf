"""Fixtures that run `apex` commands and start real servers."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from apexbridge.surfaces.cli.app import main

START_SECONDS = 180
APEX = [sys.executable, "-c", "from apexbridge.surfaces.cli.app import main; main()"]


@dataclass
class CommandResult:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Apex = Callable[..., CommandResult]


@pytest.fixture
def apex(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_dir: Path) -> Apex:
    """Run a command on the test's own data directory."""

    def run(*arguments: str | Path) -> CommandResult:
        monkeypatch.setenv("APEX_DATA_DIR", str(data_dir))
        monkeypatch.setattr(sys, "argv", ["apex", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


@dataclass
class Server:
    """A server in its own process."""

    process: subprocess.Popen[str]
    url: str
    startup_output: str
    data_dir: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


StartServer = Callable[..., Server]


def environment(**extra: str) -> dict[str, str]:
    return {**{key: value for key, value in os.environ.items() if not key.startswith("APEX_")}, **extra}


def _drain(pipe: IO[str]) -> None:
    with suppress(ValueError):  # closed by the end of the test
        for _ in pipe:
            pass


@contextmanager
def servers(data_dir: Path) -> Iterator[StartServer]:
    """Start `apex serve` on free ports. A start waits for the printed URL; all servers stop at the end of the block."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, folder: Path = data_dir, **env: str) -> Server:
        command = [*APEX, "serve", "--port", "0", "--data-dir", str(folder), *arguments]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**env)
        )
        started.append(process)
        assert process.stderr is not None
        startup_output = ""
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        for line in process.stderr:
            startup_output += line
            if "Ctrl-C" in line:
                break
        watchdog.cancel()
        assert "Ctrl-C" in startup_output, startup_output
        # The server logs every request: a full pipe would block it.
        threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
        url = next(word for word in startup_output.split() if word.startswith("http"))
        return Server(process, url, startup_output, folder)

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def start_server(data_dir: Path) -> Iterator[StartServer]:
    """Start servers for one test."""
    with servers(data_dir) as start:
        yield start
