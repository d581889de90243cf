"""Whether spans are recorded, and where they go."""

import importlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from apexbridge._tasks import in_thread
from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.errors import ServerError

STANDARD_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INSTALL = "pip install 'apexbridge[otel]'"
logger = logging.getLogger(__name__)


@asynccontextmanager
async def tracing(endpoint: str | None, environment: Mapping[str, str], version: str) -> AsyncIterator[Tracer]:
    """The tracer for a collector, of the setting or of the standard variables; one that records nothing without either.

    Raises:
        ServerError: INVALID_SETTING, the setting needs packages that are missing. The standard variables may be meant
            for other programs, so they only cause a warning.
    """
    variable = next((name for name in STANDARD_VARIABLES if environment.get(name)), None)
    if endpoint is None and variable is None:
        yield NO_TRACER
        return
    try:
        otel = await in_thread(importlib.import_module, "apexbridge.monitoring.otel")
    except ModuleNotFoundError as error:
        source = "APEX_OTLP_ENDPOINT" if endpoint is not None else variable
        problem = f"{source} is set, but {error.name} is not installed. Install it with: {INSTALL}"
        if endpoint is not None:
            raise ServerError(problem, code="INVALID_SETTING") from error
        logger.warning("No traces are sent: %s", problem)
        yield NO_TRACER
        return
    tracer = otel.OtelTracer(otel.provider_for(endpoint, version), version)
    try:
        yield tracer
    finally:
        await in_thread(tracer.close)
