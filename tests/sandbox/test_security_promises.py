"""Promises of the security page: backends, what a run sees of the host, limits, grants, warm sandboxes.

Only promises that no other test covers.
"""

import io
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.disk import Disk
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.sandbox.config import GUARANTEES, MB, BackendChoice, SandboxSettings
from apexbridge.sandbox.layers import LayerStore
from apexbridge.sandbox.models import Grants, InputFile
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.skills.runs.input_files import InputFiles, UploadStore
from apexbridge.tools.builtin.files.workspace import Workspace
from tests.sandbox.bench import SECONDS, Bench, OutputRecorder, marker, named
from tests.sandbox.conftest import Opener
from tests.sandbox.other_hosts import LOWERS_OOM_SCORE, SHOWS_ITS_PYTHON, report_of
from tests.sandbox.test_grants import identity

pytestmark = pytest.mark.anyio
GB = 1024 * MB
UNPRIVILEGED_UID = 65_534
USUAL_SHARES = {"cpu.shares": 1024, "cpu.weight": 100}
"""The kernel's defaults, in cgroup versions 1 and 2."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can traverse."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@asynccontextmanager
async def alive(bench: Bench) -> AsyncIterator[list[int]]:
    """A run that lasts as long as the block; yields its processes, with the PIDs of the host."""
    mark, recorder = marker(), OutputRecorder()
    cancels: list[Callable[[], None]] = []
    # One program that starts no other: /proc is not reliable for a process that is just executing another program.
    waits = "print('begun', flush=True); import signal; signal.pause()"
    text = f"import os, sys; os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', {waits!r}, '{mark}'])"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(bench.run, text, listener=recorder, on_start=cancels.append))
        await recorder.wait_for("begun\n")
        try:
            yield named(mark)
        finally:
            for cancel in cancels:
                cancel()


# ------------------------------------------------------------------------------------------------- backends
def test_auto_never_selects_plain_even_if_nothing_is_required_and_no_other_backend_works() -> None:
    assert report_of("refused") == ["SANDBOX_UNAVAILABLE", "ran\n"]


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_nothing_runs_if_a_canary_gets_through(
    backend: BackendChoice, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interpreter's folder is mounted for runs. If it holds the temporary folder, the canary can read its bait.
    node = folder / "node"
    node.write_text("#!/bin/sh\necho 99.0.0 1000\n")
    node.chmod(0o755)
    (folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    settings = SandboxSettings(backend=backend, warm=0, path=f"{folder}:{os.defpath}")
    sandbox = Sandbox(settings)
    async with sandbox.running():
        with pytest.raises(ServerError) as caught:
            await Bench(sandbox, tmp_path).run("print('must not run')")
    assert caught.value.code == "SANDBOX_UNAVAILABLE"
    assert f"fs: read {folder}/temporary/" in caught.value.message
    without = Sandbox(settings.model_copy(update={"require": tuple(name for name in GUARANTEES if name != "fs")}))
    async with without.running():
        assert (await Bench(without, tmp_path).run("print('ran')")).stdout == "ran\n"


# ------------------------------------------------------------------------------------------------- what a run sees
async def test_the_packages_of_the_servers_python_are_hidden(bench: Bench) -> None:
    prefix = os.path.realpath(sys.base_prefix)
    program, packages = await bench.run_json(SHOWS_ITS_PYTHON)
    assert program.startswith(prefix)
    # /usr is mounted unchanged; the promise is about a Python in another folder.
    assert packages == [] or prefix.startswith("/usr")


def test_the_packages_of_a_python_in_the_temporary_folder_are_hidden_too() -> None:
    report = report_of("python", "755")
    program, packages = report["bubblewrap"]
    assert (program, packages) == (report["server"], [])
    assert report["landlock"][0] == report["server"]
    assert report["landlock"][1]  # Landlock does not hide them


async def test_a_set_user_id_program_grants_nothing(each_backend: Bench, folder: Path) -> None:
    skill = folder / "skill"
    (skill / "scripts").mkdir(parents=True)
    (skill / "scripts/execute.sh").write_text('"$SKILL_PATH/id" -u; "$SKILL_PATH/id" -ru; test -u "$SKILL_PATH/id"\n')
    program = skill / "id"
    shutil.copy(shutil.which("id") or "", program)
    program.chmod(0o4755)
    if os.getuid() == 0 and not os.statvfs(folder).f_flag & os.ST_NOSUID:  # outside the sandbox it does
        assert (await anyio.run_process([str(program), "-u"], user=UNPRIVILEGED_UID)).stdout == b"0\n"
    result = await each_backend.run("", "sh", folder=skill)
    assert result.success, result.stderr
    effective, real = result.stdout.split()
    assert effective == real != "0"


async def test_no_mount_of_a_run_honours_set_user_id_programs(bench: Bench) -> None:
    text = "import json; print(json.dumps([line.split() for line in open('/proc/self/mountinfo')]))"
    mounts = await bench.run_json(text)
    assert {"/", "/usr", "/skill", "/proc"} <= {mount[4] for mount in mounts}
    assert [mount[4] for mount in mounts if "nosuid" not in mount[5].split(",")] == []


# ------------------------------------------------------------------------------------------------- memory and processor
async def test_a_process_is_bounded_by_the_limit_64_megabytes_and_what_node_reserves(each_backend: Bench) -> None:
    text = """
