"""From the end of a process to the error code, the message and the exit code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.sandbox.config import SandboxLimits
from apexbridge.sandbox.models import ErrorCode, ExecutionResult
from apexbridge.sandbox.outcome import MAX_ERROR_CHARACTERS, Ending, Failure, error_message, failure_of
from tests.sandbox.properties import unhurried

MB = 1024 * 1024
NO_SPACE = "Disk limit exceeded: a run can write 64 MB (APEX_SANDBOX_DISK_MB) in 4,096 files (APEX_SANDBOX_INODES)"
NO_PROCESSES = "Too many processes: a run can have 64 processes and threads (APEX_SANDBOX_PROCESSES)"
NODE_STACK = """    at Object.<anonymous> (/skill/scripts/execute.js:1:7)
    at node:internal/main/run_main_module:33:47

Node.js v24.1.0
"""
NODE_TOP = "/skill/scripts/execute.js:1\nthrow new Error('boom')\n^\n\n"
PYTHON_TOP = 'Traceback (most recent call last):\n  File "/skill/scripts/execute.py", line 1, in <module>\n    fail()\n'


def failed(code: int | None, stderr: str = "", verdict: str | None = None) -> Failure:
    found = failure_of(Ending(code=code, verdict=verdict), stderr, limits=SandboxLimits())
    assert found is not None
    return found


@pytest.mark.parametrize("stderr", ["", "Error: only talk\n", "MemoryError\n", "No space left on device"])
def test_exit_code_zero_is_a_success_with_any_output(stderr: str) -> None:
    assert failure_of(Ending(code=0), stderr, limits=SandboxLimits()) is None


@pytest.mark.parametrize(
    ("verdict", "code", "message", "exit_code"),
    [
        ("timeout", "TIMEOUT", "Execution timeout", 124),
        ("output", "OUTPUT_LIMIT", "Output size exceeded 10MB limit", 137),
        ("memory", "OUT_OF_MEMORY", "Out of memory", 137),
        ("processes", "PROCESS_LIMIT", NO_PROCESSES, 137),
        ("disk", "DISK_LIMIT", NO_SPACE, 137),
        ("cancelled", "CANCELLED", "Execution cancelled", 137),
        ("lost", "KILLED", "The sandbox was killed from outside", 137),
    ],
)
@pytest.mark.parametrize("ended_with", [None, 0, 1, 137])
def test_a_killed_run_reports_the_reason(
    verdict: str, code: ErrorCode, message: str, exit_code: int, ended_with: int | None
) -> None:
    assert failed(ended_with, "Error: other", verdict) == Failure(code=code, message=message, exit_code=exit_code)


@pytest.mark.requirement("B11")
@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("bwrap: execvp node: No such file or directory\n", "execvp node: No such file or directory"),
        ("there is no node on this host", "there is no node on this host"),
        ("", "the sandbox could not be set up"),
    ],
)
def test_a_run_that_never_started_reports_the_last_line(stderr: str, message: str) -> None:
    assert failed(None, stderr) == Failure(
        code="SPAWN_FAILED", message=f"Failed to spawn process: {message}", exit_code=None
    )


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        (f"{NODE_TOP}Error: boom\n{NODE_STACK}", "boom"),
        (f"{NODE_TOP}TypeError [ERR_INVALID_ARG_TYPE]: wrong\n{NODE_STACK}", "TypeError [ERR_INVALID_ARG_TYPE]: wrong"),
        (f"{NODE_TOP}Mine [Error]: boom\n{NODE_STACK}", "Mine [Error]: boom"),
        (f"{NODE_TOP}Error: one\ntwo: three\n{NODE_STACK}", "one\ntwo: three"),
        (f"{NODE_TOP}Error: ENOENT: no such file, open 'x'\n{NODE_STACK}", "ENOENT: no such file, open 'x'"),
        ("\n/skill/x.js:1\nthrow 'bare'\n^\nbare\n(Use `node --trace-uncaught ...` to show where)\n", "bare"),
        (f"Warning: careful\n{NODE_TOP}Error: boom\n{NODE_STACK}", "boom"),
        ('  File "/skill/x.py", line 1\n    f(\n     ^\nSyntaxError: never closed\n', "SyntaxError: never closed"),
        (
            "  + Exception Group Traceback …\n  | ExceptionGroup: several (2 …)\n  +-+---- 1 ----\n",
            "ExceptionGroup: several (2 …)",
        ),
        (f"{PYTHON_TOP}ValueError: boom\n", "ValueError: boom"),
        (f"{PYTHON_TOP}package.errors.Mine: boom: twice\n", "package.errors.Mine: boom: twice"),
        (f"{PYTHON_TOP}ValueError: one\ntwo\n", "ValueError: one\ntwo"),
        (f"{PYTHON_TOP}KeyError: 'k'\n", "KeyError: 'k'"),
        (
            f"{PYTHON_TOP}OSError: first\n\nThe above exception was the direct cause of the following exception:\n\n"
            f"{PYTHON_TOP}ValueError: second\n",
            "ValueError: second",
        ),
        (
            f"{PYTHON_TOP}OSError: first\n\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{PYTHON_TOP}ValueError: second\n",
            "ValueError: second",
        ),
        (f"{PYTHON_TOP}ValueError\n", "ValueError"),
        (f"{PYTHON_TOP}Exception: boom\n", "boom"),
        (f"{PYTHON_TOP}Exception: Error: boom\n", "Error: boom"),
        (f"{PYTHON_TOP}outer.<locals>.Mine: boom\n", "outer.<locals>.Mine: boom"),
        (f"{NODE_TOP}TypeError: x is not a function\n{NODE_STACK}", "TypeError: x is not a function"),
        (f"{NODE_TOP}Uncaught TypeError: later\n{NODE_STACK}", "TypeError: later"),
        (f"{NODE_TOP}TypeError\n{NODE_STACK}", "TypeError"),
        ("Error: no such file\n", "Error: no such file"),
        ("one\n\nlast words\n\n  \n", "last words"),
        ("grep: no such file\n", "grep: no such file"),
        ("only\nNode.js v22.11.0\n", "only"),
    ],
)
def test_an_uncaught_error_is_reported_with_its_class_unless_that_is_the_general_one(stderr: str, message: str) -> None:
    assert error_message(stderr) == message
    assert failed(1, stderr) == Failure(code="EXIT_NONZERO", message=message, exit_code=1)


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("stderr", ["", "\n \n\t\n"])
def test_without_output_the_exit_code_is_reported(stderr: str) -> None:
    assert failed(3, stderr) == Failure(code="EXIT_NONZERO", message="Exit code 3", exit_code=3)


@pytest.mark.requirement("B5")
def test_a_script_that_exits_with_124_is_not_a_timeout() -> None:
    assert failed(124) == Failure(code="EXIT_NONZERO", message="Exit code 124", exit_code=124)


def test_a_script_that_was_killed_from_outside_is_reported_as_killed() -> None:
    assert failed(137) == Failure(code="KILLED", message="Exit code 137", exit_code=137)


@pytest.mark.requirement("B7")
@pytest.mark.parametrize(
    "sign",
    [
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        "# Fatal process OOM in insufficient memory to create an Isolate",
        "RangeError: Array buffer allocation failed\n    at new ArrayBuffer (<anonymous>)",
        f"{PYTHON_TOP}MemoryError",
        "sh: fork: Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_a_program_that_was_refused_memory_is_out_of_memory(sign: str) -> None:
    assert failed(1, f"some words before\n{sign}\n") == Failure(
        code="OUT_OF_MEMORY", message="Out of memory", exit_code=137
    )


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        (f"{PYTHON_TOP}OSError: [Errno 28] No space left on device\n", "DISK_LIMIT"),
        ("Error: ENOSPC: no space left on device, write\n    at x\n", "DISK_LIMIT"),
        ("dd: error writing 'a': No space left on device\n64+0 records in\n67108864 bytes copied\n", "DISK_LIMIT"),
        ("a.sh: line 1:   12 File size limit exceeded dd if=/dev/zero of=a\n", "DISK_LIMIT"),
        (f"[pid=7] pthread_create: Resource temporarily unavailable (11)\n{PYTHON_TOP}Mine: closed\n", "PROCESS_LIMIT"),
        (f"{PYTHON_TOP}RuntimeError: can't start new thread\n", "PROCESS_LIMIT"),
        ("execute.sh: 1: Cannot fork\n", "PROCESS_LIMIT"),
        (f"{PYTHON_TOP}BlockingIOError: [Errno 11] Resource temporarily unavailable\n", "PROCESS_LIMIT"),
    ],
)
def test_a_limit_that_a_script_reached_is_reported(stderr: str, code: ErrorCode) -> None:
    found = failed(1, stderr)
    assert (found.code, found.exit_code) == (code, 1)
    assert found.message == (NO_SPACE if code == "DISK_LIMIT" else NO_PROCESSES)


def test_a_program_that_the_kernel_ended_for_the_size_of_its_file_reached_the_disk_limit() -> None:
    assert failed(153, "67108864 bytes copied\n") == Failure(code="DISK_LIMIT", message=NO_SPACE, exit_code=153)


def test_the_class_of_every_error_is_kept_on_request() -> None:
    assert error_message(f"{NODE_TOP}Error: boom\n{NODE_STACK}", keeps_class=True) == "Error: boom"
    assert error_message(f"{PYTHON_TOP}Exception: boom\n", keeps_class=True) == "Exception: boom"


@given(st.text(), st.integers(min_value=1, max_value=255))
@unhurried
def test_the_message_of_any_stderr_is_not_empty_and_has_a_bounded_length(stderr: str, code: int) -> None:
    message = failed(code, stderr).message
    assert 0 < len(message) <= MAX_ERROR_CHARACTERS


def test_long_and_repetitive_stderr_is_parsed_quickly() -> None:
    for unit in ("Traceback (most recent call last):\n", "a: ", "    at \n", "Error: x\n", "a" * 100):
        assert len(error_message(unit * (10 * MB // len(unit) // 100))) <= MAX_ERROR_CHARACTERS


@pytest.mark.requirement("B3")
def test_a_success_has_no_error_fields() -> None:
    result = ExecutionResult(id="1", success=True, status="success", stdout="out", exit_code=0, duration=5)
    assert result.model_dump(by_alias=True) == {
        "id": "1",
        "success": True,
        "status": "success",
        "stdout": "out",
        "stderr": "",
        "exitCode": 0,
        "duration": 5,
        "truncated": False,
        "files": [],
        "peakMemory": None,
        "enforcement": {},
        "warnings": [],
        "output": "out",
    }
