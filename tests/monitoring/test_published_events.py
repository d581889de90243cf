"""Every act publishes its event, whichever entry point it came through."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import SkillError
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from tests.conftest import client_of
from tests.making import skill_zip, write_skill
from tests.waiting import until

pytestmark = pytest.mark.anyio
ECHO = "print('done')\n"


class Recorder:
    """The events of a bridge, as an admin sees them."""

    def __init__(self, bridge: Bridge) -> None:
        self._feed = bridge.events.feed
        self._begin = self._feed.newest

    def all(self, kind: str) -> list[dict[str, Any]]:
        events = self._feed.after(self._begin) or []
        return [event.payload.model_dump() if event.payload else {} for event in events if event.kind == kind]

    def skills(self) -> list[tuple[str, list[str]]]:
        return [(event["change"], event["names"]) for event in self.all("skills")]

    async def until_skills(self, *expected: tuple[str, list[str]]) -> None:
        await until(lambda: all(one in self.skills() for one in expected))


@pytest.fixture
def recorder(bridge: Bridge) -> Recorder:
    return Recorder(bridge)


@pytest.fixture
async def http(bridge: Bridge) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(bridge) as client:
        yield client


async def test_calls_in_direct_mode_are_published(bridge: Bridge, recorder: Recorder) -> None:
    await bridge.skills.install_skill(skill_zip("reads"))
    await bridge.skills.execute_skill("reads")
    await bridge.tools.execute("skill:reads")
    assert [event["skill"] for event in recorder.all("direct")] == ["reads", "reads"]


async def test_runs_are_published_from_the_queue_to_their_end(bridge: Bridge, recorder: Recorder) -> None:
    await bridge.skills.install_skill(skill_zip("says", {"scripts/execute.py": ECHO}))
    result = await bridge.skills.execute_skill("says")
    await bridge.tools.execute("skill:says")
    await bridge.tools.execute("run-code", {"language": "python", "code": "print(1)"})
    runs = recorder.all("run")
    assert [run["state"] for run in runs] == ["pending", "running", "completed"] * 3
    assert [run["skill"] for run in runs[::3]] == ["says", "says", ""]
    assert {run["id"] for run in runs[:3]} == {getattr(result, "id", None)}
    assert runs[2]["status"] == "success"
    assert runs[2]["durationMs"] >= 0
    assert bridge.runs.counts() == (0, 0)
    await bridge.runs.delete(runs[0]["id"])
    assert recorder.all("run")[-1]["state"] == "deleted"


async def test_an_approval_is_published_with_each_state(bridge: Bridge, recorder: Recorder) -> None:
    await bridge.skills.install_skill(skill_zip("wipe", {"scripts/execute.py": ECHO}, dangerous=True))
    ids = []
    for _ in range(2):
        with pytest.raises(SkillError) as refused:
            await bridge.skills.execute_skill("wipe")
        ids.append(refused.value.details["approvalId"])
        await bridge.approvals.decide(ids[-1], approve=len(ids) == 2)
    await bridge.skills.execute_skill("wipe", approval=ids[1])
    assert [(event["id"], event["state"]) for event in recorder.all("approval")] == [
        (ids[0], "waiting"),
        (ids[0], "denied"),
        (ids[1], "waiting"),
        (ids[1], "approved"),
        (ids[1], "used"),
    ]
    with pytest.raises(SkillError):
        await bridge.skills.execute_skill("wipe")
    await bridge.skills.uninstall_skill("wipe")
    assert recorder.all("approval")[-1]["state"] == "removed"


async def test_changes_of_skills_over_http_are_published(
    bridge: Bridge, recorder: Recorder, http: httpx.AsyncClient
) -> None:
    headers = {"content-type": "application/zip"}
    for name in ("one", "two"):
        archive = skill_zip(name, permissions=["net:example.org:443"])
        (await http.post("/api/skills", content=archive, headers=headers)).raise_for_status()
    await until(lambda: sorted(name for _, names in recorder.skills() for name in names) == ["one", "two"])
    assert {change for change, _ in recorder.skills()} == {"installed"}
    acts: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        ("POST", "/api/tools/skill:one/disable", {}, "disabled"),
        ("POST", "/api/tools/skill:one/enable", {}, "enabled"),
        ("PUT", "/api/skills/one/description", {"json": {"description": "Another text."}}, "edited"),
        ("POST", "/api/skills/one/grants", {"json": {"permission": "net:example.org:443"}}, "granted"),
        ("PUT", "/api/skills/one/dependencies", {"json": {"add": ["pypdf"]}}, "packages"),
        ("DELETE", "/api/skills/one", {}, "removed"),
        ("POST", "/api/skills/one/restore", {}, "restored"),
    )
    for method, path, options, change in acts:
        (await http.request(method, path, **options)).raise_for_status()
        await recorder.until_skills((change, ["one"]))
    # What happens within a short time is one event, and a slow edit or restore is also seen as a new content.
    general = {"indexed", "installed", "updated"}
    changes = [change for change, names in recorder.skills() if "one" in names and change not in general]
    assert changes == [act[3] for act in acts]


async def test_a_skill_that_is_off_for_a_moment_is_published(
    bridge: Bridge, recorder: Recorder, http: httpx.AsyncClient
) -> None:
    """A reader may have seen it in between."""
    archive = skill_zip("one")
    (await http.post("/api/skills", content=archive, headers={"content-type": "application/zip"})).raise_for_status()
    await recorder.until_skills(("installed", ["one"]))
    bridge.tools.disable("skill:one")
    bridge.tools.enable("skill:one")
    await recorder.until_skills(("enabled", ["one"]))


async def test_changes_found_on_disk_are_published(data_dir: Path, embedder: Embedder) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), indexing="background", embedder=embedder) as bridge:
        recorder = Recorder(bridge)
        await until(lambda: bridge.is_indexed)
        folder = write_skill(data_dir / "skills", "by-hand")
        await recorder.until_skills(("installed", ["by-hand"]), ("indexed", ["by-hand"]))
        (folder / "more.txt").write_text("more")
        await recorder.until_skills(("updated", ["by-hand"]))
        shutil.rmtree(folder)
        await recorder.until_skills(("removed", ["by-hand"]))


async def test_skills_that_exist_at_the_start_are_not_published(data_dir: Path, embedder: Embedder) -> None:
    write_skill(data_dir / "skills", "early")
    async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as bridge:
        recorder = Recorder(bridge)
        await bridge.skills.reload_skill("early")
        await bridge.skills.set_enabled("early", False)
        await recorder.until_skills(("disabled", ["early"]))
        assert [change for change, _ in recorder.skills() if change != "indexed"] == ["disabled"]


async def test_states_of_mcp_servers_and_changes_of_keys_are_published(bridge: Bridge, recorder: Recorder) -> None:
    await bridge.mcp.add(McpServerConfig(name="gone", url="http://127.0.0.1:9/mcp"))
    await until(lambda: {"name": "gone", "state": "waiting"} in recorder.all("mcp"))
    await bridge.mcp.remove("gone")
    states = [event["state"] for event in recorder.all("mcp")]
    assert states[0] == "connecting"
    assert states[-1] == "removed"
    key, _ = await bridge.keys.create("key", ["read"])
    await bridge.keys.revoke(key.id)
    await bridge.keys.revoke(key.id)
    assert len(recorder.all("keys")) == 2
