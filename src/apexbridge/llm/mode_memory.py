"""Remembers which tool mode each model accepts, learnt from its answers."""

from collections import OrderedDict

from apexbridge.llm.config import ToolMode, Upstream
from apexbridge.llm.tool_modes import ActiveMode

REMEMBERED_MODELS = 1_000
TEXT_CALLS_UNTIL_CHANGE = 2


class ModeMemory:
    """Tool modes by upstream and model."""

    def __init__(self) -> None:
        self._modes: OrderedDict[tuple[str, str], ActiveMode] = OrderedDict()
        self._text_calls: dict[tuple[str, str], int] = {}

    def mode(self, upstream: Upstream, model: str) -> ActiveMode:
        """The tool mode for this model now."""
        mode: ToolMode = upstream.tool_mode
        return mode if mode != "auto" else self._modes.get((upstream.name, model), "native")

    def called(self, upstream: Upstream, model: str) -> None:
        """The model made a structured call."""
        self._remember(upstream, model, "native")

    def wrote(self, upstream: Upstream, model: str) -> None:
        """The model wrote a call into its text instead of making one."""
        key = (upstream.name, model)
        if self._modes.get(key) != "native":
            _add_one(self._text_calls, key)
            if self._text_calls[key] >= TEXT_CALLS_UNTIL_CHANGE:
                self._remember(upstream, model, "schema")

    def after_refusal(self, upstream: Upstream, mode: ActiveMode) -> ActiveMode | None:
        """The next tool mode to try after the server rejected this one; only with `auto`."""
        other: ActiveMode | None = {"native": "schema", "schema": "text"}.get(mode)  # type: ignore[assignment]
        return other if upstream.tool_mode == "auto" else None

    def accepted(self, upstream: Upstream, model: str, mode: ActiveMode) -> None:
        """The server accepted this tool mode after it had rejected others."""
        self._remember(upstream, model, mode)

    def _remember(self, upstream: Upstream, model: str, mode: ActiveMode) -> None:
        key = (upstream.name, model)
        self._modes[key] = mode
        self._modes.move_to_end(key)
        self._text_calls.pop(key, None)
        if len(self._modes) > REMEMBERED_MODELS:
            self._modes.popitem(last=False)


def _add_one(counts: dict[tuple[str, str], int], key: tuple[str, str]) -> None:
    """Bounded: clients choose the names of models."""
    counts[key] = counts.pop(key, 0) + 1
    if len(counts) > REMEMBERED_MODELS:
        del counts[next(iter(counts))]
