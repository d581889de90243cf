"""Events of a run: complete output, in order and in few chunks, for listeners that join at any time."""

import anyio
import anyio.lowlevel
import pytest

from apexbridge.skills.runs.events import EVENT_TEXT, MAX_SWITCHES, RunLog
from tests.waiting import until

pytestmark = pytest.mark.anyio
TIMEOUT_SECONDS = 60


def text_of(log: RunLog, kind: str) -> str:
    return "".join(event.data for event in log.events if event.kind == kind)


@pytest.mark.computes_in_loop
async def test_single_characters_are_batched_into_few_events() -> None:
    log = RunLog()
    for stream in ("stdout", "stderr"):
        for _ in range(100_000):
            log.add_output(stream, "a")
    log.end()
    assert (text_of(log, "stdout"), text_of(log, "stderr")) == ("a" * 100_000, "a" * 100_000)
    assert [event.number for event in log.events] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_long_output_is_split_into_several_events() -> None:
    log, text = RunLog(), "0123456789" * 10_000
    log.add_output("stdout", text)
    log.end()
    assert text_of(log, "stdout") == text
    assert max(len(event.data) for event in log.events) <= EVENT_TEXT


async def test_both_streams_keep_their_order() -> None:
    log = RunLog()
    for number in range(100):
        log.add_output("stdout", f"{number} ")
        log.add_output("stdout", "out")
        log.add_output("stderr", f"{number} err")
    log.end()
    assert [(event.kind, event.data) for event in log.events] == [
        each for number in range(100) for each in (("stdout", f"{number} out"), ("stderr", f"{number} err"))
    ]


@pytest.mark.computes_in_loop
async def test_a_run_that_changes_the_stream_all_the_time_creates_a_bounded_number_of_events() -> None:
    log = RunLog()
    for number in range(100_000):
        log.add_output("stdout", f"{number} ")
        log.add_output("stderr", f"{number} ")
    log.end()
    whole = "".join(f"{number} " for number in range(100_000))
    assert (text_of(log, "stdout"), text_of(log, "stderr")) == (whole, whole)
    assert len(log.events) <= MAX_SWITCHES + 2 + 2 * len(whole) // EVENT_TEXT
    more = RunLog()
    more._switches = MAX_SWITCHES
    for _ in range(1000):
        more.add_output("stdout", "a")
        more.add_output("stderr", "b")
    more.end()
    assert [(event.kind, len(event.data)) for event in more.events] == [("stdout", 1000), ("stderr", 1000)]


async def test_the_first_output_and_later_output_is_sent_soon() -> None:
    log = RunLog()
    seen: list[str] = []

    async def listen() -> None:
        async for event in log.follow():
            seen.append(event.data)  # noqa: PERF401  # the test polls the list

    with anyio.fail_after(TIMEOUT_SECONDS):
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
        ("stdout", "abc"),
        ("state", "completed"),
        ("result", {}),
    ]


async def test_an_ended_log_has_no_pending_timers() -> None:
    log = RunLog()
    log.add_output("stdout", "a")
    log.add_output("stdout", "b")
    log.end()
    count = len(log.events)
    await anyio.sleep(0.1)
    assert len(log.events) == count
