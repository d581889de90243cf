"""Ctrl-C: one press ends the command with exit code 130, at any time.

Python alone can lose a press in two ways. If SIGINT arrives between the last check for signals and a blocking system
call, it is not handled before that call returns. And a `KeyboardInterrupt` in a finalizer or a weakref callback, which
every import runs, is printed and dropped. Therefore presses are counted, and each blocking call also waits on a pipe
that the signal writes to.
"""

import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

READ_BYTES = 64 * 1024
T = TypeVar("T")


@dataclass(slots=True)
class _Presses:
    """The state of this process's SIGINT handler."""

    is_handled: bool = False
    count: int = 0
    cancel: Callable[[], None] | None = None
    """Called by the first press instead of raising KeyboardInterrupt."""
    unread: bytearray = field(default_factory=bytearray)
    """Input that was read beyond the end of a line."""


_presses = _Presses()


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGINT within the block, unless the process has another handler, or ignores SIGINT in the background.

    A command in the foreground of a terminal handles SIGINT even if it was started with SIGINT ignored, as children of
    a shell's background job are: Ctrl-C at that terminal is meant for this command.
    """
    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler or (before is signal.SIG_IGN and _is_in_foreground())
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    _presses.is_handled, _presses.count = True, 0
    signal.signal(signal.SIGINT, _on_press)
    try:
        yield
        check()
    except (Exception, SystemExit):
        check()  # a KeyboardInterrupt can be replaced by another exception, as in a class body
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        _presses.is_handled = False


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


def leave_to_python() -> None:
    """Restore Python's SIGINT handler, for a command that handles SIGINT itself."""
    if _presses.is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check() -> None:
    """Raise KeyboardInterrupt if a press has not been handled yet."""
    if _presses.is_handled and _presses.count:
        raise KeyboardInterrupt


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop. The first press cancels it, the second ends the loop immediately.

    After a press KeyboardInterrupt is raised, even if the coroutine returned or raised after it.
    """
    import asyncio  # here, because it would slow down `apex --help`

    if not _presses.is_handled:
        return asyncio.run(work)

    async def cancellable(wakeup: int) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # a running coroutine has a task

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        loop.add_reader(wakeup, _drain, wakeup)
        try:
            with _cancelling(cancel):
                check()
                return await work
        finally:
            loop.remove_reader(wakeup)
            work.close()

    # KeyboardInterrupt is not raised inside the event loop: a callback that the loop has dequeued would be lost,
    # and with it the step of a task that the loop waits for when it closes.
    with _cancelling(lambda: None), _wakeups() as wakeup:
        try:
            return asyncio.run(cancellable(wakeup))
        finally:
            check()


def ask(question: str, *, echo: bool = True) -> str:
    """Write a question to stderr and read a line from stdin; empty at end of file. `echo=False` hides the input."""
    with _hidden(not echo):
        sys.stderr.write(question)
        sys.stderr.flush()
        if not _presses.is_handled:
            return sys.stdin.readline()
        try:
            source = sys.stdin.fileno()
        except (AttributeError, OSError, ValueError):
            return sys.stdin.readline()
        with _cancelling(lambda: None), _wakeups() as wakeup:  # `check` raises for the press
            return _line(source, wakeup)


def _line(source: int, wakeup: int) -> str:
    unread = _presses.unread
    while b"\n" not in unread:
        check()
        ready, _, _ = select.select([source, wakeup], [], [])
        if wakeup in ready:
            _drain(wakeup)
            continue
        with suppress(OSError):  # the terminal hung up
            if data := os.read(source, READ_BYTES):
                unread += data
                continue
        break
    check()
    line, end, tail = unread.partition(b"\n")
    _presses.unread = tail
    return (line + end).decode("utf-8", "replace")


def _on_press(number: int, frame: FrameType | None) -> None:
    _presses.count += 1
    if _presses.cancel is None or _presses.count > 1:
        raise KeyboardInterrupt
    _presses.cancel()


@contextmanager
def _cancelling(cancel: Callable[[], None]) -> Iterator[None]:
    before, _presses.cancel = _presses.cancel, cancel
    try:
        yield
    finally:
        _presses.cancel = before


@contextmanager
def _wakeups() -> Iterator[int]:
    """Yield a descriptor that becomes readable with every signal."""
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        os.set_blocking(descriptor, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def _drain(wakeup: int) -> None:
    with suppress(BlockingIOError):
        while os.read(wakeup, READ_BYTES):
            pass


@contextmanager
def _hidden(is_hidden: bool) -> Iterator[None]:
    if not is_hidden or not sys.stdin.isatty():
        yield
        return
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(source, termios.TCSAFLUSH, silent)
    try:
        yield
    finally:
        termios.tcsetattr(source, termios.TCSAFLUSH, before)
        sys.stderr.write("\n")
