"""The client leg of the official conformance suite, for what our client uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.install import script

SECONDS = 120
CLIENT = f"{sys.executable} -m tests.mcp_client.conformance_client"
SCENARIOS = [
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("request-metadata", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "revision"), SCENARIOS)
def test_the_client_conforms(scenario: str, revision: str) -> None:
    command = [*script("@modelcontextprotocol/conformance", "dist/index.js"), "client", "--command", CLIENT]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [*command, "--scenario", scenario, "--spec-version", revision, "--timeout", "60000"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
