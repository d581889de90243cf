"""The workspace and a /tmp of its own, the only folders that a run can write to: new, private, limited, removed."""

import json
import secrets
import tempfile
from pathlib import Path

import pytest

from apexbridge.sandbox.config import MB
from tests.making import walk
from tests.sandbox.bench import Bench, descriptors
from tests.waiting import until

pytestmark = pytest.mark.anyio


def workspaces() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("skill-workspace-*"))


@pytest.mark.requirement("B9")
async def test_a_run_starts_in_a_new_workspace_that_is_its_home(each_backend: Bench) -> None:
    text = """
import json, os
open("mark", "w").close()
open(os.environ["TMPDIR"] + "/mark", "w").close()
print(json.dumps([os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], sorted(os.listdir("."))]))
"""
    first, second = [await each_backend.run_json(text) for _ in range(2)]
    for here, home, temporary, found in (first, second):
        assert here == home
        assert here.rpartition("/")[2].startswith("skill-workspace-")
        assert temporary == f"{here}/tmp"
        assert found == ["mark", "output", "tmp"]
    assert first[0] != second[0]


@pytest.mark.requirement("B9")
async def test_a_run_reads_its_skill_and_cannot_change_it(each_backend: Bench) -> None:
    text = """
import json, os
here = os.environ["SKILL_PATH"]
read = open(here + "/reference/words.txt").read()
done = []
def attempt(name, action):
    try: action(); done.append(name)
    except OSError: pass
attempt("write", lambda: open(here + "/reference/words.txt", "w"))
attempt("create", lambda: open(here + "/new", "w"))
attempt("remove", lambda: os.unlink(here + "/reference/words.txt"))
attempt("rename", lambda: os.rename(here + "/reference", here + "/other"))
attempt("mkdir", lambda: os.mkdir(here + "/folder"))
attempt("link", lambda: os.link(here + "/reference/words.txt", "linked"))
attempt("truncate", lambda: os.truncate(here + "/reference/words.txt", 0))
attempt("cache", lambda: os.mkdir(here + "/scripts/__pycache__"))
print(json.dumps([read, done, sorted(os.listdir(here))]))
"""
    folder = each_backend.write(text, files={"reference/words.txt": "hello"})
    before = walk(folder)
    assert await each_backend.run_json(text, folder=folder) == ["hello", [], ["reference", "scripts"]]
    assert walk(folder) == before


@pytest.mark.requirement("B9")
async def test_only_the_workspace_and_the_runs_own_tmp_are_writable(bench: Bench) -> None:
    text = """
import json, os
home, written = os.environ["HOME"], []
for folder, names, files in os.walk("/"):
    if folder.startswith((home, "/workspace", "/proc")): names.clear(); continue
    path = folder + "/written"
    try: open(path, "w").close(); written.append(folder)
    except OSError: pass
    for name in files[:20]:
        try: os.close(os.open(folder + "/" + name, os.O_WRONLY | os.O_APPEND)); written.append(folder + "/" + name)
        except OSError: pass
    if folder.count("/") > 3: names.clear()
print(json.dumps(sorted(written)))
"""
    found = await bench.run_json(text)
    allowed = {"/tmp", "/dev/shm", "/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"}
    assert [path for path in found if path not in allowed and not path.startswith("/dev/std")] == []


@pytest.mark.requirement("B9")
async def test_the_host_has_no_trace_of_a_workspace(bench: Bench) -> None:
    before = workspaces()
    name = f"left-{secrets.token_hex(8)}"
    text = "".join(f"open('{folder}/{name}', 'x').write('x'); " for folder in (".", "/dev/shm", "/tmp"))
    assert (await bench.run(text)).success
    assert workspaces() <= before
    assert not [folder for folder in ("/dev/shm", "/tmp") if (Path(folder) / name).exists()]
    assert (await bench.run(text)).success  # a new one each time


@pytest.mark.requirement("B9")
async def test_the_runs_own_tmp_counts_with_its_workspace(small: Bench) -> None:
    result = await small.run("open('half', 'wb').write(bytes(3 << 20)); open('/tmp/half', 'wb').write(bytes(3 << 20))")
    assert (result.success, result.error_code) == (False, "DISK_LIMIT")


TRAPS = {
    "a locked folder": "import os; os.mkdir('l'); open('l/f', 'w'); os.chmod('l', 0)",
    "a locked workspace": "import os; open('f', 'w'); os.chmod('.', 0)",
    "very deep": "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')",
    "odd names": "import os\nfor n in (b'\\xff', b'a\\nb', b'-rf', b' ', b'x' * 255): open(n, 'w')",
    "many files": "for n in range(3000): open(str(n), 'w')",
    "links out": "import os; os.symlink('/', 'root'); os.symlink('/etc/passwd', 'output/p'); os.symlink('s', 's')",
    "a pipe": "import os; os.mkfifo('output/pipe'); os.mkfifo('pipe')",
    "a sparse file": "open('sparse', 'wb').truncate(60 << 20)",
    "an open file": "import os\nif os.fork() == 0: f = open('f', 'w'); os.setsid(); import time; time.sleep(1000)",
    "a process in it": "import os, time\nif os.fork() == 0: os.setsid(); os.chdir('tmp'); time.sleep(1000)",
    "nothing left": "import shutil; shutil.rmtree('.', ignore_errors=True)",
}


