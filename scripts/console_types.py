"""Writes the types of the API for the console: the OpenAPI document becomes `console/src/api/schema.d.ts`.

python scripts/console_types.py
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.build_console import SOURCE, BuildError, find_node, install_packages

from apexbridge.bridge import Bridge
from apexbridge.settings import Settings
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access

TYPES = SOURCE / "src/api/schema.d.ts"
GENERATE_SECONDS = 120


async def document(data_dir: Path, *, keys_required: bool = False) -> bytes:
    """The OpenAPI document of a server with the default settings."""
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, indexing="on-demand") as bridge:
        return json.dumps(create_app(bridge, Access(keys_required=keys_required)).openapi()).encode()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "openapi.json"
        described.write_bytes(asyncio.run(document(Path(folder) / "data")))
        generated = Path(folder) / "schema.d.ts"
        try:
            node = find_node()
            install_packages(node)
        except BuildError as error:
            print(f"The types of the console were not written: {error}", file=sys.stderr)
            return 1
        script = SOURCE / "node_modules/openapi-typescript/bin/cli.js"
        options = ["--default-non-nullable=false", "--output", str(generated)]
        command = [node.node, str(script), str(described), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GENERATE_SECONDS, check=False)
        if done.returncode:
            print(f"openapi-typescript failed:\n{done.stdout}{done.stderr}", file=sys.stderr)
            return 1
        text = generated.read_text("utf-8")
    if not TYPES.exists() or TYPES.read_text("utf-8") != text:
        draft = TYPES.with_suffix(".tmp")
        draft.write_text(text, "utf-8")
        draft.replace(TYPES)
        print(f"wrote {TYPES.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
