"""Records as the API returns them."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from apexbridge.storage.chat_store import ChatOutcome, ChatRow, ChatSums
from apexbridge.wire import WireModel


class ChatTokens(WireModel):
    """Token counts, if the upstream reported them."""

    prompt_tokens: int | None
    completion_tokens: int | None
    total_tokens: int | None


class ChatFailure(WireModel):
    """Why a request failed."""

    code: str | None
    message: str | None


class ChatSummary(WireModel):
    """A record in a list."""

    id: str
    caller: str = Field(description="The id of the API key; empty without a key.")
    key_name: str | None = Field(description="What the key is called.")
    model: str
    upstream: str
    started_at: datetime
    duration_ms: int
    is_stream: bool
    turns: int
    calls: int
    stop_cause: str = Field(description="As in `x_bridge` of the answer; `error` and `cancelled` where there was none.")
    outcome: ChatOutcome
    error: ChatFailure | None
    usage: ChatTokens | None


class ChatDetail(ChatSummary):
    """A record with its steps."""

    trajectory: list[dict[str, Any]]
    messages: list[Any] | None = Field(description="As the client sent them; only where texts are recorded.")
    answer: str | None = Field(description="The same of the answer.")


class ChatPage(WireModel):
    """A page of records, newest first."""

    chats: list[ChatSummary]
    total: int
    page: int
    limit: int


class ChatTotals(WireModel):
    """Totals of many requests."""

    requests: int
    failed: int
    cancelled: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    mean_turns: float
    mean_calls: float
    mean_duration_ms: int


class ModelTotals(ChatTotals):
    """Totals of one model."""

    model: str


class ChatStatistics(ChatTotals):
    """Totals of the last days, overall and by model."""

    days: int
    models: list[ModelTotals]


def summary(row: ChatRow, key_name: str | None) -> ChatSummary:
    return ChatSummary(**_fields(row, key_name))


def detail(row: ChatRow, key_name: str | None) -> ChatDetail:
    texts = {
        "trajectory": json.loads(row.trajectory),
        "messages": json.loads(row.messages) if row.messages is not None else None,
    }
    return ChatDetail(**{**_fields(row, key_name), **texts})


def totals(sums: ChatSums) -> dict[str, Any]:
    count = max(sums.requests, 1)
    return asdict(sums) | {
        "mean_turns": round(sums.turns / count, 2),
        "mean_calls": round(sums.calls / count, 2),
        "mean_duration_ms": round(sums.duration_ms / count),
    }


def _fields(row: ChatRow, key_name: str | None) -> dict[str, Any]:
    fields = asdict(row)
    usage = ChatTokens(**fields)
    return fields | {
        "key_name": key_name,
        "started_at": datetime.fromtimestamp(row.started_at / 1000, UTC),
        "error": ChatFailure(code=row.error_code, message=row.error_message) if row.error_code else None,
        "usage": usage if any(count is not None for _, count in usage) else None,
    }
