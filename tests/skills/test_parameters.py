"""Parameters as packages write them, and the schema that becomes of them."""

from datetime import date
from typing import Any

import pytest

from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.package.parameters import declared_schema, tool_schema
from apexbridge.tools.schema import SchemaParameters


def problems(schema: dict[str, Any] | None, given: dict[str, Any]) -> list[str]:
    assert schema is not None
    return [problem.path for problem in SchemaParameters(schema).read(given)[1]]


def test_a_json_schema_stays_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "maximum": 7}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert declared_schema(schema) == (schema, [])


def test_a_schema_without_a_type_is_one_of_an_object() -> None:
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
def test_the_words_that_people_use_for_types_are_understood(word: str, type: str) -> None:
    assert declared_schema({"x": word})[0] == {"type": "object", "properties": {"x": {"type": type}}}
    assert declared_schema({"x": {"type": word}})[0] == {"type": "object", "properties": {"x": {"type": type}}}


def test_a_name_may_have_a_type_or_a_description_alone() -> None:
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


def test_a_list_of_named_parameters_is_understood() -> None:
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


def test_objects_and_lists_inside_are_read_the_same_way() -> None:
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


def test_a_schema_that_breaks_the_rules_is_read_as_far_as_possible() -> None:
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


def test_one_bad_parameter_does_not_take_the_others_with_it() -> None:
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


def test_a_type_that_nobody_knows_takes_any_value() -> None:
    schema, warnings = declared_schema({"x": {"type": "wizard", "description": "Who"}})
    assert schema == {"type": "object", "properties": {"x": {"description": "Who"}}}
    assert len(warnings) == 1


def test_names_that_are_keywords_of_json_schema_can_be_parameters() -> None:
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
    "given",
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
def test_what_cannot_be_parameters_is_ignored_with_a_warning(given: Any) -> None:
    schema, warnings = declared_schema(given)
    assert schema is None
    assert warnings


@pytest.mark.parametrize("given", [None, {}, []])
def test_no_parameters_are_no_schema(given: Any) -> None:
    assert declared_schema(given) == (None, [])


def test_a_list_that_holds_itself_is_ignored() -> None:
    given: list[Any] = []
    given.append(given)
    assert declared_schema(given)[0] is None


def test_too_many_parameters_are_cut() -> None:
    schema, warnings = declared_schema({f"p{number}": "string" for number in range(150)})
    assert schema is not None
    assert len(schema["properties"]) == 100
    assert len(warnings) == 50


def test_a_date_of_yaml_becomes_text() -> None:
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
def test_a_tool_takes_the_skills_own_parameters_and_an_optional_name() -> None:
    own, _ = declared_schema({"city": {"type": "string", "required": True}})
    schema = tool_schema(own, "weather")
    assert list(schema["properties"]) == ["city", "name"]
    assert "weather" in schema["properties"]["name"]["description"]
    assert problems(schema, {"city": "Oslo"}) == []
    assert problems(schema, {"city": "Oslo", "name": "weather"}) == []
    assert own is not None
    assert "name" not in own["properties"]


@pytest.mark.requirement("F2")
def test_a_name_of_the_skills_own_stands() -> None:
    own, _ = declared_schema({"name": {"type": "integer", "required": True}})
    assert tool_schema(own, "weather") == own


def test_a_closed_schema_lets_the_name_through() -> None:
    schema = tool_schema({"type": "object", "properties": {}, "additionalProperties": False}, "weather")
    assert problems(schema, {"name": "weather"}) == []


def test_a_skill_without_parameters_takes_its_name_alone() -> None:
    assert list(tool_schema(None, "weather")["properties"]) == ["name"]
