"""Writes the synchronous client from the asynchronous one: `python scripts/unasync.py`."""

import re
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src/apexbridge/client"
HEADER = "# Generated from _async by scripts/unasync.py. Do not edit.\n"
REPLACEMENTS = (
    ("from apexbridge._tasks import in_thread\n", ""),
    (r"await in_thread\((\w+), ", r"\1("),
    (r"await in_thread\((\w+)\)", r"\1()"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Iterator|Client|BaseTransport)\b", r"\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\ba(close|read|iter_bytes)\b", r"\1"),
    (r"\b_async\b", "_sync"),
    (r"(?<![.\w])Client\b", "SyncClient"),
    (r"The client for asyncio", "The client without asyncio"),
)


def synchronous(text: str) -> str:
    """The synchronous form of a module."""
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return HEADER + text


def generated() -> dict[Path, str]:
    """The modules and their paths, not yet formatted."""
    return {
        CLIENT / "_sync" / path.name: synchronous(path.read_text("utf-8"))
        for path in sorted((CLIENT / "_async").glob("*.py"))
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, "utf-8")
        print(path.relative_to(CLIENT))
