"""Logs: only a record starts a line, and no control characters reach the terminal."""

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from apexbridge.surfaces.cli.terminal_text import LOG_FORMAT, SafeFormatter, set_up_logging

HOSTILE = "name\nERROR apexbridge.storage.audit: FORGED\r\x1b[31m\x7f\x9b2J\u2028\u2029\u202e\u2066\t"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter(LOG_FORMAT))
    logger = logging.getLogger("here")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream
    logger.removeHandler(handler)


def lines_of(stream: io.StringIO) -> list[str]:
    text = stream.getvalue()
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    assert all(line.isprintable() for line in lines), lines
    return lines


def test_a_message_with_control_characters_is_one_line(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.error("model %s failed", HOSTILE)
    logger.error(HOSTILE)
    (first, second) = lines_of(stream)
    assert first.startswith(r"ERROR here: model name\nERROR apexbridge.storage.audit: FORGED\r\x1b[31m\x7f\x9b2J\u2028")
    assert second.startswith("ERROR here: name")


def test_printable_text_is_unchanged(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.warning("合并 naïve “quoted” \\n 👍")
    assert lines_of(stream) == ["WARNING here: 合并 naïve “quoted” \\n 👍"]


def test_a_traceback_is_indented_to_differ_from_records(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = log
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it failed", stack_info=True)
    first, *others = lines_of(stream)
    assert first == "ERROR here: it failed"
    assert any("ERROR apexbridge.storage.audit: FORGED" in line for line in others)
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "    Traceback (most recent call last):" in others


def test_the_command_line_uses_the_safe_format(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging()
    logging.getLogger("uvicorn.error").error("a\nb")
    assert stream.getvalue() == "ERROR uvicorn.error: a\\nb\n"


def test_a_lone_surrogate_is_escaped() -> None:
    record = logging.makeLogRecord({"name": "here", "levelname": "ERROR", "msg": "a \udc80 b"})
    assert SafeFormatter(LOG_FORMAT).format(record) == r"ERROR here: a \udc80 b"
