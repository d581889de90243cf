"""The OpenAPI document: valid, complete, and consistent with real responses."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from pydantic.alias_generators import to_camel
from starlette.routing import BaseRoute, Route

from apexbridge.agent.request import Options
from apexbridge.bridge import Bridge
from apexbridge.retrieval.matches import SearchAnswer
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.scopes import (
    OPEN_PATHS,
    PUBLISHED,
    SESSION_PATH,
    is_enough_to_chat,
    required_scope,
)
from apexbridge.surfaces.http.openapi import BridgeOptions
from tests.making import skill_zip

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("H2")]
Json = dict[str, Any]
METHODS = {"get", "put", "post", "patch", "delete"}
REQUEST: Json = {"messages": [{"role": "user", "content": "6 * 7"}], "x_bridge": {"debug": True}}


@pytest.fixture
def app(bridge: Bridge) -> FastAPI:
    return create_app(bridge)


@pytest.fixture
def document(app: FastAPI) -> Json:
    return json.loads(json.dumps(app.openapi()))  # type: ignore[no-any-return]  # as it is sent


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
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


def check_schema(document: Json, schema_name: str, value: Any) -> None:
    """Validate a value against a schema of the document."""
    schema = {"$ref": f"#/components/schemas/{schema_name}", "components": document["components"]}
    jsonschema_rs.validator_for(schema).validate(value)


def refuses(document: Json, schema_name: str, value: Any) -> bool:
    try:
        check_schema(document, schema_name, value)
    except jsonschema_rs.ValidationError:
        return True
    return False


async def test_the_document_is_valid(document: Json) -> None:
    assert re.fullmatch(r"3\.1\.\d", document["openapi"])
    assert {"title", "version"} <= document["info"].keys()
    for reference in references(document):
        node: Any = document
        for key in reference.removeprefix("#/").split("/"):
            node = node[key]
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert re.fullmatch(r"[\w.-]+", name)
    names = [operation["operationId"] for *_, operation in operations(document)]
    assert len(names) == len(set(names))
    for method, path, operation in operations(document):
        documented = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
        assert documented == set(re.findall(r"{(\w+)}", path)), path
        assert operation["description"], path
        assert any(status.startswith("2") for status in operation["responses"]), path
        for response in operation["responses"].values():
            assert response["description"], path
            for media in response.get("content", {}).values():
                jsonschema_rs.meta.validate(media.get("schema", {}))
        assert method == "post" or method in ("put", "patch") or "requestBody" not in operation, path


async def test_every_route_is_documented(app: FastAPI, document: Json) -> None:
    def paths(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
        for route in routes:
            # Newer versions of FastAPI do not flatten included routers.
            if included := getattr(route, "original_router", None):
                yield from paths(included.routes)
            elif isinstance(route, Route) and not route.path.startswith(("/docs", "/openapi.json")):
                for method in (route.methods or set()) - {"HEAD"}:
                    yield method.lower(), re.sub(r":\w+}", "}", route.path)

    console = {("get", path) for path in ("/", "/icon.svg", "/assets/{name}")}
    assert {(method, path) for method, path, _ in operations(document)} == set(paths(app.routes)) - console


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.computes_in_loop
async def test_every_route_documents_its_scope(bridge: Bridge, is_required: bool) -> None:
    document = create_app(bridge, Access(keys_required=is_required)).openapi()
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"]["scheme"] == "bearer"
    assert (schemes["apiKey"]["in"], schemes["apiKey"]["name"]) == ("header", "x-api-key")
    for method, path, operation in operations(document):
        if path in OPEN_PATHS or path.startswith(PUBLISHED):
            assert operation["security"] == [], path
            continue
        if path == SESSION_PATH:
            assert operation["security"] == [{"bearer": []}, {"apiKey": []}, {}]
            continue
        scopes = [required_scope(method.upper(), path)]
        scopes += ["chat"] if is_enough_to_chat(method.upper(), path) else []
        alternatives = [{scheme: [scope]} for scope in scopes for scheme in ("bearer", "apiKey")]
        assert operation["security"] == (alternatives if is_required else [*alternatives, {}]), path


@pytest.mark.requirement("G3")
async def test_real_chat_responses_match_the_document(client: httpx.AsyncClient, document: Json) -> None:
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    check_schema(document, "ChatRequest", REQUEST)
    completion = (await client.post("/v1/chat/completions", json=REQUEST)).raise_for_status().json()
    assert completion["x_bridge"]["trajectory"]
    check_schema(document, "ChatCompletion", completion)
    stream_request = {
        **REQUEST,
        "stream": True,
        "stream_options": {"include_usage": True},
        "x_bridge": {"activity": True},
    }
    check_schema(document, "ChatRequest", stream_request)
    stream = (await client.post("/v1/chat/completions", json=stream_request)).raise_for_status()
    assert stream.headers["content-type"].startswith("text/event-stream")
    chunks = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: {")]
    assert len(chunks) > 2
    for chunk in chunks:
        check_schema(document, "ChatCompletionChunk", json.loads(chunk))
    models = (await client.get("/v1/models")).json()
    check_schema(document, "ChatModelList", models)
    check_schema(document, "ChatModel", (await client.get(f"/v1/models/{models['data'][0]['id']}")).json())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "nobody"}]},
        {**REQUEST, "stream": "yes"},
        {**REQUEST, "n": 0},
        {**REQUEST, "x_bridge": {"other": 1}},
        {**REQUEST, "x_bridge": {"approvals": "always"}},
        {**REQUEST, "tools": [{}] * 1001},
    ],
)
async def test_requests_refused_by_the_document_are_refused_by_the_server(
    client: httpx.AsyncClient, document: Json, body: Json
) -> None:
    assert refuses(document, "ChatRequest", body)
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    check_schema(document, "OpenAIError", response.json())


async def test_unknown_fields_are_accepted(document: Json) -> None:
    check_schema(document, "ChatRequest", {**REQUEST, "temperature": 0.5, "future": {"x": 1}})
    missing = {"error": {"message": "no", "type": "x", "param": None, "code": None, "more": 1}}
    check_schema(document, "OpenAIError", missing)


async def test_every_option_of_a_chat_request_is_documented() -> None:
    documented = {
        name: field.get_default(call_default_factory=True) for name, field in BridgeOptions.model_fields.items()
    }
    defaults = Options()
    assert documented == {
        **{name: getattr(defaults, name) for name in Options.__slots__},
        "skills": list(defaults.skills),
    }


async def test_similar_schemas_have_different_names(document: Json) -> None:
    usage = document["components"]["schemas"]
    assert "promptTokens" in usage["ChatTokens"]["properties"]
    assert "prompt_tokens" in usage["CompletionUsage"]["properties"]


# ------------------------------------------------------------------------------------------- searches, runs, tools
def closed(document: Json, name: str) -> Json:
    """A document whose schema of that name has no further fields, so that an undocumented one is noticed."""
    schemas = document["components"]["schemas"]
    return {"components": {"schemas": {**schemas, name: {**schemas[name], "additionalProperties": False}}}}


async def test_the_schemas_of_sparse_results_list_all_fields(document: Json) -> None:
    schemas = document["components"]["schemas"]
    for model in (ExecutionResult, SearchAnswer):
        fields = {field.alias or name for name, field in model.model_fields.items()} | set(model.model_computed_fields)
        assert set(schemas[model.__name__]["properties"]) == fields
        omitted = {to_camel(name) for name in model.OMITTED_IF_EMPTY}
        assert omitted < fields
        assert omitted.isdisjoint(schemas[model.__name__]["required"])


async def test_a_real_search_matches_the_document(client: httpx.AsyncClient, document: Json) -> None:
    answer = (await client.post("/api/skills/search", json={"query": "commit"})).raise_for_status().json()
    check_schema(closed(document, "SearchAnswer"), "SearchAnswer", answer)


async def test_real_runs_match_the_document(bridge: Bridge, client: httpx.AsyncClient, document: Json) -> None:
    for name, script in (("good", "print('out')"), ("bad", "import sys\nprint('err', file=sys.stderr)\nsys.exit(3)")):
        await bridge.skills.install_skill(skill_zip(name, files={"scripts/execute.py": script}))
        result = (await client.post(f"/api/skills/{name}/execute", json={})).json()
        assert result["success"] is (name == "good")
        check_schema(closed(document, "ExecutionResult"), "ExecutionResult", result)
        called = (await client.post(f"/api/tools/skill:{name}/execute", json={})).raise_for_status().json()
        check_schema(closed(document, "ExecutionResult"), "ExecutionResult", called)
        path = f"/api/executions/{result['id']}"
        check_schema(document, "RunDetail", (await client.get(path)).json())
        events = (await client.get(f"{path}/events")).text.strip().split("\n\n")
        kinds = []
        for event in events:
            fields = dict(line.split(": ", 1) for line in event.splitlines())
            shown = {"id": int(fields["id"]), "event": fields["event"], "data": json.loads(fields["data"])}
            check_schema(document, "RunEvent", shown)
            assert refuses(document, "RunEvent", {**shown, "event": "other"})
            kinds.append(shown["event"])
        # A line may arrive in several parts.
        assert [kind for kind, _ in groupby(kinds)] == [
            "state",
            f"std{'out' if name == 'good' else 'err'}",
            "state",
            "result",
        ]
        check_schema(closed(document, "RunDeleted"), "RunDeleted", (await client.delete(path)).json())


async def test_every_answer_with_content_has_a_type(document: Json) -> None:
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items() if path.startswith("/api/") else ():
            schema = response.get("content", {}).get("application/json", {}).get("schema", {"$ref": ""})
            assert schema, f"{method} {path} {status}"
    execute = document["paths"]["/api/tools/{id}/execute"]["post"]["responses"]["200"]["content"]["application/json"]
    named = {choice["$ref"].rpartition("/")[2] for choice in execute["schema"]["anyOf"] if "$ref" in choice}
    assert named == {"ExecutionResult", "DirectSkillResult", "ToolOutput"}
    stream = document["paths"]["/api/executions/{id}/events"]["get"]["responses"]["200"]["content"]
    assert stream["text/event-stream"]["x-event-schema"]["$ref"].endswith("/RunEvent")
