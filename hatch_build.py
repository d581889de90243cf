"""Puts the built console into wheels and source distributions.

A wheel that is built from a source distribution finds the console built, and needs no Node.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_DIST = "src/apexbridge/surfaces/console/dist"
_NODE_PLATFORMS = "platform_machine in 'x86_64 aarch64 arm64 AMD64'"
"""Elsewhere pip would compile Node."""


class ConsoleBuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        """Packages for the build: Node, if the console must be built and the system has none."""
        builder = self._builder()
        if builder.is_current():
            return []
        try:
            builder.find_node()
        except builder.BuildError:
            return [f"{builder.NODE_PACKAGE}>=22; {_NODE_PLATFORMS}"]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # `make run` builds it
            return
        builder = self._builder()
        try:
            builder.build()
        except builder.BuildError as error:
            if self.target_name == "sdist":  # no wheel that is built from it could have the console
                sys.exit(f"The console cannot be built, so the source distribution is not: {error}\n{error.output}")
            if not (builder.DIST / builder.MANIFEST).exists():
                self.app.display_warning(f"This wheel does not have the console, which could not be built: {error}")
                return
            self.app.display_warning(f"This wheel has an older console: {error}")
        build_data["artifacts"].append(f"/{_DIST}/**")

    def _builder(self) -> ModuleType:
        path = Path(self.root) / "scripts/build_console.py"
        spec = spec_from_file_location("build_console", path)
        assert spec is not None  # noqa: S101  # a file that exists has one
        assert spec.loader is not None  # noqa: S101
        module = module_from_spec(spec)
        sys.modules.setdefault(spec.name, module)  # dataclasses look it up
        spec.loader.exec_module(module)
        return module
