"""The official conformance suite and the MCP Inspector, against a server with the suite's fixtures."""

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.surfaces.http.app import create_app
from tests.chat.live import Live, live
from tests.clients.install import script
from tests.surfaces.mcp.conformance_build import build

pytestmark = pytest.mark.slow
SECONDS = 300
EXAMPLES = Path(__file__).parents[3] / "examples/skills"
NOT_SCORED = frozenset({"tasks", "server-sse-polling"})
"""Scenarios that a revision does not require, and that are not served: tasks, and streams that can be resumed."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("conformance") / "data"
    with live(folder, None, embedder, app=partial(create_app, build_mcp=build)) as server:
        for skill in sorted(EXAMPLES.iterdir()):
            server.do(server.bridge.skills.install_skill(skill))
        yield server


def _conformance(server: Live, *arguments: str) -> str:
    url = f"{server.url.replace('127.0.0.1', 'localhost')}/mcp"
    command = [*script("@modelcontextprotocol/conformance", "dist/index.js"), "server", "--url", url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    return done.stdout + done.stderr


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_the_server_passes_every_scenario_that_a_revision_requires(served: Live, revision: str) -> None:
    report = _conformance(served, "--requirements", revision)
    results = re.findall(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", report.partition("=== SUMMARY ===")[2], re.M)
    assert len(results) > 25, report
    failed = [name for mark, name, _, _ in results if mark == "✗" and not name.startswith(tuple(NOT_SCORED))]
    assert failed == [], report


@pytest.mark.parametrize("part", ["enumeration", "manifest", "directory"])
def test_the_server_passes_the_scenarios_of_the_skills_extension(served: Live, part: str) -> None:
    report = _conformance(served, "--scenario", f"sep-2640-skills-{part}")
    passed = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", report)
    assert passed is not None, report
    assert passed[1] == passed[2]


def _inspect(server: Live, *arguments: str) -> tuple[int, str]:
    command = [*script("@modelcontextprotocol/inspector", "clients/launcher/build/index.js"), "--cli"]
    done = subprocess.run(
        [*command, f"{server.url}/mcp", "--transport", "http", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_inspector_verifies_every_file_of_every_skill(served: Live) -> None:
    code, output = _inspect(
        served, "--protocol-era", "modern", "--method", "skills/list", "--verify", "--require-digests"
    )
    assert code == 0, output


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_the_inspector_finds_the_schemas_of_all_product_tools_portable(
    tmp_path: Path, embedder: Embedder, era: str
) -> None:
    with live(tmp_path / "own", None, embedder) as server:
        code, output = _inspect(server, "--protocol-era", era, "--method", "tools/list", "--strict")
    assert code == 0, output
    assert "run_skill" in output
