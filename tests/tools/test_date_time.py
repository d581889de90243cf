"""The tool `datetime`: its fields, the formats it reads, and calendar arithmetic."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.date_time import (
    Duration,
    Reading,
    between,
    datetime_tool,
    elapsed,
    find_zone,
    in_words,
    read_duration,
    read_moment,
    shift,
    timestamp,
    zone_name,
)
from apexbridge.tools.registry import ToolRegistry

pytestmark = pytest.mark.anyio

NOW = datetime(2024, 3, 5, 22, 30, tzinfo=UTC)
ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Asia/Shanghai",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "+05:45",
]
no_deadline = settings(deadline=None)
zones = st.sampled_from(ZONES).map(find_zone)
moments = st.builds(
    lambda since_1970, zone: (datetime(1970, 1, 1, tzinfo=UTC) + since_1970).astimezone(zone),
    st.timedeltas(timedelta(days=-62_000), timedelta(days=84_000)),
    zones,
)


async def ask(**input: Any) -> dict[str, Any]:
    registry = ToolRegistry()
    registry.register(datetime_tool)
    answer = (await registry.execute("datetime", input)).data
    assert isinstance(answer, dict)
    json.dumps(answer).encode()
    return answer


async def rejection(**input: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        await ask(**input)
    assert caught.value.status == 422
    caught.value.message.encode()
    return caught.value.message


def read(value: str | float, zone: str | None = None) -> Reading:
    return read_moment(value, zone=find_zone(zone) if zone else None, now=NOW)


# ------------------------------------------------------------------------------------------------- fields and actions
@pytest.mark.requirement("A5")
async def test_now_is_in_utc_unless_a_zone_is_given() -> None:
    before = datetime.now(UTC)
    answer = await ask()
    assert answer["success"] is True
    assert answer["zone"] == "UTC"
    assert isinstance(answer["timestamp"], int)
    assert before <= datetime.fromisoformat(answer["iso"]) <= datetime.now(UTC)
    there = await ask(action="now", zone="Asia/Shanghai")
    assert (there["zone"], there["utcOffset"]) == ("Asia/Shanghai", "+08:00")


@pytest.mark.requirement("A5")
async def test_a_moment_has_calendar_fields() -> None:
    assert await ask(action="parse", value="2024-03-05T14:30:00+08:00") == {
        "success": True,
        "iso": "2024-03-05T14:30:00+08:00",
        "timestamp": 1709620200000,
        "zone": "+08:00",
        "utcOffset": "+08:00",
        "weekday": "Tuesday",
        "isoWeek": "2024-W10",
        "dayOfYear": 65,
    }


async def test_a_conversion_returns_the_same_moment_in_another_zone() -> None:
    answer = await ask(action="convert", value="2024-03-05 14:30", zone="北京时间", to="America/New_York")
    assert (answer["iso"], answer["zone"]) == ("2024-03-05T01:30:00-05:00", "America/New_York")


async def test_a_sum_is_a_moment() -> None:
    answer = await ask(action="add", value="2024-01-31T10:00Z", add="1 month", to="+01:00")
    assert answer["iso"] == "2024-02-29T11:00:00+01:00"
    assert answer["notes"] == ["2024-02 has no day 31; its last was taken"]


async def test_a_comparison_returns_the_distance_of_two_moments() -> None:
    assert await ask(action="compare", value="2024-03-05T10:00Z", other="2024-03-07T13:00Z") == {
        "success": True,
        "iso": "2024-03-05T10:00:00+00:00",
        "timestamp": 1709632800000,
        "zone": "UTC",
        "other": "2024-03-07T13:00:00+00:00",
        "order": "before",
        "seconds": 183600,
        "days": 2.125,
        "calendarDays": 2,
        "text": "2 days 3 hours",
    }
    later = await ask(value="2024-03-07T13:00Z", other="2024-03-05T10:00Z")
    assert (later["order"], later["seconds"], later["text"]) == ("after", -183600, "2 days 3 hours")
    same = await ask(value="2024-03-07T13:00Z", other="2024-03-07T21:00+08:00")
    assert (same["order"], same["seconds"], same["text"]) == ("same", 0, "0 seconds")


async def test_the_fields_imply_the_action() -> None:
    assert (await ask(value="2024-03-05Z"))["dayOfYear"] == 65
    assert (await ask(value="2024-03-05Z", to="Tokyo"))["zone"] == "Asia/Tokyo"
    assert (await ask(value="2024-03-05Z", add="1 day", to="Tokyo"))["dayOfYear"] == 66
    assert (await ask(value="2024-03-05Z", other="now", add="", to=None))["order"] == "before"


async def test_the_other_moment_is_read_in_the_zone_of_the_first() -> None:
    answer = await ask(value="2024-03-05T10:00+08:00", other="2024-03-05 12:00")
    assert answer["seconds"] == 7200
    assert answer["notes"] == ["other: no zone given; read in +08:00"]


@pytest.mark.parametrize(
    ("input", "word"),
    [
        ({"action": "now", "value": "2024-03-05"}, "does not use value"),
        ({"action": "parse"}, "needs `value`"),
        ({"action": "convert", "value": "now"}, "needs `to`"),
        ({"action": "add", "value": "now"}, "needs `add`"),
        ({"action": "compare"}, "needs `other`"),
        ({"add": "1 day", "other": "now"}, "does not use add"),
        ({"action": "guess"}, "action"),
        ({"when": "now"}, "when"),
        ({"value": True}, "value"),
    ],
)
async def test_contradictory_fields_are_rejected(input: dict[str, Any], word: str) -> None:
    assert word in await rejection(**input)


def test_the_schema_and_description_are_short() -> None:
    text = json.dumps(datetime_tool.parameters.schema, ensure_ascii=False, separators=(",", ":"))
    assert len(text.encode()) + len(datetime_tool.description) < 600


# ----------------------------------------------------------------------------------------------------------- reading
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2024-03-05", "2024-03-05T00:00:00+00:00"),
        ("2024-03-05T14:30", "2024-03-05T14:30:00+00:00"),
        ("2024-03-05t14:30:15z", "2024-03-05T14:30:15+00:00"),
        ("2024-03-05 14:30:15.25-03:30", "2024-03-05T14:30:15.250000-03:30"),
        ("2024-03-05T14:30:15,123456789+0800", "2024-03-05T14:30:15.123456+08:00"),
        *(("20240305T143015Z", "2024-03-05T14:30:15+00:00"), ("20240305T1430+08", "2024-03-05T14:30:00+08:00")),
        *(("2024-03-05T14", "2024-03-05T14:00:00+00:00"), ("2024-W10-2", "2024-03-05T00:00:00+00:00")),
        *(("2024W102T1430", "2024-03-05T14:30:00+00:00"), ("2024-W10", "2024-03-04T00:00:00+00:00")),
        *(("2024-03-05T24:00", "2024-03-06T00:00:00+00:00"), ("2024-03-05Z", "2024-03-05T00:00:00+00:00")),
        *(("2024-3-5 9:05", "2024-03-05T09:05:00+00:00"), ("2024/3/5 14:30", "2024-03-05T14:30:00+00:00")),
        ("2024.03.05", "2024-03-05T00:00:00+00:00"),
        ("2024-03-05 14:30 UTC+8", "2024-03-05T14:30:00+08:00"),
        ("2024-03-05 14:30 Asia/Tokyo", "2024-03-05T14:30:00+09:00"),
        ("2024年3月5日 下午3点20分", "2024-03-05T15:20:00+00:00"),
        ("2024年3月5日15时20分30秒", "2024-03-05T15:20:30+00:00"),
        ("2024年3月5号上午12:05", "2024-03-05T00:05:00+00:00"),
        ("2024年3月5日 下午15点", "2024-03-05T15:00:00+00:00"),
        ("2024年3月5日 晚上8点", "2024-03-05T20:00:00+00:00"),
        ("2024年3月5日 中午12点半", "2024-03-05T12:30:00+00:00"),
        ("2024年3月5日 中午1点整 北京时间", "2024-03-05T13:00:00+08:00"),
        ("2024年3月5日 中午11点", "2024-03-05T11:00:00+00:00"),
        ("2024年3月5日 晚上12点", "2024-03-06T00:00:00+00:00"),
        *(("２０２４年３月５日 １４：３０", "2024-03-05T14:30:00+00:00"), ("now", "2024-03-05T22:30:00+00:00")),
        *(("现在", "2024-03-05T22:30:00+00:00"), ("Today", "2024-03-05T00:00:00+00:00")),
        *(("tomorrow, 09:00", "2024-03-06T09:00:00+00:00"), ("yesterday 21:15", "2024-03-04T21:15:00+00:00")),
        *(("今天", "2024-03-05T00:00:00+00:00"), ("明天下午3点", "2024-03-06T15:00:00+00:00")),
        *(("昨天", "2024-03-04T00:00:00+00:00"), ("后天", "2024-03-07T00:00:00+00:00")),
        *(("前天", "2024-03-03T00:00:00+00:00"), ("1709649000", "2024-03-05T14:30:00+00:00")),
        ("1709649000.5", "2024-03-05T14:30:00.500000+00:00"),
        ("1709649000250", "2024-03-05T14:30:00.250000+00:00"),
        (1709649000, "2024-03-05T14:30:00+00:00"),
        (1709649000250, "2024-03-05T14:30:00.250000+00:00"),
        (1709649000.25, "2024-03-05T14:30:00.250000+00:00"),
        (0, "1970-01-01T00:00:00+00:00"),
        (-86400, "1969-12-31T00:00:00+00:00"),
    ],
)
def test_moments_are_read_in_these_formats(written: str | float, expected: str) -> None:
    assert read(written).moment.isoformat() == expected


def test_today_depends_on_the_zone() -> None:
    assert read("today", "Asia/Shanghai").moment.isoformat() == "2024-03-06T00:00:00+08:00"
    assert read("tomorrow 08:00 Asia/Tokyo").moment.isoformat() == "2024-03-07T08:00:00+09:00"


def test_a_time_alone_is_today_with_a_note() -> None:
    reading = read("14:30", "Asia/Tokyo")
    assert reading.moment.isoformat() == "2024-03-06T14:30:00+09:00"
    assert reading.notes == ("no day given; today, 2024-03-06, was taken",)


def test_a_text_with_a_zone_is_converted_to_the_requested_zone() -> None:
    assert read("2024-03-05T14:30Z", "Asia/Shanghai").moment.isoformat() == "2024-03-05T22:30:00+08:00"


@pytest.mark.parametrize(
    ("written", "note"),
    [
        ("2024-03-05", "no zone given; read in UTC"),
        (100_000_000_000, "read as milliseconds since 1970"),
        (99_999_999_999, "read as seconds since 1970"),
    ],
)
def test_assumptions_are_in_the_notes(written: str | float, note: str) -> None:
    assert read(written).notes == (note,)


@pytest.mark.parametrize("written", ["03/04/2024", "3.4.2024", "25/12/2024", "12-25-24", "03/04/2024 10:00"])
async def test_a_date_that_does_not_start_with_the_year_is_rejected(written: str) -> None:
    assert "write the year first" in await rejection(value=written)


@pytest.mark.parametrize(
    "written",
    [
        *("2023-02-29", "2024-02-30", "2024-13-01", "2024-00-10", "0000-01-01", "2023-366", "2024-000", "2024-W00-1"),
        *("2021-W53-1", "9999-W52-7", "2024-03-05T25:00", "2024-03-05T24:01", "2024-03-05T10:60", "Mon 14:30"),
        *("2024-03-05T23:59:60Z", "晚上1点", "下午", "2024年3月5日上午13点", "2024-03-05T10:00:61", "3点20秒"),
        *("2024", "86400", "2024-03", "soon", "Monday 14:30", "2024-03-05 blah", "2024-03-05T10:00+24:00", " ", "P1D"),
        *("0001-01-01T00:00+08:00", "9999-12-31T23:59-01:00", "9999-12-31T24:00", "2024-03-05T10:00]", "٢٠٢٤-٠٣-٠٥"),
        *("x\ud800", "\x00", "2024-03-05\x00", "9" * 16, "9" * 101, "ﷺ" * 100, "(" * 100, "1 " * 50, "-" * 100),
        *(
            float("nan"),
            float("inf"),
            -1e300,
            10**15,
            pytest.param(10**400, id="long"),
            pytest.param(-(10**5000), id="longer"),
            1e15,
        ),
    ],
)
async def test_an_invalid_moment_is_rejected_with_a_short_message(written: Any) -> None:
    assert len(await rejection(value=written)) < 350


@pytest.mark.parametrize("written", ["5 March 2024", "Tue, 05 Mar 2024 14:30:15 +0800", "tomorrow 9am", "soon"])
async def test_an_unknown_format_is_rejected_with_the_accepted_formats(written: str) -> None:
    assert "write 2024-03-05T14:30:00+08:00, 2024-03-05 14:30 Asia/Tokyo" in await rejection(value=written)


# ------------------------------------------------------------------------------------------------------------- zones
@pytest.mark.parametrize(
    ("written", "name"),
    [
        *(("UTC", "UTC"), ("gmt", "UTC"), ("Z", "UTC"), ("+00:00", "UTC"), ("UTC+0", "UTC")),
        *(("+08:00", "+08:00"), ("-0330", "-03:30"), ("UTC+8", "+08:00"), ("GMT -5", "-05:00"), ("−03:00", "-03:00")),
        *(("asia/shanghai", "Asia/Shanghai"), ("北京时间", "Asia/Shanghai"), ("Beijing time", "Asia/Shanghai")),
        *(("New York", "America/New_York"), ("tokyo", "Asia/Tokyo"), ("EST5EDT", "EST5EDT")),
    ],
)
def test_zones_are_read_in_these_formats(written: str, name: str) -> None:
    assert zone_name(find_zone(written)) == name


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        *(("Asia/Shanghi", "Asia/Shanghai"), ("Europe/Berlni", "Europe/Berlin"), ("Pariss", "Europe/Paris")),
        *(("CST", "abbreviations can mean several zones"), ("Eastern time", "Canada/Eastern or US/Eastern")),
        *(("+25:00", "less than 24 hours"), ("../../../etc/passwd", "write Asia/Shanghai")),
        *(("/etc/localtime", "no zone"), ("localtime", "no zone"), ("right/UTC", "no zone"), ("Asia", "no zone")),
        ("a" * 101, "too long"),
    ],
)
async def test_an_unknown_zone_is_rejected_with_similar_names(written: str, hint: str) -> None:
    assert hint in await rejection(zone=written)
    assert hint in await rejection(to=written)


def test_zones_come_from_the_tzdata_package_if_the_system_has_none() -> None:
    program = (
        "from apexbridge.tools.builtin.date_time import find_zone\n"
        "from datetime import datetime\n"
        "print(datetime(2024, 7, 1, tzinfo=find_zone('europe/berlin')).isoformat())"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONTZPATH": ""},
        capture_output=True,
        check=True,
        text=True,
    )
    assert process.stdout.strip() == "2024-07-01T00:00:00+02:00"


# ---------------------------------------------------------------------------------------------- clock changes
@pytest.mark.parametrize(
    ("zone", "written", "taken"),
    [
        ("America/New_York", "2024-03-10 02:30", "2024-03-10T03:30:00-04:00"),
        ("Europe/Berlin", "2024-03-31 02:00", "2024-03-31T03:00:00+02:00"),
        ("Asia/Shanghai", "1986-05-04 02:30", "1986-05-04T03:30:00+09:00"),
        ("Australia/Lord_Howe", "2024-10-06 02:15", "2024-10-06T02:45:00+11:00"),
        ("Pacific/Apia", "2011-12-30 10:00", "2011-12-31T10:00:00+14:00"),
    ],
)
async def test_a_time_that_clocks_skip_has_a_note(zone: str, written: str, taken: str) -> None:
    answer = await ask(value=written, zone=zone)
    assert answer["iso"] == taken
    assert len(answer["notes"]) == 1
    assert "does not exist" in answer["notes"][0]


@pytest.mark.parametrize(
    ("zone", "written", "first", "second"),
    [
        ("America/New_York", "2024-11-03 01:30", "2024-11-03T01:30:00-04:00", "2024-11-03T01:30:00-05:00"),
        ("Europe/Berlin", "2024-10-27 02:00", "2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00"),
        ("Asia/Shanghai", "1986-09-14 01:30", "1986-09-14T01:30:00+09:00", "1986-09-14T01:30:00+08:00"),
        ("Australia/Lord_Howe", "2024-04-07 01:45", "2024-04-07T01:45:00+11:00", "2024-04-07T01:45:00+10:30"),
    ],
)
async def test_a_time_that_clocks_repeat_has_a_note(zone: str, written: str, first: str, second: str) -> None:
    answer = await ask(value=written, zone=zone)
    assert answer["iso"] == first
    assert "happens twice" in answer["notes"][0]
    assert second in answer["notes"][0]
    named = await ask(value=second, zone=zone)
    assert named["iso"] == second
    assert "notes" not in named


@pytest.mark.parametrize(
    ("zone", "written"),
    [
        ("America/New_York", "2024-03-10 01:59:59"),
        ("America/New_York", "2024-03-10 03:00"),
        ("Europe/Berlin", "2024-10-27 01:59"),
        ("Europe/Berlin", "2024-10-27 03:00"),
        ("Asia/Shanghai", "2024-05-04 02:30"),
        ("Australia/Lord_Howe", "2024-10-06 02:30"),
    ],
)
async def test_a_time_next_to_a_clock_change_has_no_note(zone: str, written: str) -> None:
    assert "notes" not in await ask(value=written, zone=zone)


async def test_days_keep_the_local_time_and_hours_are_elapsed_time() -> None:
    start = {"value": "2024-03-09 12:00", "zone": "America/New_York"}
    assert (await ask(**start, add="1 day"))["iso"] == "2024-03-10T12:00:00-04:00"
    assert (await ask(**start, add="24 hours"))["iso"] == "2024-03-10T13:00:00-04:00"
    gap = await ask(value="2024-03-09 02:30", zone="America/New_York", add="1 day")
    assert gap["iso"] == "2024-03-10T03:30:00-04:00"
    assert "does not exist" in gap["notes"][0]


async def test_hours_pass_through_a_repeated_hour() -> None:
    start = {"value": "2024-11-03T00:30:00-04:00", "zone": "America/New_York"}
    clocks = [(await ask(**start, add=f"{hours} hours"))["iso"][11:] for hours in range(1, 4)]
    assert clocks == ["01:30:00-04:00", "01:30:00-05:00", "02:30:00-05:00"]


async def test_a_short_day_is_one_day_in_words_and_23_hours_in_seconds() -> None:
    answer = await ask(value="2024-03-09 12:00", other="2024-03-10 12:00", zone="America/New_York")
    assert (answer["text"], answer["calendarDays"], answer["seconds"]) == ("1 day", 1, 23 * 3600)


# --------------------------------------------------------------------------------------------------------- durations
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("P1Y2M3DT4H5M6.5S", Duration(months=14, days=3, microseconds=14_706_500_000)),
        ("-P2W", Duration(days=-14)),
        ("P-1DT2H", Duration(days=-1, microseconds=7_200_000_000)),
        ("pt0,5h", Duration(microseconds=1_800_000_000)),
        ("3 days", Duration(days=3)),
        ("-2 weeks", Duration(days=-14)),
        ("1 month 2 days", Duration(months=1, days=2)),
        ("-1 day 2 hours", Duration(days=-1, microseconds=-7_200_000_000)),
        ("1 month -2 days", Duration(months=1, days=-2)),
        ("1 year, 1 quarter and 250 ms", Duration(months=15, microseconds=250_000)),
        ("1h30m", Duration(microseconds=5_400_000_000)),
        ("1.5 hours", Duration(microseconds=5_400_000_000)),
        ("3 days ago", Duration(days=-3)),
        ("2 weeks later", Duration(days=14)),
        ("3天", Duration(days=3)),
        ("2小时", Duration(microseconds=7_200_000_000)),
        ("1年2个月3周", Duration(months=14, days=21)),
        ("1小时30分钟后", Duration(microseconds=5_400_000_000)),
        ("３天前", Duration(days=-3)),
    ],
)
def test_durations_are_read_in_these_formats(written: str, expected: Duration) -> None:
    assert read_duration(written) == expected


@pytest.mark.parametrize(
    "written",
    [
        *("P", "PT", "-", "3", "days", "30m", "5 moons", "1.5 days", "P0.5Y", "1,000 days", "3 days or so", "ago"),
        *("P99999999Y", "999999999999 hours", "10001 years", "9" * 13 + " days", "1 day " * 20, "\ud800", "P" * 100),
        *("8000 years", "-2024 years", "3000000 days", "-P3000000D", "90000000000 seconds" * 3, "300000000000 seconds"),
    ],
)
async def test_an_invalid_duration_is_rejected(written: str) -> None:
    assert len(await rejection(value="2024-03-05Z", add=written)) < 300


@pytest.mark.parametrize(
    ("start", "add", "end"),
    [
        *(("2024-02-29", "1 year", "2025-02-28"), ("2024-02-29", "4 years", "2028-02-29")),
        *(("2024-02-29", "-1 year", "2023-02-28"), ("2000-02-29", "P100Y", "2100-02-28")),
        *(("2024-01-31", "1 month", "2024-02-29"), ("2024-01-31", "1 month 1 day", "2024-03-01")),
        *(("2024-03-31", "-1 month", "2024-02-29"), ("2023-12-31", "2 months", "2024-02-29")),
        *(("2024-02-28", "1 day", "2024-02-29"), ("2023-02-28", "1 day", "2023-03-01")),
        *(("2024-01-01", "-1 day", "2023-12-31"), ("0001-01-31", "1 month", "0001-02-28")),
        ("9999-12-01", "30 days", "9999-12-31"),
    ],
)
def test_short_months_end_on_their_last_day(start: str, add: str, end: str) -> None:
    moment, _ = shift(read(start).moment, read_duration(add), UTC)
    assert moment.date().isoformat() == end


@pytest.mark.parametrize(
    ("day", "week"),
    [
        ("2020-12-31", "2020-W53"),
        ("2021-01-03", "2020-W53"),
        ("2021-01-04", "2021-W01"),
        ("2024-12-30", "2025-W01"),
        ("2026-W53-5", "2026-W53"),
        ("0001-01-01", "0001-W01"),
    ],
)
async def test_the_week_is_that_of_iso_8601(day: str, week: str) -> None:
    assert (await ask(value=day))["isoWeek"] == week


# -------------------------------------------------------------------------------------------------------- properties
@no_deadline
@given(moments)
def test_iso_8601_is_read_as_the_same_moment(moment: datetime) -> None:
    again = read(moment.isoformat(), zone_name(moment.tzinfo)).moment
    assert again.isoformat() == moment.isoformat()
    assert timestamp(again) == timestamp(moment)


@no_deadline
@given(moments.map(lambda moment: moment.astimezone(timezone(timedelta(hours=8))).replace(microsecond=0)))
def test_other_formats_of_a_moment_are_read_as_that_moment(moment: datetime) -> None:
    formats = ["%Y/%m/%d %H:%M:%S UTC%z", "%G-W%V-%uT%H:%M:%S%z", "%Y%m%dT%H%M%S%z", "%Y年%m月%d日%H时%M分%S秒 %z"]
    for written in map(moment.strftime, formats):
        assert read(written) == Reading(moment=moment), written


@no_deadline
@given(moments, zones)
def test_a_conversion_keeps_the_timestamp(moment: datetime, zone: tzinfo) -> None:
    there = read(moment.isoformat(), zone_name(zone)).moment
    assert timestamp(there) == timestamp(moment)
    assert elapsed(there, moment) == timedelta()


@no_deadline
@given(moments, st.integers(-(10**7), 10**7), st.sampled_from(["hours", "minutes", "seconds", "ms", "小时"]))
def test_added_hours_can_be_subtracted_again(moment: datetime, amount: int, unit: str) -> None:
    zone = moment.tzinfo or UTC
    there, _ = shift(moment, read_duration(f"{amount}{unit}"), zone)
    back, _ = shift(there, read_duration(f"{-amount} {unit}"), zone)
    assert back.isoformat() == moment.isoformat()


@no_deadline
@given(
    moments.map(lambda moment: moment.astimezone(UTC)), st.integers(-50_000, 50_000), st.sampled_from(["days", "周"])
)
def test_added_days_can_be_subtracted_again_without_clock_changes(moment: datetime, amount: int, unit: str) -> None:
    there, _ = shift(moment, read_duration(f"{amount} {unit}"), UTC)
    assert shift(there, read_duration(f"{-amount} {unit}"), UTC)[0] == moment


@no_deadline
@given(moments, moments, zones)
@example(  # the later one has the earlier date there
    datetime(2001, 10, 28, 2, 30, 30, tzinfo=UTC),
    datetime(2001, 10, 28, 3, 0, tzinfo=UTC),
    ZoneInfo("America/St_Johns"),
)
@example(
    datetime(2024, 11, 3, 5, 30, tzinfo=UTC), datetime(2024, 11, 3, 6, 10, tzinfo=UTC), ZoneInfo("America/New_York")
)
@example(
    datetime(2024, 3, 9, 7, 30, tzinfo=UTC), datetime(2024, 3, 10, 7, 10, tzinfo=UTC), ZoneInfo("America/New_York")
)
def test_the_words_of_a_comparison_lead_from_one_moment_to_the_other(a: datetime, b: datetime, zone: tzinfo) -> None:
    earlier, later = (a, b) if elapsed(a, b) >= timedelta() else (b, a)
    distance = between(earlier, later, zone)
    assert min(distance.months, distance.days, distance.microseconds) >= 0
    assert distance.days <= 31
    assert read_duration(in_words(distance)) == distance
    assert elapsed(shift(earlier, distance, zone)[0], later) == timedelta()


@no_deadline
@given(
    st.dictionaries(
        st.sampled_from(["action", "value", "zone", "to", "add", "other"]),
        st.text(max_size=110)
        | st.text(alphabet="0123456789 -+:/.TZWPYMDHS年月日点分天周()[]apm", max_size=40)
        | st.integers()
        | st.floats()
        | st.sampled_from(["now", "parse", "add", "compare", "tomorrow", "1 day", "Asia/Tokyo", "2024-03-05", None]),
    )
)
async def test_any_input_is_answered_or_rejected(input: dict[str, Any]) -> None:
    try:
        answer = await ask(**input)
    except InvalidInputError as error:
        error.message.encode()
    else:
        assert isinstance(answer["timestamp"], int)
