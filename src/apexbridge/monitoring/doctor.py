"""Checks of the host on request, and the result of the last one."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

from pydantic import Field

from apexbridge._time import from_ms, now_ms
from apexbridge.errors import ServerError
from apexbridge.monitoring.host_checks import HostCheck
from apexbridge.sandbox.diagnosis import Diagnosis
from apexbridge.wire import WireModel


class DoctorReport(WireModel):
    checked_at: datetime | None = Field(description="When the last check ended; null before the first one.")
    running: bool = Field(description="Whether a check is in progress.")
    report: Diagnosis | None = Field(description="Of the sandbox; null before the first check.")
    checks: list[HostCheck] = Field(description="Of everything else; empty before the first check.")


class Doctor:
    """A check starts a sandbox of its own and takes seconds, so none is made without a request."""

    def __init__(
        self,
        diagnose: Callable[[], Awaitable[Diagnosis]],
        check_host: Callable[[], Awaitable[list[HostCheck]]],
        *,
        changed: Callable[[], None],
    ) -> None:
        self._diagnose = diagnose
        self._check_host = check_host
        self._changed = changed
        """Called when a check begins and when it has ended."""
        self._checked_at: datetime | None = None
        self._report: Diagnosis | None = None
        self._checks: list[HostCheck] = []
        self._is_running = False

    @property
    def last(self) -> DoctorReport:
        return DoctorReport(
            checked_at=self._checked_at, running=self._is_running, report=self._report, checks=self._checks
        )

    async def check(self) -> DoctorReport:
        """Make a check and wait for its end. Raises ServerError (BUSY) if one is in progress."""
        if self._is_running:
            raise ServerError("A check is in progress. Its result is at GET /api/doctor when it ends.", code="BUSY")
        self._is_running = True
        self._changed()
        try:
            self._report, self._checks = await asyncio.gather(self._diagnose(), self._check_host())
            self._checked_at = from_ms(now_ms())
        finally:
            self._is_running = False
            self._changed()
        return self.last
