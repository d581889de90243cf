"""apexbridge: the tool-and-skills layer between any OpenAI-compatible client and model.

The names below are the public API. Heavy modules are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "ApexBridgeError",
    "Bridge",
    "Client",
    "Settings",
    "SyncClient",
    "Tool",
    "ToolContext",
    "ToolResult",
    "__version__",
]

if TYPE_CHECKING:
    from apexbridge.bridge import Bridge
    from apexbridge.client import Client, SyncClient
    from apexbridge.errors import ApexBridgeError
    from apexbridge.settings import Settings
    from apexbridge.tools.tool import Tool, ToolContext, ToolResult

_HOMES = {
    "Bridge": "bridge",
    "Client": "client",
    "SyncClient": "client",
    "Settings": "settings",
    "ApexBridgeError": "errors",
    "Tool": "tools.tool",
    "ToolContext": "tools.tool",
    "ToolResult": "tools.tool",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import apexbridge` stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"apexbridge.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
