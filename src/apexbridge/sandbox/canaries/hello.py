import sys

print("Python", sys.version.split()[0])
