"""Definitions of tools as servers list them."""

from typing import Any

import pytest

from apexbridge.mcp_client import definitions, limits
from apexbridge.mcp_client.definitions import listing_of
from tests.mcp_client.serving import listed


def only(**fields: Any) -> definitions.ToolDefinition:
    listing = listing_of([listed("tool", **fields)], server="s")
    assert listing.problems == ()
    return listing.tools[0]


def test_descriptions_are_bounded_and_visible() -> None:
    text = only(description="x" * 10_000_000).description
    assert len(text.encode()) == limits.MAX_DESCRIPTION_BYTES
    assert text.endswith("…")
    assert len(only(description="界" * 16_000).description.encode()) <= limits.MAX_DESCRIPTION_BYTES
    hidden = "Adds\u202e two\x00 numbers.\U000e0041\U000e0042\nBoth."
    assert only(description=hidden).description == "Adds two numbers.\nBoth."


def test_a_tool_without_a_description_has_its_title_or_its_name() -> None:
    assert only(description="\u200b", title="Add").description == "Add"
    assert listing_of([{"name": "a", "inputSchema": {}}], server="s").tools[0].description == "a of the MCP server s."


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"node": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"$ref": "#/$defs/node"}},
        },
        {"type": "object", "properties": {"node": {"$ref": "https://example.com/schema.json"}}},
        {"type": "object", "properties": {"node": {"unevaluatedProperties": False}}},
        {"type": "object", "properties": {"node": {"pattern": "(" * 20}}},
    ],
)
def test_a_schema_that_cannot_be_checked_is_reduced_to_its_top_level(schema: dict[str, Any]) -> None:
    assert only(inputSchema=schema).schema == {"type": "object", "properties": {"node": {}}}


def test_schemas_are_sent_as_the_server_says() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}, "required": ["a"]}
    assert only(inputSchema={"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}).schema == schema


def test_tools_that_cannot_be_used_are_left_out_with_the_reason() -> None:
    big = {"type": "object", "description": "x" * limits.MAX_SCHEMA_BYTES}
    names = ["", "n" * 300]
    entries = [
        listed("good"),
        listed("good"),
        listed("array", inputSchema={"type": "array"}),
        listed("big", inputSchema=big),
        {"name": "none"},
        *map(listed, names),
    ]
    listing = listing_of(entries, server="s")
    assert [tool.tool for tool in listing.tools] == ["good"]
    assert listing.problems == (
        "good is listed more than once; the first counts",
        "array is left out: a tool's parameters are an object",
        "big is left out: its input schema has more than 65536 bytes",
        "none is left out: it has no input schema",
        *["a tool has no name, or one of more than 256 characters"] * 2,
    )


def test_the_number_and_the_size_of_tools_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = listing_of([listed(f"t{number}") for number in range(1_100)], server="s")
    assert len(listing.tools) == limits.MAX_TOOLS
    assert listing.problems == ("there are more than 1000 tools; the others are left out",)
    monkeypatch.setattr(definitions, "MAX_LIST_BYTES", 1_000)
    listing = listing_of([listed(f"t{number}", "x" * 300) for number in range(5)], server="s")
    assert len(listing.tools) == 3
    assert "t3 and others are left out" in listing.problems[0]
    listing = listing_of([{"name": f"t{number}"} for number in range(50)], server="s")
    assert listing.problems[-1] == "and 30 more problems"


def test_the_digest_changes_with_the_definition() -> None:
    assert only().digest == only().digest
    assert len({only().digest, only(description="Other.").digest, only(annotations={"readOnlyHint": True}).digest}) == 3
