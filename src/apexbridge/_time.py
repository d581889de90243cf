"""Times in milliseconds since 1970, the unit of all stored times."""

import time
from datetime import UTC, datetime

MS_PER_DAY = 24 * 60 * 60 * 1000
MAX_MS = 253_402_300_799_000
"""End of the year 9999, the last one that `datetime` supports."""


def now_ms() -> int:
    return int(time.time() * 1000)


def from_ms(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
