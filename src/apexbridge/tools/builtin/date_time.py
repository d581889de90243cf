"""The tool `datetime`: the current time, and reading, converting, shifting and comparing moments."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat, StrictInt, WithJsonSchema

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates import (
    between,
    elapsed,
    find_zone,
    in_words,
    in_zone,
    read_duration,
    read_moment,
    shift,
    timestamp,
    zone_name,
)
from apexbridge.tools.tool import Tool, ToolContext
from apexbridge.wire import WireInput

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Action = Literal["now", "parse", "convert", "add", "compare"]
Written = Annotated[str | StrictInt | StrictFloat | None, WithJsonSchema({"type": ["string", "number"]})]
_EVERYWHERE = {"zone", "to"}
_FIELDS: dict[Action, set[str]] = {
    "now": _EVERYWHERE,
    "parse": _EVERYWHERE | {"value"},
    "convert": _EVERYWHERE | {"value"},
    "add": _EVERYWHERE | {"value", "add"},
    "compare": _EVERYWHERE | {"value", "other"},
}
_NEEDED: dict[Action, str] = {"parse": "value", "convert": "to", "add": "add", "compare": "other"}


class DatetimeInput(WireInput):
    """What to find out."""

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
    """Return a moment, or a comparison of two."""
    given = {name: value for name, value in args if value not in (None, "")}
    action = _action(given)
    zone = find_zone(given["zone"]) if "zone" in given else None
    now = datetime.now(UTC)
    read = read_moment(given.get("value", "now"), zone=zone, now=now)
    moment, notes = read.moment, read.notes
    own = moment.tzinfo or UTC
    if action == "add":
        moment, more = shift(moment, read_duration(given["add"]), own)
        notes = (*notes, *more)
    if "to" in given:
        moment = in_zone(moment, find_zone(given["to"]))
    if action == "compare":
        other = read_moment(given["other"], zone=zone, now=now, default=own)
        notes = (*notes, *(f"other: {note}" for note in other.notes))
        return _result(moment, _comparison(moment, other.moment), notes)
    return _result(moment, _calendar(moment), notes)


def _action(given: dict[str, Any]) -> Action:
    """Return the requested action, or the one that the fields imply."""
    implied: Action = "now"
    for candidate, field in _NEEDED.items():
        if field in given:
            implied = candidate
    action: Action = given.get("action", implied)
    surplus = sorted(given.keys() - _FIELDS[action] - {"action"})
    if surplus:
        raise InvalidInputError(f"{action} does not use {', '.join(surplus)}; leave it out, or choose another action")
    if action in _NEEDED and _NEEDED[action] not in given:
        raise InvalidInputError(f"{action} needs `{_NEEDED[action]}`")
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
