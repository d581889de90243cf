"""Plugins: groups of skills that are installed and removed together."""

import anyio.to_thread

from apexbridge.errors import RequestError
from apexbridge.skills.files import is_there
from apexbridge.skills.models import PluginSummary
from apexbridge.skills.store.catalog import from_milliseconds
from apexbridge.skills.store.installer import Installer
from apexbridge.skills.store.library import Library


class PluginShelf:
    def __init__(self, *, library: Library, installer: Installer) -> None:
        self._library = library
        self._installer = installer

    async def all(self) -> list[PluginSummary]:
        """Every plugin with its skills, sorted by name."""
        plugins = await anyio.to_thread.run_sync(self._look)
        return [plugin for plugin in plugins if plugin.skills]  # all its folders may have been removed by hand

    async def uninstall(self, name: str) -> None:
        """Remove a plugin with all its skills.

        Raises:
            RequestError: PLUGIN_NOT_FOUND.
        """
        if not await self._installer.uninstall_plugin(name):
            raise RequestError(f"Plugin not found: {name}", code="PLUGIN_NOT_FOUND", plugin=name)

    def _look(self) -> list[PluginSummary]:
        return [
            PluginSummary(
                name=record.name,
                version=record.version,
                description=record.description,
                installed_at=from_milliseconds(record.installed_at),
                skills=[skill for skill in record.skills if is_there(self._library.skills / skill)],
            )
            for record in self._library.plugins.all()
        ]
