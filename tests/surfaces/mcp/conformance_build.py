"""The MCP server with the tools, resources and prompts that the conformance suite calls.

They are registered through the same classes as those of the product. Their names and texts are prescribed by the suite.
"""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INVALID_PARAMS, LOG_LEVEL_META_KEY

from apexbridge.bridge import Bridge
from apexbridge.errors import ToolExecutionError
from apexbridge.surfaces.mcp.calls import CallAnswer, Context, McpCall, McpTool, is_modern
from apexbridge.surfaces.mcp.http_server import McpHttpServer
from apexbridge.surfaces.mcp.prompts import FixedPrompt, PromptAnswer
from apexbridge.surfaces.mcp.resources import FixedResource, ReadAnswer
from apexbridge.surfaces.mcp.server import McpServer

MISSING_CAPABILITY = -32021
KEY = b"only for tests"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
Call = Callable[[McpCall], Awaitable[CallAnswer]]
_TOOLS: list[McpTool] = []
_PROMPTS: list[FixedPrompt] = []


def build(bridge: Bridge) -> McpHttpServer:
    """Build the server of the product, and add the fixtures."""
    server = McpServer(bridge, tools=_TOOLS, resources=_resources(), prompts=_PROMPTS, extend=_extend)
    return McpHttpServer(bridge, server)


def _extend(server: Server[Any]) -> None:
    async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()

    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)


def tool(name: str, schema: dict[str, Any] | None = None) -> Callable[[Call], Call]:
    def register(call: Call) -> Call:
        definition = types.Tool(name=name, description=f"Fixture {name}.", input_schema=schema or {"type": "object"})
        _TOOLS.append(McpTool(definition=definition, call=call, scope="read"))
        return call

    return register


def text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)])


# -------------------------------------------------------------------------------------------------------- plain results
@tool("test_simple_text")
async def simple_text(call: McpCall) -> CallAnswer:
    return text("This is a simple text response for testing.")


@tool("test_image_content")
async def image(call: McpCall) -> CallAnswer:
    return types.CallToolResult(content=[types.ImageContent(data=PIXEL, mime_type="image/png")])


@tool("test_audio_content")
async def audio(call: McpCall) -> CallAnswer:
    return types.CallToolResult(content=[types.AudioContent(data=SOUND, mime_type="audio/wav")])


def embedded(uri: str, mime_type: str, value: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=value))


@tool("test_embedded_resource")
async def embedded_resource(call: McpCall) -> CallAnswer:
    resource = embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return types.CallToolResult(content=[resource])


@tool("test_multiple_content_types")
async def mixed(call: McpCall) -> CallAnswer:
    return types.CallToolResult(
        content=[
            types.TextContent(text="Multiple content types test:"),
            types.ImageContent(data=PIXEL, mime_type="image/png"),
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    )


@tool("test_error_handling")
async def error_handling(call: McpCall) -> CallAnswer:
    raise ToolExecutionError("This tool intentionally returns an error for testing")


@tool("test_tool_with_progress")
async def with_progress(call: McpCall) -> CallAnswer:
    for share in (0, 50, 100):
        await call.context.session.report_progress(share, 100)
    return text("done")


async def _log(call: McpCall, message: str) -> None:
    if is_modern(call.context) and LOG_LEVEL_META_KEY not in (call.context.meta or {}):
        return
    notification = types.LoggingMessageNotification(
        params=types.LoggingMessageNotificationParams(level="info", data=message)
    )
    await call.context.session.send_notification(notification, call.context.request_id)


@tool("test_tool_with_logging")
@tool("test_logging_tool")
async def with_logging(call: McpCall) -> CallAnswer:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await _log(call, message)
    return text("done")


@tool(
    "json_schema_2020_12_tool",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema(call: McpCall) -> CallAnswer:
    return text("ok")


@tool(
    "test_custom_headers",
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
)
async def custom_headers(call: McpCall) -> CallAnswer:
    return text("ok")


# ----------------------------------------------------------------------------------- requests to the client, until 2025
@tool("test_sampling", {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]})
async def sampling(call: McpCall) -> CallAnswer:
    answer = await call.context.session.send_request(
        _sampling(str(call.arguments["prompt"]), 100),
        types.CreateMessageResult,
        metadata=ServerMessageMetadata(related_request_id=call.context.request_id),
    )
    assert isinstance(answer.content, types.TextContent)
    return text(f"LLM response: {answer.content.text}")


async def _elicit(call: McpCall, message: str, **properties: Any) -> types.ElicitResult:
    schema = {"type": "object", "properties": properties, "required": []}
    return await call.context.session.elicit_form(message, schema, call.context.request_id)


@tool("test_elicitation", {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]})
async def elicitation(call: McpCall) -> CallAnswer:
    field = {"type": "string", "description": "User's response"}
    answer = await _elicit(call, str(call.arguments["message"]), username=field, email=field)
    return text(f"User response: action: {answer.action}, content: {json.dumps(answer.content)}")


