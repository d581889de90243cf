"""The day at the start of a text: year first, with its month as a word, in Chinese, or as today and its neighbours."""

import re
from calendar import isleap
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.text import quoted

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_NEIGHBOURS = {
    **{"today": 0, "tomorrow": 1, "yesterday": -1},
    **{"今天": 0, "今日": 0, "明天": 1, "明日": 1, "后天": 2, "昨天": -1, "昨日": -1, "前天": -2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day as it was written, and what follows it in the text."""

    fixed: date | None
    """None where it depends on today."""
    days_from_today: int = 0
    weekday: int | None = None
    """The weekday that was written beside it; Monday is 0."""
    rest: str = ""


def take_day(text: str) -> Day | None:
    """The day at the start of a text; None where it starts with no day.

    Raises:
        InvalidInputError: there is a day that the calendar has not, or that can be read in two ways.
    """
    text = _YEAR_AT_THE_END.sub(r"\2 \1 \5 \3\4", text, count=1)
    weekday = None
    if before := _WEEKDAY_BEFORE.match(text):
        weekday = next(i for i, name in enumerate(WEEKDAYS) if name.lower().startswith(before[1].lower()))
        text = text[before.end() :]
    if _DAY_OR_MONTH_FIRST.match(text):
        raise InvalidInputError(
            f"{quoted(text)} can be read in two ways; write the year first, as 2024-03-05, or the month as a word"
        )
    for shape, make in _SHAPES:
        if found := shape.match(text):
            try:
                day = replace(make(found), rest=text[found.end() :])
            except (OverflowError, ValueError) as error:
                raise InvalidInputError(f"{quoted(text)} is no day of the calendar: {error}") from error
            return _with_weekday_after(replace(day, weekday=weekday))
    return None


def _with_weekday_after(day: Day) -> Day:
    if after := _WEEKDAY_AFTER.match(day.rest):
        return replace(day, weekday="一二三四五六日".index(after[1].replace("天", "日")), rest=day.rest[after.end() :])
    return day


def _numbers(found: re.Match[str]) -> Day:
    return Day(fixed=date(int(found["year"]), int(found["month"]), int(found["day"])))


def _month_word(found: re.Match[str]) -> Day:
    word = found["month"].lower()
    month = next((number for number, name in enumerate(_MONTHS, 1) if name.startswith(word)), None)
    if month is None:
        raise ValueError(f"{word} is no month")
    return Day(fixed=date(int(found["year"]), month, int(found["day"])))


def _week(found: re.Match[str]) -> Day:
    return Day(fixed=date.fromisocalendar(int(found["year"]), int(found["week"]), int(found["day"] or 1)))


def _ordinal(found: re.Match[str]) -> Day:
    year, number = int(found["year"]), int(found["day"])
    if not 1 <= number <= 365 + isleap(year):
        raise ValueError(f"{year} has no day {number}")
    return Day(fixed=date(year, 1, 1) + timedelta(days=number - 1))


def _neighbour(found: re.Match[str]) -> Day:
    return Day(fixed=None, days_from_today=_NEIGHBOURS[found[0].lower()])


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII | re.IGNORECASE)


_YEAR = r"(?P<year>\d{4})"
_MONTH_WORD = r"(?P<month>[a-z]{3,9})"
_DAY_NUMBER = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_SHAPES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Day]], ...] = (
    (_pattern(_YEAR + r"(?P<sign>[-/.])(?P<month>\d{1,2})(?P=sign)(?P<day>\d{1,2})(?!\d)"), _numbers),
    (_pattern(_YEAR + r"(?P<month>\d\d)(?P<day>\d\d)(?!\d)"), _numbers),
    (_pattern(_YEAR + r" ?年 ?(?P<month>\d{1,2}) ?月 ?(?P<day>\d{1,2})(?!\d) ?[日号]?"), _numbers),
    (_pattern(_YEAR + r"-?W(?P<week>\d\d)(?:-?(?P<day>[1-7]))?(?!\d)"), _week),
    (_pattern(_YEAR + r"-(?P<day>\d{3})(?!\d)"), _ordinal),
    (_pattern(rf"{_DAY_NUMBER}[ -](?:of )?{_MONTH_WORD}\.?,?[ -]{_YEAR}(?!\d)"), _month_word),
    (_pattern(rf"{_MONTH_WORD}\.? {_DAY_NUMBER},? {_YEAR}(?!\d)"), _month_word),
    (_pattern(rf"(?:{'|'.join(_NEIGHBOURS)})(?![a-z])"), _neighbour),
)
_DAY_OR_MONTH_FIRST = _pattern(r"\d{1,2}([-/.])\d{1,2}\1\d{2,4}(?!\d)")
_WEEKDAY_BEFORE = _pattern(r"(mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs?|ur)?(?:day)?\.?,? ")
_WEEKDAY_AFTER = _pattern(r" ?\(?(?:星期|周|礼拜)([一二三四五六日天])\)?")
_YEAR_AT_THE_END = _pattern(r"\b([a-z]{3}) (\d{1,2}) (\d\d:\d\d:\d\d)( [a-z]{3,4})? (\d{4})\b")
"""As `date`, `ctime` and version control write it: `Tue Mar 5 14:30:00 2024`."""
