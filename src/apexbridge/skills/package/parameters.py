"""Converts the parameters in a skill's frontmatter, in any of the common notations, to a JSON Schema."""

import json
import re
from collections.abc import Mapping
from typing import Any

from apexbridge.errors import InvalidSchemaError
from apexbridge.tools.schema import SchemaParameters

MAX_PARAMETERS = 100
MAX_NAME_CHARACTERS = 64
MAX_DESCRIPTION_CHARACTERS = 1024
MAX_DEPTH = 16
NAME_PROPERTY = "name"
ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}}
"""Schema of a skill that declares no parameters."""
_TYPES = {
    **dict.fromkeys(["string", "str", "text", "char", "enum", "choice"], "string"),
    **dict.fromkeys(["file", "filename", "path", "filepath", "directory", "folder", "dir"], "string"),
    **dict.fromkeys(["url", "uri", "email", "date", "datetime", "time", "uuid"], "string"),
    **dict.fromkeys(["integer", "int", "long"], "integer"),
    **dict.fromkeys(["number", "float", "double", "decimal"], "number"),
    **dict.fromkeys(["boolean", "bool", "flag"], "boolean"),
    **dict.fromkeys(["array", "list", "tuple", "set"], "array"),
    **dict.fromkeys(["object", "dict", "map", "mapping", "json"], "object"),
    "null": "null",
    "none": "null",
}
_LIST_OF = re.compile(r"(?:list|array)[\[<](\w{1,20})[\]>]|(\w{1,20})\[\]")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "uniqueItems")
_COMBINATIONS = ("anyOf", "oneOf", "allOf", "const")
_WORDS = ("description", "default", "examples", "format", "pattern", "additionalProperties")
_KEPT_KEYWORDS = (*_WORDS, *_BOUNDS, *_SIZES, *_COMBINATIONS)
_SCHEMA_KEYWORDS = {
    *_KEPT_KEYWORDS,
    "$schema",
    "$id",
    "$defs",
    "title",
    "type",
    "properties",
    "required",
    "items",
    "enum",
}
_YES = (True, "true", "yes", "True")


class _Refused(ValueError):
    """A parameter is invalid; the message is the reason."""


