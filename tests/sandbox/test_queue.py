"""The run queue: first in, first out, a limit of concurrent runs, and an error if the queue is full."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.errors import ServerError
from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.queue import RunQueue
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import SECONDS, Bench, OutputRecorder
from tests.sandbox.properties import unhurried
from tests.waiting import until

pytestmark = pytest.mark.anyio


class RecordedQueue:
    """Records the order of turns and the highest number at once."""

    def __init__(self, slots: RunQueue) -> None:
        self.slots = slots
        self.order: list[int] = []
        self.most = 0

    async def take(self, number: int, steps: int = 1) -> None:
        async with self.slots.turn():
            self.order.append(number)
            self.most = max(self.most, self.slots.running)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()


async def all_of(*actions: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for action in actions:
                tasks.start_soon(action)


@pytest.mark.requirement("B13")
@given(st.integers(1, 5), st.lists(st.integers(0, 5), max_size=20))
@unhurried
def test_turns_are_in_order_and_never_more_than_the_limit(limit: int, lengths: list[int]) -> None:
    async def main() -> RecordedQueue:
        recorded = RecordedQueue(RunQueue(limit, 100))
        async with anyio.create_task_group() as tasks:
            for number, steps in enumerate(lengths):
                tasks.start_soon(recorded.take, number, steps)
        return recorded

    recorded = asyncio.run(main())
    assert recorded.order == list(range(len(lengths)))
    assert recorded.most <= limit
    assert (recorded.slots.running, recorded.slots.waiting) == (0, 0)


@pytest.mark.requirement("B13")
async def test_no_run_overtakes_waiting_runs() -> None:
    recorded, hold = RecordedQueue(RunQueue(1, 10)), anyio.Event()

    async def holder() -> None:
        async with recorded.slots.turn():
            await hold.wait()

    async def late() -> None:
        hold.set()
        await recorded.take(2)

    async def waiter() -> None:
        await recorded.take(1)

    await all_of(holder, waiter, late)
    assert recorded.order == [1, 2]


@pytest.mark.requirement("B13")
async def test_a_cancelled_wait_frees_its_turn() -> None:
    slots, hold = RunQueue(1, 10), anyio.Event()
    recorded = RecordedQueue(slots)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            async with slots.turn():
                scopes = []
                for number in range(3):
                    scope = anyio.CancelScope()
                    scopes.append(scope)

                    async def wait(scope: anyio.CancelScope = scope, number: int = number) -> None:
                        with scope:
                            await recorded.take(number)

                    tasks.start_soon(wait)
                while slots.waiting < 3:
                    await anyio.lowlevel.checkpoint()
                scopes[1].cancel()
                while slots.waiting > 2:
                    await anyio.lowlevel.checkpoint()
                hold.set()
            scopes[0].cancel()  # at the moment when its turn comes
    assert recorded.order in ([2], [0, 2])
    assert (slots.running, slots.waiting) == (0, 0)


@pytest.mark.requirement("B13")
async def test_a_full_queue_is_an_error() -> None:
    slots = RunQueue(1, 1)
    async with slots.turn():
        slots.check_capacity()
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                async with slots.turn():
                    raise AssertionError("it was never its turn")

            tasks.start_soon(wait)
            while not slots.waiting:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(ServerError) as caught:
                await slots.turn().__aenter__()
            assert (caught.value.code, caught.value.status) == ("QUEUE_FULL", 429)
            assert caught.value.details["retryAfter"] >= 1
            tasks.cancel_scope.cancel()
    assert (slots.running, slots.waiting) == (0, 0)


# ------------------------------------------------------------------------------------------------------ with real runs
@pytest.mark.requirement("B13")
@pytest.mark.parametrize(("limit", "count"), [(1, 3), (3, 10)])
async def test_the_number_of_concurrent_runs_is_limited(tmp_path: Path, limit: int, count: int) -> None:
    sandbox = Sandbox(SandboxSettings(backend="bubblewrap", warm=0, max_concurrency=limit))
    running: set[int] = set()
    most = 0
    order: list[int] = []
    async with sandbox.running():
        await sandbox.ready()
        bench = Bench(sandbox, tmp_path)

        async def run(number: int) -> None:
            nonlocal most

            def started(_: Callable[[], None]) -> None:
                nonlocal most
                running.add(number)
                order.append(number)
                most = max(most, len(running))

            result = await bench.run("sleep 0.05", "sh", on_start=started)
            running.discard(number)
            assert result.success

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(run, number)
    assert most == limit
    assert order == list(range(count))


@pytest.mark.requirement("B13")
async def test_three_of_three_allowed_runs_are_concurrent(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxSettings(backend="bubblewrap", warm=0, max_concurrency=3))
    recorders = [OutputRecorder() for _ in range(3)]
    cancels: list[Callable[[], None]] = []
    async with sandbox.running():
        bench = Bench(sandbox, tmp_path)

        async def run(listener: OutputRecorder) -> None:
            await bench.run("echo begun; sleep 1000", "sh", listener=listener, on_start=cancels.append)

        async with anyio.create_task_group() as tasks:
            for listener in recorders:
                tasks.start_soon(run, listener)
            for listener in recorders:
                await listener.wait_for("begun\n")
            assert sandbox.queue.running == 3
            for cancel in cancels:
                cancel()


@pytest.mark.requirement("B13")
async def test_a_run_is_refused_immediately_if_the_queue_is_full(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxSettings(backend="bubblewrap", warm=0, max_concurrency=1, queue=0))
    recorder = OutputRecorder()
    async with sandbox.running():
        bench = Bench(sandbox, tmp_path)
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await bench.run("echo begun; sleep 1000", "sh", listener=recorder)

            tasks.start_soon(run)
            await recorder.wait_for("begun\n")
            for refused in (bench.run("", "sh"), sandbox.check(bench.job("", "sh"))):
                with pytest.raises(ServerError) as caught:
                    await refused
                assert caught.value.code == "QUEUE_FULL"
            tasks.cancel_scope.cancel()
        await until(lambda: sandbox.queue.running == 0)
        assert (await bench.run("", "sh")).success


# ---------------------------------------------------------------------------------------------------- between callers
async def wait_for(slots: RunQueue, caller: str, order: list[str]) -> None:
    async with slots.turn(caller):
        order.append(caller)


async def test_callers_take_turns_and_each_is_served_in_order() -> None:
    slots, names = RunQueue(1, 100), ["one"] * 4 + ["two"] * 3 + ["three"]
    order: list[str] = []
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group, slots.turn("busy"):
            for number, name in enumerate(names, 1):
                group.start_soon(wait_for, slots, name, order)
                while slots.waiting < number:
                    await anyio.lowlevel.checkpoint()
    assert order == ["one", "two", "three", "one", "two", "one", "two", "one"]
    assert (slots.running, slots.waiting) == (0, 0)


async def test_a_caller_with_running_jobs_yields_to_others() -> None:
    slots = RunQueue(2, 100)
    order: list[str] = []
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group, slots.turn("one"):
            async with slots.turn("one"):
                for number, name in enumerate(("one", "two"), 1):
                    group.start_soon(wait_for, slots, name, order)
                    while slots.waiting < number:
                        await anyio.lowlevel.checkpoint()
            while slots.waiting:
                await anyio.lowlevel.checkpoint()
    assert order == ["two", "one"]


async def test_the_next_turn_is_of_the_caller_whose_last_turn_is_the_longest_ago() -> None:
    slots = RunQueue(1, 100)
    order: list[str] = []
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group, slots.turn("loud"):
            for number, name in enumerate(("loud", "loud", "quiet", "third", "quiet"), 1):
                group.start_soon(wait_for, slots, name, order)
                while slots.waiting < number:
                    await anyio.lowlevel.checkpoint()
    assert order == ["quiet", "third", "loud", "quiet", "loud"]


async def test_one_caller_cannot_use_the_whole_capacity() -> None:
    slots = RunQueue(2, 8)
    for _ in range(5):
        slots.reserve("one")
    with pytest.raises(ServerError) as caught:
        slots.reserve("one")
    assert (caught.value.code, caught.value.details["retryAfter"]) == ("QUEUE_FULL", 1)
    assert "API key one" in caught.value.message
    for _ in range(5):
        slots.reserve("two")
    slots.reserve("three")  # one run of each caller can always wait
    with pytest.raises(ServerError) as caught:
        slots.reserve("three")
    assert caught.value.code == "QUEUE_FULL"
    slots = RunQueue(2, 8)
    for _ in range(10):  # a caller without a key may use the whole capacity
        slots.reserve()


async def test_a_caller_with_a_limit_of_its_own_leaves_the_rest_to_others() -> None:
    limits = {"one": 1}
    slots = RunQueue(2, 100, limit_of=limits.get)
    order: list[str] = []
    hold = anyio.Event()

    async def held(name: str) -> None:
        async with slots.turn(name):
            order.append(name)
            await hold.wait()

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            for name in ("one", "one", "two"):
                group.start_soon(held, name)
            await until(lambda: len(order) == 2)
            assert (order, slots.running, slots.waiting) == (["one", "two"], 2, 1)
            slots.limits_changed()
            assert slots.running == 2
            group.start_soon(held, "two")
            limits["one"] = 2
            hold.set()
    assert sorted(order) == ["one", "one", "two", "two"]


async def test_a_limit_that_is_raised_starts_a_waiting_run_at_once() -> None:
    limits = {"one": 1}
    slots = RunQueue(2, 100, limit_of=limits.get)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group, slots.turn("one"):
            hold = anyio.Event()

            async def second() -> None:
                async with slots.turn("one"):
                    await hold.wait()

            group.start_soon(second)
            await until(lambda: slots.waiting == 1)
            limits["one"] = 2
            slots.limits_changed()
            assert (slots.running, slots.waiting) == (2, 0)
            hold.set()


async def test_a_cancelled_caller_does_not_change_the_turns_of_others() -> None:
    slots = RunQueue(1, 100)
    order: list[str] = []
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group, slots.turn("busy"):
            scope = anyio.CancelScope()

            async def wait() -> None:
                with scope:
                    await wait_for(slots, "one", order)

            group.start_soon(wait)
            while slots.waiting < 1:
                await anyio.lowlevel.checkpoint()
            group.start_soon(wait_for, slots, "two", order)
            while slots.waiting < 2:
                await anyio.lowlevel.checkpoint()
            scope.cancel()
            while slots.waiting > 1:
                await anyio.lowlevel.checkpoint()
    assert order == ["two"]
    assert (slots.running, slots.waiting) == (0, 0)
