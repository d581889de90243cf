"""Runs the scenarios of `/v1/responses` with the Python clients. All return results of the same form."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import agents
import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Json = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": SCHEMA}
FIRST, SECOND = "First question.", "Second question."
TURNS = ("turns", "thought")
"""Scenarios with two turns."""
Client = Callable[[openai.AsyncOpenAI, str, str], Awaitable[Json]]


def get_weather(city: str) -> str:
    """Weather."""
    return f"sunny in {city}"


async def with_openai(client: openai.AsyncOpenAI, model: str, scenario: str) -> Json:
    """The `openai` package."""
    create: Any = client.responses.create
    if scenario in ("stream", "broken"):
        async with client.responses.stream(model=model, input=FIRST) as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            final = await stream.get_final_response()
        assert final.output_text == text
        return {"text": text, "tokens": final.usage.total_tokens if final.usage else None}
    if scenario == "tool":
        items: list[Any] = [{"role": "user", "content": FIRST}]
        while True:
            response = await create(model=model, input=items, tools=[TOOL], store=False)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return {"text": response.output_text}
            items += [item.model_dump(exclude_none=True) for item in response.output]
            for made in calls:
                output = get_weather(**json.loads(made.arguments))
                items.append({"type": "function_call_output", "call_id": made.call_id, "output": output})
    response = await create(model=model, input=FIRST)
    if scenario in TURNS:
        response = await create(model=model, input=SECOND, previous_response_id=response.id)
        stored = await client.responses.retrieve(response.id)
        listed = [item async for item in client.responses.input_items.list(response.id)]
        assert (stored.output_text, len(listed)) == (response.output_text, 1)
        await client.responses.delete(response.id)
    activity = [item.name for item in response.output if item.type == "mcp_call"]
    return {"text": response.output_text, "tokens": response.usage.total_tokens, "activity": activity}


async def with_langchain(client: openai.AsyncOpenAI, model: str, scenario: str) -> Json:
    """LangChain's `ChatOpenAI`."""
    chat: Any = ChatOpenAI(
        model=model, use_responses_api=True, root_async_client=client, async_client=client.chat.completions,
        api_key=lambda: "any", max_retries=0,
    )  # fmt: skip
    if scenario in ("stream", "broken"):
        whole: Any = None
        async for chunk in chat.astream([HumanMessage(FIRST)]):
            whole = chunk if whole is None else whole + chunk
        return {"text": str(whole.text), "tokens": whole.usage_metadata["total_tokens"]}
    messages: list[Any] = [HumanMessage(FIRST)]
    if scenario == "tool":
        bound = chat.bind_tools([TOOL])
        while True:
            message = await bound.ainvoke(messages)
            if not message.tool_calls:
                return {"text": str(message.text)}
            results = [ToolMessage(get_weather(**made["args"]), tool_call_id=made["id"]) for made in message.tool_calls]
            messages += [message, *results]
    message = await chat.ainvoke(messages)
    if scenario in TURNS:
        message = await chat.ainvoke([*messages, message, HumanMessage(SECOND)])
    return {"text": str(message.text), "tokens": message.usage_metadata["total_tokens"]}


async def with_pydantic_ai(client: openai.AsyncOpenAI, model: str, scenario: str) -> Json:
    """pydantic-ai's `OpenAIResponsesModel`."""
    served = OpenAIResponsesModel(model, provider=OpenAIProvider(openai_client=client))
    agent: Agent[None, str] = Agent(served, retries=0)
    if scenario == "tool":
        agent.tool_plain(get_weather)
    if scenario in ("stream", "broken"):
        async with agent.run_stream(FIRST) as stream:
            text = "".join([delta async for delta in stream.stream_text(delta=True)])
            return {"text": text, "tokens": stream.usage.total_tokens}
    result = await agent.run(FIRST)
    if scenario in TURNS:
        result = await agent.run(SECOND, message_history=result.all_messages())
    return {"text": result.output, "tokens": result.usage.total_tokens}


async def with_agents(client: openai.AsyncOpenAI, model: str, scenario: str) -> Json:
    """The OpenAI Agents SDK."""
    agents.set_tracing_disabled(True)
    tools: list[Any] = [agents.function_tool(get_weather)] if scenario == "tool" else []
    served = agents.OpenAIResponsesModel(model=model, openai_client=client)
    agent = agents.Agent(name="tester", model=served, tools=tools)
    if scenario in ("stream", "broken"):
        run = agents.Runner.run_streamed(agent, FIRST)
        text = ""
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert run.final_output == text
        return {"text": text, "tokens": run.context_wrapper.usage.total_tokens}
    result = await agents.Runner.run(agent, FIRST)
    if scenario in TURNS:
        result = await agents.Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": SECOND}])
    return {"text": result.final_output, "tokens": result.context_wrapper.usage.total_tokens}


CLIENTS: dict[str, Client] = {
    "openai for Python": with_openai,
    "LangChain": with_langchain,
    "pydantic-ai": with_pydantic_ai,
    "OpenAI Agents": with_agents,
}


def run_scenarios(name: str, url: str, models: dict[str, str]) -> Json:
    """The result or the error of each scenario."""

    async def run() -> Json:
        results: Json = {}
        async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
            for scenario, model in models.items():
                client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http)
                try:
                    results[scenario] = await CLIENTS[name](client, model, scenario)
                except Exception as error:
                    results[scenario] = {"error": str(error)}
        return results

    return asyncio.run(run())