def declared_schema(parameters: Any) -> tuple[dict[str, Any] | None, list[str]]:
    """Parse the value of `parameters` or `input_schema`.

    It may be a JSON Schema, a mapping of names to descriptions, types or details, or a list with a `name` in each
    entry. Invalid parameters are ignored.

    Returns:
        A JSON Schema of an object, or None if there are no valid parameters, and a warning for each ignored one.
    """
    if parameters is None:
        return None, []
    warnings: list[str] = []
    try:
        declaration = json.loads(json.dumps(parameters, default=str, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return None, ["parameters cannot be written as JSON; they are ignored"]
    if isinstance(declaration, dict) and _is_schema(declaration):
        return _usable_schema(declaration, warnings)
    if isinstance(declaration, dict):
        entries = list(declaration.items())
    elif isinstance(declaration, list):
        entries = _named_entries(declaration, warnings)
    else:
        return None, ["parameters must be a mapping or a list; they are ignored"]
    return _checked(_from_entries(entries, warnings), warnings)


def tool_schema(schema: Mapping[str, Any] | None, skill_name: str) -> dict[str, Any]:
    """The schema of a skill's tool: its parameters, and an optional `name` unless it declares one."""
    whole = {"type": "object", **(schema or ANYTHING)}
    properties = dict(whole.get("properties") or {})
    if NAME_PROPERTY not in properties and NAME_PROPERTY not in (whole.get("required") or []):
        properties[NAME_PROPERTY] = {"type": "string", "description": f"The skill's identifier: {skill_name}"}
    return {**whole, "properties": properties}


# ------------------------------------------------------------------------------------------------ JSON Schema
def _is_schema(declaration: dict[str, Any]) -> bool:
    """Whether a mapping is a schema, as opposed to a mapping of parameter names that resemble keywords."""
    kind = declaration.get("type")
    if kind == "object" or "$ref" in declaration:
        return True
    if kind is not None and not isinstance(kind, dict):
        return set(declaration) <= _SCHEMA_KEYWORDS
    properties = declaration.get("properties")
    return isinstance(properties, dict) and not isinstance(properties.get("type"), str)


def _usable_schema(declaration: dict[str, Any], warnings: list[str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The schema unchanged if it is valid, else one rebuilt from its properties."""
    schema = {"type": "object", **declaration}
    try:
        SchemaParameters(schema)
    except InvalidSchemaError as problem:
        properties = declaration.get("properties")
        if schema["type"] != "object" or not isinstance(properties, dict):
            return None, [*warnings, f"parameters are not a usable JSON Schema: {problem}; they are ignored"]
        repaired = _from_entries(list(properties.items()), warnings)
        required = declaration.get("required")
        named = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        known = repaired["properties"]
        required_names = dict.fromkeys([*repaired.get("required", []), *(name for name in named if name in known)])
        if required_names:
            repaired["required"] = list(required_names)
        warnings.append(f"parameters break the rules of JSON Schema ({problem}); they were read as far as possible")
        return _checked(repaired, warnings)
    return schema, warnings


def _checked(schema: dict[str, Any], warnings: list[str]) -> tuple[dict[str, Any] | None, list[str]]:
    if not schema["properties"]:
        return None, warnings
    try:
        SchemaParameters(schema)
    except InvalidSchemaError as problem:
        return None, [*warnings, f"parameters are not a usable JSON Schema: {problem}; they are ignored"]
    return schema, warnings


# ---------------------------------------------------------------------------------------------- other notations
def _named_entries(declaration: list[Any], warnings: list[str]) -> list[tuple[str, Any]]:
    """The entries of a list: each is `{name: …, type: …}`, `{the-name: …}`, or a name only."""
    entries: list[tuple[str, Any]] = []
    for entry in declaration:
        if isinstance(entry, str):
            entries.append((entry, {}))
        elif isinstance(entry, dict) and isinstance(entry.get("name"), str):
            entries.append((entry["name"], {key: value for key, value in entry.items() if key != "name"}))
        elif isinstance(entry, dict) and len(entry) == 1:
            entries += entry.items()
        else:
            warnings.append("a parameter without a name was ignored")
    return entries


def _from_entries(entries: list[tuple[str, Any]], warnings: list[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, declared in entries:
        try:
            if len(properties) >= MAX_PARAMETERS:
                raise _Refused(f"there are more than {MAX_PARAMETERS}")
            if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
                raise _Refused(f"a name has 1 to {MAX_NAME_CHARACTERS} printable characters")
            if name in properties:
                raise _Refused("it is there twice")
            schema = _property(declared, f'parameter "{name}"', warnings)
            SchemaParameters({"properties": {name: schema}})
        except (_Refused, InvalidSchemaError) as problem:
            warnings.append(f'parameter "{name[:MAX_NAME_CHARACTERS]}" was ignored: {problem}')
            continue
        properties[name] = schema
        if isinstance(declared, dict) and _is_required(declared):
            required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _is_required(declared: dict[str, Any]) -> bool:
    return declared.get("required") in _YES or declared.get("optional") in (False, "false")


def _property(declared: Any, where: str, warnings: list[str], depth: int = 0) -> dict[str, Any]:
    """One parameter's schema, from its details, its type, or its description."""
    if depth > MAX_DEPTH:
        raise _Refused("it is nested too deeply")
    if declared is None:
        return {"type": "string"}
    if isinstance(declared, str):
        kind = _type_schema(declared)
        return {"type": "string", "description": declared[:MAX_DESCRIPTION_CHARACTERS]} if kind is None else kind
    if not isinstance(declared, dict):
        raise _Refused("write its type, its description, or a mapping of both")
    if "$ref" in declared:
        raise _Refused("a reference cannot be followed here")
    schema = _kind(declared, where, warnings)
    schema |= {key: declared[key] for key in _KEPT_KEYWORDS if declared.get(key) is not None}
    if "description" in schema:
        schema["description"] = str(schema["description"])[:MAX_DESCRIPTION_CHARACTERS]
    if choices := _choices(declared):
        schema["enum"] = choices
    if declared.get("items") is not None:
        schema["items"] = _property(declared["items"], where, warnings, depth + 1)
    if isinstance(declared.get("properties"), dict):
        inner = {key: _property(value, where, warnings, depth + 1) for key, value in declared["properties"].items()}
        schema["properties"] = inner
        required = declared.get("required")
        names = required if isinstance(required, list) else []
        named = [key for key in inner if key in names or _declares_required(declared["properties"][key])]
        if named:
            schema["required"] = named
    return schema


def _choices(declared: dict[str, Any]) -> list[Any] | None:
    return next((declared[key] for key in ("enum", "choices", "options") if isinstance(declared.get(key), list)), None)


def _declares_required(declared: Any) -> bool:
    return isinstance(declared, dict) and _is_required(declared)


def _kind(declared: dict[str, Any], where: str, warnings: list[str]) -> dict[str, Any]:
    """The declared type as `{"type": …}`; empty, with a warning, if the type is unknown."""
    written = declared.get("type")
    if written is None and (_choices(declared) or any(key in declared for key in _COMBINATIONS)):
        return {}
    if written is None:
        shape = (
            "object"
            if "properties" in declared
            else "array"
            if "items" in declared
            else _type_of(declared.get("default"))
        )
        return {"type": shape}
    words = written if isinstance(written, list) else [written]
    known = [_type_schema(word) if isinstance(word, str) else None for word in words]
    if not known or any(schema is None for schema in known):
        warnings.append(f"{where} has the unknown type {str(written)[:40]!r}; any value is taken")
        return {}
    schemas = [schema for schema in known if schema is not None]
    if len(schemas) == 1:
        return schemas[0]
    return {"type": list(dict.fromkeys(schema["type"] for schema in schemas))}


def _type_schema(word: str) -> dict[str, Any] | None:
    """The schema of a type name such as `int`, `path`, `list[str]` or `string[]`; None if unknown."""
    plain = word.strip().lower()
    if listed := _LIST_OF.fullmatch(plain):
        item = _TYPES.get(listed[1] or listed[2])
        return {"type": "array", "items": {"type": item}} if item else None
    if plain == "any":
        return {"type": ["string", "number", "boolean", "array", "object", "null"]}
    return {"type": _TYPES[plain]} if plain in _TYPES else None


def _type_of(default: Any) -> str:
    if isinstance(default, bool):
        return "boolean"
    if isinstance(default, int):
        return "integer"
    if isinstance(default, float):
        return "number"
    return "array" if isinstance(default, list) else "object" if isinstance(default, dict) else "string"
