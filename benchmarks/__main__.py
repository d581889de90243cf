"""`python -m benchmarks [NAME …]`, or `python -m benchmarks corpus|scan PATH`."""

import argparse
import sys
from functools import partial
from pathlib import Path

import anyio

from benchmarks import (
    attack,
    calculate,
    chat,
    commands,
    console,
    corpus,
    file_read,
    freezing,
    help,
    install,
    listing,
    mcp_calls,
    mcp_start,
    mcp_tools,
    page,
    published,
    real_work,
    run_code,
    sandbox,
    scale,
    scan,
    search,
    start,
)

TIMED = {
    "attack": attack,
    "calculate": calculate,
    "chat": chat,
    "commands": commands,
    "console": console,
    "file_read": file_read,
    "freezing": freezing,
    "help": help,
    "install": install,
    "listing": listing,
    "mcp_calls": mcp_calls,
    "mcp_start": mcp_start,
    "mcp_tools": mcp_tools,
    "page": page,
    "published": published,
    "run_code": run_code,
    "sandbox": sandbox,
    "scale": scale,
    "search": search,
    "start": start,
}


NEEDS_NETWORK = {"real_work": real_work}
"""Only run by name."""


def main() -> None:
    """Run the named benchmarks, or all timed ones."""
    known = {**TIMED, **NEEDS_NETWORK}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(known)}, or: corpus PATH, scan PATH [FILE]"
    )
    parser.add_argument("--short", action="store_true", help="fewer rounds of chat")
    options = parser.parse_args()
    names = options.names
    if names[:1] == ["scan"]:
        if len(names) not in (2, 3):
            parser.error("scan needs the path of a folder or a .jsonl.gz, and may have that of a file for its findings")
        scan.run(*map(Path, names[1:]))
        return
    if names[:1] == ["corpus"]:
        if len(names) != 2:
            parser.error("corpus needs the path of a folder or a .jsonl.gz")
        corpus.run(Path(names[1]))
        return
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown benchmark: {', '.join(unknown)}")
    missed = 0
    for name in names or TIMED:
        work = partial(chat.run, short=options.short) if name == "chat" else known[name].run
        for comparison in anyio.run(work):
            print(comparison, flush=True)
            missed += comparison.ratio > comparison.goal
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
