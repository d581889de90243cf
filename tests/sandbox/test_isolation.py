"""Hostile scripts with every backend: none of them reaches anything of the host."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.bench import Bench
from tests.sandbox.hostile_scripts import EVERYWHERE, IN_NAMESPACES, bait, script

pytestmark = pytest.mark.anyio


@pytest.fixture
def payload(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with bait(tmp_path) as bait_input:
        yield bait_input


@pytest.mark.requirement("B9")
@pytest.mark.parametrize("harm", list(EVERYWHERE))
async def test_hostile_scripts_reach_nothing_of_the_host(
    each_backend: Bench, payload: dict[str, Any], harm: str
) -> None:
    result = await each_backend.run(script(EVERYWHERE[harm]), input=payload)
    if result.error_code == "PROCESS_LIMIT" and harm.startswith("start too many"):
        return  # killed by the watchdog, because the kernel does not count processes per run here
    assert result.success, (result.error, result.stderr)
    assert json.loads(result.stdout) == []


@pytest.mark.requirement("B9")
@pytest.mark.parametrize("harm", list(IN_NAMESPACES))
async def test_the_host_is_not_visible_in_namespaces(bench: Bench, payload: dict[str, Any], harm: str) -> None:
    result = await bench.run(script(IN_NAMESPACES[harm]), input=payload)
    assert result.success, (result.error, result.stderr)
    assert json.loads(result.stdout) == []
