"""Leaves a process behind that has every reason to survive: a new session, no parent, deaf to signals."""

import os
import signal
import sys
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(30)", sys.argv[1]])
    os._exit(0)
time.sleep(0.2)
print("left")
