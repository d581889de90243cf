"""The tool `datetime`: reads, converts, shifts and compares dates and times."""

import difflib
import re
from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple
from unicodedata import normalize
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, StrictFloat, StrictInt, WithJsonSchema

from apexbridge.errors import InvalidInputError
from apexbridge.tools.tool import Tool, ToolContext
from apexbridge.wire import WireInput

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Action = Literal["now", "parse", "convert", "add", "compare"]
Written = Annotated[str | StrictInt | StrictFloat | None, WithJsonSchema({"type": ["string", "number"]})]
_REQUIRED: dict[Action, str] = {"parse": "value", "convert": "to", "add": "add", "compare": "other"}
"""The field that each action needs, and that implies the action; the last one wins."""


class DatetimeInput(WireInput):
    action: Action | None = None
    value: Written = Field(None, description="ISO 8601, or as 'tomorrow 09:00'; default now")
    zone: str | None = Field(None, description="IANA name or offset; default UTC")
    to: str | None = Field(None, description="Zone for the result")
    add: str | None = Field(None, description="'1 month -2 days' or P1D")
    other: Written = Field(None, description="To compare with")


@Tool.define(
    "datetime",
    description="The time now; read, convert, shift or compare dates and times.",
    parameters=DatetimeInput,
    metadata={"category": "builtin", "tags": ("time",)},
)
async def datetime_tool(args: DatetimeInput, context: ToolContext) -> dict[str, Any]:
    fields = {name: value for name, value in args if value not in (None, "")}
    action = _action(fields)
    zone = find_zone(fields["zone"]) if "zone" in fields else None
    now = datetime.now(UTC)
    moment, notes = read_moment(fields.get("value", "now"), zone=zone, now=now)
    own = moment.tzinfo or UTC
    if action == "add":
        moment, more = shift(moment, read_duration(fields["add"]), own)
        notes = (*notes, *more)
    if "to" in fields:
        moment = in_zone(moment, find_zone(fields["to"]))
    if action != "compare":
        return _result(moment, _calendar(moment), notes)
    other = read_moment(fields["other"], zone=zone, now=now, default=own)
    notes = (*notes, *(f"other: {note}" for note in other.notes))
    return _result(moment, _comparison(moment, other.moment), notes)


def _action(fields: dict[str, Any]) -> Action:
    """Return the requested action, or the one that the fields imply."""
    implied = [action for action, field in _REQUIRED.items() if field in fields]
    action: Action = fields.get("action") or (implied[-1] if implied else "now")
    required = _REQUIRED.get(action)
    used = {"action", "zone", "to", required} | ({"value"} if action != "now" else set())
    if surplus := sorted(fields.keys() - used):
        raise InvalidInputError(f"{action} does not use {', '.join(surplus)}; leave it out, or choose another action")
    if required and required not in fields:
        raise InvalidInputError(f"{action} needs `{required}`")
    return action


def _result(moment: datetime, more: dict[str, Any], notes: tuple[str, ...]) -> dict[str, Any]:
    result = {
        "success": True,
        "iso": moment.isoformat(),
        "timestamp": timestamp(moment),
        "zone": zone_name(moment.tzinfo),
        **more,
    }
    return {**result, "notes": list(notes)} if notes else result


def _calendar(moment: datetime) -> dict[str, Any]:
    year, week, _ = moment.isocalendar()
    return {
        "utcOffset": moment.isoformat(timespec="seconds")[len("2024-03-05T14:30:00") :],
        "weekday": WEEKDAYS[moment.weekday()],
        "isoWeek": f"{year:04}-W{week:02}",
        "dayOfYear": moment.timetuple().tm_yday,
    }


