"""What models were seen to be able to do; learnt from their answers, never by asking."""

from collections import OrderedDict

from apexbridge.llm.config import ToolMode, Upstream
from apexbridge.llm.tool_modes import ActiveMode

REMEMBERED_MODELS = 1_000
SALVAGED_UNTIL_CHANGE = 2
UNHEARD_UNTIL_CHANGE = 3
PLAUSIBLE_SHARE = 0.5
"""Of what the messages take by a rough count, what a server must count for it to be taken at its word."""
LEAST_TOOL_TOKENS = 400
TOLD_SHARE = 0.4
"""Of what the tools take by a rough count, what a prompt must have at least for them to be in it."""


class ModeMemory:
    """What models were seen to be able to do; learnt from their answers, never by asking."""

    def __init__(self) -> None:
        self._modes: OrderedDict[tuple[str, str], ActiveMode] = OrderedDict()
        self._salvaged: dict[tuple[str, str], int] = {}
        self._unheard: dict[tuple[str, str], list[int]] = {}
        """What was read where a model answered without having been told of the tools."""
        self._heard: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Models that were told; where prompts are cached, some servers count less of them later."""

    def mode(self, upstream: Upstream, model: str) -> ActiveMode:
        """How to offer tools to this model now."""
        mode: ToolMode = upstream.tool_mode
        return mode if mode != "auto" else self._modes.get((upstream.name, model), "native")

    def called(self, upstream: Upstream, model: str) -> None:
        """It made a proper call."""
        self._remember(upstream, model, "native")

    def wrote(self, upstream: Upstream, model: str) -> None:
        """It wrote a call into its text although it could have made one."""
        key = (upstream.name, model)
        if self._modes.get(key) != "native":
            _add_one(self._salvaged, key)
            if self._salvaged[key] >= SALVAGED_UNTIL_CHANGE:
                self._remember(upstream, model, "schema")

    def is_new(self, upstream: Upstream, model: str) -> bool:
        """Whether it is not known yet if the model hears of the tools at all."""
        key = (upstream.name, model)
        return upstream.tool_mode == "auto" and key not in self._modes and key not in self._heard

    def answered(
        self, upstream: Upstream, model: str, *, prompt_tokens: int, message_tokens: float, tool_tokens: float
    ) -> None:
        """It answered, having read so much. Some servers take tools, do not tell the model of them, and say nothing.

        That shows where what it read is about as long as the messages alone, several times and each time anew: there
        are also servers that count wrongly, or not at all.
        """
        key = (upstream.name, model)
        least = message_tokens * PLAUSIBLE_SHARE
        if tool_tokens < LEAST_TOOL_TOKENS or prompt_tokens < least:
            return
        if prompt_tokens >= least + tool_tokens * TOLD_SHARE:
            self._heard[key] = None
            if len(self._heard) > REMEMBERED_MODELS:
                self._heard.popitem(last=False)
            return
        seen = self._unheard.setdefault(key, [])
        seen.append(prompt_tokens)
        if len(seen) >= UNHEARD_UNTIL_CHANGE and len(set(seen)) > 1:
            self._remember(upstream, model, "schema")
        elif len(seen) > UNHEARD_UNTIL_CHANGE:
            del seen[0]
        if len(self._unheard) > REMEMBERED_MODELS:
            del self._unheard[next(iter(self._unheard))]

    def after_refusal(self, upstream: Upstream, mode: ActiveMode) -> ActiveMode | None:
        """Another tool mode to try after the server refused this one, if the operator left the choice."""
        other: ActiveMode | None = {"native": "schema", "schema": "text"}.get(mode)  # type: ignore[assignment]
        return other if upstream.tool_mode == "auto" else None

    def accepted(self, upstream: Upstream, model: str, mode: ActiveMode) -> None:
        """The server accepted this tool mode after it had refused others."""
        self._remember(upstream, model, mode)

    def _remember(self, upstream: Upstream, model: str, mode: ActiveMode) -> None:
        key = (upstream.name, model)
        self._modes[key] = mode
        self._modes.move_to_end(key)
        self._salvaged.pop(key, None)
        self._unheard.pop(key, None)
        if len(self._modes) > REMEMBERED_MODELS:
            self._modes.popitem(last=False)


def _add_one(counts: dict[tuple[str, str], int], key: tuple[str, str]) -> None:
    """Clients choose the names of models, so there is no end to them."""
    counts[key] = counts.pop(key, 0) + 1
    if len(counts) > REMEMBERED_MODELS:
        del counts[next(iter(counts))]
