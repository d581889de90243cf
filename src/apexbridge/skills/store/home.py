"""The parts that depend on the paths of skills. They are built again when the paths change."""

from pathlib import Path

from apexbridge.skills.config import SkillManagerConfig
from apexbridge.skills.ports import SkillIndex
from apexbridge.skills.store.catalog import INSTALLED_ROOT, Catalog
from apexbridge.skills.store.installer import Installer
from apexbridge.skills.store.library import Library
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.plugins import PluginShelf
from apexbridge.skills.store.roots import SkillRoot
from apexbridge.skills.store.scanner import Listener, Scanner


class SkillHome:
    """Library, scanner, installer and plugins for one set of paths."""

    def __init__(
        self,
        data_dir: Path,
        config: SkillManagerConfig,
        *,
        catalog: Catalog,
        index: SkillIndex,
        listener: Listener,
        locks: NameLocks,
        commits: NameLocks,
        require_entry_script: bool,
    ) -> None:
        self.library = Library(data_dir, config.skills_path)
        roots = [SkillRoot(id=str(path), path=path) for path in config.custom_paths]
        self.scanner = Scanner(
            catalog=catalog,
            library=self.library,
            index=index,
            locks=locks,
            listener=listener,
            roots=[*roots, SkillRoot(id=INSTALLED_ROOT, path=config.skills_path)],
            require_entry_script=require_entry_script,
        )
        self.installer = Installer(
            library=self.library, catalog=catalog, scanner=self.scanner, index=index, locks=locks, commits=commits
        )
        self.plugins = PluginShelf(library=self.library, installer=self.installer)

    def tidy(self) -> None:
        """Complete changes that a crash interrupted and remove leftovers. No other change may run meanwhile."""
        self.library.prepare()
        for root in self.scanner.roots:
            if not root.is_installed and root.path.is_dir() and root.is_writable(root.path):
                self.library.clear_trash_of(root.path)
