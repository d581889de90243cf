"""Code that belongs to no skill, with the files of a workspace, in every sandbox."""

import os
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
        "import os, subprocess, sys\npath = os.environ['SKILLS_PATH'] + '/helper/scripts'\n"
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
