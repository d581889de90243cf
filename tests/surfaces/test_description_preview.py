"""What a new description wins and loses over past requests, over HTTP and on the command line."""

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from apexbridge._time import now_ms
from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage.chat_store import ChatRow
from tests.conftest import client_of
from tests.making import skill_zip, write_skill
from tests.surfaces.conftest import Apex
from tests.surfaces.keyed_server import ZIP, KeyedServer, start_keyed_server

SKILLS = {
    "alpha": "Weather forecast for a city",
    "beta": "Merges several documents into one",
    "gamma": "Statistics of the climate in the past: rain, temperature, wind",
}
RAIN = "weather forecast for Paris"
MERGE = "combine these PDF documents"
BREAD = "Bakes bread and cakes"
PDF = "Combines PDF documents: puts two PDF files together, or more"
PREVIEW = "/api/skills/alpha/description/preview"
NOTHING = {"before": 0, "after": 0, "won": 0, "lost": 0}


@pytest.fixture
async def filled_bridge(bridge: Bridge) -> Bridge:
    for name, description in SKILLS.items():
        await bridge.skills.install_skill(skill_zip(name, description=description))
    return bridge


async def past_of(client: httpx.AsyncClient, description: str) -> dict[str, Any]:
    response = await client.post(PREVIEW, json={"description": description})
    past: dict[str, Any] = response.raise_for_status().json()["past"]
    return past


@pytest.mark.anyio
async def test_a_preview_without_requests_compares_past_requests_and_shows_recorded_texts(
    filled_bridge: Bridge,
) -> None:
    async with client_of(filled_bridge) as client:
        for request, name in ((RAIN, "alpha"), (MERGE, "beta"), ("forecast please", "alpha")):
            await client.post("/api/skills/remember", json={"request": request, "name": name})
        await client.post("/api/skills/search", json={"query": RAIN})
        await client.post("/api/skills/search", json={"query": "a search that was never confirmed"})

        lost = await past_of(client, BREAD)
        assert set(lost) == {"own", "others", "harmed", "changed", "leftOut"}
        assert lost["own"]["requests"] == 2
        assert lost["own"]["first"]["lost"] >= 1
        (changed,) = lost["changed"]
        assert (changed["request"], changed["name"], changed["before"]) == (RAIN, "alpha", 1)

        harmful = await past_of(client, PDF)
        assert harmful["others"]["first"] == {"before": 1, "after": 0, "won": 0, "lost": 1}
        assert harmful["harmed"] == [{"name": "beta", "requests": 1, "first": 1, "firstFive": 0}]
        assert MERGE not in str(harmful)  # never searched for, so its text is not stored


@pytest.mark.anyio
async def test_a_preview_without_past_requests_counts_nothing(filled_bridge: Bridge) -> None:
    async with client_of(filled_bridge) as client:
        past = await past_of(client, BREAD)
    nothing = {"requests": 0, "first": NOTHING, "firstFive": NOTHING}
    assert past == {"own": nothing, "others": nothing, "harmed": [], "changed": [], "leftOut": 0}


@pytest.mark.anyio
async def test_a_preview_with_requests_leaves_past_ones_out(filled_bridge: Bridge) -> None:
    async with client_of(filled_bridge) as client:
        await client.post("/api/skills/remember", json={"request": RAIN, "name": "alpha"})
        answer = (await client.post(PREVIEW, json={"description": BREAD, "requests": [RAIN]})).json()
    assert answer["past"] is None
    assert [rank["before"] for rank in answer["ranks"]] == [1]


@pytest.mark.anyio
async def test_texts_of_recorded_chats_are_shown(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, chat_records="full")
    messages = ["odd", {"role": "user", "content": "hello"}, {"role": "user", "content": RAIN}, {"role": "assistant"}]
    chat = ChatRow(
        id="chat-1",
        caller="",
        model="m",
        upstream="u",
        started_at=now_ms(),
        duration_ms=1,
        is_stream=False,
        turns=1,
        calls=1,
        stop_cause="answered",
        outcome="answered",
        messages=json.dumps(messages),
    )
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        for name, description in SKILLS.items():
            await bridge.skills.install_skill(skill_zip(name, description=description))
        await bridge.retrieval.remember(RAIN, "alpha", succeeded=True)
        bridge.chats.keep(chat)
        async with client_of(bridge) as client:
            assert [changed["request"] for changed in (await past_of(client, BREAD))["changed"]] == [RAIN]


