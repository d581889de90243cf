"""Says which Python this is."""

import sys

print("Python", sys.version.split()[0])
