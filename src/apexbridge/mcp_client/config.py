"""How an MCP server is reached and what its tools may do: a `[[mcp]]` table, or the body of a request."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, field_validator, model_validator

from apexbridge.errors import InvalidInputError
from apexbridge.mcp_client.secret_values import MASK, checked_value, has_reference
from apexbridge.skills.package.permissions import parse
from apexbridge.wire import WireInput

ApprovalPolicy = Literal["auto", "always", "never"]
MAX_ARGUMENTS = 100
MAX_VALUES = 50
MAX_TEXT = 4_096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}\Z")
_CREDENTIAL = re.compile(r"auth|cookie|token|secret|passw|credential|api[-_]?key|access[-_]?key|private[-_]?key", re.I)
"""Names of headers and variables whose values are credentials. They must be references to secrets."""
_TRANSPORT_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "mcp-session-id"}
)
RESERVED_NAMES = frozenset({"skill", "tool"})
"""Names of models' functions for skills begin with `skill_`."""
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT, pattern=r"^[^\x00]*$")]


class McpServerConfig(WireInput):
    """One MCP server: a command that is started, or an address."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$", description="Its tools are called `{name}_{tool}`.")
    command: Text | None = Field(default=None, min_length=1, description="The program of a stdio server.")
    args: tuple[Text, ...] = Field(default=(), max_length=MAX_ARGUMENTS, description="Its arguments, without secrets.")
    env: dict[str, Text] = Field(
        default_factory=dict, description="Its variables; `${secret:NAME}` stands for a secret."
    )
    cwd: Text | None = Field(default=None, description="The folder in which it starts.")
    url: Text | None = Field(default=None, description="The address of an HTTP server.")
    headers: dict[str, Text] = Field(
        default_factory=dict, description="Sent with every request; `${secret:NAME}` stands for a secret."
    )
    approval: ApprovalPolicy = Field(
        default="auto",
        description="Which calls need approval: auto by the server's annotations, always, or never.",
    )
    timeout_seconds: int = Field(default=60, ge=1, le=3600, description="How long a call may take.")
    sandbox: bool = Field(default=False, description="Whether the program runs in the sandbox.")
    permissions: tuple[Text, ...] = Field(
        default=(),
        max_length=MAX_VALUES,
        description="What it may use beyond the sandbox: net:HOST:PORT, fs:ro:PATH.",
    )

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in RESERVED_NAMES or name.startswith("skill_"):
            raise ValueError(f"{name} is reserved; choose another name")
        return name

    @field_validator("args")
    @classmethod
    def _without_secrets(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        if any(map(has_reference, args)):
            raise ValueError("arguments are visible to all users of the host; pass secrets in env")
        return args

    @field_validator("env")
    @classmethod
    def _valid_variables(cls, env: dict[str, str]) -> dict[str, str]:
        return _checked_values(env, _VARIABLE, "a variable")

    @field_validator("headers")
    @classmethod
    def _valid_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if name.lower() in _TRANSPORT_HEADERS or name.lower().startswith("mcp-"):
                raise ValueError(f"the header {name[:128]} is set by the client itself")
            if not value.isascii() or not value.isprintable():
                raise ValueError(f"the value of the header {name[:128]} has characters that no header can have")
        return _checked_values(headers, _HEADER, "a header")

    @field_validator("url")
    @classmethod
    def _valid_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            split = urlsplit(url)
            is_valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
        except ValueError:
            is_valid = False
        if not is_valid or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("write an address such as https://example.com/mcp")
        if "@" in split.netloc or _CREDENTIAL.search(split.query):
            raise ValueError("addresses are logged; pass credentials in headers, as ${secret:NAME}")
        return url

    @field_validator("permissions")
    @classmethod
    def _valid_permissions(cls, permissions: tuple[str, ...]) -> tuple[str, ...]:
        for text in permissions:
            try:
                kind = parse(text).kind
            except InvalidInputError as error:
                raise ValueError(error.message) from error
            if kind not in ("net", "fs"):
                raise ValueError(f"{text[:128]}: variables and secrets are passed in env")
        return permissions

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("name either a command or a url")
        if self.url is not None and (self.args or self.env or self.cwd or self.sandbox):
            raise ValueError("args, env, cwd and sandbox belong to a command")
        if self.command is not None and self.headers:
            raise ValueError("headers belong to a url")
        if self.permissions and not self.sandbox:
            raise ValueError("permissions are for a command with sandbox = true")
        if self.cwd is not None and (self.sandbox or not Path(self.cwd).is_absolute()):
            raise ValueError("cwd is an absolute path, and the sandbox has its own")
        return self

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "stdio" if self.command is not None else "http"

    @property
    def fingerprint(self) -> str:
        """Changes with everything that can change the tools."""
        return hashlib.sha256(self.model_dump_json(exclude={"approval", "timeout_seconds"}).encode()).hexdigest()

    @property
    def shown_url(self) -> str | None:
        """The address without its query, which may contain a key."""
        return None if self.url is None else self.url.partition("?")[0].partition("#")[0]


def shown_values(values: Mapping[str, str]) -> dict[str, str]:
    """Headers or variables for people: references are shown, any other value may be a secret and is masked."""
    return {name: value if has_reference(value) else MASK for name, value in values.items()}


def _checked_values(values: dict[str, str], pattern: re.Pattern[str], what: str) -> dict[str, str]:
    if len(values) > MAX_VALUES:
        raise ValueError(f"at most {MAX_VALUES} are possible")
    for name, value in values.items():
        if not pattern.match(name):
            raise ValueError(f"{name[:128]!r} is not the name of {what}")
        checked_value(value)
        if _CREDENTIAL.search(name) and value and not has_reference(value):
            raise ValueError(
                f"{name[:128]} is a credential: save it with `apex secrets set`, and write ${{secret:NAME}}"
            )
    return values
