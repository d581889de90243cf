"""A server without privileges: all guarantees hold without root too."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.as_user import ORDINARY, SETTINGS
from tests.sandbox.bench import SECONDS
from tests.sandbox.hidden_memory_scripts import HIDDEN, IN_NAMESPACES_HIDDEN
from tests.sandbox.hostile_scripts import EVERYWHERE, IN_NAMESPACES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
USER = 61_357
"""An unused user ID."""


def report_of_user(kind: str) -> dict[str, Any]:
    """The report of a server of another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.sandbox.as_user", kind, str(USER), folder],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS * 8,
        )
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


@pytest.mark.requirement("B5")
@pytest.mark.requirement("B7")
@pytest.mark.requirement("B9")
@pytest.mark.requirement("B10")
@pytest.mark.parametrize("kind", list(SETTINGS))
def test_a_server_without_privileges_has_the_same_guarantees(kind: str) -> None:
    if os.getuid() != 0:
        assert os.geteuid() != 0  # then all other tests run without privileges already
        return
    report = report_of_user(kind)
    assert report.pop("user") == USER
    for harm in EVERYWHERE if kind == "landlock" else EVERYWHERE | IN_NAMESPACES:
        code, reached = report.pop(harm)
        if code == "PROCESS_LIMIT" and harm.startswith("start too many"):
            continue
        assert (harm, code, reached) == (harm, None, "[]\n")
    for name in ORDINARY:
        assert report.pop(f"left of {name}") == []
    hidden = {} if kind == "warm" else HIDDEN if kind == "landlock" else HIDDEN | IN_NAMESPACES_HIDDEN
    assert {how: report.pop(how) for how in hidden} == {how: ["OUT_OF_MEMORY", ""] for how in hidden}
    assert report.pop("not refused") == []
    assert len(report.pop("ordinary use")) == 4
    below = report.pop("below")
    assert below == (["SPAWN_FAILED", ""] if kind == "landlock" else [None, '[["below", "file"], []]\n'])
    instances = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    assert report.pop("inotify") == (0 if kind == "landlock" else min(instances // 4, 200))
    bomb, _ = report.pop("bomb")
    assert bomb in ("TIMEOUT", "PROCESS_LIMIT", "OUTPUT_LIMIT")
    assert json.loads(report.pop("python")[1])[0] == {"a": 1}
    assert report == {
        "node": [None, '{"a":1}\n'],
        "shell": [None, '{"a":1}'],
        "memory": ["OUT_OF_MEMORY", "Out of memory"],
        "memory of children": ["OUT_OF_MEMORY", "Out of memory"],
        "time": ["TIMEOUT", "Execution timeout"],
        "output": ["OUTPUT_LIMIT", "Output size exceeded 10MB limit"],
        "daemon": [None, "left\n"],
        "unreadable": "EACCES",
        "processes": 0,
        "files": [],
    }
