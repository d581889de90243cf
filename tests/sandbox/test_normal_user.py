"""The same walls where the server has no privileges: everything holds without root as well."""

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

ROOT = Path(__file__).parents[2]
USER = 61_357
"""Nobody's number."""


def told_by_user(kind: str) -> dict[str, Any]:
    """What a server of another user tells."""
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
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


@pytest.mark.requirement("B5")
@pytest.mark.requirement("B7")
@pytest.mark.requirement("B9")
@pytest.mark.requirement("B10")
@pytest.mark.parametrize("kind", list(SETTINGS))
def test_a_server_without_privileges_has_the_same_walls(kind: str) -> None:
    if os.getuid() != 0:
        assert os.geteuid() != 0  # all the other tests are this one already
        return
    told = told_by_user(kind)
    assert told.pop("user") == USER
    for harm in EVERYWHERE if kind == "landlock" else EVERYWHERE | IN_NAMESPACES:
        code, reached = told.pop(harm)
        if code == "PROCESS_LIMIT" and harm.startswith("start too many"):
            continue
        assert (harm, code, reached) == (harm, None, "[]\n")
    for name in ORDINARY:
        assert told.pop(f"left of {name}") == []
    hidden = {} if kind == "warm" else HIDDEN if kind == "landlock" else HIDDEN | IN_NAMESPACES_HIDDEN
    assert {how: told.pop(how) for how in hidden} == {how: ["OUT_OF_MEMORY", ""] for how in hidden}
    assert told.pop("not refused") == []
    assert len(told.pop("ordinary use")) == 4
    below = told.pop("below")
    assert below == (["SPAWN_FAILED", ""] if kind == "landlock" else [None, '[["below", "file"], []]\n'])
    instances = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    assert told.pop("inotify") == (0 if kind == "landlock" else min(instances // 4, 200))
    bomb, _ = told.pop("bomb")
    assert bomb in ("TIMEOUT", "PROCESS_LIMIT", "OUTPUT_LIMIT")
    assert json.loads(told.pop("python")[1])[0] == {"a": 1}
    assert told == {
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
