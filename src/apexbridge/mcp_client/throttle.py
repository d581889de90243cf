"""Limits how fast the messages of one server are read: what it sends faster waits in its pipe or socket."""

import asyncio

from apexbridge.mcp_client.limits import BYTES_PER_SECOND, MESSAGES_PER_SECOND


class Throttle:
    def __init__(self, *, messages: int = MESSAGES_PER_SECOND, size: int = BYTES_PER_SECOND) -> None:
        self._cost_of_message = 1 / messages
        self._cost_of_byte = 1 / size
        self._busy_until = 0.0
        """Time of the event loop's clock up to which what was read is paid for."""

    async def take(self, size: int, *, messages: int = 1) -> None:
        """Wait until this may be processed. Up to a second's worth passes without waiting."""
        now = asyncio.get_running_loop().time()
        self._busy_until = max(self._busy_until, now - 1)
        self._busy_until += messages * self._cost_of_message + size * self._cost_of_byte
        if self._busy_until > now:
            await asyncio.sleep(self._busy_until - now)
