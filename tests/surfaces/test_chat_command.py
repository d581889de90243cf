"""`apex chat`: one question, a conversation, data for programs, and a question back before something dangerous."""

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

PATIENCE = 60


def test_one_question_is_answered_with_its_steps_beside_it(apex: Apex) -> None:
    said = apex("chat", "what is 12*12?")
    assert said.code == 0
    assert said.out.startswith("144\n")
    assert "not a language model" in said.out
    assert "calculate" in said.err


def test_a_conversation_goes_on_until_an_empty_line(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("3+4\n5+6\n\nnever asked\n"))
    said = apex("chat")
    assert (said.code, said.out.count("not a language model")) == (0, 2)
    assert said.out.startswith("7\n")
    assert "\n11\n" in said.out


def test_programs_get_the_completion(apex: Apex) -> None:
    answer = apex("chat", "1+1", "--json").json
    assert answer["choices"][0]["message"]["content"].startswith("2")
    assert answer["x_bridge"]["stopCause"] == "answered"
    assert apex("chat", "--json").code == 2


def test_what_the_server_refuses_is_said(apex: Apex) -> None:
    said = apex("chat", "hello", "--skill", "none")
    assert said.code == 1
    assert "No skill named none" in said.err


@pytest.mark.parametrize(("typed", "expected"), [("y\n", b"wiped"), ("n\n", b"That did not work")])
def test_a_person_is_asked_before_something_dangerous(start_server: StartServer, typed: str, expected: bytes) -> None:
    server = start_server()
    headers = {"content-type": "application/zip"}
    httpx.post(
        f"{server.url}/api/skills/install", timeout=PATIENCE_SECONDS, content=dangerous_skill(), headers=headers
    ).raise_for_status()
    asked_and_told("--url", server.url, typed=typed, expected=expected)


def test_a_person_is_asked_where_no_server_runs(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "wipe.zip").write_bytes(dangerous_skill())
    data = str(tmp_path / "own data")
    assert apex("skills", "install", str(tmp_path / "wipe.zip"), "--data-dir", data).code == 0
    asked_and_told("--data-dir", data, typed="y\n", expected=b"wiped")


def dangerous_skill() -> bytes:
    return skill_zip(
        "wipe-disk",
        files={"scripts/execute.py": "print('wiped')"},
        description="Wipe the disk clean and erase everything on it.",
        dangerous=True,
        confirm="Wipe it?",
    )


def asked_and_told(*options: str, typed: str, expected: bytes) -> None:
    """Ask for something dangerous at a terminal, and answer the question that comes back."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*APEX, "chat", "wipe the disk clean, erase everything", *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, typed.encode())
    while expected not in shown:
        shown += os.read(ours, 4096)
    assert process.wait(PATIENCE) == 0
    os.close(ours)
