"""Memory that /proc does not show for a process counts too, and ordinary uses of shared memory work."""

from pathlib import Path

import pytest

from tests.sandbox.bench import Bench
from tests.sandbox.conftest import Opener
from tests.sandbox.hidden_memory_scripts import HIDDEN, IN_NAMESPACES_HIDDEN, INTERNET_HIDDEN, ORDINARY_USE, REFUSED

pytestmark = pytest.mark.slow

PATIENCE_MS = 28_000


@pytest.fixture(params=["cold", "landlock"])
async def either(request: pytest.FixtureRequest, opener: Opener, tmp_path: Path) -> Bench:
    """With namespaces and without."""
    return Bench(await opener(request.param), tmp_path)


@pytest.mark.requirement("B7")
@pytest.mark.parametrize("how", list(HIDDEN))
async def test_hidden_memory_counts(either: Bench, how: str) -> None:
    result = await either.run(HIDDEN[how], timeout_ms=PATIENCE_MS)
    assert (result.error_code, "reached" in result.stdout) == ("OUT_OF_MEMORY", False), result.stderr


@pytest.mark.requirement("B7")
@pytest.mark.parametrize("how", [*IN_NAMESPACES_HIDDEN, *INTERNET_HIDDEN])
async def test_memory_held_by_the_kernel_counts(cold: Bench, how: str) -> None:
    result = await cold.run({**IN_NAMESPACES_HIDDEN, **INTERNET_HIDDEN}[how], timeout_ms=PATIENCE_MS)
    assert (result.error_code, "reached" in result.stdout) == ("OUT_OF_MEMORY", False), result.stderr


@pytest.mark.requirement("B7")
async def test_calls_that_use_uncounted_memory_are_refused(each_backend: Bench) -> None:
    assert await each_backend.run_json(REFUSED) == []


@pytest.mark.requirement("B7")
async def test_ordinary_uses_of_shared_memory_work(each_backend: Bench) -> None:
    assert await each_backend.run_json(ORDINARY_USE) == ["shared memory", "multiprocessing", "files", "zeros"]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("js", "const fs = require('fs'); fs.writeFileSync('a', 'x'.repeat(70000)); fs.copyFileSync('a', 'b');"),
        ("sh", "head -c 70000 /dev/full > a; cp a c; cat c > b"),
    ],
)
async def test_files_can_be_copied_without_the_refused_calls(each_backend: Bench, suffix: str, text: str) -> None:
    show = "console.log(fs.statSync('b').size)" if suffix == "js" else "wc -c < b"
    result = await each_backend.run(f"{text}\n{show}\n", suffix)
    assert (result.stdout.strip(), result.stderr) == ("70000", "")


async def test_dev_zero_can_be_read(bench: Bench) -> None:
    result = await bench.run(
        "head -c 5 /dev/zero | od -An -tx1; dd if=/dev/zero of=z bs=1k count=3 2>/dev/null; wc -c < z", "sh"
    )
    assert result.stdout.split() == ["00"] * 5 + ["3072"]
