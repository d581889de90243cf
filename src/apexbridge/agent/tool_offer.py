"""The tools offered to the model: the same ones in the same order in every turn, so that prompt caches work."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apexbridge._text import near_names
from apexbridge.agent.request import DEFER_MARK, MAX_TOOLS, BadRequestError, ChatRequest, is_deferred
from apexbridge.errors import did_you_mean
from apexbridge.retrieval.text import name_words, tokens, translated
from apexbridge.tools.builtin.code_tool import RUN_CODE
from apexbridge.tools.builtin.skill_tools import DESCRIPTION_TOKENS, cut
from apexbridge.tools.naming import MCP_CATEGORY, SKILL_PREFIX, WireNames, skill_tool_id, wire_name
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool

Json = dict[str, Any]
SEARCH = "vector-search"
MAX_FOUND = 5
MAX_PARAMETERS = 50
"""Parameter names that are searched."""
MAX_SEARCHED_CHARACTERS = 100_000
"""Searched in all tools together. A request can have a thousand tools, and stemming is slow."""
MIN_TOOL_CHARACTERS, MAX_TOOL_CHARACTERS = 100, 1_000
"""Searched in each tool."""
MAX_NAME_CHARACTERS = 64


class ServerTools:
    """This server's tools as functions, cached for each version of the registry, which may hold thousands of skills."""

    def __init__(self, registry: ToolRegistry, may_run_code: Callable[[str], bool] = lambda caller: True) -> None:
        """`may_run_code` returns whether a caller may run code."""
        self.registry = registry
        self._may_run_code = may_run_code
        self._version = -1
        self._common: tuple[Tool, ...] = ()
        self._usual: dict[str, tuple[str, Json]] = {}

    def offered(self, skills: Sequence[str], caller: str = "") -> Mapping[str, tuple[str, Json]]:
        """Built-in and registered tools, and the skills that the client named: id and function by wire name.

        Tools of MCP servers are left out: there can be thousands, and a search finds them.

        Raises:
            BadRequestError: a skill does not exist.
        """
        if self._version != self.registry.version:
            self._version = self.registry.version
            self._common = tuple(
                tool
                for tool in self.registry.list()
                if not tool.id.startswith(SKILL_PREFIX)
                and tool.metadata.category != MCP_CATEGORY
                and self.registry.is_enabled(tool.id)
            )
            self._usual = _functions(self._common)
        functions: Mapping[str, tuple[str, Json]] = self._usual
        if skills:
            functions = _functions([*self._common, *(self._skill(name) for name in dict.fromkeys(skills))])
        if self._may_run_code(caller):
            return functions
        return {name: (id, function) for name, (id, function) in functions.items() if id != RUN_CODE}

    def _skill(self, name: str) -> Tool:
        tool = self.registry.find(skill_tool_id(name))
        if tool is None or not self.registry.is_enabled(tool.id):
            raise BadRequestError(
                f"No skill named {name[:64]}{did_you_mean(near_names(name, self._skill_names())) or '.'}",
                param="x_bridge.skills",
                openai_code="skill_not_found",
                code="SKILL_NOT_FOUND",
            )
        return tool

    def skills(self) -> list[tuple[str, str]]:
        """The names and descriptions of the enabled skills."""
        return [
            (tool.id.removeprefix(SKILL_PREFIX), tool.description)
            for tool in self.registry.list()
            if tool.id.startswith(SKILL_PREFIX) and self.registry.is_enabled(tool.id)
        ]

    def _skill_names(self) -> list[str]:
        return [name for name, _ in self.skills()]


