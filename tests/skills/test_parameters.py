"""Parameters as packages declare them, and the schema derived from them."""

from datetime import date
from typing import Any

import pytest

from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.package.parameters import declared_schema, tool_schema
from apexbridge.tools.schema import SchemaParameters


def problems(schema: dict[str, Any] | None, input: dict[str, Any]) -> list[str]:
    assert schema is not None
    return [problem.path for problem in SchemaParameters(schema).read(input)[1]]


def test_a_json_schema_is_not_changed() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "maximum": 7}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert declared_schema(schema) == (schema, [])


def test_a_schema_without_a_type_gets_the_type_object() -> None:
    assert declared_schema({"properties": {"city": {"type": "string"}}}) == (
        {"type": "object", "properties": {"city": {"type": "string"}}},
        [],
    )


def test_names_with_details_become_properties() -> None:
    schema, warnings = declared_schema(
        {
            "path": {"type": "file", "description": "What to read", "required": True},
            "count": {"type": "int", "default": 3, "minimum": 1},
            "format": {"enum": ["csv", "json"]},
            "level": {"choices": [1, 2]},
            "verbose": {"default": False},
        }
    )
    assert warnings == []
    assert schema == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "What to read"},
            "count": {"type": "integer", "default": 3, "minimum": 1},
            "format": {"enum": ["csv", "json"]},
            "level": {"enum": [1, 2]},
            "verbose": {"type": "boolean", "default": False},
        },
        "required": ["path"],
    }
    assert problems(schema, {"path": "a.csv", "count": 2, "format": "csv", "level": 2}) == []
    assert problems(schema, {"path": "a.csv", "level": "2"}) == ["level"]


@pytest.mark.parametrize(
    ("word", "type"),
    [
        ("str", "string"),
        ("int", "integer"),
        ("float", "number"),
        ("bool", "boolean"),
        ("list", "array"),
        ("dict", "object"),
        ("file", "string"),
        ("path", "string"),
        ("url", "string"),
        ("Boolean", "boolean"),
    ],
)
def test_common_type_aliases_are_accepted(word: str, type: str) -> None:
    assert declared_schema({"x": word})[0] == {"type": "object", "properties": {"x": {"type": type}}}
    assert declared_schema({"x": {"type": word}})[0] == {"type": "object", "properties": {"x": {"type": type}}}


def test_a_parameter_may_have_only_a_type_or_only_a_description() -> None:
    schema, warnings = declared_schema(
        {"city": "string", "why": "What the report is for", "days": "list[int]", "tags": "string[]", "note": None}
    )
    assert warnings == []
    assert schema is not None
    assert schema["properties"] == {
        "city": {"type": "string"},
        "why": {"type": "string", "description": "What the report is for"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "string"},
    }


def test_a_list_of_named_parameters_is_accepted() -> None:
    schema, warnings = declared_schema(
        [
            {"name": "city", "type": "string", "description": "Where", "required": True},
            {"days": "int"},
            "units",
        ]
    )
    assert warnings == []
    assert schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer"},
            "units": {"type": "string"},
        },
        "required": ["city"],
    }


def test_nested_objects_and_lists_are_read_the_same_way() -> None:
    schema, warnings = declared_schema(
        {
            "box": {"properties": {"width": {"type": "int", "required": True}, "unit": "str"}},
            "points": {"type": "list", "items": "float"},
            "either": {"type": ["str", "int"]},
        }
    )
    assert warnings == []
    assert schema is not None
    assert schema["properties"] == {
        "box": {
            "type": "object",
            "properties": {"width": {"type": "integer"}, "unit": {"type": "string"}},
            "required": ["width"],
        },
        "points": {"type": "array", "items": {"type": "number"}},
        "either": {"type": ["string", "integer"]},
    }


def test_an_invalid_schema_is_read_as_far_as_possible() -> None:
    schema, warnings = declared_schema(
        {
            "type": "object",
            "properties": {"city": {"type": "str", "required": True}, "days": {"type": "int"}},
            "required": ["days", "gone"],
        }
    )
    assert len(warnings) == 1
    assert schema == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    }


