"""Results of MCP tools as text and as data."""

import json
from typing import Any

from apexbridge.mcp_client import limits
from apexbridge.mcp_client.results import result_of


def text(**block: Any) -> str:
    return result_of({"content": [block]}).output


def test_content_blocks_become_text_for_the_model() -> None:
    assert text(type="text", text="hello") == "hello"
    assert text(type="image", mimeType="image/png", data="AAAA") == "[image: image/png, 3 bytes]"
    assert text(type="audio", mimeType="audio/wav", data="AAAA") == "[audio: audio/wav, 3 bytes]"
    link = {"uri": "file:///a", "name": "a", "description": "A file."}
    assert text(type="resource_link", **link) == "[resource a at file:///a: A file.]"
    resource: dict[str, Any] = {"uri": "file:///a", "mimeType": "text/plain"}
    assert text(type="resource", resource={**resource, "text": "hello"}) == "[resource file:///a]\nhello"
    assert text(type="resource", resource={**resource, "blob": "AAAA"}) == "[resource file:///a: text/plain, 3 bytes]"
    assert text(type="hologram") == "[a part of the unknown type hologram]"


def test_blocks_and_structured_content_are_data_for_programs() -> None:
    blocks = [{"type": "image", "mimeType": "image/png", "data": "AAAA"}]
    result = result_of({"content": blocks, "structuredContent": {"sum": 3}})
    assert result.output == '[image: image/png, 3 bytes]\n{"sum": 3}'
    assert result.data == {
        "success": True,
        "output": result.output,
        "content": blocks,
        "structuredContent": {"sum": 3},
    }
    repeated = result_of({"content": [{"type": "text", "text": '{"sum": 3}'}], "structuredContent": {"sum": 3}})
    assert repeated.output == '{"sum": 3}'
    assert result_of({"content": [], "structuredContent": None}).data["structuredContent"] is None


def test_a_result_without_content_says_so() -> None:
    assert result_of({"content": []}).output == "(no output)"
    failed = result_of({"content": [], "isError": True})
    assert (failed.output, failed.is_error) == ("The tool failed without a message.", True)


def test_large_results_are_bounded() -> None:
    block = {"type": "text", "text": "x" * 400_000}
    picture = {"type": "image", "mimeType": "image/png", "data": "A" * 3_000_000}
    result = result_of({"content": [block, picture, block], "structuredContent": ["x" * 3_000_000]})
    assert len(json.dumps(result.data)) <= limits.MAX_RESULT_BYTES
    assert result.data["content"] == [block, *[{"type": "text", "text": "[left out: too large]"}] * 2]
    assert result.data["structuredContent"] is None
    many = result_of({"content": [{"type": "text", "text": "a"}] * 1_000})
    assert len(many.data["content"]) == limits.MAX_BLOCKS
    assert many.notices == ("The result has 1000 parts; those after 100 are left out.",)


def test_secrets_are_masked_in_text_and_data() -> None:
    content = [{"type": "text", "text": "the key is sesame"}]
    result = result_of(
        {"content": content, "structuredContent": {"sesame": "sesame"}},
        masked=lambda text: text.replace("sesame", "***"),
    )
    assert "sesame" not in result.output + json.dumps(result.data)
