"""The time of day at the start of a text: `14:30:05.25`, `2:30 pm`, `T1430`, `下午3点20分`."""

import re
from dataclasses import dataclass
from datetime import timedelta

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.text import quoted

_MORNING = ("凌晨", "清晨", "早上", "早晨", "上午")
_EVENING = ("傍晚", "晚上", "夜里")
_PERIOD = re.compile(rf" ?({'|'.join((*_MORNING, '中午', '下午', *_EVENING))}) ?")
_FRACTION = r"(?:[.,](?P<fraction>\d{1,9}))?"
_COLONS = rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::(?P<second>\d\d){_FRACTION})?(?!\d)"
_HALF = r" ?(?P<half>[ap])\.?m\b\.?"
_FLAGS = re.ASCII | re.IGNORECASE
_SHAPES = (
    re.compile(rf"{_COLONS}(?:{_HALF})?", _FLAGS),
    re.compile(rf"(?P<hour>\d{{1,2}}){_HALF}", _FLAGS),
    re.compile(
        r"(?P<hour>\d{1,2}) ?[点时](?:钟|整|(?P<thirty>半)| ?(?P<minute>\d{1,2})(?!\d)(?: ?分)?)?"
        r"(?: ?(?P<second>\d{1,2}) ?秒)?",
        _FLAGS,
    ),
)
_WITHOUT_COLONS = re.compile(rf"(?P<hour>\d\d)(?:(?P<minute>\d\d)(?:(?P<second>\d\d){_FRACTION})?)?(?!\d)", _FLAGS)
"""Only behind a day: alone it could be a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A time of day, and what follows it in the text."""

    since_midnight: timedelta
    """On the wall; 24:00 and a leap second reach into the next day."""
    rest: str
    notes: tuple[str, ...] = ()


def take_clock(text: str, *, behind_a_day: bool) -> Clock | None:
    """The time of day at the start of a text; None where it starts with none.

    Raises:
        InvalidInputError: there is one that no clock shows.
    """
    period = _PERIOD.match(text)
    shown = text[period.end() :] if period else text
    shapes = (*_SHAPES, _WITHOUT_COLONS) if behind_a_day else _SHAPES
    found = next((match for shape in shapes if (match := shape.match(shown))), None)
    if found is None:
        return None
    parts = found.groupdict()
    hour = int(parts["hour"])
    minute = 30 if parts.get("thirty") else int(parts.get("minute") or 0)
    second = int(parts.get("second") or 0)
    if half := parts.get("half"):
        hour = _of_half_a_day(hour, half.lower(), text)
    if period:
        hour = _of_period(hour, period[1], text)
    if hour > 24 or minute > 59 or second > 60 or (hour == 24 and (minute or second)):
        raise InvalidInputError(f"{quoted(text)}: no clock shows {hour}:{minute:02}:{second:02}")
    microsecond = int((parts.get("fraction") or "0").ljust(6, "0")[:6])
    return Clock(
        since_midnight=timedelta(hours=hour, minutes=minute, seconds=second, microseconds=microsecond),
        rest=shown[found.end() :],
        notes=("a leap second was read as the second after it",) if second == 60 else (),
    )


def _of_half_a_day(hour: int, half: str, text: str) -> int:
    if not 1 <= hour <= 12:
        raise InvalidInputError(f"{quoted(text)}: with am or pm the hour is 1 to 12")
    return hour % 12 + (12 if half == "p" else 0)


def _of_period(hour: int, period: str, text: str) -> int:
    if period in _MORNING:
        if hour > 12:
            raise InvalidInputError(f"{quoted(text)}: {period} ends at 12")
        return hour % 12
    if period in _EVENING and hour == 12:
        return 24
    if hour >= 12 or (period == "中午" and hour in (10, 11)):
        return hour
    return hour + 12
