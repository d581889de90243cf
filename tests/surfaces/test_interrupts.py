"""One Ctrl-C ends a command, also where Python alone would lose it."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from apexbridge.surfaces.cli import interrupts

PATIENCE = 60


class Interrupting:
    """Sends SIGINT from its finalizer, where an exception is printed and dropped."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Descriptor:
    """Sends SIGINT while the body of a class ends, which makes another exception of what is raised."""

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of stdin."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as source:
        monkeypatch.setattr(sys, "stdin", source)
        yield writer
    os.close(writer)


def press_when(condition: threading.Event) -> threading.Thread:
    def press() -> None:
        assert condition.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_press_that_a_finalizer_drops_is_noticed() -> None:
    def go_on(then: Callable[[], object]) -> None:
        Interrupting()
        then()

    for then in (lambda: interrupts.ask("this is not asked any more"), lambda: None, lambda: sys.exit(0)):
        with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
            go_on(then)


def test_a_press_that_becomes_another_exception_is_noticed() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():

        class Broken:
            field = Descriptor()


def test_a_press_ends_a_coroutine_that_waits() -> None:
    begun = threading.Event()
    ended: list[str] = []

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    thread = press_when(begun)
    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        interrupts.run(waits())
    thread.join(PATIENCE)
    assert ended == ["cleaned up"]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_press_is_not_raised_inside_the_event_loop(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A callback that the loop has taken and not run would be lost, and closing the loop would wait for it forever."""
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
def test_a_press_that_a_coroutine_swallows_is_noticed(how: str) -> None:
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


def test_a_second_press_ends_what_the_first_did_not() -> None:
    async def ignores() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        interrupts.run(ignores())


def test_a_press_ends_a_question_and_one_within_a_coroutine(typed: int) -> None:
    def ask() -> str:
        asked.set()  # the press comes before, while or after the wait begins
        return interrupts.ask("really? ")

    async def ask_in_a_loop() -> str:
        return ask()

    for _ in range(20):
        for asking in (ask, lambda: interrupts.run(ask_in_a_loop())):
            asked = threading.Event()
            thread = press_when(asked)
            with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
                asking()
            thread.join(PATIENCE)


def test_lines_are_read_one_by_one_to_the_end(typed: int) -> None:
    os.write(typed, "yes\nsecond ä\nlast".encode())
    with interrupts.interruptible():
        assert [interrupts.ask("? "), interrupts.ask("? ")] == ["yes\n", "second ä\n"]
        interrupts._presses.unread.clear()


def test_handlers_and_wakeups_are_as_they_were_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts.interruptible():
        interrupts.run(asyncio.sleep(0))
    assert signal.getsignal(signal.SIGINT) is before
    previous = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(previous)
    assert previous == -1


def test_a_process_that_ignores_the_signal_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.interruptible():
            signal.raise_signal(signal.SIGINT)
            interrupts.run(asyncio.sleep(0))
            interrupts.leave_to_python()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
