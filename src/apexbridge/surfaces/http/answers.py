"""Answers as JSON; large ones are made beside the event loop."""

import json
from typing import Any

import anyio.to_thread
from fastapi import Response

from apexbridge.errors import ToolExecutionError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.wire import WireModel

LARGE_CHARACTERS = 64 * 1024


def json_response(answer: WireModel, *, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer of ours, as it is on the wire."""
    return _response(answer.model_dump_json(), status_code, headers)


async def result_response(
    answer: WireModel, result: ExecutionResult | None, *, headers: dict[str, str] | None = None
) -> Response:
    """An answer that holds a result, or is one."""
    return _response(await told(answer, result), 200, headers)


async def told(answer: WireModel, result: ExecutionResult | None) -> str:
    """An answer as JSON; megabytes of output would keep the event loop busy for too long."""
    if result is None or len(result.stdout) + len(result.stderr) <= LARGE_CHARACTERS:
        return answer.model_dump_json()
    return await anyio.to_thread.run_sync(answer.model_dump_json)


async def data_response(data: Any, *, headers: dict[str, str] | None = None) -> Response:
    """A tool's own result object."""
    texts = data.values() if isinstance(data, dict) else [data]
    if sum(len(text) for text in texts if isinstance(text, str)) <= LARGE_CHARACTERS:
        return _response(_json(data), 200, headers)
    return _response(await anyio.to_thread.run_sync(_json, data), 200, headers)


def _json(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError as error:
        raise ToolExecutionError("The tool returned a number that JSON does not have") from error


def _response(body: str, status_code: int, headers: dict[str, str] | None) -> Response:
    return Response(
        body.encode("utf-8", "replace"), status_code=status_code, media_type="application/json", headers=headers
    )
