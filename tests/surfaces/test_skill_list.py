"""The list of skills and its tags over HTTP, in the client and on the command line."""

from pathlib import Path

import httpx
import pytest

from apexbridge.bridge import Bridge
from tests.making import skill_zip, write_skill
from tests.surfaces.conftest import Apex

pytestmark = pytest.mark.anyio


async def test_the_list_is_filtered_and_sorted_by_parameters(client: httpx.AsyncClient, bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("one", description="Reads PDF files", tags=["pdf"]))
    await bridge.skills.install_skill(skill_zip("two", description="Draws", dangerous=True))
    await bridge.skills.set_enabled("one", False)

    async def names(**params: str) -> list[str]:
        body = (await client.get("/api/skills", params=params)).raise_for_status().json()
        assert body["total"] == len(body["skills"])
        return [skill["name"] for skill in body["skills"]]

    assert await names() == ["one", "two"], "disabled skills are listed"
    assert await names(query="pdf reads") == ["one"]
    assert await names(enabled="true") == ["two"]
    assert await names(enabled="false", mode="direct", source="installed") == ["one"]
    assert await names(health="confirm") == ["two"]
    assert await names(sort="-name") == ["two", "one"]
    assert await names(plugin="none") == []
    tags = (await client.get("/api/skills/tags", params={"prefix": "P", "limit": "1"})).json()
    assert tags == {"tags": [{"tag": "pdf", "count": 1}], "total": 1}


@pytest.mark.parametrize(
    "params",
    [
        {"sort": "size"},
        {"health": "bad"},
        {"mode": "auto"},
        {"enabled": "perhaps"},
        {"query": "x" * 201},
        {"limit": "501"},
        {"source": "x" * 1001},
    ],
)
async def test_other_values_are_refused(client: httpx.AsyncClient, params: dict[str, str]) -> None:
    response = await client.get("/api/skills", params=params)
    assert (response.status_code, response.json()["code"]) == (422, "INVALID_INPUT")


def test_the_command_sorts(apex: Apex, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert apex("skills", "install", write_skill(tmp_path / "new", name)).code == 0
    found = apex("skills", "list", "--sort", "installed", "--json").json
    assert [skill["name"] for skill in found["skills"]] == ["b", "a"]
    assert apex("skills", "list", "--sort", "odd").code == 2
