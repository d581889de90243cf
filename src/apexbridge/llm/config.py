"""Configuration of upstreams."""

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ToolMode = Literal["auto", "native", "schema", "text"]
UpstreamApi = Literal["chat", "messages", "responses"]
"""Chat completions, Anthropic's Messages, OpenAI's Responses."""
DEFAULT_NAME = "default"


class Upstream(BaseModel):
    """One model server. Nearly all speak OpenAI's chat completions, which the chat loop needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = DEFAULT_NAME
    base_url: str = Field(description="Up to what comes before `/chat/completions`.")
    api_key: str | None = Field(default=None, repr=False)
    models: tuple[str, ...] = Field(default=(), description="Names, or patterns with `*`; empty takes every model.")
    tool_mode: ToolMode = "auto"
    apis: tuple[UpstreamApi, ...] = Field(default=("chat",), min_length=1, description="The APIs that it speaks.")

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    @property
    def address(self) -> str:
        """The base URL for messages: without credentials and query."""
        scheme, _, tail = self.base_url.partition("://")
        authority, slash, path = tail.partition("?")[0].partition("/")
        return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}".rstrip("/")

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}/{path}"


class LLMSettings(BaseModel):
    """All upstreams. The first one serves models that no other is named for."""

    model_config = ConfigDict(frozen=True)

    upstreams: tuple[Upstream, ...] = ()
    default_model: str | None = None
    """For requests without a model."""

    @property
    def names(self) -> frozenset[str]:
        """The configured names of models, without patterns."""
        named = (name for upstream in self.upstreams for name in upstream.models if "*" not in name)
        return frozenset(named) | ({self.default_model} if self.default_model is not None else set())

    def upstream_for(self, model: str) -> Upstream | None:
        """The upstream for a model; None if there are no upstreams."""
        named = next((upstream for upstream in self.upstreams if upstream.serves(model)), None)
        anything = next((upstream for upstream in self.upstreams if not upstream.models), None)
        return named or anything or next(iter(self.upstreams), None)
