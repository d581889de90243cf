"""`/v1/skills` with the real SDKs of OpenAI and Anthropic, and by HTTP as older clients send it."""

import io
import json
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.clients.install import installed, node
from tests.making import skill_markdown, skill_zip, zip_of
from tests.surfaces.keyed_server import KeyedServer, start_keyed_server

Json = dict[str, Any]
ANTHROPIC = {"anthropic-version": "2023-06-01"}
FIRST_BETA = {**ANTHROPIC, "anthropic-beta": "skills-2025-10-02"}
NODE_SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    with start_keyed_server(tmp_path_factory.mktemp("skills-api") / "data") as started:
        yield started


@pytest.fixture
def http(server: KeyedServer) -> Iterator[httpx.Client]:
    """A client with the admin key. The skills are deleted afterwards."""
    with server.client("admin") as client:
        yield client
        for skill in client.get("/api/skills").json()["skills"]:
            client.delete(f"/api/skills/{skill['name']}").raise_for_status()


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A client of a server with one skill, `ready`, which no request changes; and its data directory."""
    with start_keyed_server(tmp_path_factory.mktemp("refusals") / "data") as started, started.client("admin") as client:
        client.post("/v1/skills", files=parts(*files("ready"))).raise_for_status()
        yield client, started.server.data_dir


@pytest.fixture
def openai_client(server: KeyedServer, http: httpx.Client) -> Iterator[openai.OpenAI]:
    with (
        openai.DefaultHttpxClient(trust_env=False) as own,
        openai.OpenAI(base_url=f"{server.server.url}/v1", api_key=server.keys["admin"], http_client=own) as client,
    ):
        yield client


@pytest.fixture
def anthropic_client(server: KeyedServer, http: httpx.Client) -> Iterator[anthropic.Anthropic]:
    with (
        anthropic.DefaultHttpxClient(trust_env=False) as own,
        anthropic.Anthropic(base_url=server.server.url, api_key=server.keys["admin"], http_client=own) as client,
    ):
        yield client


def files(name: str = "pdf", description: str = "Reads PDF files.", **others: bytes) -> list[tuple[str, bytes]]:
    """The files of a skill as the SDKs take them."""
    found = [(f"{name}/SKILL.md", skill_markdown(name, description).encode())]
    return found + [(f"{name}/{path.replace('__', '/')}", content) for path, content in others.items()]


def parts(*named: tuple[str, bytes], field: str = "files[]") -> list[tuple[str, tuple[str, bytes]]]:
    return [(field, one) for one in named]


def names_in(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


# ------------------------------------------------------------------------------------------------------------- OpenAI
def test_the_openai_sdk_manages_a_skill_and_its_versions(openai_client: openai.OpenAI, http: httpx.Client) -> None:
    skills = openai_client.skills
    script = b"#!/bin/sh\necho \xff\n"
    created = skills.create(files=files(scripts__run=script))
    assert created.object == "skill"
    assert created.id.startswith("skill_")
    assert (created.name, created.description) == ("pdf", "Reads PDF files.")
    assert (created.default_version, created.latest_version) == ("1", "1")
    assert skills.retrieve(created.id) == created
    assert http.get("/api/skills/pdf").json()["description"] == "Reads PDF files."

    second = skills.versions.create(created.id, files=("pdf.zip", skill_zip("pdf", description="two")))
    assert (second.object, second.version, second.skill_id) == ("skill.version", "2", created.id)
    assert (second.name, second.description) == ("pdf", "two")
    shown = skills.retrieve(created.id)
    assert (shown.default_version, shown.latest_version, shown.description) == ("1", "2", "Reads PDF files.")
    third = skills.versions.create(created.id, files=files(description="three"), default=True)
    assert skills.retrieve(created.id).default_version == third.version == "3"
    assert http.get("/api/skills/pdf").json()["description"] == "three"

    assert skills.versions.retrieve("2", skill_id=created.id) == second
    assert skills.versions.retrieve("latest", skill_id=created.id) == third
    assert skills.update(created.id, default_version="1").default_version == "1"
    assert http.get("/api/skills/pdf").json()["description"] == "Reads PDF files."
    data = skills.content.retrieve(created.id).read()
    assert names_in(data) == ["pdf/SKILL.md", "pdf/scripts/run"]
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.read("pdf/scripts/run") == script
    assert archive.getinfo("pdf/scripts/run").external_attr >> 16 & 0o111
    assert skills.versions.content.retrieve("1", skill_id=created.id).read() == data
    assert names_in(skills.versions.content.retrieve("2", skill_id=created.id).read()) == ["pdf/SKILL.md"]

    removed = skills.versions.delete("2", skill_id=created.id)
    assert (removed.id, removed.object, removed.deleted) == (second.id, "skill.version.deleted", True)
    assert removed.version == "2"
    with pytest.raises(openai.NotFoundError) as caught:
        skills.versions.retrieve("2", skill_id=created.id)
    assert caught.value.code == "version_not_found"
    assert caught.value.request_id
    deleted = skills.delete(created.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (created.id, "skill.deleted", True)
    with pytest.raises(openai.NotFoundError):
        skills.retrieve(created.id)


def test_the_openai_sdk_reads_all_pages(openai_client: openai.OpenAI) -> None:
    names = [f"skill-{number}" for number in range(5)]
    for name in names:
        openai_client.skills.create(files=files(name))
    assert [skill.name for skill in openai_client.skills.list(limit=2, order="asc")] == names
    assert [skill.name for skill in openai_client.skills.list(limit=2)] == names[::-1]
    page = openai_client.skills.list(limit=3)
    assert (page.has_more, len(page.data)) == (True, 3)
    id = page.data[0].id
    for number in range(4):
        openai_client.skills.versions.create(id, files=files("skill-4", f"version {number}"))
    versions = list(openai_client.skills.versions.list(id, limit=2, order="asc"))
    assert [version.version for version in versions] == ["1", "2", "3", "4", "5"]
    assert [version.version for version in openai_client.skills.versions.list(id)] == ["5", "4", "3", "2", "1"]


def test_a_bare_file_without_a_folder_is_accepted(openai_client: openai.OpenAI) -> None:
    created = openai_client.skills.create(files=[("SKILL.md", skill_markdown("flat").encode()), ("a.md", b"a")])
    assert created.name == "flat"
    assert names_in(openai_client.skills.content.retrieve(created.id).read()) == ["flat/SKILL.md", "flat/a.md"]


def test_refusals_reach_the_openai_sdk_without_retries(openai_client: openai.OpenAI, server: KeyedServer) -> None:
    created = openai_client.skills.create(files=files())
    before = len(server.log)
    with pytest.raises(openai.ConflictError) as conflict:
        openai_client.skills.create(files=files())
    assert conflict.value.code == "skill_already_exists"
    assert "overwrite" not in conflict.value.message
    assert "/versions" in conflict.value.message
    assert len(server.log) == before + 1
    with pytest.raises(openai.BadRequestError) as mismatch:
        openai_client.skills.versions.create(created.id, files=files("other"))
    assert mismatch.value.code == "name_mismatch"
    with pytest.raises(openai.BadRequestError) as used:
        openai_client.skills.versions.delete("1", skill_id=created.id)
    assert used.value.code == "version_in_use"
    with pytest.raises(openai.NotFoundError) as missing:
        openai_client.skills.update(created.id, default_version="9")
    assert missing.value.code == "version_not_found"
    with pytest.raises(openai.BadRequestError):
        openai_client.skills.create()


# ---------------------------------------------------------------------------------------------------------- Anthropic
def test_the_anthropic_sdk_manages_a_skill_and_its_versions(
    anthropic_client: anthropic.Anthropic, http: httpx.Client
) -> None:
    skills = anthropic_client.skills
    created = skills.create(files=files(notes__a=b"a"), display_name="PDF 阅读")
    assert (created.type, created.display_name, created.source.type) == ("skill", "PDF 阅读", "custom")
    assert skills.retrieve(created.id) == created
    first = skills.versions.retrieve(created.latest_version_id, skill_id=created.id)
    assert (first.type, first.skill_id, first.name) == ("skill_version", created.id, "pdf")
    second = skills.versions.create(created.id, files=[("x.zip", skill_zip("pdf", description="two"))])
    assert second.description == "two"
    shown = skills.retrieve(created.id)
    assert shown.latest_version_id == second.id
    assert shown.updated_at >= created.updated_at
    assert http.get("/api/skills/pdf").json()["description"] == "two"  # the latest is what runs
    assert [version.id for version in skills.versions.list(created.id)] == [second.id, first.id]
    downloaded = anthropic_client.beta.skills.versions.download(first.id, skill_id=created.id)
    assert names_in(downloaded.read()) == ["pdf/SKILL.md", "pdf/notes/a"]
    removed = skills.versions.delete(first.id, skill_id=created.id)
    assert (removed.id, removed.type) == (first.id, "skill_version_deleted")
    with pytest.raises(anthropic.BadRequestError) as used:
        skills.versions.delete(second.id, skill_id=created.id)
    assert used.value.type == "invalid_request_error"
    deleted = skills.delete(created.id)
    assert (deleted.id, deleted.type) == (created.id, "skill_deleted")
    with pytest.raises(anthropic.NotFoundError) as missing:
        skills.retrieve(created.id)
    assert (missing.value.type, bool(missing.value.request_id)) == ("not_found_error", True)


def test_the_anthropic_sdk_reads_all_pages(anthropic_client: anthropic.Anthropic, http: httpx.Client) -> None:
    names = [f"skill-{number}" for number in range(5)]
    for name in names:
        anthropic_client.skills.create(files=files(name))
    assert [skill.display_name for skill in anthropic_client.skills.list(limit=2)] == names[::-1]
    assert [skill.display_name for skill in anthropic_client.skills.list(source="custom")] == names[::-1]
    assert list(anthropic_client.skills.list(source="anthropic")) == []
    page = anthropic_client.skills.list(limit=2)
    http.delete(f"/v1/skills/{page.data[-1].id}").raise_for_status()  # the pages go on from where it was
    left = page.get_next_page()
    assert [skill.display_name for skill in left.data] == ["skill-2", "skill-1"]
    id = page.data[0].id
    for number in range(3):
        anthropic_client.skills.versions.create(id, files=files("skill-4", f"version {number}"))
    versions = list(anthropic_client.skills.versions.list(id, limit=2))
    assert [version.description for version in versions] == ["version 2", "version 1", "version 0", "Reads PDF files."]


def test_clients_of_the_first_beta_get_its_shapes(http: httpx.Client) -> None:
    created = http.post(
        "/v1/skills?beta=true", files=parts(*files()), data={"display_title": "My PDF"}, headers=FIRST_BETA
    ).json()
    assert (created["display_title"], created["source"], created["type"]) == ("My PDF", "custom", "skill")
    version = created["latest_version"]
    assert version.isdecimal()
    assert len(version) == 16
    path = f"/v1/skills/{created['id']}/versions/{version}"
    shown = http.get(f"{path}?beta=true", headers=FIRST_BETA).json()
    assert (shown["version"], shown["directory"], shown["name"]) == (version, "pdf", "pdf")
    added = http.post(
        f"/v1/skills/{created['id']}/versions?beta=true", files=parts(*files(description="two")), headers=FIRST_BETA
    ).json()
    assert int(added["version"]) > int(version)
    listed = http.get(f"/v1/skills/{created['id']}/versions?beta=true", headers=FIRST_BETA).json()
    assert [one["version"] for one in listed["data"]] == [added["version"], version]
    assert names_in(http.get(f"{path}/content?beta=true", headers=FIRST_BETA).content) == ["pdf/SKILL.md"]
    deleted = http.delete(f"{path}?beta=true", headers=FIRST_BETA).json()
    assert deleted == {"id": version, "type": "skill_version_deleted"}
    page = http.get("/v1/skills?beta=true", headers=FIRST_BETA).json()
    assert (page["has_more"], page["next_page"], page["data"][0]["source"]) == (False, None, "custom")
    newer = {"anthropic-version": "2026-10-21", "anthropic-beta": "skills-2025-10-02"}
    assert http.get(f"/v1/skills/{created['id']}", headers=newer).json()["source"] == {"type": "custom"}


# ------------------------------------------------------------------------------------------------------- both dialects
def test_one_store_serves_both_dialects_and_our_own_routes(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, http: httpx.Client
) -> None:
    http.post("/api/skills", content=skill_zip("pdf"), headers={"content-type": "application/zip"}).raise_for_status()
    ours = http.get("/api/skills/pdf/versions").json()
    theirs = openai_client.skills.retrieve(ours["id"])
    assert (theirs.name, theirs.default_version) == ("pdf", "1")
    assert anthropic_client.skills.retrieve(ours["id"]).latest_version_id == ours["versions"][0]["id"]
    assert openai_client.skills.retrieve("pdf") == theirs  # a name is accepted in place of an id
    openai_client.skills.versions.create(ours["id"], files=files(description="two"))
    # The newest version is `latest` for everyone; what is installed is the default version.
    latest = anthropic_client.skills.retrieve(ours["id"]).latest_version_id
    assert anthropic_client.skills.versions.retrieve("latest", skill_id=ours["id"]).id == latest
    assert http.get("/api/skills/pdf/versions").json()["defaultVersion"] == 1
    receipt = http.post("/api/skills/pdf/versions/rollback", json={"version": 2}).json()
    assert (receipt["version"], receipt["previous"]) == (2, 1)
    assert openai_client.skills.retrieve(ours["id"]).default_version == "2"
    assert http.post("/api/skills/pdf/versions/rollback").json()["version"] == 1
    exported = http.get("/api/skills/pdf/versions/2/export")
    assert exported.content == openai_client.skills.versions.content.retrieve("2", skill_id=ours["id"]).read()
    assert http.delete("/api/skills/pdf/versions/2").json()["success"] is True
    refused = http.delete("/api/skills/pdf/versions/1")
    assert (refused.status_code, refused.json()["code"]) == (400, "VERSION_IN_USE")


def test_a_skill_of_a_plugin_keeps_its_id_and_its_plugin(http: httpx.Client) -> None:
    zip_type = {"content-type": "application/zip"}
    http.post("/api/skills", content=skill_zip("known"), headers=zip_type).raise_for_status()
    plugin = zip_of(
        {
            "bag/.claude-plugin/plugin.json": '{"name": "bag"}',
            "bag/skills/known/SKILL.md": skill_markdown("known", "of the bag"),
            "bag/skills/other/SKILL.md": skill_markdown("other"),
        }
    )
    http.post("/api/skills", content=plugin, headers=zip_type).raise_for_status()
    skills = {skill["name"]: skill for skill in http.get("/v1/skills").json()["data"]}
    assert set(skills) == {"known", "bag:known", "other"}
    id = skills["bag:known"]["id"]
    sources = {one["id"]: one["source"] for one in http.get("/v1/skills", headers=ANTHROPIC).json()["data"]}
    assert sources[id] == {"type": "plugin"}
    added = http.post(f"/v1/skills/{id}/versions", files=parts(*files("known", "two")), data={"default": "true"})
    assert (added.status_code, added.json()["version"]) == (200, "2")
    assert http.get("/api/skills/bag:known").json()["plugin"] == "bag"
    assert http.get("/api/skills/bag:known").json()["description"] == "two"
    assert http.get(f"/v1/skills/{id}").json()["name"] == "bag:known"
    assert names_in(http.get(f"/v1/skills/{id}/content").content) == ["known/SKILL.md"]
    http.delete(f"/v1/skills/{id}").raise_for_status()


def refusals() -> dict[str, tuple[str, str, Json, int, str]]:
    """By name: method, path, what is sent, status and code."""
    one = ("pdf/SKILL.md", skill_markdown("pdf").encode())
    large = ("pdf/large.bin", bytes(26 * 1024 * 1024))
    many = [(f"pdf/{number}", b"") for number in range(2001)]
    broken = b'--x\r\nContent-Disposition: form-data; name="files[]"; filename="a"\r\n\r\nabc'
    form = {"content-type": "multipart/form-data; boundary=x"}
    deep = "/".join("d" * 20) + "/x"
    return {
        "no files": ("POST", "/v1/skills", {"json": {}}, 400, "invalid_input"),
        "no parts": ("POST", "/v1/skills", {"files": parts(one, field="other")}, 400, "invalid_input"),
        "a bare archive": (
            "POST",
            "/v1/skills",
            {"content": skill_zip("pdf"), "headers": {"content-type": "application/zip"}},
            415,
            "unsupported_media_type",
        ),
        "text": ("POST", "/v1/skills", {"content": b"x"}, 415, "unsupported_media_type"),
        "a cut off form": ("POST", "/v1/skills", {"content": broken, "headers": form}, 400, "invalid_input"),
        "a form without a boundary": (
            "POST",
            "/v1/skills",
            {"content": broken, "headers": {"content-type": "multipart/form-data"}},
            400,
            "invalid_input",
        ),
        "a long header": (
            "POST",
            "/v1/skills",
            {"content": b"--x\r\nX: " + b"y" * 20_000, "headers": form},
            400,
            "invalid_input",
        ),
        "no SKILL.md": ("POST", "/v1/skills", {"files": parts(("pdf/a.md", b"a"))}, 400, "invalid_skill_structure"),
        "two SKILL.md": (
            "POST",
            "/v1/skills",
            {"files": parts(one, ("pdf/sub/skill.md", b"x"))},
            400,
            "invalid_skill_structure",
        ),
        "two skills": (
            "POST",
            "/v1/skills",
            {"files": parts(one, ("b/SKILL.md", skill_markdown("b").encode()))},
            400,
            "invalid_skill_structure",
        ),
        "two folders": (
            "POST",
            "/v1/skills",
            {"files": parts(one, ("other/a.md", b"x"))},
            400,
            "invalid_skill_structure",
        ),
        "no frontmatter": (
            "POST",
            "/v1/skills",
            {"files": parts(("pdf/SKILL.md", b"hello"))},
            400,
            "invalid_skill_structure",
        ),
        "the same path twice": ("POST", "/v1/skills", {"files": parts(one, one)}, 400, "invalid_input"),
        "a path that leads out": ("POST", "/v1/skills", {"files": parts(one, ("../evil", b"x"))}, 400, "unsafe_path"),
        "an absolute path": ("POST", "/v1/skills", {"files": parts(one, ("/etc/passwd", b"x"))}, 400, "unsafe_path"),
        "a deep path": ("POST", "/v1/skills", {"files": parts(one, (f"pdf/{deep}", b"x"))}, 400, "unsafe_path"),
        "not a ZIP": ("POST", "/v1/skills", {"files": parts(("a.zip", b"PK\x03\x04nonsense"))}, 400, "invalid_zip"),
        "a large file": ("POST", "/v1/skills", {"files": parts(one, large)}, 413, "archive_too_large"),
        "many files": ("POST", "/v1/skills", {"files": parts(one, *many)}, 413, "archive_too_large"),
        "too much": ("POST", "/v1/skills", {"content": bytes(52 * 1024 * 1024), "headers": form}, 400, "invalid_input"),
        "an unknown skill": ("GET", "/v1/skills/skill_0", {}, 404, "skill_not_found"),
        "a version of an unknown skill": (
            "POST",
            "/v1/skills/skill_0/versions",
            {"files": parts(one)},
            404,
            "skill_not_found",
        ),
        "an unknown version": ("GET", "/v1/skills/ready/versions/7", {}, 404, "version_not_found"),
        "the content of an unknown version": (
            "GET",
            "/v1/skills/ready/versions/x/content",
            {},
            404,
            "version_not_found",
        ),
        "the only version": ("DELETE", "/v1/skills/ready/versions/1", {}, 400, "version_in_use"),
        "an unknown default": (
            "POST",
            "/v1/skills/ready",
            {"json": {"default_version": "7"}},
            404,
            "version_not_found",
        ),
        "no default": ("POST", "/v1/skills/ready", {"json": {}}, 400, "invalid_input"),
        "a default that is a list": (
            "POST",
            "/v1/skills/ready",
            {"json": {"default_version": [1]}},
            400,
            "invalid_input",
        ),
        "another name": ("POST", "/v1/skills/ready/versions", {"files": parts(one)}, 400, "name_mismatch"),
        "a taken name": ("POST", "/v1/skills", {"files": parts(*files("ready"))}, 409, "skill_already_exists"),
        "a limit of 0": ("GET", "/v1/skills?limit=0", {}, 400, "invalid_input"),
        "a limit of 5000": ("GET", "/v1/skills?limit=5000", {}, 400, "invalid_input"),
    }


@pytest.mark.parametrize("case", sorted(refusals()))
def test_bad_requests_are_refused_in_both_dialects(refusing: tuple[httpx.Client, Path], case: str) -> None:
    http, data_dir = refusing
    method, path, options, status, code = refusals()[case]
    headers = options.pop("headers", {})
    response = http.request(method, path, headers=headers, **options)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "x-request-id" in response.headers
    theirs = http.request(method, path, headers={**headers, **ANTHROPIC}, **options)
    body = theirs.json()
    assert (theirs.status_code, body["type"], body["request_id"]) == (status, "error", theirs.headers["request-id"])
    kinds = {400: "invalid_request_error", 404: "not_found_error", 409: "conflict_error", 413: "request_too_large"}
    assert body["error"]["type"] == kinds.get(status, "invalid_request_error")
    if status == 409:
        assert response.headers["x-should-retry"] == theirs.headers["x-should-retry"] == "false"
    assert [skill["name"] for skill in http.get("/v1/skills").json()["data"]] == ["ready"]
    assert http.get("/api/skills/ready/versions").json()["latestVersion"] == 1
    assert list((data_dir / "staging").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/skills?after=skill_0", {}),
        ("/v1/skills?limit=200", {}),
        ("/v1/skills?order=sideways", {}),
        ("/v1/skills?page=x", ANTHROPIC),
        ("/v1/skills?page=page_W10", ANTHROPIC),
        ("/v1/skills?page=page_%FF", ANTHROPIC),
    ],
)
def test_bad_page_parameters_are_refused(http: httpx.Client, path: str, headers: dict[str, str]) -> None:
    assert http.get(path, headers=headers).status_code == 400


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_a_display_name_is_one_short_line(http: httpx.Client, name: str) -> None:
    response = http.post("/v1/skills", files=parts(*files()), data={"display_name": name}, headers=ANTHROPIC)
    if name:
        assert response.json()["error"]["type"] == "invalid_request_error"
    else:
        assert response.json()["display_name"] == "pdf"


# ------------------------------------------------------------------------------------------------- scopes, audit, races
def test_reading_needs_read_or_chat_and_changes_need_admin(server: KeyedServer, http: httpx.Client) -> None:
    id = http.post("/v1/skills", files=parts(*files())).json()["id"]
    reads = ["/v1/skills", f"/v1/skills/{id}", f"/v1/skills/{id}/content", f"/v1/skills/{id}/versions/1/content"]
    for key, status in (("chat", 200), ("read", 200), ("run", 403), (None, 401)):
        for path in reads:
            assert server.request("GET", path, key).status_code == status
    changes: list[tuple[str, str, Json]] = [
        ("POST", "/v1/skills", {"files": parts(*files("other"))}),
        ("POST", f"/v1/skills/{id}", {"json": {"default_version": "1"}}),
        ("POST", f"/v1/skills/{id}/versions", {"files": parts(*files())}),
        ("DELETE", f"/v1/skills/{id}/versions/1", {}),
        ("DELETE", f"/v1/skills/{id}", {}),
        ("DELETE", f"/v1/skills/{id}/", {}),
        ("POST", "/api/skills/pdf/versions/rollback", {}),
        ("DELETE", "/api/skills/pdf/versions/1", {}),
    ]
    for key in ("chat", "read", "run"):
        for method, path, options in changes:
            assert server.request(method, path, key, **options).status_code == 403, (key, method, path)
    refused = server.request("DELETE", f"/v1/skills/{id}", "chat", headers=ANTHROPIC).json()
    assert refused["error"]["type"] == "permission_error"
    anonymous = server.request("GET", "/v1/skills", headers=ANTHROPIC)
    assert (anonymous.status_code, anonymous.json()["error"]["type"]) == (401, "authentication_error")
    with_key = server.request("GET", "/v1/skills", headers={**ANTHROPIC, "x-api-key": server.keys["chat"]})
    assert with_key.status_code == 200


def test_changes_are_in_the_audit_log(server: KeyedServer, http: httpx.Client) -> None:
    before = len(server.log)
    id = http.post("/v1/skills", files=parts(*files())).json()["id"]
    http.post(f"/v1/skills/{id}/versions", files=parts(*files(description="two")), data={"default": "true"})
    http.post(f"/v1/skills/{id}", json={"default_version": "1"})
    http.delete(f"/v1/skills/{id}/versions/2")
    content = http.get("/api/skills/pdf").json()["contentHash"]
    http.delete(f"/v1/skills/{id}")
    rows = server.log[before:]
    assert [(row["what"], row["target"], row.get("detail")) for row in rows] == [
        ("skills.install", "pdf", None),
        ("skills.add-version", "pdf", "version 2"),
        ("skills.rollback", "pdf", "version 1"),
        ("skills.remove-version", "pdf", "version 2"),
        ("skills.uninstall", "pdf", None),
    ]
    assert rows[-1]["contentHash"] == content


def test_two_uploads_at_once_make_two_versions(server: KeyedServer, http: httpx.Client) -> None:
    id = http.post("/v1/skills", files=parts(*files())).json()["id"]
    answers: list[httpx.Response] = []

    def upload(number: int) -> None:
        sent = parts(*files(description=f"upload {number}", data=bytes(1_000_000)))
        answers.append(server.request("POST", f"/v1/skills/{id}/versions", "admin", files=sent))

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.json()["version"] for answer in answers) == ["2", "3", "4", "5"]
    created = [server.request("POST", "/v1/skills", "admin", files=parts(*files("once"))).status_code for _ in range(2)]
    assert sorted(created) == [200, 409]


def test_a_version_that_is_deleted_during_its_download_arrives_whole(server: KeyedServer, http: httpx.Client) -> None:
    data = bytes(range(256)) * 20_000
    id = http.post("/v1/skills", files=parts(*files(data=data))).json()["id"]
    http.post(f"/v1/skills/{id}/versions", files=parts(*files(description="two")), data={"default": "true"})
    with http.stream("GET", f"/v1/skills/{id}/versions/1/content") as response:
        chunks = response.iter_raw(1024)
        start = next(chunks)
        assert server.request("DELETE", f"/v1/skills/{id}/versions/1", "admin").status_code == 200
        assert server.request("DELETE", f"/v1/skills/{id}", "admin").status_code == 200
        whole = start + b"".join(chunks)
    assert zipfile.ZipFile(io.BytesIO(whole)).read("pdf/data") == data


def test_archives_have_the_same_bytes_for_the_same_files(http: httpx.Client) -> None:
    sent = files(b=b"b", a=b"a")
    bodies = []
    for ordered in (sent, sent[::-1]):
        id = http.post("/v1/skills", files=parts(*ordered)).json()["id"]
        bodies.append(http.get(f"/v1/skills/{id}/content").content)
        http.delete(f"/v1/skills/{id}").raise_for_status()
    assert bodies[0] == bodies[1]


# ---------------------------------------------------------------------------------------------------------------- Node
@pytest.mark.slow
@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_the_node_sdks_manage_skills(server: KeyedServer, http: httpx.Client, client: str, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(installed() / "node_modules")
    shutil.copy(Path(__file__).parent / "skills_client.mjs", tmp_path)
    command = [str(node()), "skills_client.mjs", client, server.server.url, server.keys["admin"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=NODE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["names"] == ["skill-0", "skill-1", "skill-2", "skill-3", "skill-4"]
    assert found["versions"] == ["one", "three", "two"]
    assert found["content"].startswith("504b0304")
    assert found["missing"] == 404
    assert found["used"] == 400
    assert found["deleted"] is True
    assert http.get("/api/skills").json()["total"] == 5