def test_bad_parameters_are_dropped_and_the_others_remain() -> None:
    deep: Any = {"type": "string"}
    for _ in range(20):
        deep = {"type": "array", "items": deep}
    schema, warnings = declared_schema(
        {
            "good": "string",
            "pattern": {"type": "string", "pattern": "("},
            "number": 5,
            "reference": {"$ref": "#/properties/reference"},
            "deep": deep,
            "x" * 65: "string",
            "line\nbreak": "string",
        }
    )
    assert schema == {"type": "object", "properties": {"good": {"type": "string"}}}
    assert len(warnings) == 6


def test_an_unknown_type_accepts_any_value() -> None:
    schema, warnings = declared_schema({"x": {"type": "wizard", "description": "Who"}})
    assert schema == {"type": "object", "properties": {"x": {"description": "Who"}}}
    assert len(warnings) == 1


def test_json_schema_keywords_can_be_parameter_names() -> None:
    schema, warnings = declared_schema({"type": {"type": "string"}, "properties": {"type": "object"}})
    assert warnings == []
    assert schema == {
        "type": "object",
        "properties": {"type": {"type": "string"}, "properties": {"type": "object"}},
    }
    assert declared_schema({"type": "string", "city": "string"})[0] == {
        "type": "object",
        "properties": {"type": {"type": "string"}, "city": {"type": "string"}},
    }


@pytest.mark.parametrize(
    "declaration",
    [
        "city",
        5,
        {"type": "string", "description": "a text"},
        {"type": "object", "properties": "city"},
        {"$ref": "https://example.com/schema.json"},
        {"x": float("nan")},
        [[1], {"a": 1, "b": 2}],
    ],
)
def test_invalid_parameters_are_ignored_with_a_warning(declaration: Any) -> None:
    schema, warnings = declared_schema(declaration)
    assert schema is None
    assert warnings


@pytest.mark.parametrize("declaration", [None, {}, []])
def test_empty_parameters_have_no_schema(declaration: Any) -> None:
    assert declared_schema(declaration) == (None, [])


def test_a_list_that_contains_itself_is_ignored() -> None:
    declaration: list[Any] = []
    declaration.append(declaration)
    assert declared_schema(declaration)[0] is None


def test_parameters_above_the_limit_are_dropped() -> None:
    schema, warnings = declared_schema({f"p{number}": "string" for number in range(150)})
    assert schema is not None
    assert len(schema["properties"]) == 100
    assert len(warnings) == 50


def test_a_yaml_date_becomes_a_string() -> None:
    schema, _ = declared_schema({"since": {"type": "date", "default": date(2024, 1, 31)}})
    assert schema == {"type": "object", "properties": {"since": {"type": "string", "default": "2024-01-31"}}}


def test_parameters_are_read_from_real_frontmatter() -> None:
    document = parse_leniently(
        "---\nname: weather\ndescription: Tells the weather.\nparameters:\n"
        "  - name: city\n    type: string\n    required: true\n  - name: days\n    type: int\n    default: 3\n---\n"
    )
    schema, warnings = declared_schema(document.value("parameters"))
    assert warnings == []
    assert problems(schema, {"days": 3}) == [""]
    assert problems(schema, {"city": "Oslo", "days": "3"}) == ["days"]


@pytest.mark.requirement("F2")
def test_a_tool_accepts_the_skills_own_parameters_and_an_optional_name() -> None:
    own, _ = declared_schema({"city": {"type": "string", "required": True}})
    schema = tool_schema(own, "weather")
    assert list(schema["properties"]) == ["city", "name"]
    assert "weather" in schema["properties"]["name"]["description"]
    assert problems(schema, {"city": "Oslo"}) == []
    assert problems(schema, {"city": "Oslo", "name": "weather"}) == []
    assert own is not None
    assert "name" not in own["properties"]


@pytest.mark.requirement("F2")
def test_the_skills_own_name_parameter_is_not_replaced() -> None:
    own, _ = declared_schema({"name": {"type": "integer", "required": True}})
    assert tool_schema(own, "weather") == own


def test_a_closed_schema_accepts_the_name() -> None:
    schema = tool_schema({"type": "object", "properties": {}, "additionalProperties": False}, "weather")
    assert problems(schema, {"name": "weather"}) == []


def test_a_skill_without_parameters_accepts_only_its_name() -> None:
    assert list(tool_schema(None, "weather")["properties"]) == ["name"]
