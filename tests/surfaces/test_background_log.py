"""The log of a server: written in the background, so that a full pipe cannot stop the server."""

import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from apexbridge.surfaces.cli import terminal_text
from apexbridge.surfaces.cli.terminal_text import BackgroundHandler
from tests.waiting import until

pytestmark = pytest.mark.anyio


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, "", 0, text, None, None)


async def test_lines_are_written_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        handler = BackgroundHandler()
        for number in range(1000):
            handler.emit(record(str(number)))
        await until(lambda: (tmp_path / "log").read_text().count("\n") == 1000)
        handler.flush()
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(1000)]


async def test_a_reader_that_does_not_read_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_text, "MAX_PENDING_LINES", 500)
    reader, writer = os.pipe()
    received: list[bytes] = []

    def drain() -> None:
        while chunk := os.read(reader, 65536):
            received.append(chunk)

    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        handler = BackgroundHandler()
        for number in range(3000):
            handler.emit(record(f"{number} {'x' * 200}"))
        draining = threading.Thread(target=drain)
        draining.start()
        handler.flush()
        handler.emit(record("one more"))
        await until(lambda: b"lines of the log were dropped" in b"".join(received))
        handler.flush()
    draining.join()
    os.close(reader)
