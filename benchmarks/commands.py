"""CPU time of commands beside a running server, compared with a bare start of Python."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import anyio.to_thread

from benchmarks.measuring import Comparison

APEX = str(Path(sys.executable).with_name("apex"))
EXAMPLES = Path(__file__).parent.parent / "examples/skills"
ROUNDS = 7
GOAL_MS = 300.0
COMMANDS = (
    "skills list",
    "skills install SKILL --overwrite",
    "skills show checksums",
    "skills search checksum",
    "skills run commit-message",
    "tools run calculate --input {}",
    "chats list",
    "runs list",
    "keys list",
    "config show",
)


async def run() -> list[Comparison]:
    """Compare medians of the user and system time."""
    return await anyio.to_thread.run_sync(_measured)


def _measured() -> list[Comparison]:
    bare = statistics.median(_cpu_ms([sys.executable, "-c", "pass"]) for _ in range(ROUNDS))
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "data") as data_dir:
        return [_compared(command, data_dir, bare) for command in COMMANDS]


def _compared(command: str, data_dir: Path, bare: float) -> Comparison:
    values = {"{}": '{"expression": "6*7"}', "SKILL": str(EXAMPLES / "checksums")}
    words = [values.get(word, word) for word in command.split()]
    times = [_cpu_ms([APEX, *words, "--data-dir", str(data_dir)]) for _ in range(ROUNDS)]
    median = statistics.median(times)
    return Comparison(
        what=f"CPU of apex {command} (limit {GOAL_MS:.0f} ms)",
        ours_ms=median,
        baseline="python -c pass",
        baseline_ms=bare,
        goal=GOAL_MS / bare,
        spread=max(times) / median,
    )


def _cpu_ms(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, env=environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@contextmanager
def server(data_dir: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Path]:
    command = [APEX, "serve", "--port", "0", "--data-dir", str(data_dir), "--examples", str(EXAMPLES), "--json"]
    variables = environment() | dict(settings)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables) as process:
        try:
            assert process.stdout is not None
            announced = b""
            while not announced.rstrip().endswith(b"}"):
                announced += process.stdout.readline()
            json.loads(announced)
            yield data_dir
        finally:
            process.terminate()
            process.wait()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("APEX_")}
