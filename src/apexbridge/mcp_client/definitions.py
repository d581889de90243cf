"""Definitions of tools as a server lists them, checked and bounded."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from apexbridge._text import escaped
from apexbridge.errors import InvalidSchemaError
from apexbridge.mcp_client.config import ApprovalPolicy
from apexbridge.mcp_client.limits import (
    MAX_DESCRIPTION_BYTES,
    MAX_LIST_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_PROBLEMS,
    MAX_SCHEMA_BYTES,
    MAX_TOOLS,
)
from apexbridge.tools.schema import InputProblem, SchemaParameters

Json = dict[str, Any]
CUT = "…"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_SIMPLE_KEYWORDS = ("type", "description", "enum", "default")
_SHOWN_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """One tool of a server."""

    tool: str
    """Its name at the server."""
    description: str
    schema: Json
    is_read_only: bool
    is_destructive: bool
    """Both as the server says, which is untrusted; without annotations a tool is destructive."""

    def needs_approval(self, policy: ApprovalPolicy) -> bool:
        if policy != "auto":
            return policy == "always"
        return self.is_destructive and not self.is_read_only

    @property
    def digest(self) -> str:
        """Changes with the definition; an approval is valid for one definition."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The tools of a server, and why others were left out."""

    tools: tuple[ToolDefinition, ...] = ()
    problems: tuple[str, ...] = ()


def listing_of(tools: Sequence[Mapping[str, Any]], *, server: str) -> Listing:
    """Check what a server lists. Tools that cannot be used are left out, each with the reason."""
    found: dict[str, ToolDefinition] = {}
    problems: list[str] = []
    size = 0
    for entry in tools:
        name = str(entry.get("name") or "")
        shown = escaped(name[:_SHOWN_NAME])
        if len(found) >= MAX_TOOLS:
            problems.append(f"there are more than {MAX_TOOLS} tools; the others are left out")
            break
        if not name or len(name) > MAX_NAME_CHARACTERS:
            problems.append(f"a tool has no name, or one of more than {MAX_NAME_CHARACTERS} characters")
            continue
        if name in found:
            problems.append(f"{shown} is listed more than once; the first counts")
            continue
        try:
            definition = _definition(name, entry, server)
        except (InvalidSchemaError, ValueError, RecursionError) as error:
            problems.append(f"{shown} is left out: {str(error)[:200]}")
            continue
        size += len(definition.description) + len(json.dumps(definition.schema))
        if size > MAX_LIST_BYTES:
            problems.append(f"the definitions have more than {MAX_LIST_BYTES} bytes; {shown} and others are left out")
            break
        found[name] = definition
    hidden = len(problems) - MAX_PROBLEMS
    listed = [*problems[:MAX_PROBLEMS], *([f"and {hidden} more problems"] if hidden > 0 else [])]
    return Listing(tools=tuple(found.values()), problems=tuple(listed))


def _definition(name: str, entry: Mapping[str, Any], server: str) -> ToolDefinition:
    annotations = entry.get("annotations")
    hints: Mapping[str, Any] = annotations if isinstance(annotations, Mapping) else {}
    texts = [entry.get("description"), entry.get("title"), hints.get("title")]
    description = next((text for raw in texts if isinstance(raw, str) and (text := bounded_text(raw))), None)
    return ToolDefinition(
        tool=name,
        description=description or f"{escaped(name[:_SHOWN_NAME])} of the MCP server {server}.",
        schema=_usable_schema(entry.get("inputSchema")),
        is_read_only=hints.get("readOnlyHint") is True,
        is_destructive=hints.get("destructiveHint") is not False,
    )


def bounded_text(text: str, limit: int = MAX_DESCRIPTION_BYTES) -> str:
    """Text for a model: at most `limit` bytes, without characters that people cannot see."""
    visible = "".join(
        letter for letter in text[:limit] if letter in "\n\t" or unicodedata.category(letter) not in _INVISIBLE
    ).strip()
    data = visible.encode()
    if len(data) <= limit and len(text) <= limit:
        return visible
    return data[: limit - len(CUT.encode())].decode("utf-8", "ignore").rstrip() + CUT


def _usable_schema(schema: Any) -> Json:
    """The schema as the server says; if its input cannot be checked here, its top level alone.

    Raises InvalidSchemaError.
    """
    if not isinstance(schema, dict):
        raise InvalidSchemaError("it has no input schema")
    if schema.get("type", "object") != "object":
        raise InvalidSchemaError("a tool's parameters are an object")
    if len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace")) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(f"its input schema has more than {MAX_SCHEMA_BYTES} bytes")
    whole = {key: value for key, value in schema.items() if key != "$schema"}
    try:
        SchemaParameters(whole)
    except InvalidSchemaError:
        simple = _top_level(whole)
        SchemaParameters(simple)
        return simple
    return whole


def _top_level(schema: Json) -> Json:
    """The names, types and descriptions of the parameters. The server checks the rest itself."""
    properties = schema.get("properties")
    named = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    return {
        "type": "object",
        "properties": {
            name: {key: own[key] for key in _SIMPLE_KEYWORDS if key in own} if isinstance(own, dict) else {}
            for name, own in named.items()
        },
        **({"required": required} if isinstance(required, list) else {}),
    }


class McpParameters:
    """A tool's schema; the validator is built for the first call."""

    def __init__(self, schema: Json) -> None:
        self.schema: Mapping[str, Any] = schema

    def read(self, input: Mapping[str, Any]) -> tuple[Any, list[InputProblem]]:
        return self._checked.read(input)

    @cached_property
    def _checked(self) -> SchemaParameters:
        return SchemaParameters(self.schema)