@tool("test_elicitation_sep1034_defaults")
async def elicitation_defaults(call: McpCall) -> CallAnswer:
    answer = await _elicit(
        call,
        "Please review",
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return text(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


@tool("test_elicitation_sep1330_enums")
async def elicitation_enums(call: McpCall) -> CallAnswer:
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{number}", "title": f"{which} Option"} for number, which in enumerate(("A", "B", "C"), 1)
    ]
    answer = await _elicit(
        call,
        "Please choose",
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": titled},
        legacyEnum={"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return text(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


# ------------------------------------------------------------------------------------- questions as results, since 2026
def _question(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sampling(prompt: str, tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens))


def _roots() -> types.ListRootsRequest:
    return types.ListRootsRequest()


def _required(state: str | None = None, **requests: Any) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def _response(call: McpCall, key: str) -> Any:
    return (call.params.input_responses or {}).get(key)


def _signed(value: str) -> str:
    return f"{value}.{hmac.new(KEY, value.encode(), hashlib.sha256).hexdigest()}"


def _check_state(call: McpCall, value: str) -> None:
    if not hmac.compare_digest(call.params.request_state or "", _signed(value)):
        raise MCPError(INVALID_PARAMS, "The requestState is not one of this server")


@tool("test_input_required_result_elicitation")
async def required_elicitation(call: McpCall) -> CallAnswer:
    answer = _response(call, "user_name")
    if not isinstance(answer, types.ElicitResult) or "name" not in (answer.content or {}):
        return _required(user_name=_question("What is your name?", "name"))
    return text(f"Hello, {(answer.content or {})['name']}!")


@tool("test_streaming_elicitation")
async def streaming_elicitation(call: McpCall) -> CallAnswer:
    return _required(user_name=_question("What is your name?", "name"))


@tool("test_input_required_result_sampling")
async def required_sampling(call: McpCall) -> CallAnswer:
    answer = _response(call, "capital_question")
    if answer is None:
        return _required(capital_question=_sampling("What is the capital of France?", 100))
    return text(f"The answer: {answer.content.text}")


@tool("test_input_required_result_list_roots")
async def required_roots(call: McpCall) -> CallAnswer:
    answer = _response(call, "client_roots")
    if not isinstance(answer, types.ListRootsResult):
        return _required(client_roots=_roots())
    return text(f"Roots: {', '.join(str(root.uri) for root in answer.roots)}")


@tool("test_input_required_result_request_state")
async def required_state(call: McpCall) -> CallAnswer:
    if _response(call, "confirm") is None:
        return _required(_signed("confirm"), confirm=_question("Please confirm", "ok", "boolean"))
    _check_state(call, "confirm")
    return text("state-ok")


@tool("test_input_required_result_tampered_state")
async def required_tampered(call: McpCall) -> CallAnswer:
    if call.params.request_state is None:
        return _required(_signed("tampered"), confirm=_question("Please confirm", "ok", "boolean"))
    _check_state(call, "tampered")
    return text("state-ok")


@tool("test_input_required_result_multiple_inputs")
async def required_several(call: McpCall) -> CallAnswer:
    if any(_response(call, key) is None for key in ("user_name", "greeting", "client_roots")):
        return _required(
            _signed("several"),
            user_name=_question("What is your name?", "name"),
            greeting=_sampling("Generate a greeting", 50),
            client_roots=_roots(),
        )
    _check_state(call, "several")
    return text("All inputs received")


@tool("test_input_required_result_multi_round")
async def required_rounds(call: McpCall) -> CallAnswer:
    if _response(call, "step2") is not None:
        _check_state(call, "round-2")
        return text("All rounds are done")
    if _response(call, "step1") is not None:
        _check_state(call, "round-1")
        return _required(_signed("round-2"), step2=_question("Step 2: What is your favorite color?", "color"))
    return _required(_signed("round-1"), step1=_question("Step 1: What is your name?", "name"))


@tool("test_input_required_result_capabilities")
async def required_capabilities(call: McpCall) -> CallAnswer:
    capabilities = call.context.session.client_capabilities
    requests: dict[str, Any] = {}
    if capabilities is not None and capabilities.elicitation is not None:
        requests["name"] = _question("What is your name?", "name")
    if capabilities is not None and capabilities.sampling is not None:
        requests["greeting"] = _sampling("Generate a greeting", 50)
    return _required(**requests)


@tool("test_missing_capability")
async def missing_capability(call: McpCall) -> CallAnswer:
    capabilities = call.context.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_CAPABILITY, "This tool needs a client that declares sampling", needed)
    return text("ok")


# ------------------------------------------------------------------------------------------------ resources and prompts
def _resources() -> list[FixedResource]:
    def contents(uri: str, mime_type: str, *, value: str | None = None, blob: str | None = None) -> ReadAnswer:
        if blob is not None:
            return types.ReadResourceResult(
                contents=[types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=blob)]
            )
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=value or "")]
        )

    async def read_text(context: Context, params: types.ReadResourceRequestParams) -> ReadAnswer:
        return contents(params.uri, "text/plain", value="This is the content of the static text resource.")

    async def read_blob(context: Context, params: types.ReadResourceRequestParams) -> ReadAnswer:
        return contents(params.uri, "image/png", blob=PIXEL)

    async def read_template(context: Context, params: types.ReadResourceRequestParams) -> ReadAnswer:
        id = params.uri.removeprefix("test://template/").removesuffix("/data")
        data = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
        return contents(params.uri, "application/json", value=json.dumps(data))

    template = "test://template/"
    return [
        FixedResource(
            listed=types.Resource(uri="test://static-text", name="static text", mime_type="text/plain"),
            matches=lambda uri: uri == "test://static-text",
            read=read_text,
        ),
        FixedResource(
            listed=types.Resource(uri="test://static-binary", name="static binary", mime_type="image/png"),
            matches=lambda uri: uri == "test://static-binary",
            read=read_blob,
        ),
        FixedResource(
            template=types.ResourceTemplate(uri_template="test://template/{id}/data", name="template"),
            matches=lambda uri: uri.startswith(template) and uri.endswith("/data"),
            read=read_template,
        ),
    ]


