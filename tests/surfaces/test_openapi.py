"""What the API says of itself: a sound OpenAPI document with every route, held against real answers."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from apexbridge.agent.request import Options
from apexbridge.bridge import Bridge
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.scopes import OPEN_PATHS, required_scope
from apexbridge.surfaces.http.openapi import BridgeOptions

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("H2")]
Json = dict[str, Any]
METHODS = {"get", "put", "post", "patch", "delete"}
ASK: Json = {"messages": [{"role": "user", "content": "6 * 7"}], "x_bridge": {"debug": True}}


@pytest.fixture
def app(bridge: Bridge) -> FastAPI:
    return create_app(bridge)


@pytest.fixture
def document(app: FastAPI) -> Json:
    return json.loads(json.dumps(app.openapi()))  # type: ignore[no-any-return]  # as it travels


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, known in document["paths"].items():
        for method, operation in known.items():
            assert method in METHODS, f"{method} {path}"
            yield method, path, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


def check(document: Json, shape: str, value: Any) -> None:
    """Hold something that travelled against a schema of the document."""
    schema = {"$ref": f"#/components/schemas/{shape}", "components": document["components"]}
    jsonschema_rs.validator_for(schema).validate(value)


def refuses(document: Json, shape: str, value: Any) -> bool:
    try:
        check(document, shape, value)
    except jsonschema_rs.ValidationError:
        return True
    return False


async def test_the_document_is_sound(document: Json) -> None:
    assert re.fullmatch(r"3\.1\.\d", document["openapi"])
    assert {"title", "version"} <= document["info"].keys()
    for reference in references(document):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert re.fullmatch(r"[\w.-]+", name)
    names = [operation["operationId"] for *_, operation in operations(document)]
    assert len(names) == len(set(names))
    for method, path, operation in operations(document):
        told = {given["name"] for given in operation.get("parameters", []) if given["in"] == "path"}
        assert told == set(re.findall(r"{(\w+)}", path)), path
        assert operation["description"], path
        assert any(status.startswith("2") for status in operation["responses"]), path
        for answer in operation["responses"].values():
            assert answer["description"], path
            for media in answer.get("content", {}).values():
                jsonschema_rs.meta.validate(media.get("schema", {}))
        assert method == "post" or method in ("put", "patch") or "requestBody" not in operation, path


async def test_every_route_is_in_it(app: FastAPI, document: Json) -> None:
    def paths(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
        for route in routes:
            if included := getattr(route, "original_router", None):  # newer versions of FastAPI keep routers whole
                yield from paths(included.routes)
            elif isinstance(route, Route) and not route.path.startswith(("/docs", "/openapi.json")):
                for method in (route.methods or set()) - {"HEAD"}:
                    yield method.lower(), re.sub(r":\w+}", "}", route.path)

    assert {(method, path) for method, path, _ in operations(document)} == set(paths(app.routes))


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.computes_in_loop
async def test_every_route_tells_who_may_use_it(bridge: Bridge, is_required: bool) -> None:
    document = create_app(bridge, Access(keys_required=is_required)).openapi()
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"]["scheme"] == "bearer"
    assert (schemes["apiKey"]["in"], schemes["apiKey"]["name"]) == ("header", "x-api-key")
    for method, path, operation in operations(document):
        if path in OPEN_PATHS:
            assert operation["security"] == [], path
            continue
        scope = required_scope(method.upper(), path)
        ways = [{"bearer": [scope]}, {"apiKey": [scope]}]
        assert operation["security"] == (ways if is_required else [*ways, {}]), path


@pytest.mark.requirement("G3")
async def test_real_answers_of_chat_fit_it(client: httpx.AsyncClient, document: Json) -> None:
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    check(document, "ChatRequest", ASK)
    whole = (await client.post("/v1/chat/completions", json=ASK)).raise_for_status().json()
    assert whole["x_bridge"]["trajectory"]
    check(document, "ChatCompletion", whole)
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}, "x_bridge": {"activity": True}}
    check(document, "ChatRequest", asked)
    stream = (await client.post("/v1/chat/completions", json=asked)).raise_for_status()
    assert stream.headers["content-type"].startswith("text/event-stream")
    pieces = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: {")]
    assert len(pieces) > 2
    for piece in pieces:
        check(document, "ChatCompletionChunk", json.loads(piece))
    models = (await client.get("/v1/models")).json()
    check(document, "ChatModelList", models)
    check(document, "ChatModel", (await client.get(f"/v1/models/{models['data'][0]['id']}")).json())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "nobody"}]},
        {**ASK, "stream": "yes"},
        {**ASK, "n": 0},
        {**ASK, "x_bridge": {"other": 1}},
        {**ASK, "x_bridge": {"approvals": "always"}},
        {**ASK, "tools": [{}] * 1001},
    ],
)
async def test_what_the_document_refuses_the_server_refuses(
    client: httpx.AsyncClient, document: Json, body: Json
) -> None:
    assert refuses(document, "ChatRequest", body)
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    check(document, "OpenAIError", answer.json())


async def test_what_nobody_knows_of_is_let_through(document: Json) -> None:
    check(document, "ChatRequest", {**ASK, "temperature": 0.5, "future": {"x": 1}})
    missing = {"error": {"message": "no", "type": "x", "param": None, "code": None, "more": 1}}
    check(document, "OpenAIError", missing)


async def test_every_option_of_a_chat_request_is_told() -> None:
    told = {name: field.get_default(call_default_factory=True) for name, field in BridgeOptions.model_fields.items()}
    known = Options()
    assert told == {**{name: getattr(known, name) for name in Options.__slots__}, "skills": list(known.skills)}


async def test_no_shape_takes_the_name_of_another(document: Json) -> None:
    usage = document["components"]["schemas"]
    assert "promptTokens" in usage["ChatTokens"]["properties"]
    assert "prompt_tokens" in usage["CompletionUsage"]["properties"]
