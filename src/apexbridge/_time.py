"""Timestamps as they are stored and sent: whole milliseconds since 1970."""

import time

MS_PER_DAY = 24 * 3600 * 1000


def now_ms() -> int:
    return int(time.time() * 1000)
