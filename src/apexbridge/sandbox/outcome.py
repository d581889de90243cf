"""Interprets how a run ended: the limit that it exceeded, or the error that it printed."""

import re
import signal
from dataclasses import dataclass

from apexbridge.sandbox.config import MB, SandboxLimits
from apexbridge.sandbox.models import EXIT_KILLED, EXIT_TIMEOUT, ErrorCode

MAX_ERROR_CHARACTERS = 2000
_TAIL_CHARACTERS = 64 * 1024
"""The end of stderr that is searched for the last error."""
_OUT_OF_MEMORY = (
    "heap out of memory",
    "Fatal process OOM",
    "Array buffer allocation failed",
    "ERR_MEMORY_ALLOCATION_FAILED",
    "MemoryError",
    "Cannot allocate memory",
    "ENOMEM",
    "std::bad_alloc",
    "Fatal process out of memory",
)
_LIMIT_CHARACTERS = 2000
"""The end of stderr in which a limit is looked for."""
_NO_PROCESSES = re.compile(
    r"Cannot fork|can't start new thread|fork: retry|(?:fork|clone|pthread_create)\b[^\n]{0,40}: Resource temporarily"
)
_NO_PROCESSES_IN_MESSAGE = ("Resource temporarily unavailable", "EAGAIN")
_NO_SPACE = ("No space left on device", "ENOSPC", "File too large", "EFBIG", "File size limit exceeded")
_EXIT_FILE_TOO_LARGE = 128 + signal.SIGXFSZ
_PYTHON_TRACE = re.compile(r"^Traceback \(most recent call last\):$", re.M)
_PYTHON_ERROR = re.compile(r"^(?!Traceback |During handling|The above exception)[^\s:(\[][^\s:]*: .*", re.M | re.S)
_PYTHON_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): .*", re.M | re.S)
_PYTHON_GROUP = re.compile(r"^ *\| ((?:[\w.]+\.)?\w*ExceptionGroup: .*)$", re.M)
_NODE_HEAD = re.compile(r"^(?:Uncaught )?([A-Za-z_$][\w.$]*)(?: \[\w+\])?(?:: |(?=\n\Z))", re.M)
_NODE_POINTER = re.compile(r"^[ \t]*\^+\n\n", re.M)  # `\s` would cross line ends and make the search quadratic
_NODE_STACK = re.compile(r"^ {4}at ", re.M)
_NODE_BARE = re.compile(r"^(.+)\n\(Use `node --trace-uncaught", re.M)
_NODE_VERSION = re.compile(r"^Node\.js v\d")
_GENERAL_CLASS = re.compile(r"\A(?:Error|Exception): ")
"""Classes that say nothing about an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a process tree ended."""

    code: int | None
    """None if nothing was started."""
    verdict: str | None = None
    """timeout, output, memory, processes, disk, cancelled, or lost; None if it ended on its own."""
    peak_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    code: ErrorCode
    message: str
    exit_code: int | None


def failure_of(ending: Ending, stderr: str, *, limits: SandboxLimits, keeps_class: bool = False) -> Failure | None:
    """The failure of a run; None if it succeeded. `keeps_class`: name the class of every error, also `Error`."""
    by_verdict: dict[str, tuple[ErrorCode, str]] = {
        "timeout": ("TIMEOUT", "Execution timeout"),
        "output": ("OUTPUT_LIMIT", f"Output size exceeded {limits.output_bytes // MB}MB limit"),
        "memory": ("OUT_OF_MEMORY", "Out of memory"),
        "processes": ("PROCESS_LIMIT", _process_limit(limits)),
        "disk": ("DISK_LIMIT", _disk_limit(limits)),
        "cancelled": ("CANCELLED", "Execution cancelled"),
        "lost": ("KILLED", "The sandbox was killed from outside"),
    }
    if ending.verdict is not None:
        code, message = by_verdict[ending.verdict]
        return Failure(code=code, message=message, exit_code=EXIT_TIMEOUT if code == "TIMEOUT" else EXIT_KILLED)
    if ending.code is None:
        cause = last_line(stderr).removeprefix("bwrap: ") or "the sandbox could not be set up"
        return Failure(code="SPAWN_FAILED", message=f"Failed to spawn process: {cause}", exit_code=None)
    if ending.code == 0:
        return None
    return _explain_exit(ending.code, stderr[-_TAIL_CHARACTERS:], limits, keeps_class=keeps_class)


def _explain_exit(exit_code: int, stderr: str, limits: SandboxLimits, *, keeps_class: bool) -> Failure:
    """For a script that failed on its own: the limit that it reached, or its own error."""
    tail = stderr[-_LIMIT_CHARACTERS:]
    if any(sign in tail for sign in _OUT_OF_MEMORY):
        return Failure(code="OUT_OF_MEMORY", message="Out of memory", exit_code=EXIT_KILLED)
    if exit_code == _EXIT_FILE_TOO_LARGE or any(sign in tail for sign in _NO_SPACE):
        return Failure(code="DISK_LIMIT", message=_disk_limit(limits), exit_code=exit_code)
    message = error_message(stderr, keeps_class=keeps_class) or f"Exit code {exit_code}"
    if _NO_PROCESSES.search(stderr) or any(sign in message for sign in _NO_PROCESSES_IN_MESSAGE):
        return Failure(code="PROCESS_LIMIT", message=_process_limit(limits), exit_code=exit_code)
    return Failure(code="KILLED" if exit_code == EXIT_KILLED else "EXIT_NONZERO", message=message, exit_code=exit_code)


def _disk_limit(limits: SandboxLimits) -> str:
    return (
        f"Disk limit exceeded: a run can write {limits.disk_bytes // MB} MB (APEX_SANDBOX_DISK_MB) in "
        f"{limits.inodes:,} files (APEX_SANDBOX_INODES)"
    )


def _process_limit(limits: SandboxLimits) -> str:
    return f"Too many processes: a run can have {limits.processes} processes and threads (APEX_SANDBOX_PROCESSES)"


def error_message(stderr: str, *, keeps_class: bool = False) -> str:
    """An uncaught error as `Class: message`, for the general classes only the message; else the last line with text."""
    message = (_python_message(stderr) or _node_message(stderr)).strip()
    if not keeps_class:
        message = _GENERAL_CLASS.sub("", message)
    return (message or last_line(stderr).strip())[:MAX_ERROR_CHARACTERS]


def _python_message(stderr: str) -> str:
    if group := _PYTHON_GROUP.search(stderr):
        return group[1]
    traces = list(_PYTHON_TRACE.finditer(stderr))
    match = _PYTHON_ERROR.search(stderr, traces[-1].end()) if traces else None
    match = match or _PYTHON_SYNTAX.search(stderr)  # has no traceback if the script itself cannot be parsed
    return match[0] if match else ""


def _node_message(stderr: str) -> str:
    if bare := _NODE_BARE.search(stderr):
        return bare[1]
    stack = _NODE_STACK.search(stderr)
    if stack is None:
        return ""
    # The first head after the line with carets, else the last head: text printed earlier may look like one.
    pointers = list(_NODE_POINTER.finditer(stderr, 0, stack.start()))
    heads = list(_NODE_HEAD.finditer(stderr, pointers[-1].end() if pointers else 0, stack.start()))
    head = (heads[0] if pointers else heads[-1]) if heads else None
    return stderr[head.start(1) : stack.start()] if head else ""


def last_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip() and not _NODE_VERSION.match(line)]
    return lines[-1] if lines else ""
