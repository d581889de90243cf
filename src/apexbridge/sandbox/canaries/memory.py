"""Takes memory until it is stopped: half of it in a child, so that only a limit on the whole tree helps."""

import os
import time

taken = []
if os.fork() == 0:
    for _ in range(64):
        taken.append(bytearray(os.urandom(1) * (16 << 20)))
        time.sleep(0.005)
    time.sleep(5)
    os._exit(0)
for _ in range(64):
    taken.append(bytearray(os.urandom(1) * (16 << 20)))
    time.sleep(0.005)
time.sleep(5)
print("reached")
