"""What models were seen to be able to do; learnt from their answers, never by asking."""

from collections import OrderedDict

from apexbridge.llm.config import ToolMode, Upstream
from apexbridge.llm.tool_modes import Way

REMEMBERED_MODELS = 1_000
SALVAGED_UNTIL_CHANGE = 2


class ModeMemory:
    """What models were seen to be able to do; learnt from their answers, never by asking."""

    def __init__(self) -> None:
        self._ways: OrderedDict[tuple[str, str], Way] = OrderedDict()
        self._salvaged: dict[tuple[str, str], int] = {}

    def way(self, upstream: Upstream, model: str) -> Way:
        """How to offer tools to this model now."""
        mode: ToolMode = upstream.tool_mode
        return mode if mode != "auto" else self._ways.get((upstream.name, model), "native")

    def called(self, upstream: Upstream, model: str) -> None:
        """It made a proper call."""
        self._remember(upstream, model, "native")

    def wrote(self, upstream: Upstream, model: str) -> None:
        """It wrote a call into its text although it could have made one."""
        key = (upstream.name, model)
        if self._ways.get(key) != "native":
            _add_one(self._salvaged, key)
            if self._salvaged[key] >= SALVAGED_UNTIL_CHANGE:
                self._remember(upstream, model, "schema")

    def after_refusal(self, upstream: Upstream, way: Way) -> Way | None:
        """Another tool mode to try after the server refused this one, if the operator left the choice."""
        other: Way | None = {"native": "schema", "schema": "text"}.get(way)  # type: ignore[assignment]
        return other if upstream.tool_mode == "auto" else None

    def accepted(self, upstream: Upstream, model: str, way: Way) -> None:
        """The server accepted this tool mode after it had refused others."""
        self._remember(upstream, model, way)

    def _remember(self, upstream: Upstream, model: str, way: Way) -> None:
        key = (upstream.name, model)
        self._ways[key] = way
        self._ways.move_to_end(key)
        self._salvaged.pop(key, None)
        if len(self._ways) > REMEMBERED_MODELS:
            self._ways.popitem(last=False)


def _add_one(counts: dict[tuple[str, str], int], key: tuple[str, str]) -> None:
    """Clients choose the names of models, so there is no end to them."""
    counts[key] = counts.pop(key, 0) + 1
    if len(counts) > REMEMBERED_MODELS:
        del counts[next(iter(counts))]
