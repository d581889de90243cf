"""Python programs that name a workspace: calls of skills, tools and code share its files."""

import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.registry import ToolRegistry
from tests.making import skill_zip

pytestmark = pytest.mark.anyio
APPEND = "with open('n.txt', 'a+') as file:\n    file.write('x')\n    file.seek(0)\n    print(file.read())\n"


async def test_calls_of_skills_tools_and_code_share_the_files_of_a_workspace(bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("adder", files={"scripts/execute.py": APPEND}))
    first = await bridge.skills.execute_skill("adder", workspace="p1")
    assert isinstance(first, ExecutionResult)
    assert first.stdout == "x\n"
    assert (await bridge.executor.execute("adder", workspace="p1")).stdout == "xx\n"
    code = {"language": "python", "code": APPEND}
    assert (await bridge.builtins.execute("run-code", code, workspace="p1"))["stdout"] == "xxx\n"
    assert (await bridge.tools.execute("skill:adder", workspace="p1")).data["stdout"] == "xxxx\n"
    assert (await bridge.builtins.execute("file-read", {"path": "n.txt"}, workspace="p1"))["content"] == "xxxx"
    assert [row.id for row in bridge.workspaces.list()] == ["p1"]
    fresh = await bridge.executor.execute("adder")
    assert (fresh.stdout, fresh.workspace_files) == ("x\n", None), "without a workspace each run has its own"


async def test_a_named_workspace_replaces_that_of_the_conversation(bridge: Bridge) -> None:
    conversation = Conversation()
    for id in ("p1", "p2"):
        write = {"path": "a.txt", "content": id}
        await bridge.tools.execute("file-write", write, conversation=conversation, workspace=id)
    read = await bridge.tools.execute("file-read", {"path": "a.txt"}, conversation=conversation)
    assert read.data["content"] == "p2", "the conversation goes on with the last one"
    read = await bridge.tools.execute("file-read", {"path": "a.txt"}, conversation=conversation, workspace="p1")
    assert read.data["content"] == "p1"


async def test_a_workspace_that_cannot_be_opened_is_refused(bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("adder", files={"scripts/execute.py": APPEND}))
    for call in (
        bridge.skills.execute_skill("adder", workspace="../p1"),
        bridge.executor.execute("adder", workspace=""),
        bridge.builtins.execute("list-files", workspace="a/b"),
        bridge.tools.execute("list-files", workspace="x" * 65),
    ):
        with pytest.raises(InvalidInputError, match="is not a valid id of a workspace"):
            await call
    with pytest.raises(InvalidInputError, match="only the tools and skills of a bridge have them"):
        await ToolRegistry().execute("list-files", workspace="p1")