import json, mmap, resource
def can_have(size):
    try: mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError: return False
    return True
bounds = resource.getrlimit(resource.RLIMIT_DATA)
print(json.dumps([bounds, can_have(512 << 20), can_have(bounds[1])]))
"""
    runtimes = (await each_backend.sandbox.ready()).runtimes
    node = runtimes.get("node")
    assert node is not None
    bound = (512 + 64) * MB + node.reserved_bytes
    assert await each_backend.run_json(text) == [[bound, bound], True, False]
    version = (await anyio.run_process([node.program, "--version"])).stdout
    if version.startswith(b"v24."):
        assert (round(node.reserved_bytes / GB, 1), round(bound / GB, 1)) == (0.5, 1.1)


async def test_the_oom_killer_prefers_every_process_of_a_run_to_the_server(each_backend: Bench) -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score").read_text())

    async with alive(each_backend) as pids:
        assert pids
        assert min(score(pid) for pid in pids) > score(os.getpid())


async def test_a_run_cannot_lower_its_oom_score(bench: Bench) -> None:
    assert await bench.run_json(LOWERS_OOM_SCORE) == 1000


async def test_with_cgroups_all_runs_together_have_half_of_a_programs_cpu_share(bench: Bench) -> None:
    launcher = (await bench.sandbox.ready()).launcher
    shares: dict[str, int] = {}
    async with alive(bench) as pids:
        for line in Path(f"/proc/{pids[0]}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            parent = Path("/sys/fs/cgroup", controllers, path.lstrip("/")).parent
            if parent.name == f"apexbridge-{launcher.pid}":
                files = [parent / name for name in USUAL_SHARES if (parent / name).exists()]
                shares |= {file.name: int(file.read_text()) for file in files}
    assert shares == {name: USUAL_SHARES[name] // 2 for name in shares}
    assert bool(shares) == ("cpu" in launcher.cgroup_controllers)


# ------------------------------------------------------------------------------------------------- disk and files
def test_no_artifact_is_collected_that_would_leave_the_server_less_than_256_megabytes() -> None:
    # Each run writes two files of a megabyte. There is space for one file of the first run, and for none of the second.
    first, second = report_of("full")
    assert first == [["a"], ["output/b was skipped: no space left for it"]]
    assert second == [[], [f"output/{name} was skipped: no space left for it" for name in "ab"]]


@pytest.fixture
def largest_files(tmp_path: Path) -> Path:
    """A folder with one file more than a run accepts; the first 500 have 50 MB."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    for number in range(501):
        (folder / f"{number}.txt").write_bytes(b"x")
    with (folder / "0.txt").open("wb") as largest:
        largest.truncate(50 * MB - 499)
    return folder


