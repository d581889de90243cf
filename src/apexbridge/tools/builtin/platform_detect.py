"""The tool `platform-detect`: describes the machine that tools and skills run on, without identifying it."""

import os
import platform
from collections.abc import Callable
from typing import Any

from apexbridge.tools.tool import Tool, ToolContext
from apexbridge.wire import WireInput

_ARCHITECTURES = {
    **dict.fromkeys(("amd64", "x64"), "x86_64"),
    **dict.fromkeys(("i386", "i586", "i686"), "x86"),
    "aarch64": "arm64",
}
_DISTRIBUTION_CHARACTERS = 100


class PlatformInput(WireInput):
    pass


def platform_detect(node_version: Callable[[], str | None], *, own_version: str) -> Tool:
    """`node_version` returns the cached version of Node that skills run on; None if missing."""
    constant = {
        "os": platform.system().lower(),
        "arch": architecture(platform.machine()),
        "distribution": distribution(),
        "python": platform.python_version(),
        "apexbridge": own_version,
        "memoryMb": total_memory(),
    }

    @Tool.define(
        "platform-detect",
        description="What this machine is: system, processor, memory, Python and Node versions.",
        parameters=PlatformInput,
        metadata={"category": "builtin", "tags": ("system",)},
    )
    async def detect(args: PlatformInput, context: ToolContext) -> dict[str, Any]:
        node = node_version()
        return {
            "success": True,
            **constant,
            "node": node.strip().removeprefix("v") if node else None,
            "cpus": usable_processors(),
        }

    return detect


def architecture(machine: str) -> str:
    """One name for each architecture; operating systems use different ones."""
    return _ARCHITECTURES.get(machine.lower(), machine.lower())


def distribution() -> str | None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    return f"{release['NAME']} {release.get('VERSION_ID', '')}".strip()[:_DISTRIBUTION_CHARACTERS]


def usable_processors() -> int | None:
    """Number of processors that this process may use; all processors if the system has no CPU affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def total_memory() -> int | None:
    """The machine's memory in MB; None if unknown."""
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024) if known else None
