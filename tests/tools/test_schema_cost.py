"""Schemas of skills: the cost of a check is at most the size of the schema times that of the input."""

import json
from typing import Any

import pytest

from apexbridge.errors import InvalidSchemaError
from apexbridge.tools.schema import SchemaParameters

LEVELS = 40
OBJECT = {"type": "object"}


def doubling(prefix: str) -> dict[str, Any]:
    """Definitions, each of which refers to the next one twice."""
    levels = {f"d{n}": {"allOf": [{"$ref": f"{prefix}d{n + 1}"}] * 2} for n in range(LEVELS)}
    return {**levels, f"d{LEVELS}": OBJECT}


def evaluating(keyword: str) -> dict[str, Any]:
    """Definitions, each of which depends on what the next ones evaluated."""
    levels = {
        f"d{n}": {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"required": ["q"]}], keyword: {"type": "number"}}
        for n in range(20)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**levels, "d20": OBJECT}}


@pytest.mark.parametrize(
    "schema",
    [
        evaluating("unevaluatedProperties"),
        evaluating("unevaluatedItems"),
        {"$defs": {"a": {"$dynamicAnchor": "q"}}, "$dynamicRef": "#q"},
        {"properties": {"a": {"$recursiveRef": "#"}}},
        {"$ref": "#/%24defs/d0", "$defs": doubling("#/%24defs/")},
        {"$ref": "#/%24defs/a", "$defs": {"a": {"$ref": "#/%24defs/a"}}},
        {"allOf": [{"$ref": "#/allOf/0"}]},
        {"allOf": [{"allOf": [{"$ref": f"#/allOf/{n + 1}"}] * 2} for n in range(LEVELS)] + [OBJECT]},
        {
            "$defs": {name: {} for name in doubling("")},
            "allOf": [{"$id": "http://x/y", "$ref": "#/$defs/d0", "$defs": doubling("#/$defs/")}],
        },
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "definitions": {name: {} for name in doubling("")},
            "allOf": [{"id": "http://x/y", "$ref": "#/definitions/d0", "definitions": doubling("#/definitions/")}],
        },
        {"$id": "http://x/y", "$ref": "http://x/y#/$defs/d0", "$defs": doubling("http://x/y#/$defs/")},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/allOf/" + "9" * 5000, "allOf": [OBJECT]},
    ],
    ids=[
        "unevaluatedProperties",
        "unevaluatedItems",
        "dynamic references",
        "recursive references",
        "encoded references",
        "an encoded circle",
        "a circle through a list",
        "doubling through a list",
        "an embedded resource",
        "an embedded resource of draft 4",
        "references by address",
        "nothing there",
        "a huge index",
    ],
)
def test_a_schema_with_unbounded_cost_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchemaError):
        SchemaParameters(schema)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"id": {"type": "string"}, "$id": {"type": "integer"}}}, {"id": "x", "$id": 1}, {"id": 1}),
        ({"properties": {"unevaluatedItems": {"type": "integer"}}}, {"unevaluatedItems": 1}, {"unevaluatedItems": ""}),
        ({"$id": "https://example.com/a.json", "required": ["a"]}, {"a": 1}, {}),
        (
            {"$defs": {"a b": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/a%20b"}}},
            {"a": 1},
            {"a": "x"},
        ),
        (
            {"prefix": [{"type": "integer"}], "properties": {"a": {"$ref": "#/prefix/0"}}},
            {"a": 1},
            {"a": "x"},
        ),
        ({"properties": {"a": {"default": {"id": "x", "$ref": 5}, "type": "object"}}}, {"a": {}}, {"a": 1}),
        ({"properties": {"a": {"enum": [{"$id": "x"}]}}}, {"a": {"$id": "x"}}, {"a": 1}),
    ],
    ids=["names", "a name like a keyword", "an address", "an encoded name", "a list", "a default", "an enum"],
)
def test_ordinary_schemas_are_accepted(schema: dict[str, Any], good: dict[str, Any], bad: dict[str, Any]) -> None:
    parameters = SchemaParameters(schema)
    assert parameters.read(good)[1] == []
    assert parameters.read(bad)[1] != []
    assert parameters.schema == schema
    assert json.dumps(parameters.schema)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"pattern": "^(?:a|b)*a(?:a|b){100}$"}}}, {"a": ["ab" * 2_000] * 100}),
        ({"patternProperties": {"^(?:a|b)*a(?:a|b){100}$": {}}}, {"ab" * 2_000 + str(n): 1 for n in range(100)}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[]] * 2_000}),
        ({"properties": {"a": {"allOf": [{"uniqueItems": True}] * 10}}}, {"a": [[]] * 400}),
        ({"properties": {"a": {"items": {"multipleOf": 1e-300}}}}, {"a": [1.7e308] * 4_000}),
    ],
    ids=["a pattern", "patterns of names", "unique items", "unique items again and again", "multiples"],
)
def test_an_input_that_is_too_expensive_to_check_is_refused(schema: dict[str, Any], value: dict[str, Any]) -> None:
    (problem,) = SchemaParameters(schema).read(value)[1]
    assert "too large to be checked" in problem.message


def test_patterns_apply_to_texts_of_limited_length() -> None:
    parameters = SchemaParameters(
        {
            "properties": {
                "pattern": {"type": "string", "pattern": "^a+$", "allOf": [{"minLength": 2}]},
                "text": {"type": "string"},
            }
        }
    )
    assert parameters.read({"pattern": "aaa", "text": "x" * 1_000_000})[1] == []
    assert "does not match" in parameters.read({"pattern": "abc"})[1][0].message
    assert "shorter" in parameters.read({"pattern": "a"})[1][0].message
    assert "longer than 4096" in parameters.read({"pattern": "a" * 5_000})[1][0].message


def test_an_input_within_the_limits_is_checked() -> None:
    schema = {"properties": {"a": {"uniqueItems": True, "items": {"pattern": "^[a-z0-9.]+@[a-z.]+$"}}}}
    addresses = [f"someone.{number}@example.org" for number in range(500)]
    parameters = SchemaParameters(schema)
    assert parameters.read({"a": addresses})[1] == []
    assert parameters.read({"a": [*addresses, addresses[0]]})[1] != []