async def test_500_input_files_of_50_megabytes_are_accepted_and_no_more(
    cold: Bench, tmp_path: Path, largest_files: Path
) -> None:
    names, workspace = [f"{number}.txt" for number in range(501)], largest_files
    files_of = Workspace(workspace, lambda run, _: None)
    view = files_of.view("")
    found = InputFiles(
        workspace=files_of,
        uploads=UploadStore(tmp_path / "uploads"),
        reach=lambda _: None,
        folder=tmp_path,
        disk=Disk(tmp_path),
    )
    text = """
import json, os
sizes = [os.path.getsize(path) for path in json.loads(os.environ["INPUT_JSON"])["files"]]
print(json.dumps([len(sizes), sum(sizes)]))
"""
    with found.opened(names[:500], view) as files:
        assert await cold.run_json(text, files=files.inputs) == [500, 50 * MB]
    with pytest.raises(InvalidInputError, match="501"), found.opened(names, view):
        raise AssertionError
    (workspace / names[1]).write_bytes(b"xx")
    with pytest.raises(InvalidInputError, match="50 MB"), found.opened(names[:500], view):
        raise AssertionError


async def test_a_layer_is_at_most_a_gigabyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    store = LayerStore(tmp_path / "layers")
    # A fake npm whose package is one sparse file; its apparent size counts. The folder and the list add a little.
    for size, key in ((GB - MB, "aaaaaaaa"), (GB, "bbbbbbbb")):
        lines = ("mkdir node_modules", "cd node_modules", f"truncate -s {size} large")
        npm.write_text(
            "\n".join(
                [
                    "#!/bin/sh",
                    "[ $1 = config ] && echo all && exit",
                    *lines,
                    """echo '{"packages": {}}' > .package-lock.json""",
                ]
            )
        )
        npm.chmod(0o755)
        with anyio.fail_after(SECONDS):
            if size < GB:
                assert (await store.install("node", key, ["large@1"])).is_dir()
                continue
            with pytest.raises(ServerError, match="larger than 1024 MB"):
                await store.install("node", key, ["large@1"])
    assert [layer.key for layer in store.list()] == ["aaaaaaaa"]


# ----------------------------------------------------------------------------------------- warm sandboxes
async def test_runs_with_files_hosts_or_paths_never_use_a_warm_sandbox(opener: Opener, folder: Path) -> None:
    bench = Bench(await opener("warm"), folder)
    (folder / "shown").mkdir()
    # A warm process is started before its skill is known; /proc still shows its first environment.
    text = "import json; print(json.dumps('SKILL_NAME=' not in open('/proc/self/environ').read()))"
    needs: dict[str, dict[str, Any]] = {
        "nothing": {},
        "a variable": {"grants": Grants(variables={"REGION": "north"})},
        "a file": {"files": (InputFile(name="a", file=io.BytesIO(b"a")),)},
        "a host": {"grants": Grants(hosts=(("192.0.2.1", 443),))},
        "a path": {"grants": Grants(paths={str(folder / "shown"): identity(folder / "shown")})},
    }
    was_warm = {}
    for need, fields in needs.items():
        await bench.sandbox.warm_up()
        was_warm[need] = await bench.run_json(text, **fields)
    assert was_warm == {"nothing": True, "a variable": True, "a file": False, "a host": False, "a path": False}


# ------------------------------------------------------------------------------------------------- grants
async def test_a_granted_variable_is_not_masked(bench: Bench, tmp_path: Path) -> None:
    text = """
import os
print(os.environ["REGION"], os.environ["TOKEN"])
with open("output/" + os.environ["REGION"], "w") as file: file.write(os.environ["REGION"])
"""
    grants = Grants(variables={"REGION": "plain-to-see"}, secrets={"TOKEN": "not-to-be-seen"})
    result = await bench.run(text, grants=grants, artifacts=tmp_path / "artifacts")
    assert (result.stdout, result.warnings) == ("plain-to-see ***\n", [])
    assert (tmp_path / "artifacts/plain-to-see").read_text() == "plain-to-see"


async def test_only_a_granted_name_resolves(bench: Bench) -> None:
    text = """
import json, os, socket
def addresses(name):
    try: return sorted({entry[4][0] for entry in socket.getaddrinfo(name, 443)})
    except OSError: return []
print(json.dumps({name: addresses(name) for name in json.loads(os.environ["INPUT_JSON"])["names"]}))
"""
    own = os.uname().nodename
    names = ["granted.example", "other.example", "www.granted.example", "example", "example.com", own]
    report = await bench.run_json(text, grants=Grants(hosts=(("granted.example", 443),)), input={"names": names})
    assert [name for name, found in report.items() if found] == ["granted.example"]
    assert report["granted.example"][0].startswith("127.")