# ------------------------------------------------------------------------------------------------------------- keys
def _past(server: KeyedServer, key: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"}
    past: dict[str, Any] = (
        server.request("POST", PREVIEW, headers=headers, json={"description": BREAD}).raise_for_status().json()["past"]
    )
    return past


@pytest.mark.slow
def test_a_key_compares_its_own_past_requests_and_only_administrators_those_of_all(data_dir: Path) -> None:
    with start_keyed_server(data_dir) as server:
        for name, description in SKILLS.items():
            archive = skill_zip(name, description=description)
            server.request("POST", "/api/skills", "admin", content=archive, headers=ZIP).raise_for_status()
        one, two = (server.create_key("read", "run")["key"] for _ in range(2))
        for path, body in (
            ("/api/skills/search", {"query": RAIN}),
            ("/api/skills/remember", {"request": RAIN, "name": "alpha"}),
        ):
            headers = {"authorization": f"Bearer {one}"}
            server.request("POST", path, headers=headers, json=body).raise_for_status()

        assert _past(server, two)["own"]["requests"] == 0
        own = _past(server, one)
        assert own["own"]["requests"] == 1
        assert own["changed"] == []  # recorded texts are those of all keys
        everything = _past(server, server.keys["admin"])
        assert everything["own"]["requests"] == 1
        assert [changed["request"] for changed in everything["changed"]] == [RAIN]


# ----------------------------------------------------------------------------------------------------- command line
@pytest.fixture
def taught(data_dir: Path, embedder: Embedder) -> None:
    """A data directory with skills and past use."""

    async def teach() -> None:
        async with Bridge.open(Settings(data_dir=data_dir), watch=False, embedder=embedder) as bridge:
            for name, description in SKILLS.items():
                await bridge.skills.install_skill(skill_zip(name, description=description))
            for request, name in ((RAIN, "alpha"), (MERGE, "beta")):
                assert await bridge.retrieval.remember(request, name, succeeded=True)

    anyio.run(teach)


def description_of(apex: Apex, name: str) -> str:
    return str(apex("skills", "show", name, "--json").json["description"])


@pytest.mark.usefixtures("taught")
def test_the_command_previews_past_requests_and_changes_nothing(apex: Apex) -> None:
    shown = apex("skills", "set-description", "alpha", PDF, "--preview")
    assert shown.code == 0
    assert [line.split("\t") for line in shown.out.splitlines()] == [
        ["alpha", "1", "1 → 0 (0 won, 1 lost)", "1 → 1 (0 won, 0 lost)"],
        ["other skills", "1", "1 → 0 (0 won, 1 lost)", "1 → 1 (0 won, 0 lost)"],
        ["beta", "1", "1 lost", "0 lost"],
    ]
    assert description_of(apex, "alpha") == SKILLS["alpha"]
    assert apex("skills", "set-description", "alpha", PDF, "--preview", "--json").json["past"]["own"]["requests"] == 1
    ranks = apex("skills", "set-description", "alpha", BREAD, "--dry-run", "--request", RAIN).out.splitlines()
    assert [line.split("\t")[0::2] for line in ranks] == [["1", RAIN]]
    assert description_of(apex, "alpha") == SKILLS["alpha"]


@pytest.mark.usefixtures("taught")
def test_an_edit_shows_what_past_requests_win_and_lose(apex: Apex) -> None:
    edited = apex("skills", "set-description", "alpha", BREAD)
    assert (edited.code, edited.err) == (0, "Description updated: alpha\n")
    assert edited.out.splitlines()[0].startswith("alpha\t1\t1 → 0 (0 won, 1 lost)")
    assert description_of(apex, "alpha") == BREAD


def test_a_preview_without_past_requests_says_what_to_do(apex: Apex, tmp_path: Path) -> None:
    write_skill(tmp_path / "team", "alpha", description=SKILLS["alpha"])
    apex("skills", "import", tmp_path / "team")
    shown = apex("skills", "set-description", "alpha", BREAD, "--preview")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err == "No past request is known. Name one with: --request TEXT\n"