class ToolOffer:
    """The tools of one request, by name.

    Tools that are found later are appended: the beginning of the list stays byte-identical.
    """

    def __init__(self, request: ChatRequest, own: ServerTools, messages: Sequence[Json] | None = None) -> None:
        """`messages` are those of the request, with the earlier calls that the client has not seen."""
        offered = own.offered(request.options.skills, request.caller) if request.uses_our_tools else {}
        # If names collide, the client's tool wins.
        shown = {name: pair for name, pair in offered.items() if name not in request.client_names}
        self._offered = {name: id for name, (id, _) in shown.items()}
        self._registry = own.registry
        self._client_names = request.client_names
        self._appends_skills = request.options.functions
        client_tools = request.client_tools
        self._deferred = DeferredTools([tool for tool in client_tools if is_deferred(tool)])
        known = [tool for tool in client_tools if not is_deferred(tool)] if self._deferred else client_tools
        if self._deferred and SEARCH not in self._offered.values():
            known += self._deferred.take_all()  # without the search tool they could not be found
        elif self._deferred:
            known += [tool for name in _used_names(request) if (tool := self._deferred.take(name)) is not None]
        self.tools: list[Json] = [*(function for _, function in shown.values()), *known]
        if self._offered:
            for name in _used_names(request, messages):
                self.add_tool(name)
        if len(self.tools) > MAX_TOOLS:
            raise BadRequestError(
                f"'tools' has {len(known)} entries; with ours at most {MAX_TOOLS} are possible. Those with "
                "defer_loading: true are looked for, and sent when they are found.",
                param="tools",
            )

    async def found(self, query: str, skills: Sequence[str], tools: Sequence[str] = ()) -> str:
        """Append deferred tools, found skills and found tools of MCP servers after a search.

        Returns the lines that announce them to the model. The search has listed the tools of MCP servers already.
        """
        for id in tools:
            self.add_tool(id)
        names = await asyncio.to_thread(self._deferred.find, query) if self._deferred else []
        added = [self._append(self._deferred.take(name)) for name in names]
        if self._appends_skills:
            added += [self._append_skill(name) for name in skills]
        lines = [line for line in added if line]
        return "\n".join(
            ["These are functions of their own from now on; call them by their names:", *lines] if lines else []
        )

    def _append_skill(self, name: str) -> str:
        tool = self._registry.find(skill_tool_id(name))
        wire = wire_name(skill_tool_id(name))
        if tool is None or wire in self._offered or wire in self._client_names:
            return ""
        line = self._append(_function(wire, tool))
        if line:
            self._offered[wire] = tool.id
        return line

    def add_tool(self, id: str) -> None:
        """Append a tool of an MCP server, unless it was appended already."""
        if id not in self._offered and self._mcp_tool(id) is not None:
            tool = self._registry.get(id)
            if self._append(_function(id, tool)):
                self._offered[id] = id

    def _mcp_tool(self, name: str) -> str | None:
        """The id of an enabled tool of an MCP server; None if missing, or if a tool of the client has its name."""
        tool = self._registry.find(name)
        is_mcp = tool is not None and tool.metadata.category == MCP_CATEGORY
        return name if is_mcp and name not in self._client_names and self._registry.is_enabled(name) else None

    def _append(self, function: Json | None) -> str:
        if function is None or len(self.tools) >= MAX_TOOLS:
            return ""
        self.tools.append(function)
        own = function["function"]
        return f"- {own['name']}: {cut(str(own.get('description') or ''), DESCRIPTION_TOKENS)}"

    def is_client(self, name: str) -> bool:
        """Whether a tool is the client's own."""
        return name in self._client_names

    def id_of(self, name: str) -> str | None:
        """The id of this server's tool that a model calls: an offered one, or any skill or MCP tool by its name.

        None if no tools were offered, even if the model knows names from elsewhere.
        """
        if not self._offered:
            return None
        if name in self._offered:
            return self._offered[name]
        if id := self._mcp_tool(name):
            return id
        if name.startswith("skill__"):
            # `skill__plugin_skill` is the wire name of `plugin:skill`: names of skills contain no underscore.
            return self._known(skill_tool_id(name.removeprefix("skill__").replace("_", ":", 1)))
        return self._known(name) or self._known(skill_tool_id(name))

    def is_known(self, name: str) -> bool:
        """Whether a tool of that name exists, here or at the client."""
        return self.is_client(name) or self.id_of(name) is not None

    @property
    def has_ours(self) -> bool:
        """Whether tools of this server were offered."""
        return bool(self._offered)

    @property
    def names(self) -> Sequence[str]:
        return [*self._offered, *sorted(self._client_names)]

    def _known(self, id: str) -> str | None:
        if id.startswith(SKILL_PREFIX) or id in self._offered.values():
            return id if self._registry.is_enabled(id) else None
        return None


