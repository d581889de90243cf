"""From what a clock on the wall shows to a moment and back, with a word where the clock was changed."""

from datetime import UTC, datetime, timedelta, tzinfo

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.zones import name_of

OUT_OF_CALENDAR = "This leads out of the calendar: only the years 1 to 9999 can be used"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """The same moment as clocks of another zone show it.

    Raises:
        InvalidInputError: it lies outside the years 1 to 9999 there.
    """
    try:
        return moment.astimezone(UTC).astimezone(zone)
    except (OverflowError, ValueError) as error:
        raise InvalidInputError(OUT_OF_CALENDAR) from error


def place(wall: datetime, zone: tzinfo) -> tuple[datetime, tuple[str, ...]]:
    """The moment at which clocks of a zone show this, and what must be said if they never do, or do it twice.

    Raises:
        InvalidInputError: it lies outside the years 1 to 9999.
    """
    first, second = wall.replace(tzinfo=zone, fold=0), wall.replace(tzinfo=zone, fold=1)
    moment = in_zone(first, zone)
    before, after = first.utcoffset() or timedelta(), second.utcoffset() or timedelta()
    if before == after:
        return moment, ()
    shown = f"{wall.isoformat(' ')} in {name_of(zone)}"
    if before < after:
        meant = moment.replace(tzinfo=None).isoformat(" ")
        return moment, (f"{shown} does not exist, clocks are set forward over it; {meant} was taken",)
    return moment, (
        f"{shown} happens twice, clocks are set back; the first was taken, the second is {second.isoformat()}",
    )


def elapsed(earlier: datetime, later: datetime) -> timedelta:
    """The time that really passes between two moments; `later - earlier` would count on the wall within one zone."""
    return later.astimezone(UTC) - earlier.astimezone(UTC)


def timestamp(moment: datetime) -> int:
    """Whole milliseconds since 1970."""
    return elapsed(_EPOCH, moment) // timedelta(milliseconds=1)


def at_timestamp(microseconds: int, zone: tzinfo) -> datetime:
    """The moment so many microseconds after 1970 began.

    Raises:
        InvalidInputError: it lies outside the years 1 to 9999.
    """
    return after(_EPOCH, microseconds, zone)


def after(moment: datetime, microseconds: int, zone: tzinfo) -> datetime:
    """The moment so many microseconds later, whatever clocks do meanwhile.

    Raises:
        InvalidInputError: it lies outside the years 1 to 9999.
    """
    try:
        later = moment.astimezone(UTC) + timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise InvalidInputError(OUT_OF_CALENDAR) from error
    return in_zone(later, zone)