@pytest.mark.requirement("B9")
@pytest.mark.parametrize("trap", list(TRAPS))
async def test_a_workspace_is_removed_with_any_content(each_backend: Bench, trap: str, tmp_path: Path) -> None:
    before, opened = workspaces(), descriptors()
    result = await each_backend.run(TRAPS[trap], artifacts=tmp_path / "artifacts")
    assert result.success, result.error
    await until(lambda: workspaces() <= before)
    await until(lambda: descriptors() <= opened)


# ---------------------------------------------------------------------------------------------------------- artifacts
@pytest.mark.requirement("B14")
async def test_new_files_are_collected_and_listed(each_backend: Bench, tmp_path: Path) -> None:
    text = """
import os
os.makedirs("output/deep/er")
open("output/report.md", "w").write("hello")
open("output/deep/er/data.bin", "wb").write(bytes(2_000_000))
os.symlink("/etc/passwd", "output/link")
os.mkfifo("output/pipe")
open(b"output/odd\\n", "w")
open("beside", "w").write("in the current folder")
"""
    result = await each_backend.run(text, artifacts=tmp_path / "artifacts")
    assert result.success, result.error
    found = [(file.path, file.size) for file in result.files]
    assert found == [("beside", 21), ("deep/er/data.bin", 2_000_000), ("report.md", 5)]
    assert json.loads(result.model_dump_json(by_alias=True))["files"][2] == {"path": "report.md", "size": 5}
    collected = {path: kind for path, kind in walk(tmp_path / "artifacts").items() if kind != "folder"}
    assert sorted(collected) == ["beside", "deep/er/data.bin", "report.md"]
    assert (tmp_path / "artifacts/report.md").read_text() == "hello"
    assert len(result.warnings) == 3


@pytest.mark.requirement("B14")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("echo half > output/half; exit 3", "EXIT_NONZERO"),
        ("echo half > output/half; echo begun; sleep 1000", "TIMEOUT"),
        ("echo half > output/half; kill -9 $$", "KILLED"),
    ],
)
async def test_files_of_a_failed_run_are_collected_too(
    each_backend: Bench, tmp_path: Path, text: str, code: str
) -> None:
    result = await each_backend.run(text, "sh", artifacts=tmp_path / "artifacts", timeout_ms=400)
    assert result.error_code == code
    assert [file.path for file in result.files] == ["half"]


@pytest.mark.requirement("B14")
async def test_an_output_folder_that_is_a_link_is_ignored(each_backend: Bench, tmp_path: Path) -> None:
    for target in ("/etc", "/skill", str(tmp_path), "tmp"):
        result = await each_backend.run(
            f"rm -rf output; ln -s {target} output; echo x > tmp/x", "sh", artifacts=tmp_path / "artifacts"
        )
        assert (result.success, result.files) == (True, [])
    assert not (tmp_path / "artifacts").exists()


# --------------------------------------------------------------------------------------------------------------- disk
FILLS = """
import json, os
written = created = 0
try:
    with open("{folder}/large", "wb", 0) as file:
        while written < 400 << 20: written += file.write(bytes(1 << 20))
except OSError: pass
try: os.unlink("{folder}/large")
except OSError: pass
try:
    while created < 20_000: os.close(os.open(f"{folder}/{{created}}", os.O_CREAT | os.O_WRONLY)); created += 1
except OSError: pass
print(json.dumps([written, created]))
"""


@pytest.mark.parametrize("folder", [".", "tmp", "output", "/dev/shm"])
async def test_a_workspace_has_limits_for_bytes_and_files(small: Bench, folder: str) -> None:
    limits = small.sandbox.settings.limits
    written, created = await small.run_json(FILLS.format(folder=folder))
    assert limits.disk_bytes - MB <= written <= limits.disk_bytes
    assert limits.inodes - 20 <= created <= limits.inodes


async def test_all_writable_folders_share_one_limit(small: Bench) -> None:
    text = """
import json
total = 0
for folder in (".", "tmp", "output", "/dev/shm"):
    try:
        with open(folder + "/large", "wb", 0) as file:
            while total < 100 << 20: total += file.write(bytes(1 << 18))
    except OSError: pass
print(json.dumps(total))
"""
    assert await small.run_json(text) <= small.sandbox.settings.limits.disk_bytes


async def test_the_promised_workspace_holds_64_megabytes_and_4096_files(bench: Bench) -> None:
    written, created = await bench.run_json(FILLS.format(folder="."))
    assert 63 * MB <= written <= 64 * MB
    assert 4000 <= created <= 4096


@pytest.mark.parametrize("kind", ["bytes", "files"])
async def test_without_a_workspace_of_fixed_size_a_run_that_fills_it_is_killed(landlock: Bench, kind: str) -> None:
    text = {
        "bytes": "n = 0\nwhile True: open(str(n), 'wb').write(bytes(8 << 20)); n += 1",
        "files": "n = 0\nwhile True: open(str(n), 'w'); n += 1",
    }[kind]
    result = await landlock.run(text)
    assert (result.error_code, result.exit_code) == ("DISK_LIMIT", 137)
    assert "APEX_SANDBOX_DISK_MB" in str(result.error)


async def test_a_full_workspace_is_reported_as_the_reason(small: Bench) -> None:
    result = await small.run("open('large', 'wb').write(bytes(100 << 20))")
    assert (result.success, result.error_code, result.exit_code) == (False, "DISK_LIMIT", 1)