def _functions(tools: Sequence[Tool]) -> dict[str, tuple[str, Json]]:
    names = WireNames([tool.id for tool in tools])
    return {names.name(tool.id): (tool.id, _function(names.name(tool.id), tool)) for tool in tools}


def _used_names(request: ChatRequest, messages: Sequence[Json] | None = None) -> list[str]:
    """Tools that the conversation has called already or must call now: upstreams require their definitions."""
    calls = [call for message in messages or request.messages for call in message.get("tool_calls") or ()]
    choice = request.body.get("tool_choice")
    named = [choice] if isinstance(choice, dict) else []
    functions = [call.get("function") for call in [*calls, *named]]
    return [str(function.get("name")) for function in functions if isinstance(function, dict)]


def _function(name: str, tool: Tool) -> Json:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.description,
            "parameters": {"type": "object", "properties": {}, **tool.parameters.schema},
        },
    }


class DeferredTools:
    """The client's deferred tools that have not been found yet.

    They are few and change with each request, so keywords have to do: they are not embedded.
    """

    def __init__(self, tools: Sequence[Json]) -> None:
        self._tools = {tool["function"]["name"]: _without_mark(tool) for tool in tools}
        self._words: dict[str, set[str]] | None = None

    def __bool__(self) -> bool:
        return bool(self._tools)

    def take(self, name: str) -> Json | None:
        return self._tools.pop(name, None)

    def take_all(self) -> list[Json]:
        taken = list(self._tools.values())
        self._tools.clear()
        return taken

    def find(self, query: str) -> list[str]:
        """Names of the best matches: rare common words count most, also in the other language.

        Call it in a thread: stemming the words of all tools takes up to half a second.
        """
        if self._words is None:
            share = MAX_SEARCHED_CHARACTERS // max(1, len(self._tools))
            limit = min(max(share, MIN_TOOL_CHARACTERS), MAX_TOOL_CHARACTERS)
            self._words = {name: _words(tool, limit) for name, tool in self._tools.items()}
        known = {name: words for name, words in self._words.items() if name in self._tools}
        spread = Counter(word for words in known.values() for word in words)
        by_glossary, by_dictionary = translated(query)
        searched = {*tokens(query), *by_glossary, *by_dictionary}
        scores = {
            name: sum(math.log(1 + len(known) / spread[word]) for word in words & searched)
            for name, words in known.items()
        }
        best = sorted((name for name, score in scores.items() if score > 0), key=lambda name: (-scores[name], name))
        return best[:MAX_FOUND]


def _words(tool: Json, limit: int) -> set[str]:
    function = tool["function"]
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    names = list(properties)[:MAX_PARAMETERS] if isinstance(properties, dict) else []
    description = str(function.get("description") or "")[:limit]
    texts = [name_words(function["name"][:MAX_NAME_CHARACTERS]), description]
    texts += [name_words(name[:MAX_NAME_CHARACTERS]) for name in names]
    return set(tokens(" ".join(texts)[:limit]))


def _without_mark(tool: Json) -> Json:
    """The tool without `defer_loading`, for the upstream."""
    plain = {key: value for key, value in tool.items() if key != DEFER_MARK}
    if isinstance(plain.get("function"), dict):
        plain["function"] = {key: value for key, value in plain["function"].items() if key != DEFER_MARK}
    return plain
