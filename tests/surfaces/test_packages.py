"""Packages over HTTP and on the command line: bundles for every run, and those of one skill."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.sandbox import bundles
from tests.making import skill_zip, write_skill
from tests.sandbox.test_layers import make_wheel, wheel_index
from tests.surfaces.conftest import Apex


@pytest.fixture(autouse=True)
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = wheel_index(monkeypatch, tmp_path)
    make_wheel(folder, "tiny", {"tiny.py": "NAME = 'tiny'\n"})
    monkeypatch.setattr(bundles, "BUNDLES", {"documents": ("tiny",), "data": ("no-such-package",)})
    return folder


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    files = {"scripts/execute.py": "import pypdf\n", "scripts/tiny.sh": "python3 -c 'import tiny; print(tiny.NAME)'\n"}
    return write_skill(tmp_path, "wants", files=files)


@pytest.mark.anyio
@pytest.mark.slow
async def test_bundles_are_listed_installed_and_removed_over_http(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/api/packages")).json()
    assert [(view["name"], view["state"]) for view in listed] == [("documents", "missing"), ("data", "missing")]
    installed = await client.post("/api/packages/documents/install")
    assert (installed.status_code, installed.json()["state"]) == (200, "installed")
    assert installed.json()["packages"] == [{"name": "tiny", "version": "1.0"}]
    failed = await client.post("/api/packages/data/install")
    assert (failed.status_code, failed.json()["code"]) == (500, "EXECUTION_ERROR")
    assert "no-such-package" in failed.json()["message"]
    assert (await client.post("/api/packages/other/install")).json()["code"] == "NOT_FOUND"
    assert (await client.delete("/api/packages/documents")).json()["state"] == "missing"
    assert (await client.delete("/api/packages/documents")).status_code == 404


@pytest.mark.anyio
async def test_the_packages_of_a_skill_are_changed_over_http(client: httpx.AsyncClient) -> None:
    archive = skill_zip("wants", files={"scripts/execute.py": "import pypdf\n"})
    await client.post("/api/skills/install", content=archive, headers={"content-type": "application/zip"})
    path = "/api/skills/wants/dependencies"
    changed = await client.put(path, json={"add": ["pypdf>=4", "npm:docx"]})
    assert (changed.status_code, changed.json()["added"]) == (200, ["pypdf>=4", "npm:docx@*"])
    assert (await client.put(path, json={"remove": ["npm:docx"]})).json()["added"] == ["pypdf>=4"]
    for body in ({"add": ["--option"]}, {"add": ["x"] * 300}, {"install": "later"}, {"add": "x"}):
        refused = await client.put(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")
    assert (await client.put("/api/skills/absent/dependencies", json={})).status_code == 404
    assert (await client.get(path)).json()["detected"] is None
    (found,) = (await client.get(path, params={"detect": "true"})).json()["detected"]
    assert (found["package"], found["status"], found["file"]) == ("pypdf", "declared", "scripts/execute.py")


@pytest.mark.slow
def test_bundles_are_managed_on_the_command_line(apex: Apex, skill: Path) -> None:
    apex("skills", "install", skill)
    assert "missing" in apex("packages", "list").out
    installed = apex("packages", "install", "documents")
    assert (installed.code, "documents is installed: 1 package" in installed.err) == (0, True)
    assert "tiny 1.0" in apex("packages", "ls").out
    assert apex("skills", "run", "wants", "--script", "scripts/tiny.sh").out == "tiny\n"
    assert apex("packages", "install", "documents", "--json").json[0]["state"] == "installed"
    failed = apex("packages", "install", "data")
    assert (failed.code, "no-such-package" in failed.err) == (1, True)
    assert "There are: documents, data" in apex("packages", "install", "other").err
    assert "removed: documents" in apex("packages", "rm", "documents").err
    assert "not installed" in apex("packages", "remove", "documents").err


@pytest.mark.slow
def test_the_packages_of_a_skill_are_managed_on_the_command_line(apex: Apex, skill: Path) -> None:
    apex("skills", "install", skill)
    detected = apex("skills", "deps", "wants", "--detect")
    assert "pypdf" in detected.out
    assert "scripts/execute.py:1" in detected.out
    assert "apex skills deps wants --add pypdf --install" in detected.out
    assert apex("skills", "deps", "wants", "--detect", "--json").json["detected"][0]["status"] == "missing"
    added = apex("skills", "deps", "wants", "--add", "tiny", "npm:docx")
    assert "npm:docx@*" in added.out
    assert "--install" in added.err
    assert apex("skills", "deps", "wants", "--remove", "npm:docx", "--json").json["added"] == ["tiny"]
    assert "Everything is installed." in apex("skills", "deps", "wants", "--install").err
    failed = apex("skills", "deps", "wants", "--add", "no-such-package", "--install")
    assert (failed.code, "no-such-package" in failed.err) == (1, True)
    assert apex("skills", "deps", "wants", "--json").json["added"] == ["tiny"]
    removed = apex("skills", "deps", "wants", "--remove", "tiny", "--install", "--json").json
    assert (removed["added"], removed["installed"]) == ([], True)
    refused = apex("skills", "deps", "wants", "--add", "https://example.org/x.whl")
    assert (refused.code, "is refused" in refused.err) == (1, True)
    for wrong in (["--add"], ["tiny"], ["--add", "--remove", "tiny"]):
        assert apex("skills", "deps", "wants", *wrong).code == 2
    failed = apex("skills", "run", "wants")
    assert 'The module "pypdf" is not installed' in failed.err
    assert failed.code == 1


def events_of(text: str) -> list[tuple[str, Any]]:
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
    return [(event["event"], json.loads(event["data"])) for event in fields if "event" in event]


@pytest.mark.anyio
@pytest.mark.slow
async def test_installs_answer_with_the_installers_lines(client: httpx.AsyncClient) -> None:
    await client.post("/api/skills/install", content=skill_zip("wants"), headers={"content-type": "application/zip"})
    path, headers = "/api/skills/wants/dependencies", {"accept": "text/event-stream"}
    answer = await client.put(path, json={"add": ["tiny"], "install": True}, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *lines, (last, result) = events_of(answer.text)
    assert {name for name, _ in lines} == {"progress"}
    assert any("tiny" in data["line"] for _, data in lines)
    assert (last, result["added"], result["installed"]) == ("result", ["tiny"], True)
    again = events_of((await client.post(path, headers=headers)).text)
    assert again[-1][0] == "result"
    assert events_of((await client.post("/api/packages/documents/install", headers=headers)).text)[-1][0] == "result"
    failed = events_of((await client.put(path, json={"add": ["no-such"], "install": True}, headers=headers)).text)
    assert (failed[-1][0], failed[-1][1]["code"]) == ("error", "EXECUTION_ERROR")
    missing = events_of((await client.post("/api/skills/absent/dependencies", headers=headers)).text)
    assert (missing[-1][0], missing[-1][1]["code"]) == ("error", "SKILL_NOT_FOUND")
    assert (await client.get(path)).json()["added"] == ["tiny"]
