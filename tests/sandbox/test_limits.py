"""Time, output and memory: a run that exceeds a limit is killed with all its processes, and its result says so."""

import os
import signal
import time

import pytest

from apexbridge.sandbox.config import MB
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.output import TRUNCATED, OutputStream
from tests.sandbox.bench import SECONDS, Bench, marker, named

pytestmark = pytest.mark.anyio


def is_timeout(result: ExecutionResult) -> bool:
    assert (result.success, result.status, result.error_code) == (False, "timeout", "TIMEOUT"), result
    assert (result.error, result.exit_code) == ("Execution timeout", 124)
    return True


def is_too_long(result: ExecutionResult, megabytes: int = 1) -> bool:
    assert (result.success, result.status, result.error_code) == (False, "error", "OUTPUT_LIMIT"), result.error
    assert result.error == f"Output size exceeded {megabytes}MB limit"
    assert (result.exit_code, result.truncated) == (137, True)
    assert result.stdout.endswith(TRUNCATED)
    return True


def is_out_of_memory(result: ExecutionResult) -> bool:
    assert (result.success, result.status, result.error_code) == (False, "error", "OUT_OF_MEMORY"), result
    assert (result.error, result.exit_code) == ("Out of memory", 137)
    return True


# -------------------------------------------------------------------------------------------------------------- time
SLOW = {
    "a busy loop": ("py", "while True: pass"),
    "sleep": ("py", "import time; time.sleep(1000)"),
    "a busy loop of Node": ("js", "for (;;);"),
    "a timer of Node": ("js", "setTimeout(() => {}, 1e9)"),
    "a shell that waits": ("sh", "sleep 1000"),
    "deaf to signals": (
        "py",
        "import signal, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    ),
    "stopped": ("py", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    "without output": ("py", "import os, time\nfor n in range(10): os.closerange(n, n + 1)\ntime.sleep(1000)"),
    "a session of its own": (
        "py",
        "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(1000)\nos.wait()",
    ),
    "a stopped child": (
        "py",
        "import os, signal\nif os.fork() == 0: os.setsid(); os.kill(os.getpid(), signal.SIGSTOP)\nos.wait()",
    ),
    "waits for its own input": ("py", "import os; r, w = os.pipe(); os.read(r, 1)"),
}


@pytest.mark.requirement("B5")
@pytest.mark.parametrize("how", list(SLOW))
async def test_a_run_that_takes_too_long_is_killed(each_backend: Bench, how: str) -> None:
    suffix, text = SLOW[how]
    result = await each_backend.run(text, suffix, timeout_ms=250)
    assert is_timeout(result)
    assert 250 <= result.duration < SECONDS * 1000


@pytest.mark.requirement("B5")
@pytest.mark.parametrize("milliseconds", [0, 1, 4, 9])
@pytest.mark.parametrize("suffix", ["py", "js", "sh"])
async def test_a_timeout_before_the_script_starts_is_a_timeout_too(
    each_backend: Bench, suffix: str, milliseconds: int
) -> None:
    text = {"py": "import time; time.sleep(1000)", "js": "setTimeout(() => {}, 1e6)", "sh": "sleep 1000"}[suffix]
    assert is_timeout(await each_backend.run(text, suffix, timeout_ms=milliseconds))


@pytest.mark.requirement("B5")
async def test_a_timeout_leaves_neither_children_nor_zombies(each_backend: Bench) -> None:
    mark = marker()
    text = f"set -- {mark}; for i in 1 2 3; do sh -c 'sleep 1000; true' $1 & done; echo begun; wait"
    result = await each_backend.run(text, "sh", timeout_ms=300)
    assert is_timeout(result)
    assert result.stdout == "begun\n"
    assert named(mark) == []


@pytest.mark.requirement("B5")
async def test_a_run_can_read_its_timeout(bench: Bench) -> None:
    assert await bench.run_json("import os; print(os.environ['TIMEOUT'])", timeout_ms=12_345) == 12_345
    assert (await bench.run("import time; time.sleep(0.2)", timeout_ms=15_000)).success


@pytest.mark.requirement("B5")
@pytest.mark.parametrize(("suffix", "text"), [("sh", "exit 124"), ("py", "raise SystemExit(124)")])
async def test_a_script_that_exits_with_124_on_its_own_is_not_a_timeout(
    each_backend: Bench, suffix: str, text: str
) -> None:
    result = await each_backend.run(text, suffix)
    assert (result.status, result.error_code, result.exit_code) == ("error", "EXIT_NONZERO", 124)
    assert result.error == "Exit code 124"


# ------------------------------------------------------------------------------------------------------------ output
def prints(stdout: int, stderr: int) -> str:
    return (
        f"import os\nfor fd, n in ((1, {stdout}), (2, {stderr})):\n    while n: n -= os.write(fd, b'x' * min(n, 65536))"
    )


@pytest.mark.requirement("B6")
@pytest.mark.parametrize(("stdout", "stderr"), [(MB, 0), (0, MB), (MB - 1, 1), (MB // 2, MB // 2)])
async def test_output_of_exactly_the_limit_is_allowed(small: Bench, stdout: int, stderr: int) -> None:
    result = await small.run(prints(stdout, stderr))
    assert (result.success, result.truncated) == (True, False)
    assert (len(result.stdout), len(result.stderr)) == (stdout, stderr)


@pytest.mark.requirement("B6")
@pytest.mark.parametrize(("stdout", "stderr"), [(MB + 1, 0), (0, MB + 1), (MB, 1), (1, MB), (MB // 2, MB // 2 + 1)])
async def test_one_byte_above_the_limit_is_too_much_on_either_stream_or_both(
    small: Bench, stdout: int, stderr: int
) -> None:
    for _ in range(5):  # the script may end at the same moment; the limit still counts
        result = await small.run(prints(stdout, stderr))
        assert is_too_long(result)
        streams = result.stdout.removesuffix(TRUNCATED), result.stderr.removesuffix(TRUNCATED)
        assert len(streams[0]) + len(streams[1]) == MB


@pytest.mark.requirement("B6")
async def test_the_promised_limit_is_ten_megabytes(cold: Bench) -> None:
    result = await cold.run(prints(10 * MB, 0))
    assert (result.success, len(result.stdout)) == (True, 10 * MB)
    result = await cold.run(prints(10 * MB, 1))
    assert is_too_long(result, 10)
    assert result.stderr == TRUNCATED


@pytest.mark.requirement("B6")
@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("sh", "yes"),
        ("sh", "yes >&2"),
        ("sh", "yes & yes >&2 & wait"),
        ("js", "const line = 'x'.repeat(65536); const go = () => process.stdout.write(line, go); go()"),
        ("py", "import signal, sys\nsignal.signal(15, signal.SIG_IGN)\nwhile True: sys.stdout.write('x' * 9999)"),
        ("sh", "yes > /dev/stdout"),
        ("sh", "(setsid yes &) ; sleep 1000"),
    ],
)
async def test_endless_output_is_stopped(small: Bench, suffix: str, text: str) -> None:
    started = time.monotonic()
    assert is_too_long(await small.run(text, suffix))
    assert time.monotonic() - started < SECONDS


@pytest.mark.requirement("B6")
async def test_a_listener_receives_the_truncation_mark(small: Bench) -> None:
    received: list[str] = []
    await small.run("yes", "sh", listener=lambda _, text: received.append(text))
    assert received[-1] == TRUNCATED
    assert len("".join(received)) == MB + len(TRUNCATED)


# ------------------------------------------------------------------------------------------------------------ memory
GREEDY = {
    "Python": ("py", "taken = []\nwhile True: taken.append(bytearray(8 << 20))"),
    "Node's heap": ("js", "const taken = []; for (;;) taken.push(new Array(1e5).fill(taken.length))"),
    "Node's buffers": ("js", "const taken = []; for (;;) taken.push(Buffer.alloc(8 << 20, 1))"),
    "children together": (
        "py",
        """
import os, time
for _ in range(6):
    if os.fork() == 0:
        taken = bytearray(b"x") * (120 << 20)
        time.sleep(1000)
time.sleep(1000)
""",
    ),
    "shared memory": (
        "py",
        """
import mmap
taken = []
while True:
    taken.append(mmap.mmap(-1, 16 << 20))
    taken[-1].write(b"x" * (16 << 20))
""",
    ),
    "children in shared memory": (
        "py",
        """
import mmap, os, time
taken = mmap.mmap(-1, 700 << 20)
for _ in range(4):
    if os.fork() == 0:
        for at in range(0, 175 << 20, 4096): taken[_ * (175 << 20) + at] = 1
        time.sleep(1000)
time.sleep(1000)
""",
    ),
    "page tables without pages": (
        "py",
        """
import mmap
step = 2 << 20
taken = mmap.mmap(-1, step * 200_000, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
for at in range(0, len(taken), step): taken[at]
""",
    ),
}


@pytest.mark.slow
@pytest.mark.requirement("B7")
@pytest.mark.parametrize("how", list(GREEDY))
async def test_a_run_that_uses_too_much_memory_is_killed(each_backend: Bench, how: str) -> None:
    suffix, text = GREEDY[how]
    assert is_out_of_memory(await each_backend.run(text, suffix))


@pytest.mark.requirement("B7")
async def test_with_cgroups_unmapped_memory_counts_too(bench: Bench) -> None:
    text = """
import mmap
step, size = 64 << 20, 3000 << 20
taken = mmap.mmap(-1, size)
for at in range(0, size, step):
    for page in range(at, at + step, 4096): taken[page] = 1
    taken.madvise(mmap.MADV_DONTNEED, at, step)
"""
    result = await bench.run(text)
    if "cgroup" in str(result.enforcement["memory"]):
        assert is_out_of_memory(result)


@pytest.mark.requirement("B7")
async def test_a_run_whose_child_the_kernel_killed_for_its_memory_is_out_of_memory(each_backend: Bench) -> None:
    """On a busy machine the kernel can be faster than the checks; what is left of the run is below the limit again."""
    launcher = (await each_backend.sandbox.ready()).launcher.pid
    assert launcher is not None
    text = """
import mmap, os, time
print("begins", flush=True)
time.sleep(1)
read, write = os.pipe()
if os.fork() == 0:
    taken = []
    for _ in range(75):
        taken.append(mmap.mmap(-1, 16 << 20))
        taken[-1].write(b"x" * (16 << 20))
    os.write(write, b"x")
    time.sleep(20)
os.close(write)
os.read(read, 1)
print("taken", flush=True)
time.sleep(5)
print("reached")
"""

    def stop_or_continue(_: OutputStream, printed: str) -> None:
        if "begins" in printed or "taken" in printed:
            os.kill(launcher, signal.SIGSTOP if "begins" in printed else signal.SIGCONT)

    try:
        result = await each_backend.run(text, listener=stop_or_continue)
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert is_out_of_memory(result)
    assert "reached" not in result.stdout


@pytest.mark.requirement("B7")
async def test_memory_files_that_no_limit_counts_are_refused(each_backend: Bench) -> None:
    report = await each_backend.run_json(
        """
import json, os
try: os.memfd_create("hidden"); print(json.dumps("made"))
except OSError as error: print(json.dumps(error.errno))
"""
    )
    assert report != "made"


@pytest.mark.requirement("B7")
@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("py", "taken = bytearray(b'x') * (100 << 20); print(len(taken) >> 20)"),
        ("js", "const taken = Buffer.alloc(100 << 20, 1); console.log(taken.length >> 20)"),
        ("js", "const taken = []; for (let i = 0; i < 100; i++) taken.push('x'.repeat(1 << 20)); console.log(100)"),
    ],
)
async def test_a_hundred_megabytes_are_allowed(each_backend: Bench, suffix: str, text: str) -> None:
    result = await each_backend.run(text, suffix)
    assert (result.success, result.stdout) == (True, "100\n"), result.error


@pytest.mark.requirement("B7")
async def test_the_peak_memory_of_a_run_is_reported(cold: Bench) -> None:
    result = await cold.run("import time; taken = bytearray(b'x') * (100 << 20); time.sleep(0.4)")
    assert result.peak_memory is not None
    assert 100 * MB < result.peak_memory < 200 * MB


@pytest.mark.requirement("B7")
async def test_node_gets_its_heap_limit(bench: Bench) -> None:
    assert "--max-old-space-size=512" in await bench.run_json("console.log(JSON.stringify(process.execArgv))", "js")


@pytest.mark.requirement("B7")
async def test_shared_memory_counts_even_if_no_process_maps_its_pages(each_backend: Bench) -> None:
    text = """
import mmap, time
size = 64 << 20
shared = mmap.mmap(-1, size * 12)
for start in range(0, size * 12, size):
    shared[start : start + size] = b"x" * size
    shared.madvise(mmap.MADV_DONTNEED, start, size)
time.sleep(5)
print("reached")
"""
    result = await each_backend.run(text, "py")
    assert (result.error, result.exit_code) == ("Out of memory", 137)
