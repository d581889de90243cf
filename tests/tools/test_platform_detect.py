import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.platform_detect import architecture, platform_detect
from apexbridge.tools.registry import ToolRegistry

pytestmark = pytest.mark.anyio

STARTS_A_PROCESS = {
    *("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
}


class ProcessMonitor:
    """Records events that start a process while it is on. An audit hook itself cannot be removed."""

    def __init__(self) -> None:
        self.is_on = False
        self.events: list[str] = []
        sys.addaudithook(self._record)

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event in STARTS_A_PROCESS:
            self.events.append(event)


@pytest.fixture(scope="module")
def monitor() -> ProcessMonitor:
    return ProcessMonitor()


def start_a_process() -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def registry_with(node: str | None) -> ToolRegistry:
    registry = ToolRegistry()
    registry.register(platform_detect(lambda: node, own_version="1.2.3"))
    return registry


async def detected(node: str | None = "v24.1.0") -> dict[str, Any]:
    answer = (await registry_with(node).execute("platform-detect")).data
    assert isinstance(answer, dict)
    return answer


@pytest.mark.requirement("A5")
async def test_the_machine_is_described() -> None:
    answer = await detected()
    assert list(answer) == [
        *("success", "os", "arch", "distribution", "python", "apexbridge", "memoryMb", "node", "cpus"),
    ]
    assert answer["success"] is True
    assert answer["os"] == sys.platform
    assert answer["arch"] in ("x86_64", "arm64")
    assert answer["python"] == ".".join(map(str, sys.version_info[:3]))
    assert answer["node"] == "24.1.0"
    assert answer["apexbridge"] == "1.2.3"


@pytest.mark.requirement("A5")
async def test_without_node_its_version_is_null() -> None:
    assert (await detected(None))["node"] is None


async def test_the_node_version_is_read_at_each_call() -> None:
    versions = iter([None, "22.4.1"])
    registry = ToolRegistry()
    registry.register(platform_detect(lambda: next(versions), own_version="1.2.3"))
    assert [(await registry.execute("platform-detect")).data["node"] for _ in range(2)] == [None, "22.4.1"]


async def test_memory_and_cpus_are_those_of_the_system() -> None:
    answer = await detected()
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert answer["memoryMb"] == int(total.split()[1]) // 1024
    assert answer["cpus"] == len(os.sched_getaffinity(0))


async def test_only_usable_processors_are_counted() -> None:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        assert (await detected())["cpus"] == 1
    finally:
        os.sched_setaffinity(0, usable)


async def test_the_distribution_is_a_name_and_a_version() -> None:
    release = platform.freedesktop_os_release()
    assert (await detected())["distribution"] == f"{release['NAME']} {release.get('VERSION_ID', '')}".strip()


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("x86_64", "x86_64"),
        ("AMD64", "x86_64"),
        ("aarch64", "arm64"),
        ("arm64", "arm64"),
        ("i686", "x86"),
        ("riscv64",) * 2,
    ],
)
def test_architecture_names_are_normalised(machine: str, name: str) -> None:
    assert architecture(machine) == name


async def test_the_result_does_not_identify_the_machine() -> None:
    answer = await detected()
    values = [str(value) for key, value in answer.items() if key != "os"]
    assert socket.gethostname() not in values
    assert not any(path in text for path in (str(Path.cwd()), sys.prefix, sys.executable) for text in values)


@pytest.mark.requirement("A1")
async def test_a_call_starts_no_process(monitor: ProcessMonitor) -> None:
    registry = registry_with("v24.1.0")
    monitor.is_on = True
    try:
        await registry.execute("platform-detect")
        assert monitor.events == []
        start_a_process()
        assert monitor.events == ["os.posix_spawn"]  # the monitor works
    finally:
        monitor.is_on = False


async def test_unknown_fields_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        await registry_with(None).execute("platform-detect", {"host": True})
