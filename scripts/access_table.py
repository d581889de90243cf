"""Writes which scope may call which route, as the OpenAPI document has it, to `docs/reference/access.md`.

python -m scripts.access_table
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

from scripts.console_types import document

from apexbridge.storage.key_store import KeyScope

PAGE = Path(__file__).parents[1] / "docs/reference/access.md"
COLUMNS = ("no key", *get_args(KeyScope))
_TITLE = "# Who may call what"
_TEXT = """\
A server that requires [API keys](../guides/operate.md#api-keys) admits these requests. `yes` means that the scope
alone is enough; a key with several scopes may do what each of them may. The owner's key in `server.json` may do
everything. A key that is expired or revoked may call only what needs no key and checks none. Where no key is
required, requests without one may do everything; a key that is sent is checked as here.

The files of the [console](http.md#the-console) need no key; `/docs` and `/openapi.json` need `read`. Tools at `/mcp`
that run or write something need `run` in addition.

This page is generated from the OpenAPI document by `python -m scripts.access_table`."""


def admitted(operation: dict[str, Any]) -> set[str]:
    """The columns that may call an operation, by its `security`; one without a scope needs no key."""
    needed = {scope for alternative in operation["security"] for scopes in alternative.values() for scope in scopes}
    return needed | {"admin"} if needed else set(COLUMNS)


def page(described: dict[str, Any]) -> str:
    """The page, from the document of a server that requires keys."""
    rows = [
        f"| `{method.upper()} {path}` | {' | '.join('yes' if column in found else '' for column in COLUMNS)} |"
        for path, operations in sorted(described["paths"].items())
        for method, operation in sorted(operations.items())
        if (found := admitted(operation))
    ]
    head = (f"| route | {' | '.join(COLUMNS)} |", f"|{'---|' * (len(COLUMNS) + 1)}")
    return "\n".join([_TITLE, "", _TEXT, "", *head, *rows, ""])


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        described = json.loads(asyncio.run(document(Path(folder), keys_required=True)))
    text = page(described)
    if not PAGE.exists() or PAGE.read_text("utf-8") != text:
        PAGE.write_text(text, "utf-8")
        print(f"wrote {PAGE.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