def _comparison(moment: datetime, other: datetime) -> dict[str, Any]:
    zone = moment.tzinfo or UTC
    span = elapsed(moment, other)
    earlier, later = (moment, other) if span >= timedelta() else (other, moment)
    return {
        "other": other.isoformat(),
        "order": "same" if not span else "before" if earlier is moment else "after",
        "seconds": _number(span.total_seconds()),
        "days": _number(round(span / timedelta(days=1), 6)),
        "calendarDays": (in_zone(other, zone).date() - moment.date()).days,
        "text": in_words(between(earlier, later, zone)),
    }


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


MAX_CHARACTERS = 100
SUGGESTIONS = 3
MILLISECONDS_FROM = 10**11
"""Numbers from here on are milliseconds since 1970, smaller ones seconds. As seconds this is the year 5138."""

_QUOTED_CHARACTERS = 60
_OUT_OF_CALENDAR = "This is outside the calendar: only the years 1 to 9999 can be used"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reading(NamedTuple):
    """A moment in its zone, and notes about assumptions, clock changes and short months."""

    moment: datetime
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A duration in three units that have no fixed ratio."""

    months: int = 0
    days: int = 0
    microseconds: int = 0


# -------------------------------------------------------------------------------------------------------------- moments
_RELATIVE_DAYS = {
    **{"today": 0, "tomorrow": 1, "yesterday": -1},
    **{"今天": 0, "今日": 0, "明天": 1, "明日": 1, "后天": 2, "昨天": -1, "昨日": -1, "前天": -2},
}
_PERIODS = {
    **dict.fromkeys(("凌晨", "清晨", "早上", "早晨", "上午"), range(12)),
    **dict.fromkeys(("下午", "傍晚"), range(12, 24)),
    "中午": range(10, 15),
    "晚上": range(17, 25),
}
"""Parts of the day, and the hours that they can mean."""
_FORMATS = (
    "write 2024-03-05T14:30:00+08:00, 2024-03-05 14:30 Asia/Tokyo, 14:30, today, tomorrow, "
    "2024年3月5日下午3点20分 or seconds since 1970"
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII | re.IGNORECASE)


_NUMBER = _pattern(r"[+-]?\d{9,16}(?:\.\d{1,9})?")
_DAY = _pattern(
    rf"(?P<relative>{'|'.join(_RELATIVE_DAYS)})(?![a-z])"
    r"|(?P<iso>\d{4}-?W\d\d(?:-?\d)?|\d{8})(?!\d)"
    r"|(?P<year>\d{4}) ?[-/.年] ?(?P<month>\d{1,2}) ?[-/.月] ?(?P<day>\d{1,2})(?!\d) ?[日号]?"
)
_DAY_OR_MONTH_FIRST = _pattern(r"\d{1,2}([-/.])\d{1,2}\1\d{2,4}")
_SEPARATOR = _pattern(r"T(?=\d)|,? ?")
_PERIOD = _pattern(rf"({'|'.join(_PERIODS)}) ?")
_SECOND = r"(?P<second>\d\d(?:[.,]\d{1,9})?)"
_CLOCKS = (
    _pattern(rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::{_SECOND})?(?!\d)"),
    _pattern(
        r"(?P<hour>\d{1,2}) ?[点时](?:[钟整]|(?P<half>半)| ?(?P<minute>\d{1,2})(?!\d) ?分?)?"
        r"(?: ?(?P<second>\d{1,2}) ?秒)?"
    ),
)
_CLOCK_WITHOUT_COLONS = _pattern(rf"(?P<hour>\d\d)(?:(?P<minute>\d\d)(?:{_SECOND})?)?(?!\d)")
"""Read only after a day: without one it could be a year."""


def read_moment(value: str | int | float, *, zone: tzinfo | None, now: datetime, default: tzinfo = UTC) -> Reading:
    """Read a text, or seconds or milliseconds since 1970.

    `zone` is the zone of the result, and of a text that names no zone; `default` replaces a missing zone.
    """
    if not isinstance(value, str):
        return _from_number(value, zone or default)
    text = _tidy(value)
    if _NUMBER.fullmatch(text):
        return _from_number(Decimal(text), zone or default)
    if text.lower() in ("now", "现在"):
        return Reading(in_zone(now, zone or default))
    if _DAY_OR_MONTH_FIRST.match(text):
        raise InvalidInputError(f"{_quoted(value)} can be read in two ways; write the year first, as 2024-03-05")
    return _from_text(text, zone, now, default)


def _from_number(number: int | float | Decimal, zone: tzinfo) -> Reading:
    if not -(10**15) <= number <= 10**15:  # also rejects NaN
        raise InvalidInputError("As a number, give seconds or milliseconds since 1970, within the years 1 to 9999")
    milliseconds = number >= MILLISECONDS_FROM or number <= -MILLISECONDS_FROM
    microseconds = round(Decimal(number) * (1000 if milliseconds else 1_000_000))
    unit = "milliseconds" if milliseconds else "seconds"
    return Reading(_later(_EPOCH, microseconds, zone), (f"read as {unit} since 1970",))


def _from_text(text: str, zone: tzinfo | None, now: datetime, default: tzinfo) -> Reading:
    day = _DAY.match(text)
    tail = _SEPARATOR.sub("", text[day.end() :], count=1) if day else text
    period = _PERIOD.match(tail)
    tail = tail[period.end() :] if period else tail
    clocks = (*_CLOCKS, _CLOCK_WITHOUT_COLONS) if day else _CLOCKS
    clock = next((match for pattern in clocks if (match := pattern.match(tail))), None)
    if (day is None or period) and clock is None:
        raise InvalidInputError(f"{_quoted(text)} is not a date or time; {_FORMATS}")
    try:
        stated = find_zone(zone_text) if (zone_text := (tail[clock.end() :] if clock else tail).strip()) else None
    except InvalidInputError as error:
        raise InvalidInputError(f"{_quoted(text)} cannot be read to its end; {_FORMATS}. {error.message}") from error
    own = stated or zone or default
    notes = () if stated or zone else (f"no zone given; read in {zone_name(default)}",)
    today = in_zone(now, own)
    if day is None:
        notes = (f"no day given; today, {today.date()}, was taken", *notes)
    try:
        iso_day, iso_clock = _iso_day(day, today), _iso_clock(clock, period[1] if period else None)
        ends = iso_clock == "24:00:00"
        naive = datetime.fromisoformat(f"{iso_day}T{'00:00:00' if ends else iso_clock}") + timedelta(days=ends)
    except ValueError as error:
        raise InvalidInputError(f"{_quoted(text)} is not in the calendar or on the clock: {error}") from error
    except OverflowError as error:
        raise InvalidInputError(_OUT_OF_CALENDAR) from error
    moment, changed = _at_local_time(naive, own)
    return Reading(in_zone(moment, zone or own), (*notes, *changed))


def _iso_day(day: re.Match[str] | None, today: datetime) -> str:
    if day is None:
        return today.date().isoformat()
    if day["relative"]:
        return (today.date() + timedelta(days=_RELATIVE_DAYS[day["relative"].lower()])).isoformat()
    return day["iso"] or f"{day['year']}-{day['month']:0>2}-{day['day']:0>2}"


def _iso_clock(clock: re.Match[str] | None, period: str | None) -> str:
    if clock is None:
        return "00:00:00"
    hour, minute = int(clock["hour"]), clock["minute"] or "0"
    if period is not None:
        candidates = (hour, hour + 12, hour % 12) if hour <= 12 else (hour,)
        if not (hours := [candidate for candidate in candidates if candidate in _PERIODS[period]]):
            raise ValueError(f"{period} has no hour {hour}")
        hour = hours[0]
    if clock.groupdict().get("half"):
        minute = "30"
    return f"{hour:02}:{minute:0>2}:{clock['second'] or '0':0>2}"


# ---------------------------------------------------------------------------------------------------------------- zones
_OFFSET = _pattern(r"(?:utc|gmt)? ?([+-])(\d{1,2})(?::?([0-5]\d)(?::?([0-5]\d))?)?")
_CHINA = frozenset({"beijing", "china", "北京", "上海", "中国"})
_MACHINE_ZONES = frozenset({"localtime", "Factory"})
"""Names that mean the zone of this machine, or none."""


def find_zone(text: str) -> tzinfo:
    """Find a zone by its IANA name, the city in that name, or an offset."""
    name = _tidy(text).lower().removesuffix("时间").removesuffix(" time").strip()
    if name in ("utc", "gmt", "z"):
        return UTC
    if offset := _OFFSET.fullmatch(name):
        return _fixed_offset(text, *offset.groups(default="0"))
    if name in _CHINA:
        return ZoneInfo("Asia/Shanghai")
    known, key = _zone_names(), name.replace(" ", "_")
    found = known.get(key, [])
    if len(found) == 1:
        return ZoneInfo(found[0])
    if not found and name.isascii() and name.isalpha() and len(name) <= 4:
        hint = "abbreviations can mean several zones; write Asia/Shanghai, UTC or +08:00"
        raise InvalidInputError(f"There is no zone {_quoted(text)}; {hint}")
    found = found or [names for near in difflib.get_close_matches(key, known, SUGGESTIONS) for names in known[near]]
    hint = f"did you mean {' or '.join(found[:SUGGESTIONS])}?" if found else "write Asia/Shanghai, UTC or +08:00"
    raise InvalidInputError(f"There is no zone {_quoted(text)}; {hint}")


def zone_name(zone: tzinfo | None) -> str:
    """Return the name of a zone, as `find_zone` reads it."""
    return zone.key if isinstance(zone, ZoneInfo) and zone.key else str(zone).removeprefix("UTC") or "UTC"


def _fixed_offset(text: str, sign: str, hours: str, minutes: str, seconds: str) -> tzinfo:
    offset = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    if offset >= timedelta(days=1):
        raise InvalidInputError(f"{_quoted(text)} is not an offset: it must be less than 24 hours")
    return timezone(-offset if sign == "-" else offset) if offset else UTC


@cache
def _zone_names() -> dict[str, list[str]]:
    """Map every IANA name, and every city, to the zones it can mean; all keys are in lower case."""
    names = sorted(available_timezones() - _MACHINE_ZONES)
    known: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        known[name.rpartition("/")[2].lower()].append(name)
    return dict(known) | {name.lower(): [name] for name in names}


# ------------------------------------------------------------------------------------------------------------ durations
_UNITS = {
    "years": ("months", 12, "year yr yrs y 年"),
    "quarters": ("months", 3, "quarter 季度 个季度"),
    "months": ("months", 1, "month mo mos 月 个月"),
    "weeks": ("days", 7, "week wk wks w 周 星期 个星期 礼拜 个礼拜"),
    "days": ("days", 1, "day d 天 日"),
    "hours": ("microseconds", 3_600_000_000, "hour hr hrs h 小时 个小时 钟头 个钟头"),
    "minutes": ("microseconds", 60_000_000, "minute min mins 分 分钟"),
    "seconds": ("microseconds", 1_000_000, "second sec secs s 秒 秒钟"),
    "milliseconds": ("microseconds", 1000, "millisecond ms 毫秒"),
}
_UNIT_OF = {word: unit for unit, (_, _, words) in _UNITS.items() for word in (unit, *words.split())}
_WORDS = re.compile(r"([+-]?) ?([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([^\W\d_]+)(?:,? and |, ?| )?", re.IGNORECASE)
_ISO_TERM = _pattern(r"([+-]?)(\d{1,12}(?:[.,]\d{1,9})?)([A-Z])")
_ISO_AMOUNT = r"[+-]?\d{1,12}(?:[.,]\d{1,9})?"
_ISO = _pattern(rf"(?P<sign>[+-]?)P(?P<date>(?:{_ISO_AMOUNT}[YMWD])*)(?:T(?P<time>(?:{_ISO_AMOUNT}[HMS])+))?")
_ISO_DATE = {"y": "years", "m": "months", "w": "weeks", "d": "days"}
_ISO_TIME = {"h": "hours", "m": "minutes", "s": "seconds"}
_ENDINGS = {" ago": -1, "之前": -1, "以前": -1, "前": -1, " later": 1, " from now": 1, "之后": 1, "以后": 1, "后": 1}


def read_duration(text: str) -> Duration:
    """Read a duration such as `P1Y2M3DT4H`, `1 month -2 days`, `3 days ago` or `2小时`."""
    tidy = _tidy(text)
    totals = {"months": 0, "days": 0, "microseconds": 0}
    for amount, unit in _iso_terms(tidy) or _word_terms(tidy):
        measure, size, _ = _UNITS[unit]
        if measure != "microseconds" and amount != int(amount):
            raise InvalidInputError(f"{_quoted(text)}: {unit} must be whole numbers; write the fraction in hours")
        totals[measure] += int(amount * size)
    return Duration(**totals)


def _iso_terms(text: str) -> list[tuple[Decimal, str]]:
    found = _ISO.fullmatch(text)
    if found is None:
        return []
    return [
        (_signed(number, sign) * _signed("1", found["sign"]), units[letter.lower()])
        for section, units in ((found["date"], _ISO_DATE), (found["time"] or "", _ISO_TIME))
        for sign, number, letter in _ISO_TERM.findall(section)
    ]


def _word_terms(text: str) -> list[tuple[Decimal, str]]:
    """Read amounts with units. A sign applies until the next one: `-1 day 2 hours` subtracts both."""
    ending = next((ending for ending in _ENDINGS if text.lower().endswith(ending)), "")
    direction = _ENDINGS.get(ending, 1)
    tail, sign = text[: len(text) - len(ending)], ""
    terms: list[tuple[Decimal, str]] = []
    while found := _WORDS.match(tail):
        sign = found[1] or sign
        word = found[3].lower()
        unit = "minutes" if word == "m" and terms and terms[-1][1] == "hours" else _UNIT_OF.get(word)
        if unit is None:
            hint = "minutes or months?" if word == "m" else "use years, months, weeks, days, hours, minutes, seconds"
            raise InvalidInputError(f"{_quoted(text)}: {_quoted(word)} is not a unit of time; {hint}")
        terms.append((_signed(found[2], sign) * direction, unit))
        tail = tail[found.end() :]
    if tail or not terms:
        raise InvalidInputError(f"{_quoted(text)} is not a duration; write '3 days', '-2 weeks' or P1Y2M3DT4H")
    return terms


def _signed(number: str, sign: str) -> Decimal:
    amount = Decimal(number.replace(",", "."))
    return -amount if sign == "-" else amount


def in_words(duration: Duration) -> str:
    """Render a duration that is not negative, as `read_duration` reads it."""
    years, months = divmod(duration.months, 12)
    seconds, fraction = divmod(duration.microseconds, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    counts = {"year": years, "month": months, "day": duration.days, "hour": hours, "minute": minutes}
    words = [f"{count} {unit}{'' if count == 1 else 's'}" for unit, count in counts.items() if count]
    if fraction:
        words.append(f"{seconds}.{fraction:06}".rstrip("0") + " seconds")
    elif seconds or not words:
        words.append(f"{seconds} second{'' if seconds == 1 else 's'}")
    return " ".join(words)


# -------------------------------------------------------------------------------------------------- calendar arithmetic
@contextmanager
def _calendar_errors() -> Iterator[None]:
    try:
        yield
    except (OverflowError, ValueError) as error:
        raise InvalidInputError(_OUT_OF_CALENDAR) from error


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    with _calendar_errors():
        return moment.astimezone(UTC).astimezone(zone)


def elapsed(earlier: datetime, later: datetime) -> timedelta:
    """Return the time that passes. `later - earlier` ignores clock changes if both have the same zone."""
    return later.astimezone(UTC) - earlier.astimezone(UTC)


def timestamp(moment: datetime) -> int:
    """Return milliseconds since 1970, rounded down."""
    return elapsed(_EPOCH, moment) // timedelta(milliseconds=1)


def shift(moment: datetime, duration: Duration, zone: tzinfo) -> Reading:
    """Add a duration in a zone. Months and days keep the local time. Hours and smaller units are elapsed time."""
    local = in_zone(moment, zone)
    notes: tuple[str, ...] = ()
    if duration.months or duration.days:
        naive, shortened = _add_to_local_time(local.replace(tzinfo=None, fold=0), duration)
        local, changed = _at_local_time(naive, zone)
        notes = (*shortened, *changed)
    return Reading(_later(local, duration.microseconds, zone), notes)


def between(earlier: datetime, later: datetime, zone: tzinfo) -> Duration:
    """Return the duration that `shift` leads from one moment to the other, in the largest units possible."""
    start, end = in_zone(earlier, zone), in_zone(later, zone)
    # If clocks go back across midnight, the later moment can have the earlier date.
    months = max(0, (end.year - start.year) * 12 + end.month - start.month)
    while months and _leads_past(start, Duration(months=months), end, zone):
        months -= 1
    reached, _ = _add_to_local_time(start.replace(tzinfo=None), Duration(months=months))
    days = max(0, (end.date() - reached.date()).days)
    while days and _leads_past(start, Duration(months=months, days=days), end, zone):
        days -= 1
    reached, _ = shift(start, Duration(months=months, days=days), zone)
    return Duration(months=months, days=days, microseconds=elapsed(reached, end) // timedelta(microseconds=1))


def _leads_past(start: datetime, duration: Duration, end: datetime, zone: tzinfo) -> bool:
    return elapsed(shift(start, duration, zone)[0], end) < timedelta()


def _add_to_local_time(naive: datetime, duration: Duration) -> Reading:
    year, month = divmod(naive.year * 12 + naive.month - 1 + duration.months, 12)
    month += 1
    with _calendar_errors():
        last = monthrange(year, month)[1]
        moved = naive.replace(year=year, month=month, day=min(naive.day, last)) + timedelta(days=duration.days)
    is_short = naive.day > last
    return Reading(moved, (f"{year:04}-{month:02} has no day {naive.day}; its last was taken",) if is_short else ())


def _at_local_time(naive: datetime, zone: tzinfo) -> Reading:
    """Return the moment at which clocks of a zone show a time, with a note if they skip or repeat it."""
    first, second = naive.replace(tzinfo=zone, fold=0), naive.replace(tzinfo=zone, fold=1)
    moment = in_zone(first, zone)
    before, after = first.utcoffset() or timedelta(), second.utcoffset() or timedelta()
    if before == after:
        return Reading(moment)
    shown = f"{naive.isoformat(' ')} in {zone_name(zone)}"
    if before < after:
        taken = moment.replace(tzinfo=None).isoformat(" ")
        note = f"{shown} does not exist, clocks go forward over it; {taken} was taken"
    else:
        note = f"{shown} happens twice, clocks go back; the first was taken, the second is {second.isoformat()}"
    return Reading(moment, (note,))


def _later(moment: datetime, microseconds: int, zone: tzinfo) -> datetime:
    with _calendar_errors():
        return in_zone(moment.astimezone(UTC) + timedelta(microseconds=microseconds), zone)


# ----------------------------------------------------------------------------------------------------------------- text
def _tidy(text: str) -> str:
    """Replace full-width characters by plain ones and collapse spaces."""
    plain = normalize("NFKC", text[: MAX_CHARACTERS + 1]).replace("\N{MINUS SIGN}", "-")
    if len(text) > MAX_CHARACTERS or len(plain) > MAX_CHARACTERS:
        raise InvalidInputError(f"{_quoted(text)} is too long: at most {MAX_CHARACTERS} characters")
    return " ".join(plain.split())


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "…")
