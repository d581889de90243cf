"""One Ctrl-C ends a command, even if Python alone would lose the interrupt."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from apexbridge.surfaces.cli import interrupts

TIMEOUT_SECONDS = 60


class Interrupting:
    """Sends SIGINT from its finalizer, where Python prints exceptions and drops them."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class InterruptingDescriptor:
    """Sends SIGINT at the end of a class body, where Python replaces the raised exception."""

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def stdin_writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The write end of a pipe that replaces stdin."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as source:
        monkeypatch.setattr(sys, "stdin", source)
        yield writer
    os.close(writer)


def interrupt_after(condition: threading.Event) -> threading.Thread:
    def interrupt() -> None:
        assert condition.wait(TIMEOUT_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_dropped_by_a_finalizer_is_raised() -> None:
    def drop_interrupt(then: Callable[[], object]) -> None:
        Interrupting()
        then()

    for then in (lambda: interrupts.ask("this is not asked any more"), lambda: None, lambda: sys.exit(0)):
        with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
            drop_interrupt(then)


def test_an_interrupt_replaced_by_another_exception_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():

        class Broken:
            field = InterruptingDescriptor()


def test_an_interrupt_ends_a_waiting_coroutine() -> None:
    started = threading.Event()
    ended: list[str] = []

    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    thread = interrupt_after(started)
    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        interrupts.run(waits())
    thread.join(TIMEOUT_SECONDS)
    assert ended == ["cleaned up"]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_an_interrupt_is_not_raised_inside_the_event_loop(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A callback taken from the queue and not run would be lost, and closing the loop would wait for it forever."""
    original, steps = asyncio.base_events.BaseEventLoop._run_once, list[str]()  # type: ignore[attr-defined]

    def run_once(loop: asyncio.AbstractEventLoop) -> None:
        steps.append("begun")
        if len(steps) == step:
            signal.raise_signal(signal.SIGINT)
        steps[-1] = "not interrupted"
        original(loop)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "_run_once", run_once)
    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        interrupts.run(asyncio.sleep(0))
    assert "begun" not in steps
    assert len(steps) >= step


@pytest.mark.parametrize("how", ["returns", "fails", "goes on"])
def test_an_interrupt_swallowed_by_a_coroutine_is_raised(how: str) -> None:
    async def swallows() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how == "fails":
                raise ValueError("something else") from None
            if how == "goes on":
                await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        interrupts.run(swallows())


def test_a_second_interrupt_ends_a_coroutine_that_ignores_the_first() -> None:
    async def ignores() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        interrupts.run(ignores())


def test_an_interrupt_ends_a_prompt_inside_and_outside_a_coroutine(stdin_writer: int) -> None:
    def ask() -> str:
        is_asking.set()  # the interrupt comes before, during or after the start of the wait
        return interrupts.ask("really? ")

    async def ask_in_a_loop() -> str:
        return ask()

    for _ in range(20):
        for prompt in (ask, lambda: interrupts.run(ask_in_a_loop())):
            is_asking = threading.Event()
            thread = interrupt_after(is_asking)
            with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
                prompt()
            thread.join(TIMEOUT_SECONDS)


def test_lines_are_read_one_at_a_time(stdin_writer: int) -> None:
    os.write(stdin_writer, "yes\nsecond ä\nlast".encode())
    with interrupts.interruptible():
        assert [interrupts.ask("? "), interrupts.ask("? ")] == ["yes\n", "second ä\n"]
        interrupts._presses.unread.clear()


def test_signal_handlers_and_the_wakeup_descriptor_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts.interruptible():
        interrupts.run(asyncio.sleep(0))
    assert signal.getsignal(signal.SIGINT) is before
    previous = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(previous)
    assert previous == -1


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.interruptible():
            signal.raise_signal(signal.SIGINT)
            interrupts.run(asyncio.sleep(0))
            interrupts.leave_to_python()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
