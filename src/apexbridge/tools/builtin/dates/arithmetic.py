"""The calendar's arithmetic: a duration after a moment, and the duration between two moments."""

from calendar import monthrange
from datetime import datetime, timedelta, tzinfo

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.durations import Duration
from apexbridge.tools.builtin.dates.wallclock import OUT_OF_CALENDAR, after, elapsed, in_zone, place


def shift(moment: datetime, duration: Duration, zone: tzinfo) -> tuple[datetime, tuple[str, ...]]:
    """The moment a duration later in a zone, and what must be said about it.

    Days and what is longer keep the time that clocks show; hours and what is shorter really pass.

    Raises:
        InvalidInputError: it lies outside the years 1 to 9999.
    """
    local = in_zone(moment, zone)
    notes: tuple[str, ...] = ()
    if duration.months or duration.days:
        wall, clamped = _on_the_wall(local.replace(tzinfo=None, fold=0), duration)
        local, changed = place(wall, zone)
        notes = (*clamped, *changed)
    return after(local, duration.microseconds, zone), notes


def between(earlier: datetime, later: datetime, zone: tzinfo) -> Duration:
    """The duration that leads from one moment to a later one by `shift`, with as much of it as can be in months."""
    start, end = in_zone(earlier, zone), in_zone(later, zone)
    # Where clocks are set back at midnight, a later moment can have an earlier date.
    apart = max(0, (end.year - start.year) * 12 + end.month - start.month)
    months = _largest(Duration(months=apart), start, end, zone)
    reached = _on_the_wall(start.replace(tzinfo=None, fold=0), months)[0]
    days = max(0, (end.date() - reached.date()).days)
    whole = _largest(Duration(months=months.months, days=days), start, end, zone)
    rest = elapsed(shift(start, whole, zone)[0], end)
    return Duration(months=whole.months, days=whole.days, microseconds=rest // timedelta(microseconds=1))


def in_words(duration: Duration) -> str:
    """A duration in words, as `read_duration` reads it."""
    years, months = divmod(duration.months, 12)
    seconds, fraction = divmod(duration.microseconds, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    counted = {"year": years, "month": months, "day": duration.days, "hour": hours, "minute": minutes}
    words = [f"{count} {unit}{'' if count == 1 else 's'}" for unit, count in counted.items() if count]
    if fraction:
        words.append(f"{seconds}.{fraction:06}".rstrip("0") + " seconds")
    elif seconds or not words:
        words.append(f"{seconds} second{'' if seconds == 1 else 's'}")
    return " ".join(words)


def _on_the_wall(wall: datetime, duration: Duration) -> tuple[datetime, tuple[str, ...]]:
    year, month = divmod(wall.year * 12 + wall.month - 1 + duration.months, 12)
    month += 1
    if not 1 <= year <= 9999:
        raise InvalidInputError(OUT_OF_CALENDAR)
    last = monthrange(year, month)[1]
    notes = (f"{year:04}-{month:02} has no day {wall.day}; its last was taken",) if wall.day > last else ()
    try:
        return wall.replace(year=year, month=month, day=min(wall.day, last)) + timedelta(days=duration.days), notes
    except OverflowError as error:
        raise InvalidInputError(OUT_OF_CALENDAR) from error


def _largest(guess: Duration, start: datetime, end: datetime, zone: tzinfo) -> Duration:
    """The guess, or a day or month less of it, so that it does not lead beyond the end."""
    wall_start, wall_end = start.replace(tzinfo=None, fold=0), end.replace(tzinfo=None, fold=0)
    while guess.months > 0 or guess.days > 0:
        if _on_the_wall(wall_start, guess)[0] <= wall_end and elapsed(shift(start, guess, zone)[0], end) >= timedelta():
            break
        if guess.days > 0:
            guess = Duration(months=guess.months, days=guess.days - 1)
        else:
            guess = Duration(months=guess.months - 1)
    return guess
