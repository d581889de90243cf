"""Fills the workspace until it is refused, with bytes and then with names."""

import json
import os

GIVEN = json.loads(os.environ["INPUT_JSON"])
written = made = 0
refused = []
try:
    with open("large", "wb", 0) as file:
        while written < GIVEN["bytes"] * 3:
            written += file.write(b"x" * (1 << 20))
except OSError as error:
    refused.append(error.strerror)
os.unlink("large")
os.mkdir("many")
try:
    while made < GIVEN["inodes"] * 3:
        os.close(os.open(f"many/{made}", os.O_WRONLY | os.O_CREAT))
        made += 1
except OSError as error:
    refused.append(error.strerror)
print(json.dumps({"bytes": written, "files": made, "refused": len(refused)}))
