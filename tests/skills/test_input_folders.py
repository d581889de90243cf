"""Folders as input: a run gets copies of their regular files, in the same folders."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from apexbridge._tasks import in_thread
from apexbridge.bridge import Bridge
from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.tools.conversation import Conversation
from tests.making import skill_zip

pytestmark = pytest.mark.anyio
READS = """
import json, os
names = json.loads(os.environ['INPUT_JSON'])['files']
changed = []
for folder, _, _ in os.walk('input'):
    try: changed.append(open(folder + '/new', 'w').name)
    except OSError: pass
print(json.dumps([{name: open(name).read() for name in names}, changed]))
"""


async def run(bridge: Bridge, files: list[str], **fields: Any) -> tuple[dict[str, str], ExecutionResult]:
    """The content of each input file, and the result."""
    if "reads" not in [skill.name for skill in (await bridge.skills.list_skills()).skills]:
        await bridge.skills.install_skill(skill_zip("reads", files={"scripts/execute.py": READS}, **fields))
    result = await bridge.skills.execute_skill("reads", files=files)
    assert isinstance(result, ExecutionResult)
    assert result.success, result.stderr
    content, changed = json.loads(result.stdout)
    assert changed == []
    return content, result


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("asked", ["data/in", "data/in/", "./data/in"])
async def test_a_folder_of_the_workspace_is_copied_with_its_folders(bridge: Bridge, asked: str) -> None:
    write(bridge.settings.workspace / "data/in", {"a.txt": "a", "deep/er/b.txt": "b", ".hidden": "c"})
    content, result = await run(bridge, [asked])
    assert content == {"input/in/.hidden": "c", "input/in/a.txt": "a", "input/in/deep/er/b.txt": "b"}
    assert result.warnings == []


async def test_links_and_pipes_of_a_folder_are_left_out_with_a_warning(bridge: Bridge, tmp_path: Path) -> None:
    folder = bridge.settings.workspace / "in"
    write(folder, {"a.txt": "a"})
    write(tmp_path, {"secret/s.txt": "s"})
    (folder / "link").symlink_to(tmp_path / "secret/s.txt")
    (folder / "folder").symlink_to(tmp_path / "secret")
    (folder / "near").symlink_to("a.txt")
    os.mkfifo(folder / "pipe")
    content, result = await run(bridge, ["in"])
    assert content == {"input/in/a.txt": "a"}
    assert result.warnings == ["Not copied from in, only regular files are: in/folder, in/link, in/near, in/pipe"]


async def test_folders_and_files_with_the_same_name_get_different_names(bridge: Bridge) -> None:
    write(bridge.settings.workspace, {"one/in/a.txt": "1", "two/in/a.txt": "2", "three/in": "3"})
    content, _ = await run(bridge, ["one/in", "two/in", "three/in"])
    assert content == {"input/in/a.txt": "1", "input/in-2/a.txt": "2", "input/in-3": "3"}


async def test_the_output_of_a_run_can_be_the_input_of_another(bridge: Bridge) -> None:
    text = "import os; os.mkdir('output/deep'); open('output/deep/a.txt', 'w').write('a'); open('output/b', 'w')"
    await bridge.skills.install_skill(skill_zip("makes", files={"scripts/execute.py": text}))
    made = await bridge.executor.execute("makes")
    assert (await run(bridge, [f"runs/{made.id}/deep"]))[0] == {"input/deep/a.txt": "a"}
    assert (await run(bridge, [f"runs/{made.id}"]))[0].keys() == {f"input/{made.id}/b", f"input/{made.id}/deep/a.txt"}


async def test_an_upload_can_be_placed_in_a_folder(bridge: Bridge, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    ids = []
    for _ in range(2):
        with (tmp_path / "x").open("rb") as file:
            ids.append((await bridge.runs.uploads.add(file, "x")).id)
    content, _ = await run(bridge, [f"{ids[0]}/in/a b.txt", f"{ids[1]}/in/deep/é.txt"])
    assert content == {"input/in/a b.txt": "x", "input/in/deep/é.txt": "x"}
    for wrong in ("../x", "/x", "a//b", "a/./b", "a\0b", "a\nb", "x" * 300, "/".join("x" * 40)):
        with pytest.raises(InvalidInputError):
            await bridge.skills.execute_skill("reads", files=[f"{ids[0]}/{wrong}"])
    for first, second in (("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")):
        with pytest.raises(InvalidInputError, match="Two input files need the path"):
            await bridge.skills.execute_skill("reads", files=[f"{ids[0]}/{first}", f"{ids[1]}/{second}"])


async def test_a_folder_has_the_limits_of_input_files(bridge: Bridge) -> None:
    workspace = bridge.settings.workspace
    many = {f"many/{number}": "" for number in range(501)}
    folders = {f"folders/{number}/deep/a": "" for number in range(260)}
    await in_thread(write, workspace, {**many, **folders})
    (workspace / "empty/below").mkdir(parents=True)
    with (workspace / "large").open("wb") as file:
        file.truncate(51 << 20)
    (workspace / "big").mkdir()
    (workspace / "large").rename(workspace / "big/large")
    await bridge.skills.install_skill(skill_zip("reads", files={"scripts/execute.py": READS}))
    for asked, message in (
        (["many"], "501 input files are too many"),
        (["folders"], "521 input folders are too many"),
        (["empty"], "empty has no files"),
        (["big"], "50 MB"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            await bridge.skills.execute_skill("reads", files=asked)


async def test_an_approval_lists_each_file_of_a_folder(bridge: Bridge) -> None:
    write(bridge.settings.workspace, {"in/a.txt": "abc", "in/deep/b.txt": "b"})
    (bridge.settings.workspace / "in/link").symlink_to("a.txt")
    await bridge.skills.install_skill(skill_zip("reads", files={"scripts/execute.py": READS}, dangerous=True))
    with await bridge.runs.inputs.hold(["in"], conversation=Conversation()) as held:
        assert [(file["name"], file["bytes"]) for file in held.described] == [("in/a.txt", 3), ("in/deep/b.txt", 1)]
        assert [file.name for file in held.opened.inputs] == ["in/a.txt", "in/deep/b.txt"]
        assert held.opened.warnings == ("Not copied from in, only regular files are: in/link",)
        assert [file.file.read() for file in held.inputs] == [b"abc", b"b"]
