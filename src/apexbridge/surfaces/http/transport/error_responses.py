"""Renders all errors in one shape, without stack traces or paths of the server."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apexbridge.agent.request import BadRequestError
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError, ServerError
from apexbridge.llm.upstream_errors import openai_error
from apexbridge.surfaces.http.transport.api_dialects import API_PREFIX, anthropic_error, is_anthropic
from apexbridge.surfaces.http.transport.requests import request_id
from apexbridge.wire import MAX_PROBLEMS, WireModel, problem, summary_of

logger = logging.getLogger(__name__)
_CODE_OF_STATUS = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "PAYLOAD_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE"}
_RETRIED_IN_VAIN = frozenset({401, 409})
"""SDKs of OpenAI and Anthropic repeat a 409, and Claude Code a 401 for minutes, unless a header forbids it."""
_OPENAI_CODES = {"UNAUTHORIZED": "invalid_api_key", "RATE_LIMITED": "rate_limit_exceeded"}


MCP_PATHS = frozenset({"/mcp", "/mcp/"})
_JSON_RPC_INVALID_REQUEST, _JSON_RPC_SERVER_ERROR = -32600, -32603


class ErrorAnswer(WireModel):
    success: bool = Field(default=False, description="Always false.")
    name: str = Field(description="SkillError, ToolError, RequestError or ServerError.")
    code: str = Field(description="A stable code for programs.")
    message: str = Field(description="What is wrong and what to do, for people.")
    details: dict[str, Any] = Field(default_factory=dict)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApexBridgeError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(ClientDisconnect, _disconnected)


def error_body(error: ApexBridgeError, path: str, *, anthropic_id: str | None = None) -> bytes:
    """An error as JSON: OpenAI's shape below `/v1`, JSON-RPC's at `/mcp`, ours elsewhere.

    `anthropic_id` is the id of a request in Anthropic's dialect, which gets Anthropic's shape. Lone surrogates, which
    can come from the client, are replaced.
    """
    data = error.to_json()
    if path in MCP_PATHS:
        code = _JSON_RPC_SERVER_ERROR if error.status >= 500 else _JSON_RPC_INVALID_REQUEST
        details = {"code": error.code, "details": error.details}
        data = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": error.message, "data": details}}
    elif anthropic_id is not None:
        data = anthropic_error(error.message, status=error_status(error, path), request_id=anthropic_id)
    elif path.startswith(API_PREFIX):
        server_side = "server_error" if error.status >= 500 else "invalid_request_error"
        kind = "requests" if error.status == 429 else server_side
        data = openai_error(error.message, kind=kind, code=_openai_code(error), param=error.details.get("param"))
    return json.dumps(data, ensure_ascii=False, default=str).encode("utf-8", "replace")


def _openai_code(error: ApexBridgeError) -> str | None:
    if isinstance(error, BadRequestError):
        return error.openai_code
    return _OPENAI_CODES.get(error.code, error.code.lower())


def error_status(error: ApexBridgeError, path: str) -> int:
    """The status of an error. Below `/v1` and at `/mcp` a 422 becomes 400, as their clients expect."""
    return 400 if error.status == 422 and (path.startswith(API_PREFIX) or path in MCP_PATHS) else error.status


def error_response(error: ApexBridgeError, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error of a request."""
    path: str = scope["path"]
    headers = dict(headers or {})
    if "retryAfter" in error.details:
        headers["Retry-After"] = str(error.details["retryAfter"])
    if error.code == "UNAUTHORIZED":
        is_invalid = error.details.pop("invalidKey", False)
        headers["WWW-Authenticate"] = 'Bearer realm="apexbridge"' + (', error="invalid_token"' if is_invalid else "")
    if path.startswith(API_PREFIX) and error.status in _RETRIED_IN_VAIN and not error.is_retryable:
        headers["x-should-retry"] = "false"
    status = error_status(error, path)
    body = error_body(error, path, anthropic_id=request_id(scope) if is_anthropic(scope) else None)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


async def answer_error(error: ApexBridgeError, scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(error, scope)(scope, receive, send)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApexBridgeError)  # noqa: S101  # starlette passes only the registered type
    if error.status >= 500:
        logger.warning("%s %s: %s", request.method, request.url.path, error.message)
    return error_response(error, request.scope)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    found = error.errors()
    problems = [_problem(item) for item in found[:MAX_PROBLEMS]]
    summary = summary_of(problems, total=len(found))
    return error_response(InvalidInputError(f"The request does not fit: {summary}", errors=problems), request.scope)


def _problem(item: dict[str, Any]) -> dict[str, str]:
    if item["type"] == "json_invalid":
        return {"path": "body", "message": f"not valid JSON at character {item['loc'][-1]}"}
    return problem(item["loc"][1:] or item["loc"], item["msg"])


async def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code == 400:  # a body that cannot be parsed
        return error_response(InvalidInputError(str(error.detail)), request.scope)
    code = _CODE_OF_STATUS.get(error.status_code)
    if code is None:
        return error_response(ServerError(str(error.detail)), request.scope)
    route = f"{request.method} {request.url.path}"
    message = {
        "NOT_FOUND": f"No route {route}. See /docs.",
        "METHOD_NOT_ALLOWED": f"The method of {route} is not allowed. See /docs.",
    }.get(code, str(error.detail))
    return error_response(RequestError(message, code=code), request.scope, error.headers)


async def _disconnected(request: Request, error: Exception) -> Response:
    logger.info("%s %s: the client disconnected", request.method, request.url.path)
    return error_response(RequestError("The request was cut off", code="INVALID_INPUT"), request.scope)


class CatchAll:
    """Turns unexpected exceptions into a 500 and keeps the connection, which starlette's own handler would close."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if begun or scope["type"] != "http":
                raise
            logger.exception("%s %s failed", scope["method"], scope["path"])
            error = ServerError("Internal error; the server's log has the details.")
            await answer_error(error, scope, receive, send)
