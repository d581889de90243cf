"""What the server says about itself. Without imports of the package `mcp`, so that `apex mcp` can answer at once."""

NAME = "apexbridge"
TITLE = "apexbridge"
TTL_MS = 5_000
"""How long clients may use a list again. Skills can be installed at any time."""
INSTRUCTIONS = (
    "Skills are tested instructions and scripts for tasks. For a task that you have no tool for, call search_skills "
    "with the task in plain words, read the best one with load_skill, and follow it: run its scripts with run_skill, "
    "or code of your own with run_code. To keep files between calls, pass the same workspace, a name of your choice, "
    "to each of them. Results link the files that were made."
)
