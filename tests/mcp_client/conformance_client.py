"""A client for the conformance suite: connects to the address in the last argument, and calls tools."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.connection import CallError, Connection, connect
from apexbridge.mcp_client.processes import own_process
from apexbridge.mcp_client.secret_values import ResolvedValues
from apexbridge.tools.tool import ignore_progress

EXAMPLES: dict[str, Any] = {"string": "text", "integer": 5, "number": 5, "boolean": True, "array": [], "object": {}}


def argument(schema: Any) -> Any:
    """A value for a parameter."""
    if not isinstance(schema, dict):
        return "text"
    if "enum" in schema:
        return schema["enum"][0]
    if isinstance(schema.get("type"), list):
        return EXAMPLES.get(schema["type"][0], "text")
    return EXAMPLES.get(str(schema.get("type")), "text")


async def call_all(connection: Connection) -> None:
    """Call the tools as the scenario says, or else each tool once."""
    tools, _ = await connection.list_tools()
    scripted = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls", ())
    for made in scripted:
        with suppress(CallError):
            await connection.call(made["name"], made["arguments"], ignore_progress)
    for tool in () if scripted else tools:
        properties = tool["inputSchema"].get("properties") or {}
        arguments = {name: argument(schema) for name, schema in properties.items()}
        with suppress(CallError):
            await connection.call(tool["name"], arguments, ignore_progress)


async def main() -> None:
    config = McpServerConfig(name="conformance", url=sys.argv[-1])
    async with connect(config, ResolvedValues({}, lambda name: None), own_process) as connection:
        await call_all(connection)


if __name__ == "__main__":
    asyncio.run(main())
