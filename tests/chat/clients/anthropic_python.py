"""Runs the scenarios of the Messages API with Python clients. All return results of the same form."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.settings import ModelSettings

Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Json = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
USER: Json = {"role": "user", "content": "hello"}
AGAIN = "and again"
LIMIT = 1000


class AnthropicClient:
    """The `anthropic` package."""

    def __init__(self, url: str, model: str) -> None:
        http = anthropic.DefaultHttpxClient(trust_env=False)
        self._client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, http_client=http)
        self._model = model

    @property
    def _messages(self) -> Any:
        return self._client.messages

    def close(self) -> None:
        self._client.close()

    def _whole(self, messages: list[Any], **more: Any) -> Any:
        return self._messages.create(model=self._model, max_tokens=LIMIT, messages=messages, **more)

    def _streamed(self, messages: list[Any], **more: Any) -> Any:
        with self._messages.stream(model=self._model, max_tokens=LIMIT, messages=messages, **more) as stream:
            for _ in stream:
                pass
            return stream.get_final_message()

    def whole(self) -> Json:
        return _result(self._whole([USER]))

    def stream(self) -> Json:
        return _result(self._streamed([USER]))

    def turns(self) -> Json:
        first = self._streamed([USER])
        again = {"role": "user", "content": AGAIN}
        return _result(self._whole([USER, {"role": "assistant", "content": first.content}, again]))

    def tool(self) -> Json:
        return self._with_tool(self._whole)

    def stream_tool(self) -> Json:
        return self._with_tool(self._streamed)

    def _with_tool(self, ask: Any) -> Json:
        messages: list[Any] = [USER]
        while True:
            message = ask(messages, tools=[TOOL])
            made = [block for block in message.content if block.type == "tool_use"]
            if not made:
                return _result(message)
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": f"sunny in {one.input['city']}"}
                for one in made
            ]
            messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


class BetaClient(AnthropicClient):
    """The beta part of the package, with types of its own for the calls of MCP servers."""

    @property
    def _messages(self) -> Any:
        return self._client.beta.messages


def _result(message: Any) -> Json:
    text = "".join(block.text for block in message.content if block.type == "text")
    return {"text": text, "stop": message.stop_reason, "tokens": message.usage.output_tokens}


class LangChainClient:
    """LangChain's `ChatAnthropic`."""

    def __init__(self, url: str, model: str) -> None:
        options: Json = {"base_url": url, "model": model, "api_key": "any", "max_retries": 0, "max_tokens": LIMIT}
        self._chat: Any = ChatAnthropic(**options)

    def close(self) -> None:
        """All instances share a connection pool, which lasts as long as the process."""

    def _streamed(self, chat: Any, messages: list[Any]) -> Any:
        whole = None
        for chunk in chat.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    def whole(self) -> Json:
        return self._result(self._chat.invoke([HumanMessage("hello")]))

    def stream(self) -> Json:
        return self._result(self._streamed(self._chat, [HumanMessage("hello")]))

    def turns(self) -> Json:
        first = self._streamed(self._chat, [HumanMessage("hello")])
        return self._result(self._chat.invoke([HumanMessage("hello"), first, HumanMessage(AGAIN)]))

    def tool(self) -> Json:
        bound = self._chat.bind_tools([TOOL])
        return self._with_tool(bound.invoke)

    def stream_tool(self) -> Json:
        bound = self._chat.bind_tools([TOOL])
        return self._with_tool(lambda messages: self._streamed(bound, messages))

    def _with_tool(self, ask: Any) -> Json:
        messages: list[Any] = [HumanMessage("hello")]
        while True:
            message: AIMessage = ask(messages)
            if not message.tool_calls:
                return self._result(message)
            results = [
                ToolMessage(f"sunny in {made['args']['city']}", tool_call_id=made["id"]) for made in message.tool_calls
            ]
            messages += [message, *results]

    def _result(self, message: Any) -> Json:
        tokens = (message.usage_metadata or {}).get("output_tokens")
        return {"text": message.text, "stop": message.response_metadata["stop_reason"], "tokens": tokens}


class PydanticAIClient:
    """pydantic-ai's `AnthropicModel`."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model

    def close(self) -> None:
        """Each scenario closes its own client."""

    @asynccontextmanager
    async def _agent(self, *, with_tool: bool = False) -> AsyncIterator[Any]:
        http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
        async with anthropic.AsyncAnthropic(
            base_url=self._url, api_key="any", max_retries=0, http_client=http
        ) as client:
            model = AnthropicModel(self._model, provider=AnthropicProvider(anthropic_client=client))
            agent = Agent(model, model_settings=ModelSettings(max_tokens=LIMIT))
            if with_tool:
                agent.tool_plain(get_weather)
            yield agent

    async def _whole(self, *, with_tool: bool = False) -> Json:
        async with self._agent(with_tool=with_tool) as agent:
            return self._result(await agent.run("hello"))

    async def _stream(self, *, with_tool: bool = False) -> Json:
        async with self._agent(with_tool=with_tool) as agent, agent.run_stream("hello") as streamed:
            text = ""
            async for chunk in streamed.stream_text(delta=True):
                text += chunk
            return {**self._result(streamed), "text": text}

    async def _turns(self) -> Json:
        async with self._agent() as agent:
            async with agent.run_stream("hello") as streamed:
                await streamed.get_output()
                history = streamed.all_messages()
            return self._result(await agent.run(AGAIN, message_history=history))

    def whole(self) -> Json:
        return asyncio.run(self._whole())

    def stream(self) -> Json:
        return asyncio.run(self._stream())

    def turns(self) -> Json:
        return asyncio.run(self._turns())

    def tool(self) -> Json:
        return asyncio.run(self._whole(with_tool=True))

    def stream_tool(self) -> Json:
        return asyncio.run(self._stream(with_tool=True))

    def _result(self, result: Any) -> Json:
        response = result.all_messages()[-1]
        text = "".join(part.content for part in response.parts if part.part_kind == "text")
        reason = (response.provider_details or {}).get("finish_reason")
        return {"text": text, "stop": reason, "tokens": response.usage.output_tokens}


def get_weather(city: str) -> str:
    """Weather."""
    return f"sunny in {city}"


Client = AnthropicClient | LangChainClient | PydanticAIClient


def run_scenario(client: Client, method: str) -> Json:
    """Run a scenario, and return its result or its error."""
    try:
        result: Json = getattr(client, method)()
    except Exception as error:  # each client has errors of its own
        return {"error": {"status": getattr(error, "status_code", None), "message": str(error)}}
    finally:
        client.close()
    return result
