"""Spans by OpenTelemetry, sent to a collector. Nothing else imports OpenTelemetry, which is in the extra `otel`."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind as OtelKind
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from apexbridge._text import escaped, without_keys
from apexbridge._tracing import MAX_CHARACTERS, Attribute, Span, SpanKind

TRACES_PATH = "/v1/traces"
_KINDS: dict[SpanKind, OtelKind] = {
    "server": OtelKind.SERVER,
    "client": OtelKind.CLIENT,
    "internal": OtelKind.INTERNAL,
}
_PROPAGATOR = TraceContextTextMapPropagator()  # without baggage, which carries text of the client


def provider_for(endpoint: str | None, version: str) -> TracerProvider:
    """A provider that sends spans to a collector. Without an endpoint, the standard variables name it."""
    address = f"{endpoint.rstrip('/')}{TRACES_PATH}" if endpoint else None
    own = Resource({"service.name": "apexbridge", "service.version": version})
    provider = TracerProvider(resource=Resource.create().merge(own).merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    return provider


class OtelTracer:
    """A tracer over a provider of its own: the global one belongs to the program that embeds this package."""

    def __init__(self, provider: TracerProvider, version: str = "") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("apexbridge", version)

    def start(
        self,
        name: str,
        attributes: Mapping[str, Attribute | None],
        *,
        kind: SpanKind = "internal",
        headers: Mapping[str, str] | None = None,
    ) -> Span:
        parent = None if headers is None else _PROPAGATOR.extract(headers, context=Context())
        span = self._tracer.start_span(_bounded(name), context=parent, kind=_KINDS[kind])
        started = _OtelSpan(span)
        started.add(attributes)
        return started

    def headers(self) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    def close(self) -> None:
        """Send what is pending. Blocks."""
        self._provider.shutdown()


class _OtelSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit | asyncio.CancelledError):
            self.fail("cancelled")
        elif error is not None:  # its message may quote content
            self.fail(str(getattr(error, "kind", None) or getattr(error, "code", None) or type(error).__name__))
        self._span.end()

    def rename(self, name: str) -> None:
        self._span.update_name(_bounded(name))

    def add(self, attributes: Mapping[str, Attribute | None]) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, _bounded(value) if isinstance(value, str) else value)

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def current(self) -> AbstractContextManager[object]:
        return self._as_current()

    @contextmanager
    def _as_current(self) -> Iterator[None]:
        token = context.attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            context.detach(token)


def _bounded(text: str) -> str:
    return escaped(without_keys(text)[:MAX_CHARACTERS])