Get = Callable[[Context, types.GetPromptRequestParams], Awaitable[PromptAnswer]]


def prompt(name: str, *arguments: str) -> Callable[[Get], Get]:
    def register(get: Get) -> Get:
        declared = [types.PromptArgument(name=argument, required=True) for argument in arguments]
        definition = types.Prompt(name=name, description=f"Fixture {name}.", arguments=declared)
        _PROMPTS.append(FixedPrompt(definition=definition, get=get))
        return get

    return register


def messages(*contents: types.ContentBlock) -> types.GetPromptResult:
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content) for content in contents])


@prompt("test_simple_prompt")
async def simple_prompt(context: Context, params: types.GetPromptRequestParams) -> PromptAnswer:
    return messages(types.TextContent(text="This is a simple prompt for testing."))


@prompt("test_prompt_with_arguments", "arg1", "arg2")
async def prompt_with_arguments(context: Context, params: types.GetPromptRequestParams) -> PromptAnswer:
    own = params.arguments or {}
    return messages(types.TextContent(text=f"Prompt with arguments: arg1='{own['arg1']}', arg2='{own['arg2']}'"))


@prompt("test_prompt_with_embedded_resource", "resourceUri")
async def prompt_with_resource(context: Context, params: types.GetPromptRequestParams) -> PromptAnswer:
    uri = (params.arguments or {})["resourceUri"]
    resource = embedded(uri, "text/plain", "Embedded resource content for testing.")
    return messages(resource, types.TextContent(text="Please process the embedded resource above."))


@prompt("test_prompt_with_image")
async def prompt_with_image(context: Context, params: types.GetPromptRequestParams) -> PromptAnswer:
    image = types.ImageContent(data=PIXEL, mime_type="image/png")
    return messages(image, types.TextContent(text="Please analyze the image above."))


@prompt("test_input_required_result_prompt")
async def prompt_with_question(context: Context, params: types.GetPromptRequestParams) -> PromptAnswer:
    answer = (params.input_responses or {}).get("user_context")
    if not isinstance(answer, types.ElicitResult):
        return _required(user_context=_question("What context should the prompt use?", "context"))
    return messages(types.TextContent(text=f"Context: {json.dumps(answer.content)}"))
