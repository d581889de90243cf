"""Results of MCP tools: content blocks and structured content as text for the model and as data for programs."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from apexbridge._text import escaped
from apexbridge.mcp_client.limits import MAX_BLOCKS, MAX_RESULT_BYTES
from apexbridge.tools.tool import ToolResult

Json = dict[str, Any]
_BASE64_CHARACTERS, _BASE64_BYTES = 4, 3
_SHOWN = 200
TOO_LARGE = "[left out: too large]"


def result_of(result: Mapping[str, Any], *, masked: Callable[[str], str] = str) -> ToolResult:
    """The result of a call, from the JSON of the protocol. `masked` removes secrets from text."""
    blocks = result.get("content")
    listed = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    notices = [f"The result has {len(listed)} parts; those after {MAX_BLOCKS} are left out."]
    texts = [_text_of(block) for block in listed[:MAX_BLOCKS]]
    has_text = any(block.get("type") == "text" and block.get("text") for block in listed)
    data: Json = {}
    if "structuredContent" in result:
        data["structuredContent"] = result["structuredContent"]
        if not has_text:  # servers repeat it as text for clients that do not know it
            texts.append(json.dumps(result["structuredContent"], ensure_ascii=False))
    is_error = result.get("isError") is True
    output = masked("\n".join(text for text in texts if text))
    data = {"success": not is_error, "output": output, "content": listed[:MAX_BLOCKS], **data}
    data = _with_texts(_bounded(data), masked)
    return ToolResult(
        output=output or ("The tool failed without a message." if is_error else "(no output)"),
        data=data,
        notices=tuple(notices) if len(listed) > MAX_BLOCKS else (),
        is_error=is_error,
    )


def _text_of(block: Json) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind in ("image", "audio"):
        return f"[{kind}: {_short(block.get('mimeType'))}, {_decoded_bytes(block.get('data'))} bytes]"
    if kind == "resource_link":
        described = f": {_short(block['description'])}" if block.get("description") else ""
        return f"[resource {_short(block.get('name'))} at {_short(block.get('uri'))}{described}]"
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        if isinstance(resource.get("text"), str):
            return f"[resource {_short(resource.get('uri'))}]\n{resource['text']}"
        size = _decoded_bytes(resource.get("blob"))
        return f"[resource {_short(resource.get('uri'))}: {_short(resource.get('mimeType'))}, {size} bytes]"
    return f"[a part of the unknown type {_short(kind)}]"


def _bounded(data: Json) -> Json:
    """The result object without its largest parts, if it is too large."""
    if _size(data) <= MAX_RESULT_BYTES:
        return data
    left = MAX_RESULT_BYTES // 2
    content: list[Any] = []
    for block in data["content"]:
        size = _size(block)
        left -= size
        content.append(block if left >= 0 else {"type": "text", "text": TOO_LARGE})
        left += size if left < 0 else 0
    output = data["output"].encode("utf-8", "replace")[: MAX_RESULT_BYTES // 4].decode("utf-8", "ignore")
    bounded = {**data, "content": content, "output": output}
    if _size(bounded.get("structuredContent")) > MAX_RESULT_BYTES // 4:
        bounded["structuredContent"] = None
    return bounded


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy in which each text is changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _with_texts(item, change) for key, item in value.items()}
    return value


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _decoded_bytes(data: Any) -> int:
    return len(data) * _BASE64_BYTES // _BASE64_CHARACTERS if isinstance(data, str) else 0


def _short(value: Any) -> str:
    return escaped(str(value if value is not None else "?")[:_SHOWN])
