"""Durations as they are written: `P1Y2M3DT4H`, `1 month -2 days`, `3 days ago`, `2小时`."""

import re
from dataclasses import dataclass
from decimal import Decimal

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.text import quoted, tidy

MAX_YEARS = 10_000
_SECOND = 1_000_000
_DAY_MICROSECONDS = 24 * 60 * 60 * _SECOND
_UNITS: dict[str, tuple[str, int]] = {
    "years": ("months", 12),
    "quarters": ("months", 3),
    "months": ("months", 1),
    "weeks": ("days", 7),
    "days": ("days", 1),
    "hours": ("microseconds", 3600 * _SECOND),
    "minutes": ("microseconds", 60 * _SECOND),
    "seconds": ("microseconds", _SECOND),
    "milliseconds": ("microseconds", 1000),
}
_SPELLINGS = {
    "years": "year yr yrs y 年",
    "quarters": "quarter 季度 个季度",
    "months": "month mo mos 月 个月",
    "weeks": "week wk wks w 周 星期 个星期 礼拜 个礼拜",
    "days": "day d 天 日",
    "hours": "hour hr hrs h 小时 个小时 钟头 个钟头",
    "minutes": "minute min mins 分 分钟",
    "seconds": "second sec secs s 秒 秒钟",
    "milliseconds": "millisecond ms 毫秒",
}
_UNIT_OF = {word: unit for unit, words in _SPELLINGS.items() for word in (unit, *words.split())}
_NUMBER = r"(\d{1,12}(?:[.,]\d{1,9})?)"
_WORDS = re.compile(r"([+-]?) ?([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([^\W\d_]+)(?:,? and |, ?| )?", re.IGNORECASE)
_ISO_DATE = "".join(rf"(?:([+-]?){_NUMBER}{letter})?" for letter in "YMWD")
_ISO_TIME = "".join(rf"(?:([+-]?){_NUMBER}{letter})?" for letter in "HMS")
_ISO = re.compile(rf"([+-]?)P{_ISO_DATE}(?:T{_ISO_TIME})?", re.ASCII | re.IGNORECASE)
_ISO_UNITS = ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
_BACK = (" ago", "之前", "以前", "前")
_ON = (" later", " from now", "之后", "以后", "后")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A span in the three measures that cannot be turned into one another."""

    months: int = 0
    days: int = 0
    microseconds: int = 0


def read_duration(text: str) -> Duration:
    """The duration that a text means.

    Raises:
        InvalidInputError: it is none, or longer than the calendar.
    """
    plain = tidy(text)
    parts = _iso_parts(plain) or _word_parts(text, plain)
    totals = {"months": 0, "days": 0, "microseconds": 0}
    for amount, unit in parts:
        measure, size = _UNITS[unit]
        scaled = amount * size
        if measure != "microseconds" and amount != int(amount):
            raise InvalidInputError(f"{quoted(text)}: {unit} are whole numbers; write the rest in hours")
        totals[measure] += int(scaled)
    longest = {"months": 12 * MAX_YEARS, "days": 366 * MAX_YEARS, "microseconds": 366 * MAX_YEARS * _DAY_MICROSECONDS}
    if any(abs(total) > longest[measure] for measure, total in totals.items()):
        raise InvalidInputError(f"{quoted(text)} is too long: at most {MAX_YEARS} years")
    return Duration(**totals)


def _iso_parts(plain: str) -> list[tuple[Decimal, str]]:
    found = _ISO.fullmatch(plain)
    if not found:
        return []
    overall, *pairs = found.groups()
    numbers = zip(pairs[::2], pairs[1::2], _ISO_UNITS, strict=True)
    return [(_signed(number, sign) * _signed("1", overall), unit) for sign, number, unit in numbers if number]


def _word_parts(text: str, plain: str) -> list[tuple[Decimal, str]]:
    """Amounts with their units; a sign holds until the next one, so `-1 day 2 hours` goes back for both."""
    ending = next((ending for ending in (*_BACK, *_ON) if plain.lower().endswith(ending)), "")
    rest = plain[: len(plain) - len(ending)]
    sign = ""
    parts: list[tuple[Decimal, str]] = []
    while found := _WORDS.match(rest):
        sign = found[1] or sign
        word = found[3].lower()
        unit = "minutes" if word == "m" and parts and parts[-1][1] == "hours" else _UNIT_OF.get(word)
        if unit is None:
            hint = "minutes or months?" if word == "m" else "use years, months, weeks, days, hours, minutes, seconds"
            raise InvalidInputError(f"{quoted(text)}: {quoted(word)} is no unit of time; {hint}")
        parts.append((_signed(found[2], sign), unit))
        rest = rest[found.end() :]
    if rest or not parts:
        raise InvalidInputError(f"{quoted(text)} is no duration; write '3 days', '-2 weeks' or P1Y2M3DT4H")
    return [(-amount, unit) for amount, unit in parts] if ending in _BACK else parts


def _signed(number: str, sign: str) -> Decimal:
    amount = Decimal(number.replace(",", "."))
    return -amount if sign == "-" else amount
