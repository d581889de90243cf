"""Input schemas of tools: a pydantic model or a JSON Schema, checked before anything runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol
from urllib.parse import unquote

import jsonschema_rs
from pydantic import BaseModel, ValidationError

from apexbridge.errors import InvalidSchemaError
from apexbridge.wire import MAX_PROBLEM_CHARACTERS, MAX_PROBLEMS, WireModel, problem

MAX_SCHEMA_NODES = 2_000
"""Nodes of a schema with every reference followed; nested references can make it grow exponentially."""
MAX_PATTERNS = 64
MAX_PATTERN_BYTES = 16 * 1024
"""Compiled size of a pattern. Matching time is linear in the text and in this size."""
MAX_PATTERN_TEXT = 4_096
"""Characters of a text that is matched against a pattern; a longer text is invalid."""
MAX_PATTERN_CHARACTERS = 50_000
"""Characters of all texts of an input times patterns. Each costs up to two microseconds with the largest pattern."""
MAX_UNIQUE_CHECKS = 1_000_000
"""Pairs of items times `uniqueItems`: items with equal hashes are compared one by one."""
MULTIPLE_NODES = 1_000
"""Nodes that a `multipleOf` counts as: very large and very small numbers are divided exactly."""
MAX_CHECKS = 2_000_000
"""Nodes of a schema times nodes of an input: the maximum cost of a check."""
MAX_REPORTED_CHECKS = 20_000
"""Up to this cost all problems are reported; beyond it, only the first."""
MAX_COUNTED_PROBLEMS = 1_000
LONG_TEXT = 10_000
TEXT_SHIFT = 10
"""A kilobyte of text costs about as much as one node."""
_REFUSED_KEYWORDS = frozenset({"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"})
"""Keywords whose cost is not bounded by schema size times input size: each level evaluates its subschemas again."""
_RESOURCE_KEYWORDS = ("$id", "id")
"""They start an embedded resource, in which `#/…` does not point into the root schema."""
_NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose value maps names to schemas; these names are not keywords."""
_INDEX = re.compile(r"[0-9]{1,6}\Z")
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
_ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


class InputProblem(WireModel):
    """A value that does not fit."""

    path: str
    message: str


class Parameters(Protocol):
    """A schema and its validation."""

    @property
    def schema(self) -> Mapping[str, Any]: ...

    def read(self, input: Mapping[str, Any]) -> tuple[Any, list[InputProblem]]:
        """The input as the tool receives it, and all problems found."""


def parameters_of(parameters: "type[BaseModel] | Mapping[str, Any] | Parameters | None") -> Parameters:
    """Parameters from a pydantic model or a JSON Schema; None accepts any object.

    Raises InvalidSchemaError if it is not a usable JSON Schema of an object.
    """
    if isinstance(parameters, type):
        return ModelParameters(parameters)
    if parameters is None or isinstance(parameters, Mapping):
        return SchemaParameters(_ANYTHING if parameters is None else parameters)
    return parameters


