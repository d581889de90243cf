"""The span of one turn of a model, in the names of OpenTelemetry's conventions for generative AI."""

from typing import Any
from urllib.parse import urlsplit

from apexbridge._tracing import MAX_CHARACTERS, NO_SPAN, NO_TRACER, Span, Tracer
from apexbridge.llm.config import Upstream


def start_turn(tracer: Tracer, upstream: Upstream, model: str, *, is_stream: bool) -> Span:
    if tracer is NO_TRACER:
        return NO_SPAN
    host, port = _server_of(upstream)
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": upstream.name,
        "gen_ai.request.model": model or None,
        "gen_ai.request.stream": is_stream,
        "server.address": host,
        "server.port": port,
    }
    return tracer.start(f"chat {model or upstream.name}", attributes, kind="client")


def end_turn(span: Span, *, model: Any, finish_reason: Any, usage: Any) -> None:
    """Add what the model server reported, whose shape is untrusted."""
    if span is NO_SPAN:
        return
    counts = usage if isinstance(usage, dict) else {}
    finish = finish_reason[:MAX_CHARACTERS] if isinstance(finish_reason, str) else None
    span.add(
        {
            "gen_ai.response.model": model if isinstance(model, str) else None,
            "gen_ai.response.finish_reasons": [finish] if finish is not None else None,
            "gen_ai.usage.input_tokens": _count(counts.get("prompt_tokens")),
            "gen_ai.usage.output_tokens": _count(counts.get("completion_tokens")),
        }
    )


def _server_of(upstream: Upstream) -> tuple[str | None, int | None]:
    try:
        address = urlsplit(upstream.base_url)
        return address.hostname, address.port
    except ValueError:
        return None, None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None
