"""A thousand runs, of which some fail, leave daemons or are cancelled at any moment, leave nothing behind."""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.models import Job
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, descendants, descriptors, marker, named, quiet
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNS, CANCELLED, AT_ONCE, SEED = 1000, 100, 4, 20_260
KINDS_OF_RUN = {
    # kind: (count, suffix, text)
    "shell": (600, "sh", "echo begun"),
    "python": (200, "py", "print('begun')"),
    "node": (20, "js", "console.log('begun')"),
    "fails": (80, "sh", "echo begun; echo wrong >&2; exit 3"),
    "throws": (30, "py", "print('begun'); raise ValueError('wrong')"),
    "leaves a daemon": (60, "sh", "(setsid sh -c 'sleep 1000; true' $1 > /dev/null 2>&1 &); echo begun"),
    "leaves files": (10, "sh", "mkdir -p a/b; chmod 0 a; echo x > output/y; echo begun"),
}
SLOW = "echo begun; sleep 1000"
"""The cancelled scripts would not end on their own."""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


class Endurance:
    """The runs, in an order that is the same every time."""

    def __init__(self, bench: Bench, mark: str) -> None:
        self.bench = bench
        self.chance = random.Random(SEED)
        self.outcomes: Counter[str] = Counter()
        kinds = [kind for kind, (count, _, _) in KINDS_OF_RUN.items() for _ in range(count)]
        self.chance.shuffle(kinds)
        self.cancelled = set(self.chance.sample(range(RUNS), CANCELLED))
        self.order = list(enumerate(kinds))
        self.jobs = {kind: bench.job(text, suffix, args=(mark,)) for kind, (_, suffix, text) in KINDS_OF_RUN.items()}
        self.slow = bench.job(SLOW, "sh", args=(mark,))

    async def worker(self) -> None:
        while self.order:
            number, kind = self.order.pop()
            if number not in self.cancelled:
                result = await self.bench.sandbox.run(self.jobs[kind])
                assert result.stdout == "begun\n", result
                self.outcomes[result.error_code or "fine"] += 1
            elif number % 2:
                await self._cancel_after_start(self.slow, self.chance.uniform(0, 0.02))
            else:
                await self._abandon(self.jobs[kind], self.chance.uniform(0, 0.03))

    async def _cancel_after_start(self, job: Job, seconds: float) -> None:
        cancels: list[Callable[[], None]] = []

        def on_output(stream: str, text: str) -> None:
            tasks.start_soon(cancel)

        async def cancel() -> None:
            await anyio.sleep(seconds)
            cancels[0]()

        async with anyio.create_task_group() as tasks:
            result = await self.bench.sandbox.run(job, listener=on_output, on_start=cancels.append)
        assert result.error_code == "CANCELLED", result
        self.outcomes["CANCELLED"] += 1

    async def _abandon(self, job: Job, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.bench.sandbox.run(job)
        self.outcomes["abandoned"] += 1


@pytest.mark.requirement("B5")
@pytest.mark.requirement("B9")
async def test_a_thousand_runs_leave_no_process_no_file_and_no_descriptor(tmp_path: Path, temporary: Path) -> None:
    sandbox, mark = Sandbox(SandboxSettings(backend="bubblewrap", warm=1, max_concurrency=AT_ONCE)), marker()
    async with sandbox.running():
        bench = Bench(sandbox, tmp_path)
        await sandbox.warm_up()
        await quiet()
        processes, opened, files = len(descendants(os.getpid())), descriptors(), list(temporary.rglob("*"))
        endurance = Endurance(bench, mark)
        with anyio.fail_after(300):
            async with anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(endurance.worker)
        assert sum(endurance.outcomes.values()) == RUNS
        assert set(endurance.outcomes) == {"fine", "EXIT_NONZERO", "CANCELLED", "abandoned"}
        assert endurance.outcomes["CANCELLED"] + endurance.outcomes["abandoned"] == CANCELLED
        await sandbox.warm_up()
        await until(lambda: not named(mark))
        await until(lambda: len(descendants(os.getpid())) == processes)
        await until(lambda: descriptors() == opened)
        assert list(temporary.rglob("*")) == files
        environ = await bench.run_json("import json; print(json.dumps(open('/proc/self/environ').read()))")
        assert "SKILL_NAME" not in environ  # the warm process was started before its skill was known
    assert list(temporary.iterdir()) == []
