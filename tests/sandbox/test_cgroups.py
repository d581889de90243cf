"""Cgroups that are delegated to a user without privileges, on the real hierarchies of this host."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from apexbridge.sandbox.launcher.cgroups import Cgroups
from apexbridge.sandbox.launcher.protocol import Limits
from tests.sandbox.as_user import become
from tests.sandbox.bench import SECONDS

ROOT = Path("/sys/fs/cgroup")
USER = 61_358
"""An unused user ID."""
MB = 1024 * 1024
LIMITS = Limits(memory=32 * MB, shared=MB, processes=16, disk=MB, inodes=100, files=64, slack=0)


def own_paths() -> dict[str, str]:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}


def v1_controllers() -> list[str]:
    """The controllers that a run needs and that this host has in cgroup v1."""
    return [name for name in ("memory", "pids") if name in own_paths() and (ROOT / name).is_dir()]


@contextmanager
def delegated_cgroups(bases: list[Path]) -> Iterator[list[Path]]:
    """A cgroup below each base that belongs to the user, as an administrator or systemd would create it."""
    name = f"handed-over-{uuid.uuid4().hex}"
    folders = [base / name for base in bases]
    try:
        for folder in folders:
            folder.mkdir()
            for path in (folder, *(folder / each for each in ("cgroup.procs", "cgroup.subtree_control", "tasks"))):
                if path.exists():
                    os.chown(path, USER, USER)
        yield folders
    finally:
        for folder in folders:
            for below in sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True):
                if below.is_dir():
                    below.rmdir()
            with suppress(FileNotFoundError):
                folder.rmdir()


def report_from(folders: list[Path], controllers: list[str], tmp_path: Path) -> dict[str, object]:
    """The report of that user's launcher, if it and its server are in these cgroups."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.test_cgroups", json.dumps([*map(str, folders)]), str(tmp_path)],
        input=json.dumps(controllers),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stderr
    report: dict[str, object] = json.loads(ended.stdout)
    return report


@pytest.mark.requirement("B7")
def test_delegated_cgroups_count_memory_and_processes(tmp_path: Path) -> None:
    found = v1_controllers()
    if os.getuid() != 0 or not found:
        assert Cgroups(controllers=("no-such-controller",)).controllers == []
        return
    with delegated_cgroups([ROOT / name / own_paths()[name] for name in found]) as folders:
        report = report_from(folders, found, tmp_path)
        assert report["controllers"] == found
        if "memory" in found:
            assert report["signal"] == 9, "the kernel killed the process that used too much"
            assert report["kills"] == 1
        assert report["left"] == []


@pytest.mark.requirement("B7")
def test_a_user_without_a_delegated_cgroup_gets_none(tmp_path: Path) -> None:
    if os.getuid() == 0:
        assert report_from([], ["memory", "pids", "cpu"], tmp_path)["controllers"] == []


@pytest.mark.requirement("B7")
def test_cgroup_v2_without_the_controllers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    groups = Cgroups(mounted_at=ROOT / "unified", own_groups=tmp_path / "cgroup", controllers=("no-such-controller",))
    assert groups.controllers == []
    assert groups.create(LIMITS).folders == []
    groups.close()


@pytest.mark.requirement("B7")
def test_in_cgroup_v2_the_server_moves_to_a_child_cgroup_and_runs_get_their_own(tmp_path: Path) -> None:
    mount = ROOT if (ROOT / "cgroup.controllers").exists() else ROOT / "unified"
    try:
        offered = (mount / "cgroup.controllers").read_text().split()
    except FileNotFoundError:
        offered = []
    if os.getuid() != 0 or not offered or (mount / "cgroup.type").exists():
        assert Cgroups(mounted_at=tmp_path).controllers == []
        return
    controller = next((name for name in ("memory", "pids") if name in offered), offered[0])
    delegated = mount / "cgroup.subtree_control"
    was_delegated = controller in delegated.read_text().split()
    delegated.write_text(f"+{controller}")
    try:
        with delegated_cgroups([mount]) as (folder,):
            report = report_from([folder], [controller], tmp_path)
            assert report["controllers"] == [controller]
            assert report["own"] == f"/{folder.name}/apexbridge-server"
            assert report["again"] == [controller], "the next launcher of the same server uses the same cgroup"
            assert str(report["run"]).startswith(f"/{folder.name}/apexbridge-")
            assert report["left"] == ["apexbridge-server"]
    finally:
        if not was_delegated:
            delegated.write_text(f"-{controller}")


@pytest.mark.requirement("B7")
def test_in_cgroup_v2_other_processes_are_not_moved(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/group\n")
    group = tmp_path / "unified" / "group"
    group.mkdir(parents=True)
    for folder in (group, group.parent):
        for name, text in {"controllers": "memory", "subtree_control": "", "procs": "1\n", "type": "domain"}.items():
            (folder / f"cgroup.{name}").write_text(text)
    groups = Cgroups(mounted_at=tmp_path, own_groups=tmp_path / "cgroup", controllers=("memory",))
    assert groups.controllers == []
    assert (group / "cgroup.subtree_control").read_text() == ""
    assert [path for path in group.iterdir() if path.is_dir()] == []


def _launcher(controllers: tuple[str, ...], folders: list[str]) -> dict[str, object]:
    """The launcher's steps, in a child of the "server"."""
    groups = Cgroups(controllers=controllers)
    report: dict[str, object] = {"controllers": groups.controllers}
    group = groups.create(LIMITS)
    report["own"] = own_paths().get("", "") and f"/{own_paths()['']}"
    report["again"] = Cgroups(controllers=controllers).controllers
    if group.folders:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            group.join()
            os.write(write, json.dumps(own_paths()).encode())
            if "memory" in controllers:
                held = bytearray(b"x") * (512 * MB)
                os.write(2, b"reached %d" % len(held))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        report["signal"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        report["run"] = f"/{json.loads(os.read(read, 4096)).get('', '')}"
        report["kills"] = group.oom_kills()
    group.remove()
    groups.close()
    report["left"] = sorted(path.name for folder in folders for path in Path(folder).iterdir() if path.is_dir())
    return report


if __name__ == "__main__":
    payload, scratch = json.loads(sys.argv[1]), Path(sys.argv[2])
    if os.getuid() == 0:
        for each in payload:
            Path(each, "cgroup.procs").write_text(str(os.getpid()))
        become(USER, scratch, "tests.sandbox.test_cgroups", *sys.argv[1:])
    controllers = tuple(json.load(sys.stdin))
    child = os.fork()
    if child == 0:
        print(json.dumps(_launcher(controllers, payload)), flush=True)
        os._exit(0)
    _, ended_with = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(ended_with))
