"""A process that is killed at any step leaves either the complete old state or the complete new one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.requirement("D1")
@pytest.mark.requirement("D9")
def test_a_kill_at_any_step_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.skills.crash_driver", str(tmp_path), "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    report = json.loads(run.stdout)
    torn = {change: [state for state in states if state not in ("old", "new")] for change, states in report.items()}
    assert torn == {change: [] for change in report}
    for change, states in report.items():
        assert states[-1] == "new", change
        assert states == sorted(states, reverse=True), f"{change}: an old state follows a new one"
        assert len(states) > 5, change
