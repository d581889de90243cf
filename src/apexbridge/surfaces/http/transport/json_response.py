"""JSON responses. Long texts are encoded while they are sent, at the speed at which the client reads."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio.to_thread
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from apexbridge.errors import ToolExecutionError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.skills.runs.views import STREAMS, LongOutput, TextSource
from apexbridge.surfaces.http.transport.json_stream import Placeholders, without_long_texts
from apexbridge.surfaces.http.transport.response_pacing import held_by
from apexbridge.wire import WireModel

LARGE_CHARACTERS = 64 * 1024
_RUN_ID = re.compile(r"[0-9a-f]{32}\Z")


def long_output(runs: RunTracker, result: ExecutionResult) -> LongOutput:
    """The long streams of a result."""
    return runs.long_output(result.id, {name: getattr(result, name) for name in STREAMS})


def long_output_of(runs: RunTracker, data: Any) -> LongOutput:
    """The long streams of a result that a tool returned; empty if it is not the result of a run."""
    if not isinstance(data, dict) or "exitCode" not in data or not _RUN_ID.match(str(data.get("id"))):
        return {}
    return runs.long_output(data["id"], {name: str(data.get(name, "")) for name in STREAMS})


def json_response(answer: WireModel, *, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A pydantic model as a JSON response."""
    return _response(answer.model_dump_json(), status_code, headers)


def result_response(result: ExecutionResult, texts: LongOutput, *, headers: dict[str, str] | None = None) -> Response:
    """A response with a run's result. `texts` replaces its long streams."""
    if not texts:
        return json_response(result, headers=headers)
    document, placeholders = outlined(result, texts)
    return _LargeResponse(placeholders.pieces(document), _held(texts), headers)


def detail_response(detail: WireModel, result: ExecutionResult | None, texts: LongOutput) -> Response:
    """A response with an object that contains a run's result. `texts` replaces its long streams."""
    if not texts or result is None:
        return json_response(detail)
    placeholders = Placeholders()
    document = detail.model_copy(update={"result": _outline(result, texts, placeholders)}).model_dump_json()
    return _LargeResponse(placeholders.pieces(document), _held(texts), None)


def outlined(result: ExecutionResult, texts: LongOutput) -> tuple[str, Placeholders]:
    """A result as JSON with placeholders for its long streams."""
    placeholders = Placeholders()
    return _outline(result, texts, placeholders).model_dump_json(), placeholders


async def data_response(data: Any, texts: LongOutput, *, headers: dict[str, str] | None = None) -> Response:
    """A response with a tool's result object. `texts` replaces the long streams of a run."""
    if not isinstance(data, dict):
        return _response(_json(data), 200, headers)
    long: dict[str, TextSource] = {
        name: value for name, value in data.items() if isinstance(value, str) and len(value) > LARGE_CHARACTERS
    }
    long |= texts
    if "stdout" in texts and "output" in data:
        long["output"] = texts["stdout"]
    if not long:
        return _response(_json(data), 200, headers)
    outline, placeholders = without_long_texts(data, long)
    document = await anyio.to_thread.run_sync(_json, outline)
    return _LargeResponse(placeholders.pieces(document), _held(long), headers)


class _LargeResponse(StreamingResponse):
    """Counts the bytes it holds in memory against its caller's limit of unread responses."""

    def __init__(self, pieces: AsyncIterator[bytes], held: int, headers: Mapping[str, str] | None) -> None:
        super().__init__(pieces, media_type="application/json", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with held_by(scope, self._held):
            await super().__call__(scope, receive, send)


def _outline(result: ExecutionResult, texts: LongOutput, placeholders: Placeholders) -> ExecutionResult:
    return result.model_copy(update={name: placeholders.put(text) for name, text in texts.items()})


def _held(texts: Mapping[str, TextSource]) -> int:
    return sum(len(text) for text in texts.values() if isinstance(text, str))


def _json(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError as error:
        raise ToolExecutionError("The tool returned a number that JSON does not have") from error


def _response(body: str, status_code: int, headers: dict[str, str] | None) -> Response:
    return Response(
        body.encode("utf-8", "replace"), status_code=status_code, media_type="application/json", headers=headers
    )
