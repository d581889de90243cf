"""Commands whose module is imported when they are used, so that `apex --help` and `apex skills --help` are fast."""

from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

COMMANDS: dict[str, dict[str, tuple[str, str | None]]] = {
    "apex": {
        "serve": ("serve:app", "Start the HTTP API."),
        "chat": ("chat:app", "Ask a model that can use every tool and skill of the server."),
        "doctor": ("host:app", "Test what this host enforces for scripts, and everything else that the server needs."),
        "skills": ("skills:app", "Install, find, run, edit, count and uninstall skills."),
        "packages": ("bundles:app", "Python packages that every run can import."),
        "plugins": ("skills:plugins", "Groups of skills that were installed together."),
        "tools": ("tools:app", "Built-in tools, skills as tools, and your own."),
        "runs": ("runs:app", "The history of runs, their output and their files."),
        "workspaces": ("workspaces:app", "Files of conversations, and of runs that share a workspace."),
        "approvals": ("tools:approvals", "Approvals of dangerous calls."),
        "secrets": ("grants:secrets", "Values that can be granted to skills by name."),
        "mcp": ("mcp:app", "Connect MCP clients to this server, and the tools of other MCP servers."),
        "signers": ("provenance:signers", "Keys whose signatures of skills are trusted."),
        "keys": ("keys:app", "API keys."),
        "audit": ("keys:audit", "The log of administrative acts."),
        "chats": ("chats:app", "Records of chat requests."),
        "config": ("host:config", "The settings and their sources."),
        "backup": ("backup:app", "Write everything that cannot be made again to one file."),
        "restore": ("backup:app", "Restore a backup, or check it."),
        "models": ("models:app", "Embedding models, which search compares meanings with."),
        "eval": ("evaluation:app", "Measure search on your own files."),
    },
    "skills": {
        "install": ("packages:app", "Install a skill or a plugin."),
        "lock": ("packages:app", "Write skills.lock: what was fetched, with commits, digests and contents."),
        "verify": ("provenance:app", "Compare installed skills with what was installed, and check their signatures."),
        "scan": ("provenance:app", "Scan a skill for hostile patterns."),
        "sign": ("provenance:app", "Sign a skill, so that a server can require your signature."),
        "import": ("packages:app", "Install every skill of a folder and report on each."),
        "validate": ("packages:app", "Check whether a package can be installed; nothing is written."),
        "doctor": ("packages:app", "Diagnose a SKILL.md line by line, and repair it."),
        "run": ("run:app", "Run a skill or one of its scripts in the sandbox."),
        "add": ("packages:app", None),
    },
    "mcp": {
        "config": ("mcp_config:app", "Print or write the configuration of an MCP client."),
        "add": ("mcp_servers:app", "Add an MCP server and serve its tools."),
        "remove": ("mcp_servers:app", "Remove an added MCP server and its tools."),
        "list": ("mcp_servers:app", "List the MCP servers; secrets are never shown."),
        "status": ("mcp_servers:app", "Connect to the MCP servers if necessary, and show their state."),
        "rm": ("mcp_servers:app", None),
        "ls": ("mcp_servers:app", None),
    },
}
"""For each group its commands: module and app, and the help text. A command without a help text is hidden."""


class LazyCommand(TyperCommand):
    def __init__(self, name: str, target: str, help: str | None) -> None:
        super().__init__(name, help=help, hidden=help is None)
        self._target = target

    def load(self) -> Any:
        """The command, or the group, itself."""
        module, _, app = self._target.partition(":")
        group = get_group(getattr(import_module(f"apexbridge.surfaces.cli.commands.{module}"), app))
        group.help = self.help
        return group.commands.get(self.name or "", group)

    def make_context(self, *args: Any, **options: Any) -> Any:
        return self.load().make_context(*args, **options)


def lazy_group(name: str) -> type[TyperGroup]:
    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            for command, (target, help) in COMMANDS[name].items():
                self.add_command(LazyCommand(command, target, help))

    return LazyGroup
