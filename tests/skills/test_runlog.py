"""Events of a run: output in few pieces, all of it, in order, for listeners at any time."""

import anyio
import anyio.lowlevel
import pytest

from apexbridge.skills.runs.events import RunLog
from tests.waiting import until

pytestmark = pytest.mark.anyio
PATIENCE = 60


def text_of(log: RunLog, kind: str) -> str:
    return "".join(event.data for event in log.events if event.kind == kind)


async def test_single_characters_become_few_events() -> None:
    log = RunLog()
    for _ in range(100_000):
        log.add_output("stdout", "a")
        log.add_output("stderr", "b")
    log.end()
    assert (text_of(log, "stdout"), text_of(log, "stderr")) == ("a" * 100_000, "b" * 100_000)
    assert len(log.events) == 4
    assert [event.number for event in log.events] == [1, 2, 3, 4]


async def test_the_first_output_is_sent_at_once_and_the_rest_soon() -> None:
    log = RunLog()
    seen: list[str] = []

    async def listen() -> None:
        async for event in log.follow():
            seen.append(event.data)  # noqa: PERF401  # one by one, for the test to watch

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            log.add_output("stdout", "one")
            await until(lambda: seen == ["one"])
            log.add_output("stdout", "two")
            log.add_output("stdout", "three")
            await until(lambda: "".join(seen) == "onetwothree")
            log.end()


async def test_output_comes_before_the_state_that_follows_it() -> None:
    log = RunLog()
    log.add("state", "running")
    for word in ("a", "b", "c"):
        log.add_output("stdout", word)
    log.add("state", "completed")
    log.add("result", {})
    log.end()
    assert [(event.kind, event.data) for event in log.events] == [
        ("state", "running"),
        ("stdout", "a"),
        ("stdout", "bc"),
        ("state", "completed"),
        ("result", {}),
    ]


async def test_a_log_that_has_ended_has_no_timers_left() -> None:
    log = RunLog()
    log.add_output("stdout", "a")
    log.add_output("stdout", "b")
    log.end()
    count = len(log.events)
    await anyio.sleep(0.1)
    assert len(log.events) == count
