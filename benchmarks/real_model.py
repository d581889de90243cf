"""`python -m benchmarks.real_model --model NAME`: how a real model behaves behind the bridge, by scenario."""

import argparse
import io
import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]
SECONDS = 400
FINISHES = ("stop", "length", "tool_calls")
LEAKS = ('{"action"', '"action":', '"tool_call"', "<tool_call", '"tool_calls"', '{"response"', '{"name"')
"""Text for the bridge that must not reach the user."""
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
    "additionalProperties": False,
}

SKILLS = {
    "shout": {
        "SKILL.md": """---
name: shout
description: Turns a text into capital letters. Use when somebody wants a text in upper case.
parameters:
  type: object
  properties:
    text: {type: string}
  required: [text]
---
Give it a text.
""",
        "scripts/execute.py": 'import json, sys\n\nprint(json.load(sys.stdin)["text"].upper())\n',
    },
    "greeting": {
        "SKILL.md": """---
name: greeting
description: How to greet guests politely. Use when a guest has to be welcomed.
---
Say "Welcome to the house of apex", and nothing else.
""",
    },
}
"""Skills of the scenarios, in addition to those of `examples/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response."""

    status: int
    text: str = ""
    finish: str = ""
    calls: tuple[Json, ...] = ()
    bridge: Json = field(default_factory=dict)
    fault: str = ""
    """Why the format is wrong; empty if it is right."""

    def did(self, tool: str) -> bool:
        """Whether the model called this tool successfully."""
        return any(step["name"] == tool and step["success"] for step in self._calls)

    @property
    def _calls(self) -> list[Json]:
        return [step for step in self.bridge.get("trajectory", ()) if step["kind"] != "model"]

    @property
    def call_names(self) -> str:
        """All calls, with failed ones marked."""
        return " ".join(step["name"] + ("" if step["success"] else "(failed)") for step in self._calls)

    @property
    def leaks(self) -> bool:
        """Whether the user sees text for the bridge."""
        return any(mark in self.text for mark in LEAKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A request, the expected tool call, and a check of the answer."""

    name: str
    prompt: str = ""
    tool: str | None = None
    right: Callable[[Answer], bool]
    extra: Json = field(default_factory=dict)
    bridge: Json = field(default_factory=dict)
    messages: tuple[Json, ...] = ()

    def passed_by(self, answer: Answer) -> bool:
        """Whether the answer is right, and the required tool was used."""
        return not answer.fault and (self.tool is None or answer.did(self.tool)) and self.right(answer)

    def body(self, model: str, temperature: float, max_tokens: int) -> Json:
        """The request."""
        messages = list(self.messages) or [{"role": "user", "content": self.prompt}]
        limits = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        return {**limits, "messages": messages, "x_bridge": {"debug": True, **self.bridge}, **self.extra}


def _contains(*words: str) -> Callable[[Answer], bool]:
    return lambda answer: any(word.lower() in answer.text.lower().replace(",", "") for word in words)


def _matches_schema(answer: Answer) -> bool:
    try:
        value = json.loads(answer.text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and set(value) == {"city", "country"}
        and all(isinstance(v, str) for v in value.values())
    )


def _asks_for_paris(answer: Answer) -> bool:
    for call in answer.calls:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return False
        if call["function"]["name"] == "get_weather" and "paris" in str(arguments.get("city", "")).lower():
            return True
    return False


SCENARIOS = (
    Scenario(name="plain question", prompt="What is the capital of France?", right=_contains("paris")),
    Scenario(
        name="without tools", prompt="What is the capital of Italy?", right=_contains("rome"), bridge={"tools": False}
    ),
    Scenario(
        name="two turns",
        right=_contains("ada"),
        messages=(
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Nice to meet you, Ada."},
            {"role": "user", "content": "What is my name?"},
        ),
    ),
    Scenario(name="arithmetic", prompt="What is 1234 * 5678?", tool="calculate", right=_contains("7006652")),
    Scenario(
        name="arithmetic, streamed",
        prompt="Calculate 98765 - 4321 with the tool calculate.",
        tool="calculate",
        right=_contains("94444"),
        extra={"stream": True},
    ),
    Scenario(
        name="date",
        prompt="What is the date today?",
        tool="datetime",
        right=_contains(time.strftime("%Y", time.gmtime())),
    ),
    Scenario(
        name="search for a skill",
        prompt="Is there a skill for checksums of files? Look with search_skills.",
        tool="search_skills",
        right=_contains("checksums"),
    ),
    Scenario(
        name="load a skill",
        prompt="Read the skill greeting with load_skill. How do I greet a guest?",
        tool="load_skill",
        right=_contains("house of apex"),
    ),
    Scenario(
        name="run a skill",
        prompt='Run the skill shout with run_skill; its input is {"text": "good morning"}.',
        tool="run_skill",
        right=lambda answer: "GOOD MORNING" in answer.text,
    ),
    Scenario(
        name="a named skill",
        prompt="Shout this: good morning",
        tool="skill__shout",
        right=lambda answer: "GOOD MORNING" in answer.text,
        bridge={"skills": ["shout"]},
    ),
    Scenario(
        name="unknown tool",
        prompt="Call the tool fly_to_moon now.",
        right=lambda answer: bool(answer.text.strip()) and not answer.leaks,
    ),
    Scenario(
        name="answer in a format",
        prompt="Which city is the capital of France? Tell the city and the country.",
        right=_matches_schema,
        extra={"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
    ),
    Scenario(
        name="tool of the client",
        prompt="What is the weather in Paris? Use get_weather.",
        right=_asks_for_paris,
        extra={"tools": [WEATHER]},
    ),
)


def install(client: httpx.Client) -> None:
    """Install the skills of the scenarios."""
    for name, files in SKILLS.items():
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as written:
            for path, text in files.items():
                written.writestr(f"{name}/{path}", text)
        zipped, kind = archive.getvalue(), {"content-type": "application/zip"}
        client.post("/api/skills/install?overwrite=true", content=zipped, headers=kind).raise_for_status()


def ask(client: httpx.Client, body: Json) -> Answer:
    """Send a request and parse the response like an OpenAI client."""
    if body.get("stream"):
        return _streamed(client, body)
    response = client.post("/v1/chat/completions", json=body)
    if response.status_code != 200:
        return Answer(status=response.status_code, text=response.text[:500], fault=f"status {response.status_code}")
    completion = response.json()
    choice = completion["choices"][0]
    return _checked(choice["message"], choice["finish_reason"], completion.get("x_bridge") or {}, completion["object"])


def _streamed(client: httpx.Client, body: Json) -> Answer:
    text, finish, is_done = "", "", False
    calls: list[Json] = []
    bridge: Json = {}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            return Answer(status=response.status_code, fault=f"status {response.status_code}")
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                is_done = True
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                return Answer(status=200, fault=str(chunk["error"])[:200])
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                calls += choice["delta"].get("tool_calls") or []
                finish = choice.get("finish_reason") or finish
            bridge = chunk.get("x_bridge") or bridge
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    answer = _checked(message, finish, bridge, "chat.completion")
    return answer if is_done else Answer(status=200, text=text, fault="no [DONE]")


def _checked(message: Json, finish: str, bridge: Json, kind: str) -> Answer:
    text, calls = message.get("content") or "", tuple(message.get("tool_calls") or ())
    fault = ""
    if kind != "chat.completion" or message.get("role") != "assistant" or finish not in FINISHES:
        fault = f"format: {kind} {message.get('role')} {finish}"
    elif bool(calls) != (finish == "tool_calls"):
        fault = f"{finish} with {len(calls)} calls"
    return Answer(status=200, text=text, finish=finish, calls=calls, bridge=bridge, fault=fault)


def main() -> None:
    """Run the scenarios and print how often each succeeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_model", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8420", help="URL of apexbridge")
    parser.add_argument("--model", required=True)
    parser.add_argument("--times", type=int, default=3, help="runs of each scenario")
    parser.add_argument("--temperature", type=float, default=0.2, help="of all runs except the first, which uses 0")
    parser.add_argument("--max-tokens", type=int, default=150)
    parser.add_argument("--only", default="", help="part of a scenario's name")
    options = parser.parse_args()
    print(f"{'scenario':22} valid clean call  right", flush=True)
    with httpx.Client(base_url=options.url, timeout=SECONDS) as client:
        install(client)
        for scenario in (scenario for scenario in SCENARIOS if options.only in scenario.name):
            seen = []
            for turn in range(options.times):
                body = scenario.body(options.model, options.temperature if turn else 0.0, options.max_tokens)
                answer = ask(client, body)
                seen.append(answer)
                shown = json.dumps(answer.fault or answer.text or [call["function"] for call in answer.calls])
                cause = answer.bridge.get("stopCause", "passed through")
                print(f"    {answer.status} {cause} [{answer.call_names}] {shown[:160]}", flush=True)
            called = "-" if scenario.tool is None else str(sum(answer.did(scenario.tool) for answer in seen))
            columns = [
                str(sum(not answer.fault for answer in seen)),
                str(sum(not answer.leaks for answer in seen)),
                called,
                str(sum(scenario.passed_by(answer) for answer in seen)),
            ]
            print(f"{scenario.name:22} " + " ".join(f"{column:5}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