class ModelParameters:
    """A pydantic model; the tool receives an instance of it."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        schema = tidied(model.model_json_schema())
        schema.pop("description", None)  # the model's docstring, which is for readers of the code
        self.schema: Mapping[str, Any] = schema

    def read(self, input: Mapping[str, Any]) -> tuple[Any, list[InputProblem]]:
        try:
            return self._model.model_validate(input), []
        except ValidationError as error:
            if error.error_count() > MAX_COUNTED_PROBLEMS:  # listing them costs several microseconds each
                return None, [InputProblem(path="", message=f"{error.error_count()} values do not fit")]
            found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_PROBLEMS]
            return None, [_problem(item["loc"], item["msg"]) for item in found]


class SchemaParameters:
    """A JSON Schema, possibly untrusted: no references are fetched, and patterns run in linear time."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema: Mapping[str, Any] = dict(schema)
        if self.schema.get("type", "object") != "object":
            raise InvalidSchemaError("a tool's parameters are an object")
        # Without `$id`, every reference must point into this schema.
        anonymous = {key: value for key, value in self.schema.items() if key not in _RESOURCE_KEYWORDS}
        self._costs = _costs_of(anonymous)
        try:
            self._validator = jsonschema_rs.validator_for(
                {"type": "object", **_with_bounded_patterns(anonymous)},
                offline=True,
                pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES),
            )
        except ValueError as error:
            raise InvalidSchemaError(str(error).partition("\n")[0]) from error

    def read(self, input: Mapping[str, Any]) -> tuple[Any, list[InputProblem]]:
        value, costs = dict(input), self._costs
        nodes, characters, pairs, longest = _measured(value, MAX_CHECKS // costs.nodes + 1)
        if (
            nodes * costs.nodes > MAX_CHECKS
            or characters * costs.patterns > MAX_PATTERN_CHARACTERS
            or pairs * costs.unique > MAX_UNIQUE_CHECKS
        ):
            return value, [InputProblem(path="", message="the input is too large to be checked against its schema")]
        if self._validator.is_valid(value):
            return value, []
        if nodes * costs.nodes <= MAX_REPORTED_CHECKS and longest <= LONG_TEXT:  # every message copies the text
            found = islice(self._validator.iter_errors(value), MAX_PROBLEMS)
            return value, [_problem(error.instance_path, error.message) for error in found]
        try:
            self._validator.validate(value)  # stops at the first problem
        except jsonschema_rs.ValidationError as error:
            return value, [_problem(error.instance_path, error.message)]
        raise AssertionError("it was not valid a moment ago")


def tidied(schema: Any) -> Any:
    """A generated schema without titles and null defaults, which cost tokens and do not inform the model."""
    if isinstance(schema, list):
        return [tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if tidy.get("default", ...) is None:
        del tidy["default"]
    match tidy.get("anyOf"):
        case [{"type": "null"}, choice] | [choice, {"type": "null"}]:  # an optional field
            del tidy["anyOf"]
            tidy = choice | tidy
    return {key: tidied(value) for key, value in tidy.items()}


def _problem(path: Any, message: str) -> InputProblem:
    return InputProblem(**problem(path, message))


@dataclass(slots=True)
class _Costs:
    """The cost of a check against a schema, with all references followed."""

    nodes: int = 0
    patterns: int = 0
    unique: int = 0
    """Occurrences of `uniqueItems`."""


def _costs_of(schema: Mapping[str, Any]) -> _Costs:
    """Count what makes a schema expensive.

    Raises:
        InvalidSchemaError: validation could cost too much: the schema is too large, has too many patterns, refers to
            itself, or uses keywords whose cost cannot be bounded.
    """
    costs, multiples = _Costs(), 0

    def count_node() -> None:
        costs.nodes += 1
        if costs.nodes > MAX_SCHEMA_NODES:
            raise InvalidSchemaError("the schema is too large")

    def walk_data(node: Any) -> None:
        count_node()
        for item in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
            walk_data(item)

    def walk_keyword(key: str, value: Any, within: tuple[str, ...]) -> None:
        nonlocal multiples
        if key in _REFUSED_KEYWORDS:
            raise InvalidSchemaError(f"{key} is not supported; use additionalProperties or items")
        if key in _RESOURCE_KEYWORDS and isinstance(value, str):
            raise InvalidSchemaError(f"{key} is only allowed at the top of the schema")
        if key == "$ref" and isinstance(value, str):
            if value in within:
                raise InvalidSchemaError("the schema refers to itself")
            walk(_resolved(schema, value), (*within, value))
        elif key in _DATA_KEYWORDS:
            walk_data(value)
        elif key in _NAME_MAPS and isinstance(value, Mapping):
            count_node()
            costs.patterns += len(value) if key == "patternProperties" else 0
            for item in value.values():
                walk(item, within)
        else:
            costs.patterns += key == "pattern"
            costs.unique += key == "uniqueItems" and value is True
            multiples += key == "multipleOf"
            walk(value, within)

    def walk(node: Any, within: tuple[str, ...]) -> None:
        count_node()
        if isinstance(node, Mapping):
            for key, value in node.items():
                walk_keyword(key, value, within)
        elif isinstance(node, list):
            for item in node:
                walk(item, within)

    try:
        walk(schema, ())
    except RecursionError as error:
        raise InvalidSchemaError("the schema is nested too deeply") from error
    if costs.patterns > MAX_PATTERNS:
        raise InvalidSchemaError(f"the schema has more than {MAX_PATTERNS} patterns")
    costs.nodes += MULTIPLE_NODES * multiples
    return costs


def _with_bounded_patterns(node: Any, *, is_map: bool = False) -> Any:
    """The schema with each `pattern` applied only to texts of bounded length."""
    if isinstance(node, list):
        return [_with_bounded_patterns(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    copy = {
        key: value if key in _DATA_KEYWORDS and not is_map else _with_bounded_patterns(value, is_map=key in _NAME_MAPS)
        for key, value in node.items()
    }
    if not is_map and isinstance(copy.get("pattern"), str):
        limit = {"maxLength": MAX_PATTERN_TEXT}
        bounded = {"if": limit, "then": {"pattern": copy.pop("pattern")}, "else": limit}
        copy["allOf"] = [*(copy["allOf"] if isinstance(copy.get("allOf"), list) else ()), bounded]
    return copy


def _measured(value: Any, limit: int) -> tuple[int, int, int, int]:
    """What makes an input expensive to check, counted up to a limit of nodes.

    Number of nodes (a long text counts as several), characters that patterns may be matched against, pairs of items of
    lists, and the length of the longest text.
    """
    nodes = characters = pairs = longest = 0
    waiting = [value]
    while waiting and nodes < limit:
        node = waiting.pop()
        nodes += 1
        if isinstance(node, str):
            length = len(node)
            nodes += length >> TEXT_SHIFT
            characters += min(length, MAX_PATTERN_TEXT)
            longest = max(longest, length)
        elif isinstance(node, dict):
            for key in node:
                length = len(key)
                nodes += length >> TEXT_SHIFT
                characters += length
                longest = max(longest, length)
            waiting.extend(node.values())
        elif isinstance(node, list):
            pairs += len(node) ** 2
            waiting.extend(node)
    return nodes, characters, pairs, longest


def _resolved(schema: Any, reference: str) -> Any:
    """Resolve a local reference as the validator does: percent-decoded, through lists as well.

    Raises InvalidSchemaError if it points outside the schema, or to nothing.
    """
    if not reference.startswith("#/"):
        raise InvalidSchemaError("the schema refers to something outside it, or to itself")
    node = schema
    for part in unquote(reference.removeprefix("#/")).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and _INDEX.match(key) and int(key) < len(node):
            node = node[int(key)]
        else:
            raise InvalidSchemaError(
                f"the schema refers to {reference[:MAX_PROBLEM_CHARACTERS]}, which it does not contain"
            )
    return node
