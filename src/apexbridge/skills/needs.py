"""Dependencies of skills and their layers: read at every run, installed only on explicit request."""

import platform
import sysconfig
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio.to_thread

from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.layers import LayerStore
from apexbridge.skills.catalog import Row
from apexbridge.skills.dependencies import Dependencies, read_dependencies
from apexbridge.wire import WireModel

REMEMBERED = 1000
"""Skills whose declarations are cached, keyed by content hash."""
_LIBC = "".join(platform.libc_ver()) or "libc"
PYTHON_RUNTIME = f"{sysconfig.get_config_var('SOABI')}-{sysconfig.get_platform()}-{_LIBC}"
NODE_RUNTIME = f"node-{platform.machine()}-{_LIBC}"


class NeedsView(WireModel):
    """What a skill declares, and whether it is there."""

    python: list[str]
    node: list[str]
    sources: list[str]
    problems: list[str]
    installed: bool
    """Whether everything declared is; true where nothing is."""


class SkillNeeds:
    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._known: OrderedDict[str, Dependencies] = OrderedDict()

    async def view(self, row: Row, folder: Path) -> NeedsView:
        """The declared dependencies, and whether they are installed."""
        needs = await self._needs(row, folder)
        missing = await anyio.to_thread.run_sync(self._missing, needs)
        return NeedsView(
            python=list(needs.python),
            node=list(needs.node_requirements),
            sources=list(needs.sources),
            problems=list(needs.problems),
            installed=not missing and not needs.problems,
        )

    async def install(self, row: Row, folder: Path, progress: Callable[[str], None] | None = None) -> NeedsView:
        """Install the declared dependencies, unless they are installed already.

        Raises:
            InvalidInputError: a declaration is invalid or not supported.
            ServerError: NOT_READY if there is no installer; EXECUTION_ERROR or TIMEOUT if it failed.
        """
        needs = await self._needs(row, folder)
        if needs.problems:
            raise InvalidInputError(f"Nothing was installed: {'; '.join(needs.problems)}", errors=list(needs.problems))
        if key := needs.python_key(PYTHON_RUNTIME):
            await self._store.install("python", key, needs.python, progress)
        if key := needs.node_key(NODE_RUNTIME):
            await self._store.install("node", key, needs.node_requirements, progress)
        return await self.view(row, folder)

    async def for_run(self, row: Row, folder: Path) -> tuple[Mapping[str, Path], list[str]]:
        """The layers of a run, and a warning about missing dependencies. A run never installs anything."""
        needs = await self._needs(row, folder)
        if needs.is_empty:
            return {}, []
        layers = await anyio.to_thread.run_sync(self._layers, needs)
        missing = await anyio.to_thread.run_sync(self._missing, needs)
        if not missing:
            return layers, []
        return layers, [f"not installed: {', '.join(missing)}. Install with: apex skills deps {row.name} --install"]

    async def _needs(self, row: Row, folder: Path) -> Dependencies:
        if row.content_hash not in self._known:
            self._known[row.content_hash] = await anyio.to_thread.run_sync(read_dependencies, folder)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[row.content_hash]

    def _layers(self, needs: Dependencies) -> dict[str, Path]:
        layers: dict[str, Path] = {}
        if (key := needs.python_key(PYTHON_RUNTIME)) and (found := self._store.find("python", key)):
            layers["python"] = found
        if (key := needs.node_key(NODE_RUNTIME)) and (found := self._store.find("node", key)):
            layers["node_modules"] = found / "node_modules"
        return layers

    def _missing(self, needs: Dependencies) -> list[str]:
        layers = self._layers(needs)
        missing = list(needs.python) if "python" not in layers else []
        return missing + (list(needs.node_requirements) if "node_modules" not in layers else [])
