"""`apex-offline`: a small planner that answers if no model is configured, with the same loop and tools.

It is not a language model. It knows a few patterns, and otherwise searches for a skill.
"""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from apexbridge.llm.config import Upstream
from apexbridge.llm.tool_modes import text_of

Json = dict[str, Any]
OFFLINE_MODEL = "apex-offline"
OFFLINE_UPSTREAM = Upstream(name=OFFLINE_MODEL, base_url="", tool_mode="native")
NOTICE = (
    "(apex-offline is not a language model, only a planner. Set APEX_LLM_BASE_URL, APEX_LLM_API_KEY and APEX_LLM_MODEL "
    "to have a real one answer.)"
)
GOOD_SCORE = 0.5
"""Skills below this confidence are listed, not run."""
MAX_TEXT = 2_000
_ARITHMETIC = re.compile(
    r"(?:[-+(√]\s{0,10})?(?:\d|sqrt|sin|cos|tan|log|ln|pi\b|π|√)[\d\s.+\-*/^%()×÷!,a-zπ√（）＋－]*", re.IGNORECASE
)
_OPERATOR = re.compile(r"\d\s*[-+*/^%×÷!＋－]|sqrt|√|sin|cos|log|factorial", re.IGNORECASE)
_DATE = re.compile(
    r"\b(?:what time|what day|what date|today|current (?:time|date)|time is it|now)\b|几点|今天|现在|日期|星期", re.I
)
_FILE = re.compile(r"\b(?:read|show|open|cat)\b.{0,20}?\bfile\b\s+[`'\"]?([\w./-]+)", re.IGNORECASE)
_LIST = re.compile(r"\b(?:list|show)\b.{0,20}?\bfiles\b|列出.{0,4}文件", re.IGNORECASE)


class OfflineModel:
    async def ask(self, upstream: Upstream, body: Json, seconds: float) -> "OfflineAnswer":
        return OfflineAnswer(body)

    def done(self, answer: "OfflineAnswer") -> None:
        pass


class OfflineAnswer:
    """One step of the plan, as the chunks of a stream."""

    def __init__(self, body: Json) -> None:
        self._chunks = _chunks(body)

    async def next(self) -> list[Json] | None:
        chunk = next(self._chunks, None)
        return None if chunk is None else [chunk]


def _chunks(body: Json) -> Iterator[Json]:
    calls, text = _next_step(body)
    for word in re.findall(r"\S+\s*|\s+", text or ""):
        yield _chunk({"content": word}, None)
    if calls:
        yield _chunk({"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}, None)
    yield _chunk({}, "tool_calls" if calls else "stop")


def _chunk(delta: Json, finish: str | None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "offline", "object": "chat.completion.chunk", "model": OFFLINE_MODEL, "choices": [choice]}


def _next_step(body: Json) -> tuple[list[Json], str | None]:
    """Tool calls, or the final text."""
    messages = body["messages"]
    offered = {tool["function"]["name"] for tool in body.get("tools") or () if "function" in tool}
    asked = next((text_of(item.get("content")) for item in reversed(messages) if item["role"] == "user"), "")
    done = _since_the_question(messages)
    if body.get("tool_choice") == "none":
        offered = set()
    if not done:
        call = _first_call(asked[:MAX_TEXT], offered)
        return ([call], None) if call else ([], f"There is nothing I can do with that here. {NOTICE}")
    name, result = done[-1]
    if name == "search_skills" and "run_skill" in offered:
        return _use_of_a_skill(asked, result, offered)
    if result.startswith("Error"):
        return [], f"That did not work: {result}\n\n{NOTICE}"
    return [], f"{result.strip()}\n\n{NOTICE}"


def _first_call(asked: str, offered: set[str]) -> Json | None:
    if "calculate" in offered and (found := _arithmetic(asked)):
        return _call("calculate", {"expression": found})
    if "file_read" in offered and (file := _FILE.search(asked)):
        return _call("file_read", {"path": file[1]})
    if "list_files" in offered and _LIST.search(asked):
        return _call("list_files", {})
    if "datetime" in offered and _DATE.search(asked):
        return _call("datetime", {})
    if "search_skills" in offered and asked.strip():
        return _call("search_skills", {"query": asked})
    return None


def _arithmetic(asked: str) -> str | None:
    """The longest part of the question that looks like an expression."""
    found = [match[0].strip().rstrip("?.,=a-z ").strip() for match in _ARITHMETIC.finditer(asked)]
    sums = [text for text in found if _OPERATOR.search(text)]
    return max(sums, key=len, default=None)


def _use_of_a_skill(asked: str, results: str, offered: set[str]) -> tuple[list[Json], str | None]:
    """Run the best skill if its input can be filled in; load a skill that has only instructions."""
    hits = re.findall(
        r"^\d+\. ([a-z0-9-]+) \(([\d.]+), (runs|instructions)\): (.*)(?:\n   input: (.*))?$", results, re.M
    )
    if not hits:
        return [], f"I found no skill for that. {NOTICE}"
    name, score, kind, description, arguments = hits[0]
    if float(score) < GOOD_SCORE:
        names = "\n".join(f"- {hit[0]}: {hit[3]}" for hit in hits)
        return [], f"These skills may help; name the one you want:\n{names}\n\n{NOTICE}"
    if kind == "instructions":
        return ([_call("load_skill", {"name": name})], None) if "load_skill" in offered else ([], description)
    filled = _filled(asked, arguments)
    if filled is None:
        return [], f"The skill {name} fits ({description}) and needs: {arguments}. Call it with run_skill.\n\n{NOTICE}"
    return [_call("run_skill", {"name": name, "input": filled})], None


def _filled(asked: str, arguments: str) -> Json | None:
    """The question as the input of a skill that needs at most one text; None if it needs more."""
    required = [argument.strip() for argument in arguments.split(",") if argument.strip() and "?:" not in argument]
    if not required:
        return {"text": asked, "query": asked}
    name, _, kind = required[0].partition(":")
    return {name: asked} if len(required) == 1 and kind.strip() == "string" else None


def _since_the_question(messages: list[Json]) -> list[tuple[str, str]]:
    """Names and results of the calls since the last question."""
    names: dict[str, str] = {}
    done: list[tuple[str, str]] = []
    for message in messages:
        if message["role"] == "user":
            done = []
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call.get("function", {}).get("name", "")
        if message["role"] == "tool":
            done.append((names.get(message["tool_call_id"], ""), text_of(message.get("content"))))
    return done


def _call(name: str, arguments: Json) -> Json:
    written = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": {"name": name, "arguments": written}}
