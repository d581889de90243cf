"""Which zone a text means: IANA names, cities, offsets, and the abbreviations that mean one thing only."""

import difflib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.dates.text import quoted, tidy

SUGGESTIONS = 3
_UTC_NAMES = {"utc", "gmt", "z", "ut", "zulu", "世界时", "协调世界时", "格林威治", "格林尼治"}
_OFFSET = re.compile(r"(?:utc|gmt)? ?([+-])(\d{1,2})(?::?([0-5]\d)(?::?([0-5]\d))?)?", re.ASCII | re.IGNORECASE)
_PLACES = {
    "beijing": "Asia/Shanghai",
    "china": "Asia/Shanghai",
    "china standard": "Asia/Shanghai",
    "北京": "Asia/Shanghai",
    "上海": "Asia/Shanghai",
    "中国": "Asia/Shanghai",
    "中国标准": "Asia/Shanghai",
    "香港": "Asia/Hong_Kong",
    "台北": "Asia/Taipei",
    "东京": "Asia/Tokyo",
    "新加坡": "Asia/Singapore",
    "伦敦": "Europe/London",
    "巴黎": "Europe/Paris",
    "柏林": "Europe/Berlin",
    "纽约": "America/New_York",
    "洛杉矶": "America/Los_Angeles",
}
_ABBREVIATIONS = {
    "bst": ("Europe/London", "Asia/Dhaka"),
    "cdt": ("America/Chicago", "America/Havana"),
    "cst": ("Asia/Shanghai", "America/Chicago", "America/Havana"),
    "edt": ("America/New_York",),
    "ist": ("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
    "jst": ("Asia/Tokyo",),
    "mdt": ("America/Denver",),
    "pdt": ("America/Los_Angeles",),
    "pst": ("America/Los_Angeles", "Asia/Manila"),
}
"""What people write for several zones, or for half a year of one."""
_OF_THE_MACHINE = {"localtime", "Factory"}
"""Names that say where this server stands, or nothing."""


def find_zone(text: str) -> tzinfo:
    """The zone that a text names.

    Raises:
        InvalidInputError: there is none of that name; the message tells the nearest.
    """
    name = tidy(text).lower()
    name = name.removesuffix("时间").removesuffix(" time").strip()
    if name in _UTC_NAMES:
        return UTC
    if offset := _OFFSET.fullmatch(name):
        return _fixed(text, *offset.groups(default="0"))
    known = _known_names()
    name = name.replace(" ", "_")
    if key := _PLACES.get(name.replace("_", " ")) or known.keys.get(name):
        return ZoneInfo(key)
    if name in _ABBREVIATIONS:
        raise InvalidInputError(f"{quoted(text)} is not one zone; write {_choices(_ABBREVIATIONS[name])}")
    cities = known.cities.get(name, ())
    if len(cities) == 1:
        return ZoneInfo(cities[0])
    near = cities or [known.keys[key] for key in difflib.get_close_matches(name, known.keys, SUGGESTIONS)]
    near = near or [known.cities[city][0] for city in difflib.get_close_matches(name, known.cities, SUGGESTIONS)]
    hint = f"did you mean {_choices(near[:SUGGESTIONS])}?" if near else "write Asia/Shanghai, UTC or +08:00"
    raise InvalidInputError(f"There is no zone {quoted(text)}; {hint}")


def name_of(zone: tzinfo | None) -> str:
    """The zone's name, as `find_zone` reads it."""
    return zone.key if isinstance(zone, ZoneInfo) and zone.key else str(zone).removeprefix("UTC") or "UTC"


def offset_text(offset: timedelta | None) -> str:
    """An offset from UTC in the way of ISO 8601."""
    return name_of(timezone(offset or timedelta())).replace("UTC", "+00:00")


def _fixed(text: str, sign: str, hours: str, minutes: str, seconds: str) -> tzinfo:
    offset = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    if offset >= timedelta(days=1):
        raise InvalidInputError(f"{quoted(text)} is no offset: it is less than 24 hours")
    return timezone(-offset if sign == "-" else offset) if offset else UTC


def _choices(names: tuple[str, ...] | list[str]) -> str:
    return " or ".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    keys: Mapping[str, str]
    """Every IANA name by its lower-case form."""
    cities: Mapping[str, list[str]]
    """The names by their last part: `tokyo`, `new_york`."""


@cache
def _known_names() -> _Names:
    names = sorted(available_timezones() - _OF_THE_MACHINE)
    cities: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        if "/" in name and not name.startswith("Etc/"):
            cities[name.rpartition("/")[2].lower()].append(name)
    return _Names(keys={name.lower(): name for name in names}, cities=dict(cities))
