"""How a process of the launcher becomes a run."""

import subprocess
import sys

SCRIPT = """
import os, signal, time
from apexbridge.sandbox.launcher import child_process

reading, writing = os.pipe()
if os.fork() == 0:  # the launcher
    launcher = os.getpid()
    if os.fork() == 0:  # the run

        def die_meanwhile(*ids):
            os.kill(launcher, signal.SIGKILL)
            while os.getppid() == launcher:
                time.sleep(0.01)

        os.setgroups = os.setresgid = lambda *ids: None
        os.setresuid = die_meanwhile
        child_process.drop_privileges({0: 0, 1: 1, 2: 2, 3: writing}, uid=os.getuid())
        os.write(3, b"runs")
        os._exit(0)
    time.sleep(600)
os.close(writing)
print(os.read(reading, 100))
"""


def test_a_run_whose_launcher_dies_while_it_starts_ends_as_well() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("b''", "")
