"""Reading a text or a number as a moment."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from decimal import Decimal

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.clocks import Clock, take_clock
from apexbridge.tools.builtin.dates.days import WEEKDAYS, Day, take_day
from apexbridge.tools.builtin.dates.text import quoted, tidy
from apexbridge.tools.builtin.dates.wallclock import OUT_OF_CALENDAR, at_timestamp, in_zone, place
from apexbridge.tools.builtin.dates.zones import find_zone, name_of

MILLISECONDS_FROM = 10**11
"""Numbers from here on are milliseconds since 1970, smaller ones seconds: as seconds this is the year 5138."""
_LARGEST_NUMBER = 10**15
_NOW = {"now", "现在", "此刻"}
_EPOCH = re.compile(r"[+-]?\d{9,16}(?:\.\d{1,9})?", re.ASCII)
_BETWEEN_DAY_AND_CLOCK = re.compile(r"T(?=\d)|,? ?(?:at )?", re.IGNORECASE)
_REMARK = re.compile(r" ?\([^()]*\)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A moment in its zone, and what must be said about how it was read."""

    moment: datetime
    notes: tuple[str, ...] = ()


def read_moment(value: str | int | float, *, zone: tzinfo | None, now: datetime, default: tzinfo = UTC) -> Reading:
    """The moment that a value means.

    Args:
        value: a text, or seconds or milliseconds since 1970.
        zone: where clocks show it, unless the text itself names a zone; the moment is told in this zone.
        now: the present.
        default: the zone where none is given at all.

    Raises:
        InvalidInputError: it is no moment, can be read in two ways, or lies outside the years 1 to 9999.
    """
    if not isinstance(value, str):
        return _from_number(value, zone or default)
    text = tidy(value)
    if _EPOCH.fullmatch(text):
        return _from_number(Decimal(text), zone or default)
    if text.lower() in _NOW:
        return Reading(moment=in_zone(now, zone or default))
    return _from_words(value, text, zone=zone, now=now, default=default)


def _from_number(number: int | float | Decimal, zone: tzinfo) -> Reading:
    if not -_LARGEST_NUMBER <= number <= _LARGEST_NUMBER:  # so written, it also refuses what is no number
        raise InvalidInputError("As a number, give seconds or milliseconds since 1970, within the years 1 to 9999")
    are_milliseconds = number >= MILLISECONDS_FROM or number <= -MILLISECONDS_FROM
    microseconds = round(Decimal(number) * (1000 if are_milliseconds else 1_000_000))
    unit = "milliseconds" if are_milliseconds else "seconds"
    return Reading(moment=at_timestamp(microseconds, zone), notes=(f"read as {unit} since 1970",))


def _from_words(value: str, text: str, *, zone: tzinfo | None, now: datetime, default: tzinfo) -> Reading:
    day = take_day(text)
    rest = text
    if day is not None:
        join = _BETWEEN_DAY_AND_CLOCK.match(day.rest)
        rest = day.rest[join.end() if join else 0 :]
    clock = take_clock(rest, behind_a_day=day is not None)
    if day is None and clock is None:
        raise InvalidInputError(f"{quoted(value)} is no date or time that can be read; {_hint(text)}")
    try:
        stated, bracketed = _zones_in(clock.rest if clock else rest)
    except InvalidInputError as error:
        raise InvalidInputError(f"{quoted(value)} cannot be read to its end. {error.message}") from error
    own = stated or bracketed
    where = own or zone or default
    wall, notes = _on_the_wall(day, clock, in_zone(now, where))
    moment, changed = place(wall, where)
    if own is None and zone is None:
        notes = (*notes, f"no zone given; read in {name_of(default)}")
    if stated and bracketed and in_zone(moment, bracketed).utcoffset() != moment.utcoffset():
        notes = (*notes, f"{name_of(bracketed)} is not at {name_of(stated)} then; {name_of(stated)} was taken")
    return Reading(moment=in_zone(moment, zone or bracketed or where), notes=(*notes, *changed))


def _on_the_wall(day: Day | None, clock: Clock | None, now: datetime) -> tuple[datetime, tuple[str, ...]]:
    notes = clock.notes if clock else ()
    try:
        if day is None:
            date = now.date()
            notes = (*notes, f"no day given; today, {date.isoformat()}, was taken")
        else:
            date = day.fixed or now.date() + timedelta(days=day.days_from_today)
            if day.weekday not in (None, date.weekday()):
                notes = (*notes, f"{date.isoformat()} is a {WEEKDAYS[date.weekday()]}, not the weekday given")
        return datetime.combine(date, time()) + (clock.since_midnight if clock else timedelta()), notes
    except OverflowError as error:
        raise InvalidInputError(OUT_OF_CALENDAR) from error


def _zones_in(text: str) -> tuple[tzinfo | None, tzinfo | None]:
    """What stands behind the time: an offset or zone, then maybe a zone in brackets; remarks in parentheses go."""
    text = _REMARK.sub("", text).strip(" ,")
    named = None
    if text.endswith("]"):
        text, _, name = text[:-1].rpartition("[")
        named = find_zone(name)
    return find_zone(text) if text.strip() else None, named


def _hint(text: str) -> str:
    if text.isdigit():
        return "give seconds since 1970 as a number, or a whole date as 2024-03-05"
    return "write it as 2024-03-05 14:30, '5 March 2024' or 2024-03-05T14:30:00+08:00"
