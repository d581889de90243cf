# Generated from _async by scripts/unasync.py. Do not edit.
"""Chat completions: OpenAI's format, answered with the server's tools and skills."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apexbridge.client.protocol import error_of, unexpected

if TYPE_CHECKING:
    from apexbridge.client._sync.client import SyncClient

BROKEN = 502
"""The status that an error in mid-stream would have had."""
PATH = "/v1/chat/completions"
Messages = str | Sequence[Mapping[str, Any]]


class Chat:
    """`client.chat`"""

    def __init__(self, client: "SyncClient") -> None:
        self._client = client

    def models(self) -> list[str]:
        """The models that can be named."""
        return [model["id"] for model in (self._client.ask("GET", "/v1/models"))["data"]]

    def complete(self, messages: Messages, *, model: str | None = None, **options: Any) -> dict[str, Any]:
        """The answer to a conversation, or to one question.

        The server ends the work on it if the connection is closed. `options` are the other fields of the request, such
        as `temperature`, and `x_bridge` for this server's own.
        """
        answer: dict[str, Any] = self._client.ask("POST", PATH, json=_body(messages, model, options))
        return answer

    def stream(self, messages: Messages, *, model: str | None = None, **options: Any) -> Iterator[dict[str, Any]]:
        """The chunks of an answer. An error in mid-stream is raised, and so is an end before the answer is complete."""
        body = {**_body(messages, model, options), "stream": True}
        for _, _, data in self._client.events("POST", PATH, json=body):
            if data == "[DONE]":
                return
            chunk = self._chunk(data)
            if "error" in chunk:
                raise error_of(BROKEN, data.encode(), self._client.url)
            yield chunk
        raise unexpected(self._client.url, ValueError("the answer was cut off"))

    def _chunk(self, data: str) -> dict[str, Any]:
        try:
            chunk: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise unexpected(self._client.url, error) from error
        return chunk


def _body(messages: Messages, model: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    return {"messages": asked, **({"model": model} if model else {}), **options}
