"""`apex chat`: one question, a conversation, JSON output, and approval of dangerous calls."""

import fcntl
import io
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import httpx
import pytest

from tests.making import skill_zip
from tests.surfaces.conftest import APEX, Apex, StartServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60


def test_a_question_is_answered_on_stdout_with_its_steps_on_stderr(apex: Apex) -> None:
    completed = apex("chat", "what is 12*12?")
    assert completed.code == 0
    assert completed.out.startswith("12*12 = 144\n")
    assert "not a language model" in completed.out
    assert "calculate" in completed.err


def test_a_conversation_ends_with_an_empty_line(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("3+4\n5+6\n\nnever asked\n"))
    completed = apex("chat")
    assert (completed.code, completed.out.count("not a language model")) == (0, 2)
    assert completed.out.startswith("3+4 = 7\n")
    assert "5+6 = 11\n" in completed.out


def test_json_output_is_the_completion(apex: Apex) -> None:
    completion = apex("chat", "1+1", "--json").json
    assert completion["choices"][0]["message"]["content"].startswith("1+1 = 2")
    assert completion["x_bridge"]["stopCause"] == "answered"
    assert apex("chat", "--json").code == 2


def test_an_error_of_the_server_is_shown(apex: Apex) -> None:
    completed = apex("chat", "hello", "--skill", "none")
    assert completed.code == 1
    assert "No skill named none" in completed.err


@pytest.mark.parametrize(("typed", "expected"), [("y\n", b"wiped"), ("n\n", b"That did not work")])
def test_a_dangerous_call_prompts_for_approval(start_server: StartServer, typed: str, expected: bytes) -> None:
    server = start_server()
    headers = {"content-type": "application/zip"}
    httpx.post(
        f"{server.url}/api/skills/install", timeout=PATIENCE_SECONDS, content=dangerous_skill(), headers=headers
    ).raise_for_status()
    chat_and_decide("--url", server.url, typed=typed, expected=expected)


def test_a_dangerous_call_prompts_for_approval_without_a_server(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "wipe.zip").write_bytes(dangerous_skill())
    data = str(tmp_path / "own data")
    assert apex("skills", "install", str(tmp_path / "wipe.zip"), "--data-dir", data).code == 0
    chat_and_decide("--data-dir", data, typed="y\n", expected=b"wiped")


def dangerous_skill() -> bytes:
    return skill_zip(
        "wipe-disk",
        files={"scripts/execute.py": "print('wiped')"},
        description="Wipe the disk clean and erase everything on it.",
        dangerous=True,
        confirm="Wipe it?",
    )


def chat_and_decide(*options: str, typed: str, expected: bytes) -> None:
    """Request a dangerous call at a terminal, and answer the approval prompt."""
    terminal, child_terminal = pty.openpty()
    process = subprocess.Popen(
        [*APEX, "chat", "wipe the disk clean, erase everything", *options],
        stdin=child_terminal,
        stdout=child_terminal,
        stderr=child_terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child_terminal)
    shown = read_until(terminal, b"[y/N]")
    os.write(terminal, typed.encode())
    shown += read_until(terminal, expected)
    assert expected in shown, shown.decode()
    assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(terminal)


def read_until(terminal: int, expected: bytes) -> bytes:
    """What the program shows until the expected text or its end."""
    shown = b""
    while expected not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the program has ended, and closed its side
            break
    return shown
