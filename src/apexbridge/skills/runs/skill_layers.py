"""Dependencies of skills and their layers: read at every run, installed only on explicit request."""

import platform
import sysconfig
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from apexbridge._tasks import in_thread
from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.layers import LayerStore
from apexbridge.skills.package.dependencies import Dependencies, read_dependencies
from apexbridge.skills.store.catalog import Row
from apexbridge.wire import WireModel

REMEMBERED = 1000
"""Skills whose declarations are cached, keyed by content hash."""
_LIBC = "".join(platform.libc_ver()) or "libc"
PYTHON_RUNTIME = f"{sysconfig.get_config_var('SOABI')}-{sysconfig.get_platform()}-{_LIBC}"
NODE_RUNTIME = f"node-{platform.machine()}-{_LIBC}"


class DependencyView(WireModel):
    """The dependencies that a skill declares."""

    python: list[str]
    node: list[str]
    sources: list[str]
    problems: list[str]
    installed: bool
    """Whether all declared dependencies are installed; true if there are none."""


class SkillLayers:
    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._known: OrderedDict[str, Dependencies] = OrderedDict()

    async def view(self, row: Row, folder: Path) -> DependencyView:
        """The declared dependencies, and whether they are installed."""
        declared = await self._dependencies(row, folder)
        missing = await in_thread(self._missing, declared)
        return DependencyView(
            python=list(declared.python),
            node=list(declared.node_requirements),
            sources=list(declared.sources),
            problems=list(declared.problems),
            installed=not missing and not declared.problems,
        )

    async def install(self, row: Row, folder: Path, progress: Callable[[str], None] | None = None) -> DependencyView:
        """Install the declared dependencies, unless they are installed already.

        Raises:
            InvalidInputError: a declaration is invalid or not supported.
            ServerError: NOT_READY if there is no installer; EXECUTION_ERROR or TIMEOUT if it failed.
        """
        declared = await self._dependencies(row, folder)
        if declared.problems:
            raise InvalidInputError(
                f"Nothing was installed: {'; '.join(declared.problems)}", errors=list(declared.problems)
            )
        if key := declared.python_key(PYTHON_RUNTIME):
            await self._store.install("python", key, declared.python, progress)
        if key := declared.node_key(NODE_RUNTIME):
            await self._store.install("node", key, declared.node_requirements, progress)
        return await self.view(row, folder)

    async def for_run(self, row: Row, folder: Path) -> tuple[Mapping[str, Path], list[str]]:
        """The layers of a run, and a warning about missing dependencies. A run never installs anything."""
        declared = await self._dependencies(row, folder)
        if declared.is_empty:
            return {}, []
        layers = await in_thread(self._layers, declared)
        missing = await in_thread(self._missing, declared)
        if not missing:
            return layers, []
        return layers, [f"not installed: {', '.join(missing)}. Install with: apex skills deps {row.name} --install"]

    async def _dependencies(self, row: Row, folder: Path) -> Dependencies:
        if row.content_hash not in self._known:
            self._known[row.content_hash] = await in_thread(read_dependencies, folder)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[row.content_hash]

    def _layers(self, declared: Dependencies) -> dict[str, Path]:
        layers: dict[str, Path] = {}
        if (key := declared.python_key(PYTHON_RUNTIME)) and (found := self._store.find("python", key)):
            layers["python"] = found
        if (key := declared.node_key(NODE_RUNTIME)) and (found := self._store.find("node", key)):
            layers["node_modules"] = found / "node_modules"
        return layers

    def _missing(self, declared: Dependencies) -> list[str]:
        layers = self._layers(declared)
        missing = list(declared.python) if "python" not in layers else []
        return missing + (list(declared.node_requirements) if "node_modules" not in layers else [])
