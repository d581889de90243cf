"""Runs the scenarios with the Python clients. All return results of the same form."""

import json
from typing import Any

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Json = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}}
PARTS = [
    {"type": "text", "text": "What is this? 这是什么"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
]
USER: Json = {"role": "user", "content": "hello"}


class OpenAIClient:
    """The `openai` package."""

    def __init__(self, url: str, http: openai.DefaultHttpxClient, model: str) -> None:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http)
        self._create: Any = client.chat.completions.create
        self._model = model

    def whole(self, content: Any = "hello") -> Json:
        completion = self._create(model=self._model, messages=[{"role": "user", "content": content}])
        choice = completion.choices[0]
        return {"text": choice.message.content, "finish": choice.finish_reason, "tokens": completion.usage.total_tokens}

    def stream(self) -> Json:
        options = {"include_usage": True}
        text, finish, tokens = "", None, None
        for chunk in self._create(model=self._model, messages=[USER], stream=True, stream_options=options):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            tokens = chunk.usage.total_tokens if chunk.usage else tokens
        return {"text": text, "finish": finish, "tokens": tokens}

    def parts(self) -> Json:
        return self.whole(PARTS)

    def tool(self) -> Json:
        messages: list[Any] = [USER]
        while True:
            message = self._create(model=self._model, messages=messages, tools=[TOOL]).choices[0].message
            if not message.tool_calls:
                return {"text": message.content}
            messages.append(message)
            for made in message.tool_calls:
                city = json.loads(made.function.arguments)["city"]
                messages.append({"role": "tool", "tool_call_id": made.id, "content": f"sunny in {city}"})


class LangChainClient:
    """LangChain's `ChatOpenAI`."""

    def __init__(self, url: str, http: openai.DefaultHttpxClient, model: str) -> None:
        options: Json = {"api_key": "any", "max_retries": 0, "stream_usage": True, "http_client": http}
        self._chat: Any = ChatOpenAI(base_url=f"{url}/v1", model=model, **options)

    def whole(self, content: Any = "hello") -> Json:
        return _result(self._chat.invoke([HumanMessage(content)]))

    def stream(self) -> Json:
        whole = None
        for chunk in self._chat.stream([HumanMessage("hello")]):
            whole = chunk if whole is None else whole + chunk
        return _result(whole)

    def parts(self) -> Json:
        return self.whole(PARTS)

    def tool(self) -> Json:
        bound = self._chat.bind_tools([TOOL])
        messages: list[Any] = [HumanMessage("hello")]
        while True:
            message: AIMessage = bound.invoke(messages)
            if not message.tool_calls:
                return {"text": message.content}
            calls = message.tool_calls
            results = [ToolMessage(f"sunny in {made['args']['city']}", tool_call_id=made["id"]) for made in calls]
            messages += [message, *results]


def _result(message: Any) -> Json:
    tokens = (message.usage_metadata or {}).get("total_tokens")
    return {"text": message.content, "finish": message.response_metadata["finish_reason"], "tokens": tokens}


def run_scenario(client: OpenAIClient | LangChainClient, method: str) -> Json:
    """Run a scenario, and return its result or its error."""
    try:
        result: Json = getattr(client, method)()
    except openai.APIError as error:
        status = getattr(error, "status_code", None)
        return {"error": {"status": status, "code": error.code, "message": error.message}}
    return result
