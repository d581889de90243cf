"""Code that belongs to no skill, with the files of a workspace, in every sandbox."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from apexbridge.sandbox.models import ExecutionResult, Job, MountedSkill
from apexbridge.sandbox.workspace_files import AppliedChanges, Changes
from tests.sandbox.bench import Bench

pytestmark = pytest.mark.anyio


class Folder:
    """A workspace that notes what a run changed."""

    def __init__(self, top: Path) -> None:
        self.id = "lasting"
        self.top = top
        self.changes = Changes()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Path]:
        yield self.top

    async def keep(self, changes: Changes, artifacts: Path) -> AppliedChanges:
        self.changes = changes
        return AppliedChanges(files=changes.files)


@pytest.fixture
def workspace(tmp_path: Path) -> Folder:
    top = tmp_path / "lasting"
    (top / "sub").mkdir(parents=True)
    (top / "data.txt").write_text("hello")
    (top / "sub/helper.py").write_text("VALUE = 7\n")
    return Folder(top)


async def run(
    bench: Bench, workspace: Folder, tmp_path: Path, code: str, suffix: str = "py", **fields: Any
) -> ExecutionResult:
    job = Job(script=f".code.{suffix}", code=code, workspace=workspace, timeout_ms=20_000, **fields)
    return await bench.sandbox.run(job, artifacts=tmp_path / "artifacts")


async def test_code_reads_and_changes_the_files(each_backend: Bench, workspace: Folder, tmp_path: Path) -> None:
    code = (
        "import sys\nsys.path.append('sub')\nimport helper\n"
        "print(open('data.txt').read(), helper.VALUE)\nopen('new.txt', 'w').write('new')"
    )
    result = await run(each_backend, workspace, tmp_path, code)
    assert (result.success, result.stdout) == (True, "hello 7\n"), result.stderr
    assert [file.path for file in workspace.changes.files] == ["new.txt"]
    assert result.workspace_files is not None
    assert (workspace.top / "data.txt").read_text() == "hello"


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        ("js", "const fs = require('fs'); console.log(fs.readFileSync('data.txt', 'utf8'))"),
        ("js", "import fs from 'node:fs';\nconsole.log(await Promise.resolve(fs.readFileSync('data.txt', 'utf8')))"),
        ("sh", 'for name in data.txt; do cat "$name"; echo; done; [[ $name == data* ]]'),
    ],
)
async def test_code_in_other_languages(bench: Bench, workspace: Folder, tmp_path: Path, suffix: str, code: str) -> None:
    result = await run(bench, workspace, tmp_path, code, suffix)
    assert (result.success, result.stdout) == (True, "hello\n"), result.stderr


async def test_skills_are_readable_and_cannot_be_changed(
    each_backend: Bench, workspace: Folder, tmp_path: Path
) -> None:
    folder = each_backend.write("print('a script of the skill')")
    status = folder.stat()
    skill = MountedSkill(folder=folder, identity=(status.st_dev, status.st_ino))
    code = (
        "import os, subprocess, sys\npath = os.environ.get('SKILLS_PATH', '/skills') + '/helper/scripts'\n"
        "print(os.listdir(path))\n"
        "try: open(path + '/new', 'w'); print('changed')\nexcept OSError: print('refused')"
    )
    result = await run(each_backend, workspace, tmp_path, code, skills={"helper": skill})
    assert result.success, result.stderr
    assert result.stdout.splitlines()[-1] == "refused"


async def test_a_skill_whose_folder_was_replaced_is_not_mounted(
    bench: Bench, workspace: Folder, tmp_path: Path
) -> None:
    folder = bench.write("print(1)")
    skill = MountedSkill(folder=folder, identity=(1, 1))
    result = await run(bench, workspace, tmp_path, "print('ran')", skills={"helper": skill})
    assert (result.success, result.error_code) == (False, "SPAWN_FAILED")


async def test_the_path_of_the_workspace_is_the_same_in_every_run(
    bench: Bench, workspace: Folder, tmp_path: Path
) -> None:
    results = [await run(bench, workspace, tmp_path / str(n), "import os; print(os.getcwd())") for n in range(2)]
    assert [result.stdout for result in results] == ["/workspace\n"] * 2


async def test_a_large_workspace_leaves_the_whole_disk_limit_to_the_run(
    bench: Bench, workspace: Folder, tmp_path: Path
) -> None:
    (workspace.top / "large").write_bytes(bytes(80 << 20))
    code = "import os\nprint(os.path.getsize('large'))\nopen('own', 'wb').write(bytes(40 << 20))\nos.remove('own')"
    result = await run(bench, workspace, tmp_path, code)
    assert (result.success, result.stdout) == (True, f"{80 << 20}\n"), result.stderr
    full = await run(bench, workspace, tmp_path / "2", "open('own', 'wb').write(bytes(70 << 20))")
    assert not full.success


async def test_a_missing_file_or_a_link_to_the_host_in_the_workspace_is_not_copied(
    bench: Bench, workspace: Folder, tmp_path: Path
) -> None:
    (workspace.top / "link").symlink_to("/etc/hostname")
    os.mkfifo(workspace.top / "pipe")
    result = await run(bench, workspace, tmp_path, "import os; print(sorted(os.listdir('.')))")
    assert result.stdout == "['.code.py', 'data.txt', 'output', 'sub', 'tmp']\n"


async def test_a_python_that_code_starts_is_not_buffered(bench: Bench, workspace: Folder, tmp_path: Path) -> None:
    code = (
        "import os, subprocess\nsubprocess.run(['python3', '-c', 'import os; print(os.environ[\"PYTHONUNBUFFERED\"])'])"
    )
    assert (await run(bench, workspace, tmp_path, code)).stdout == "1\n"


# --------------------------------------------------------------------------------------------- modules of loaded skills
def skill_with(folder: Path, files: dict[str, str]) -> MountedSkill:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    status = folder.stat()
    return MountedSkill(folder=folder, identity=(status.st_dev, status.st_ino))


def packages_with(folder: Path, files: dict[str, str]) -> Path:
    return skill_with(folder, files).folder


@pytest.fixture
def loaded(tmp_path: Path) -> dict[str, MountedSkill]:
    return {
        "first": skill_with(
            tmp_path / "first",
            {
                "core/__init__.py": "",
                "core/builder.py": "NAME = 'core of first'\n",
                "scripts/__init__.py": "",
                "scripts/names.py": "NAME = 'names of first'\n",
                "scripts/show.py": "from scripts.names import NAME\nprint(NAME)\n",
                "both.py": "NAME = 'first'\n",
            },
        ),
        "plugin:second": skill_with(
            tmp_path / "second",
            {
                "scripts/__init__.py": "",
                "scripts/own.py": "NAME = 'own of second'\n",
                "scripts/show.py": "from scripts.own import NAME\nprint(NAME)\n",
                "both.py": "NAME = 'second'\n",
            },
        ),
    }


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        ("py", "from core.builder import NAME; import both; print(NAME, both.NAME)"),
        ("sh", "python3 -c 'from core.builder import NAME; import both; print(NAME, both.NAME)'"),
        (
            "py",
            "import subprocess, sys\n"
            "subprocess.run([sys.executable, '-c', 'import core.builder, both; print(core.builder.NAME, both.NAME)'])",
        ),
    ],
)
async def test_modules_of_loaded_skills_are_importable_and_the_last_loaded_comes_first(
    each_backend: Bench, workspace: Folder, tmp_path: Path, loaded: dict[str, MountedSkill], suffix: str, code: str
) -> None:
    result = await run(each_backend, workspace, tmp_path, code, suffix, skills=loaded)
    assert (result.success, result.stdout) == (True, "core of first second\n"), result.stderr


async def test_the_workspace_and_packages_come_before_modules_of_loaded_skills(
    bench: Bench, workspace: Folder, tmp_path: Path, loaded: dict[str, MountedSkill]
) -> None:
    (workspace.top / "core").mkdir()
    (workspace.top / "core/builder.py").write_text("NAME = 'core of the workspace'\n")
    packages = packages_with(tmp_path / "packages", {"both.py": "NAME = 'a package'\n"})
    show = "import both; print(both.NAME)"
    code = f"import subprocess\n{show}\nsubprocess.run(['python', '-c', {show!r}])"
    result = await run(bench, workspace, tmp_path, code, skills=loaded, python_packages={"first": packages})
    assert result.stdout == "a package\n" * 2, result.stderr
    (workspace.top / "both.py").write_text("NAME = 'the workspace'\n")
    result = await run(bench, workspace, tmp_path, code, skills=loaded, python_packages={"first": packages})
    assert result.stdout == "the workspace\n" * 2, result.stderr


async def test_a_script_of_a_loaded_skill_finds_the_modules_of_its_own_skill_first(
    bench: Bench, workspace: Folder, tmp_path: Path, loaded: dict[str, MountedSkill]
) -> None:
    code = "python3 /skills/first/scripts/show.py\npython /skills/plugin:second/scripts/show.py"
    result = await run(bench, workspace, tmp_path, code, "sh", skills=loaded)
    assert (result.success, result.stdout) == (True, "names of first\nown of second\n"), result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "python3 -u /skills/first/scripts/show.py",
        "python3 -W ignore /skills//first/./scripts/show.py",
        "cd /skills/first && python scripts/show.py",
        "cd /skills/first/scripts && python3 show.py",
        "ln -s $(which python3) py && ./py /skills/first/scripts/show.py",
        "python3 -c \"import subprocess, sys; subprocess.run([sys.executable, '/skills/first/scripts/show.py'])\"",
    ],
)
async def test_a_script_finds_its_own_skill_however_it_is_started(
    bench: Bench, workspace: Folder, tmp_path: Path, loaded: dict[str, MountedSkill], command: str
) -> None:
    result = await run(bench, workspace, tmp_path, command, "sh", skills=loaded)
    assert (result.success, result.stdout) == (True, "names of first\n"), result.stderr


@pytest.mark.parametrize("value", ["/skills/first", ".", ""])
async def test_a_python_with_a_pythonpath_of_its_own_still_finds_the_packages(
    bench: Bench, workspace: Folder, tmp_path: Path, loaded: dict[str, MountedSkill], value: str
) -> None:
    packages = packages_with(tmp_path / "packages", {"tiny.py": "NAME = 'tiny'\n"})
    code = f"PYTHONPATH={value} python3 -c 'import tiny, core.builder; print(tiny.NAME)'"
    result = await run(bench, workspace, tmp_path, code, "sh", skills=loaded, layers={"documents": packages})
    assert (result.success, result.stdout) == (True, "tiny\n"), result.stderr


async def test_programs_of_packages_are_on_the_path(bench: Bench, workspace: Folder, tmp_path: Path) -> None:
    names = ("own", "bundle")
    own, bundle = (packages_with(tmp_path / name, {f"bin/{name}": f"#!/bin/sh\necho {name}\n"}) for name in names)
    node = packages_with(tmp_path / "node_modules", {".bin/tool": "#!/bin/sh\necho tool\n"})
    for program in (own / "bin/own", bundle / "bin/bundle", node / ".bin/tool"):
        program.chmod(0o755)
    fields: dict[str, Any] = {
        "python_packages": {"first": own},
        "node_packages": {"first": node},
        "layers": {"documents": bundle},
    }
    result = await run(bench, workspace, tmp_path, "own; bundle; tool", "sh", **fields)
    assert (result.success, result.stdout) == (True, "own\nbundle\ntool\n"), result.stderr
    script = await bench.run("own; tool", "sh", layers={"python": own, "node_modules": node})
    assert (script.success, script.stdout) == (True, "own\ntool\n"), script.stderr


async def test_code_counts_characters_as_utf_8(bench: Bench, workspace: Folder, tmp_path: Path) -> None:
    result = await run(bench, workspace, tmp_path, 'printf "Ä中" | wc -m', "sh")
    assert result.stdout.strip() == "2"


# ------------------------------------------------------------------------------------------------------------ failures
@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        ("py", "open('new', 'wb').write(bytes(70 << 20))"),
        ("sh", "dd if=/dev/zero of=new bs=1M count=70"),
        ("sh", "python3 -c \"print('x' * (70 << 20))\" > new"),
    ],
)
async def test_a_write_that_exceeds_the_disk_limit_leaves_the_workspace_as_it_was(
    bench: Bench, workspace: Folder, tmp_path: Path, suffix: str, code: str
) -> None:
    result = await run(bench, workspace, tmp_path, code, suffix)
    assert result.error_code == "DISK_LIMIT", (result.exit_code, result.stderr)
    assert "64 MB (APEX_SANDBOX_DISK_MB)" in str(result.error)
    assert (workspace.changes, result.workspace_files) == (Changes(), ())
    assert any("disk limit" in warning for warning in result.warnings)


async def test_an_error_of_code_keeps_its_class(bench: Bench, workspace: Folder, tmp_path: Path) -> None:
    result = await run(bench, workspace, tmp_path, "throw new Error('plain')", "js")
    assert result.error == "Error: plain"


async def test_npm_fails_at_once_without_a_network(cold: Bench, workspace: Folder, tmp_path: Path) -> None:
    code = "npm config get offline; npm install left-pad"
    result = await run(cold, workspace, tmp_path, code, "sh")
    assert (result.stdout, result.error_code) == ("true\n", "EXIT_NONZERO")


async def test_a_warm_shell_runs_a_job_like_a_new_one(bench: Bench, workspace: Folder, tmp_path: Path) -> None:
    code = "printf '%s|' \"$0\" \"$PWD\" \"$TIMEOUT\"; ls /proc/self/fd | tr '\\n' ' '; yes | head -n 1; cat; exit 3"
    result = await run(bench, workspace, tmp_path, code, "sh")
    assert (result.stdout, result.exit_code) == ("/workspace/.code.sh|/workspace|20000|0 1 2 3 y\n", 3), result.stderr


async def test_text_reaches_a_shell_script_unchanged(bench: Bench) -> None:
    text = "a 'b' \"c\" $(id) `id` \\ \n * ; & 日本"
    result = await bench.run('printf %s "$INPUT_JSON"', "sh", input={"text": text})
    assert json.loads(result.stdout) == {"text": text}
    result = await bench.run('printf "%s" "$1"', "sh", args=(text,))
    assert result.stdout == text


ENDINGS = {
    "a file that is not closed": ("file = open('left.txt', 'w'); file.write('x' * 10)", ""),
    "a file in a cycle": (
        "class A: pass\na = A(); a.a = a; a.file = open('left.txt', 'w'); a.file.write('x' * 10)",
        "",
    ),
    "a binary file in a cycle": (
        "class A: pass\na = A(); a.a = a; a.file = open('left.txt', 'wb'); a.file.write(b'x' * 10)",
        "",
    ),
    "a file that is read and written": (
        "def patch(f): f.seek(2); f.write(b'XX')\n"
        "open('left.txt', 'wb').write(b'0123456789')\nf = open('left.txt', 'r+b'); patch(f)",
        "",
    ),
    "a file in a library module": ("import json\njson.f = open('left.txt', 'w+b'); json.f.write(b'x' * 10)", ""),
    "a file that cannot be written": (
        "import io\nt = io.TextIOWrapper(io.BytesIO()); b = t.detach()\n"
        "def h(): return g\ng = open('left.txt', 'w'); g.write('x' * 10)",
        "",
    ),
    "a generator": ("def g():\n    try: yield\n    finally: print('end')\ni = g(); next(i)", "end\n"),
    "no main module": ("import sys\ndel sys.modules['__main__']\nprint('end')", "end\n"),
    "a finalizer": (
        "import json\nclass A:\n    def __del__(self): print(json.dumps(NAME))\na = A()\nNAME = 'end'",
        '"end"\n',
    ),
    "a finalizer in a cycle": (
        "class A:\n    def __del__(self): print(NAME, f())\na = A()\na.a = a\nNAME = 'end'\ndef f(): return 1",
        "end 1\n",
    ),
    "a function for the exit": ("import atexit\natexit.register(print, 'end')", "end\n"),
    "a thread": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('end'))).start()",
        "end\n",
    ),
    "a buffer around stdout": (
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach()); print('end')",
        "end\n",
    ),
    "a closed stdout": ("import sys\nprint('end')\nsys.stdout.close()", "end\n"),
    "no stdout": ("import sys\nprint('end')\nsys.stdout = None", "end\n"),
    "a child that goes on": ("import os\nif os.fork(): os.wait()\nprint('end')", "end\nend\n"),
    "a module of its own": ("import helper\nhelper.file = open('left.txt', 'w'); helper.file.write('x' * 10)", ""),
}


@pytest.mark.parametrize("ending", list(ENDINGS))
async def test_a_script_ends_as_python_ends_it(bench: Bench, workspace: Folder, tmp_path: Path, ending: str) -> None:
    code, output = ENDINGS[ending]
    (workspace.top / "helper.py").write_text("")
    result = await run(bench, workspace, tmp_path, code)
    plain = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", code, cwd=workspace.top, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stdout, stderr = await plain.communicate()
    assert (result.stdout, result.stderr, result.exit_code) == (output, "", 0)
    assert (stdout.decode(), stderr.decode(), plain.returncode) == (output, "", 0)
    if "left.txt" in code:
        assert [(file.path, file.size) for file in workspace.changes.files] == [("left.txt", 10)]


NODE_ENDINGS = {
    "a listener": "process.on('exit', c => console.log('bye', c)); console.log('x')",
    "a listener that sets the exit code": "process.on('exit', () => { process.exitCode = 4 })",
    "an exit code": "process.exitCode = 3; process.on('exit', c => console.log(c))",
    "an error": "process.on('exit', c => console.log('exit', c)); throw new TypeError('no')",
    "an error in a listener": "process.on('exit', () => { throw new RangeError('in listener') })",
    "a call of exit": "process.on('exit', c => console.log(c)); process.exit(0)",
    "a call of exit with a code": "process.on('exit', c => console.log(c)); process.exit(5)",
    "work that begins at the end": (
        "let n = 0; process.on('beforeExit', () => { if (n++ < 2) setTimeout(() => console.log('again'), 1) })"
    ),
    "a rejected promise": "Promise.reject(new Error('lost'))",
    "a timer": "setTimeout(() => console.log('later'), 5)",
    "a worker": "const {Worker}=require('worker_threads'); new Worker('console.log(1)', {eval:true})",
    "a promise that is never settled": "(async () => { await new Promise(() => {}) })()",
    "two listeners": "process.once('exit', () => console.log(1)); process.on('exit', () => console.log(2))",
    "a stream to a file": "require('fs').createWriteStream('left.txt').end('x'.repeat(10))",
}


@pytest.mark.parametrize("ending", list(NODE_ENDINGS))
async def test_a_script_ends_as_node_ends_it(bench: Bench, workspace: Folder, tmp_path: Path, ending: str) -> None:
    code, node = NODE_ENDINGS[ending], bench.sandbox.node_program
    assert node is not None
    result = await run(bench, workspace, tmp_path, code, "js")
    (tmp_path / "script.js").write_text(code)
    plain = await asyncio.create_subprocess_exec(
        node, tmp_path / "script.js", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stdout, stderr = await plain.communicate()
    assert (result.stdout, result.exit_code) == (stdout.decode(), plain.returncode)
    errors = [line for line in stderr.decode().splitlines() if "Error" in line]
    assert [line for line in result.stderr.splitlines() if "Error" in line] == errors
    if "left.txt" in code:
        assert [(file.path, file.size) for file in workspace.changes.files] == [("left.txt", 10)]
