"""An install in two steps: validate a package and see what it asks for, then install exactly that content."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.skills.runs import input_files
from apexbridge.storage.audit import AUDIT_FILE, exported
from tests.making import skill_zip, zip_of
from tests.skills.source_server import SourceRepository, source_server
from tests.surfaces.keyed_server import KeyedServer, start_keyed_server
from tests.surfaces.test_sources import client as remote_client
from tests.waiting import wait_until

pytestmark = pytest.mark.anyio
ZIP = {"content-type": "application/zip"}
SCRIPT = "import yaml, subprocess\nsubprocess.run(['pdftotext', 'x'])\n"


async def validate(client: httpx.AsyncClient, data: bytes, **params: str) -> dict[str, Any]:
    response = await client.post("/api/skills/validate", content=data, headers=ZIP, params=params)
    body: dict[str, Any] = response.raise_for_status().json()
    return body


async def install(client: httpx.AsyncClient, upload: str | None, **fields: Any) -> httpx.Response:
    return await client.post("/api/skills/install", json={"upload": upload, **fields})


async def test_a_report_says_what_a_skill_asks_for(client: httpx.AsyncClient) -> None:
    files: dict[str, str | bytes] = {"scripts/execute.py": SCRIPT, "requirements.txt": "pypdf>=4\n"}
    permissions = {"apex": {"permissions": ["env:TOKEN"]}}
    report = await validate(client, skill_zip("asks", files=files, metadata=permissions, dangerous=True))
    (package,) = report["packages"]
    assert package.pop("contentHash")
    assert package.pop("size") > 0
    assert package == {
        "name": "asks",
        "description": "Writes commit messages out of a diff. 自动生成提交信息",
        "mode": "sandbox",
        "files": 3,
        "scripts": ["scripts/execute.py"],
        "permissions": ["env:TOKEN"],
        "dependencies": {"python": ["pypdf>=4", "pyyaml"], "node": [], "programs": ["pdftotext"]},
        "warnings": package["warnings"],
        "confirm": "",
        "scan": {"findings": [], "files": 3, "complete": True},
        "signature": {"state": "unsigned", "signer": None, "fingerprint": None, "reason": None},
        "replaces": None,
    }
    assert report["valid"]
    assert report["upload"].startswith("upload-")


async def test_a_validated_package_is_installed_without_sending_it_again(
    client: httpx.AsyncClient, bridge: Bridge, data_dir: Path
) -> None:
    report = await validate(client, skill_zip(files={"a.txt": "one"}))
    assert (await bridge.skills.list_skills()).total == 0
    installed = await install(client, report["upload"])
    assert (installed.status_code, installed.json()["names"]) == (201, ["git-commit"])
    detail = await bridge.skills.get_skill("git-commit")
    assert detail.content_hash == report["packages"][0]["contentHash"]
    assert list((data_dir / "uploads").iterdir()) == [], "an installed upload is removed"
    again = await install(client, report["upload"])
    assert (again.status_code, again.json()["code"]) == (404, "UPLOAD_NOT_FOUND")
    assert "Validate the package again" in again.json()["message"]


async def test_a_name_clash_leaves_the_upload_for_an_overwrite(client: httpx.AsyncClient, bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip(version="1.0"))
    await bridge.skills.execute_skill("git-commit")
    report = await validate(client, skill_zip(description="Another one."))
    replaced = report["packages"][0]["replaces"]
    before = await bridge.skills.get_skill("git-commit")
    assert replaced.pop("updatedAt")
    assert replaced == {"version": "1.0", "contentHash": before.content_hash, "calls": 1, "edited": False}
    refused = await install(client, report["upload"])
    assert (refused.status_code, refused.json()["code"]) == (409, "SKILL_ALREADY_EXISTS")
    assert (await install(client, report["upload"], overwrite=True)).status_code == 200
    assert (await bridge.skills.get_skill("git-commit")).description == "Another one."


async def test_the_options_of_the_validation_hold_for_the_install(client: httpx.AsyncClient) -> None:
    flat = zip_of({"SKILL.md": "# T\n\nWords and words.\n"})
    assert not (await validate(client, flat, filename="from-name.zip"))["valid"]
    report = await validate(client, flat, filename="from-name.zip", profile="lenient")
    assert (report["valid"], report["names"]) == (True, ["from-name"])
    assert (await install(client, report["upload"])).json()["names"] == ["from-name"]


async def test_an_invalid_package_is_not_stored(client: httpx.AsyncClient, data_dir: Path) -> None:
    report = await validate(client, b"no archive")
    assert (report["valid"], report["upload"], report["packages"]) == (False, None, [])
    assert not (data_dir / "uploads").exists()
    assert [path for path in (data_dir / "staging").iterdir() if path.is_dir()] == []


async def test_an_expired_upload_is_refused(client: httpx.AsyncClient, data_dir: Path) -> None:
    report = await validate(client, skill_zip())
    (folder,) = (data_dir / "uploads").iterdir()
    old = time.time() - input_files.UPLOAD_SECONDS - 1
    os.utime(folder, (old, old))
    assert (await install(client, report["upload"])).json()["code"] == "UPLOAD_NOT_FOUND"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "INVALID_INPUT"),
        ({"source": "a/b", "upload": "upload-" + "0" * 32}, 422, "INVALID_INPUT"),
        ({"upload": "upload-" + "0" * 32}, 404, "UPLOAD_NOT_FOUND"),
        ({"upload": "../../etc/passwd"}, 404, "UPLOAD_NOT_FOUND"),
        ({"upload": "upload-" + "0" * 32, "skills": ["a"]}, 422, "INVALID_INPUT"),
        ({"upload": "x" * 65}, 422, "INVALID_INPUT"),
    ],
)
async def test_a_bad_upload_is_refused(client: httpx.AsyncClient, body: dict[str, Any], status: int, code: str) -> None:
    response = await client.post("/api/skills/install", json=body)
    assert (response.status_code, response.json()["code"]) == (status, code)


async def test_a_file_for_a_run_is_not_installed(client: httpx.AsyncClient) -> None:
    sent = await client.post("/api/uploads", files={"file": (".note", skill_zip())})
    response = await install(client, sent.json()["id"])
    assert (response.status_code, response.json()["code"]) == (422, "INVALID_INPUT")


async def test_a_caller_without_room_gets_a_report_without_an_upload(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "MAX_UPLOADS", 0)
    report = await validate(client, skill_zip())
    assert (report["valid"], report["upload"], len(report["packages"])) == (True, None, 1)


async def test_one_of_several_concurrent_installs_of_an_upload_succeeds(client: httpx.AsyncClient) -> None:
    upload = (await validate(client, skill_zip()))["upload"]
    answers = await asyncio.gather(*(install(client, upload) for _ in range(5)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 201
    assert set(statuses[1:]) <= {404, 409}


async def test_a_fetched_source_is_installed_with_its_origin(
    data_dir: Path, embedder: Embedder, tmp_path: Path
) -> None:
    repository = SourceRepository(tmp_path / "upstream")
    commit = repository.commit_skill("pdf", description="word " * 300)  # accepted leniently, as a repository is read
    settings = Settings(data_dir=data_dir, install_private_addresses=True)
    with source_server() as server:
        source = server.serve_repository("/skills.git", repository.folder / ".git") + "#skills/pdf"
        async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, remote_client(bridge) as client:
            local = await client.post("/api/skills/validate", json={"source": repository.url})
            assert (local.status_code, local.json()["code"]) == (403, "FORBIDDEN")
            path = await client.post("/api/skills/validate", json={"source": "./here"})
            assert (path.status_code, path.json()["code"]) == (422, "INVALID_INPUT")
            report = (await client.post("/api/skills/validate", json={"source": source})).raise_for_status().json()
            assert (report["valid"], report["names"]) == (True, ["pdf"])
            repository.commit_skill("pdf", description="Changed meanwhile.")
            assert (await install(client, report["upload"])).status_code == 201
            detail = await bridge.skills.get_skill("pdf")
            assert detail.content_hash == report["packages"][0]["contentHash"]
            assert detail.origin is not None
            assert (detail.origin.source, detail.origin.commit) == (source, commit)
            assert (await bridge.skills.update_skill("pdf")).changed


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    with start_keyed_server(tmp_path_factory.mktemp("keyed") / "data") as server:
        yield server


def test_an_upload_is_only_for_the_key_that_validated_it(keyed_server: KeyedServer) -> None:
    keyed = keyed_server
    other = keyed.create_key("admin")["key"]
    sent = keyed.request("POST", "/api/skills/validate", "run", content=skill_zip("of-run"), headers=ZIP)
    upload = sent.raise_for_status().json()["upload"]
    assert keyed.request("POST", "/api/skills/install", "run", json={"upload": upload}).status_code == 403
    for key in ("admin", "owner"):
        assert keyed.request("POST", "/api/skills/install", key, json={"upload": upload}).status_code == 404
    with keyed.client(None, authorization=f"Bearer {other}") as client:
        assert client.post("/api/skills/install", json={"upload": upload}).status_code == 404
        own = client.post("/api/skills/validate", content=skill_zip("of-other"), headers=ZIP).json()["upload"]
        assert keyed.request("POST", "/api/skills/install", "admin", json={"upload": own}).status_code == 404
        assert client.post("/api/skills/install", json={"upload": own}).status_code == 201
    fetching = keyed.request("POST", "/api/skills/validate", "run", json={"source": "owner/repository"})
    assert (fetching.status_code, fetching.json()["code"]) == (403, "FORBIDDEN")


# ---------------------------------------------------------------------------------------------------------- progress
EVENTS = {"accept": "text/event-stream"}


def events_of(response: httpx.Response) -> list[tuple[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_the_progress_of_a_validation_and_an_install_is_streamed(client: httpx.AsyncClient) -> None:
    checked = events_of(await client.post("/api/skills/validate", content=skill_zip(), headers=ZIP | EVENTS))
    assert [data["phase"] for name, data in checked if name == "progress"] == ["checking", "unpacking"]
    name, report = checked[-1]
    assert (name, report["valid"]) == ("result", True)
    installed = events_of(await client.post("/api/skills/install", json={"upload": report["upload"]}, headers=EVENTS))
    phases = [data for name, data in installed if name == "progress"]
    assert [data["phase"] for data in phases] == ["checking", "unpacking", "indexing", "installing"]
    assert phases[0] == {"phase": "checking", "bytes": None, "total": None}
    assert installed[-1][0] == "result"
    assert installed[-1][1]["names"] == ["git-commit"]


async def test_a_refused_install_ends_with_an_error_and_its_status_is_audited(
    client: httpx.AsyncClient, data_dir: Path
) -> None:
    for _ in range(2):
        last = events_of(await client.post("/api/skills/install", content=skill_zip(), headers=ZIP | EVENTS))[-1]
    assert (last[0], last[1]["code"], last[1]["success"]) == ("error", "SKILL_ALREADY_EXISTS", False)
    acts = [(row["what"], row["target"], row["outcome"]) for row in exported(data_dir / AUDIT_FILE)]
    assert acts == [("skills.install", "git-commit", 200), ("skills.install", "", 409)]
    unreadable = await client.post("/api/skills/install", content=b"{", headers=EVENTS | {"content-type": "text/plain"})
    assert (unreadable.status_code, unreadable.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_a_client_that_leaves_a_stream_leaves_nothing_behind(keyed_server: KeyedServer) -> None:
    staging = keyed_server.server.data_dir / "staging"
    with (
        keyed_server.client("admin") as client,
        client.stream("POST", "/api/skills/validate", content=skill_zip("leaver"), headers=ZIP | EVENTS) as response,
    ):
        assert response.status_code == 200
    wait_until(lambda: not [path for path in staging.iterdir() if path.is_dir()])
    assert keyed_server.request("GET", "/api/skills", "admin").status_code == 200
