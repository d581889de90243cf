"""Errors of upstreams, passed on to the client."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, get_args

from apexbridge.errors import ServerError

UpstreamErrorKind = Literal["timeout", "unreachable", "cut", "invalid", "redirect", "rate_limited", "refused", "failed"]
PASSED_HEADERS = ("retry-after", "x-request-id")
PASSED_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
LAST_STATUS = 599
MAX_MESSAGE = 500


class UpstreamError(ServerError):
    """A model server refused or failed. Its status, body and some headers are passed on to the client."""

    default_code = "UPSTREAM_ERROR"

    def __init__(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, *, address: str = ""
    ) -> None:
        self._server = f"The model server{f' at {address}' if address else ''}"
        super().__init__(f"{self._server} answered {status}")
        self._status = status if status <= LAST_STATUS else 502
        self.body = body
        self.headers = passed_headers(headers or {})
        self.is_ours = False
        """Whether this server detected the error."""
        self._code = ""

    @property
    def status(self) -> int:
        return self._status

    @property
    def kind(self) -> UpstreamErrorKind:
        own: UpstreamErrorKind
        for own in get_args(UpstreamErrorKind):
            if self._code == f"upstream_{own}":
                return own
        if self.status == 429:
            return "rate_limited"
        return "refused" if self.status < 500 else "failed"

    @classmethod
    def of_ours(cls, status: int, message: str, code: str) -> "UpstreamError":
        """An error that this server detected."""
        error = cls(status, json.dumps(openai_error(message, kind="upstream_error", code=code)).encode())
        error.is_ours, error._code = True, code
        return error

    @classmethod
    def invalid(cls, message: str) -> "UpstreamError":
        """The model's server sent something that cannot be used."""
        return cls.of_ours(502, message, "upstream_invalid")

    @property
    def error(self) -> dict[str, Any]:
        error = self._error
        if self.is_shaped and isinstance(error, dict):
            return error
        text = error if isinstance(error, str) else self.body[:MAX_MESSAGE].decode("utf-8", "replace")
        message = f"{self._server} answered {self.status}{f': {text.strip()}' if text.strip() else ''}"[:MAX_MESSAGE]
        ours: dict[str, Any] = openai_error(message, kind="upstream_error", code="upstream_error")["error"]
        return ours

    @property
    def is_shaped(self) -> bool:
        """Whether the body is an error in OpenAI's shape."""
        error = self._error
        return isinstance(error, dict) and isinstance(error.get("message"), str)

    @cached_property
    def _error(self) -> Any:
        try:
            body = _DECODER.decode(self.body.decode())
        except (ValueError, RecursionError):
            return None
        return body.get("error") if isinstance(body, dict) else None


def passed_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of an upstream's answer that are passed on."""
    return {
        key.lower(): value
        for key, value in headers.items()
        if key.lower() in PASSED_HEADERS or key.lower().startswith(PASSED_PREFIXES)
    }


def _no_number(word: str) -> Any:
    """Reject NaN and infinity: they are not valid JSON for clients."""
    raise ValueError(word)


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def is_too_long(error: UpstreamError) -> bool:
    """Whether the conversation does not fit into the model's context. Servers say so only in the message."""
    if error.status not in (400, 413, 422):
        return False
    fields = error.error
    text = f"{fields.get('code')} {fields.get('type')} {fields.get('message')}".lower()
    return "context" in text and any(word in text for word in ("exceed", "maximum", "too long", "too large", "length"))


def openai_error(message: str, *, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
