"""Skills over HTTP: the pinned routes, their responses and their errors."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.surfaces.http.middleware import limits
from apexbridge.surfaces.http.transport import uploads
from tests.making import DESCRIPTION, MEGABYTE, skill_markdown, skill_zip, walk, write_skill, zip_of

pytestmark = pytest.mark.anyio
ZIP = {"content-type": "application/zip"}
SUMMARY_FIELDS = {"name", "description", "version", "author", "tags", "derivedTags", "category", "mode", "enabled"}
SUMMARY_FIELDS |= {"source", "plugin", "installedAt", "updatedAt", "dangerous", "warningCount", "needsAccess"}
SUMMARY_FIELDS |= {"needsPackages", "calls", "failures", "lastUsedAt"}
DETAIL_FIELDS = {"mode", "entry", "content", "summary", "filename", "sourcePath", "files", "contentHash", "warnings"}
DETAIL_FIELDS |= {"parameters", "permissions", "grants"}


async def install(client: httpx.AsyncClient, data: bytes, **fields: str) -> httpx.Response:
    return await client.post("/api/skills/install", files={"file": ("skill.zip", data)}, data=fields)


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    body = response.json()
    assert set(body) == {"success", "name", "code", "message", "details"}
    assert body["success"] is False
    return response.status_code, body["name"], body["code"]


@pytest.mark.requirement("D1")
async def test_a_form_installs_a_skill(client: httpx.AsyncClient) -> None:
    response = await install(client, skill_zip(files={"scripts/execute.js": "1"}))
    assert response.status_code == 201
    body = response.json()
    assert body.pop("duration") >= 0
    assert body == {
        "success": True,
        "name": "git-commit",
        "names": ["git-commit"],
        "plugins": [],
        "leftOut": [],
        "message": "Skill installed successfully",
        "replaced": False,
        "warnings": [],
        "scans": [
            {
                "name": "git-commit",
                "scan": {"findings": [], "files": 2, "complete": True},
                "signature": {"state": "unsigned", "signer": None, "fingerprint": None, "reason": None},
            }
        ],
    }


@pytest.mark.parametrize("path", ["/api/skills/install", "/api/skills"])
@pytest.mark.parametrize("kind", ["application/zip", "application/octet-stream", "application/x-zip-compressed"])
async def test_an_archive_without_a_form_is_installed(client: httpx.AsyncClient, path: str, kind: str) -> None:
    first = await client.post(path, content=skill_zip(), headers={"content-type": kind})
    assert first.status_code == 201
    again = await client.post(f"{path}?overwrite=true", content=skill_zip(), headers={"content-type": kind})
    assert again.status_code == 200


@pytest.mark.requirement("D3")
async def test_an_existing_skill_is_a_conflict_and_overwrite_answers_200(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip())
    assert error_of(await install(client, skill_zip())) == (409, "SkillError", "SKILL_ALREADY_EXISTS")
    assert (await install(client, skill_zip(), overwrite="true")).status_code == 200
    assert error_of(await install(client, skill_zip(), overwrite="perhaps")) == (422, "RequestError", "INVALID_INPUT")
    assert error_of(await install(client, skill_zip("x"), profile="odd")) == (422, "RequestError", "INVALID_INPUT")


@pytest.mark.requirement("D2")
async def test_a_bad_structure_answers_400_with_all_errors(client: httpx.AsyncClient) -> None:
    response = await install(client, zip_of({"git-commit/SKILL.md": "---\nversion: 1\n---\n"}))
    assert error_of(response) == (400, "SkillError", "INVALID_SKILL_STRUCTURE")
    assert response.json()["details"]["errors"] == ["Missing required fields: name, description"]
    lenient = await install(client, zip_of({"git-commit/SKILL.md": "# T\n\nWords and words.\n"}), profile="lenient")
    assert lenient.status_code == 201


async def test_a_repository_is_installed_whole_and_reports_what_is_left_out(client: httpx.AsyncClient) -> None:
    plugins = [{"name": "a", "source": "./a"}, {"name": "far", "source": {"source": "github", "repo": "x/y"}}]
    files = {
        "repo-main/.claude-plugin/marketplace.json": json.dumps({"name": "shop", "plugins": plugins}),
        "repo-main/a/skills/one/SKILL.md": skill_markdown("one", description="word " * 300),
        "repo-main/a/skills/bad/SKILL.md": "",
    }
    assert error_of(await install(client, zip_of(files), strict="true")) == (
        400,
        "SkillError",
        "INVALID_SKILL_STRUCTURE",
    )
    checked = (await client.post("/api/skills/validate", content=zip_of(files), headers=ZIP)).json()
    assert (checked["valid"], checked["names"]) == (True, ["one"])
    response = await install(client, zip_of(files))
    assert response.status_code == 201
    body = response.json()
    assert (body["name"], body["names"], body["plugins"]) == ("a", ["one"], ["a"])
    assert [one["name"] for one in body["leftOut"]] == ["far", "bad"] == [one["name"] for one in checked["leftOut"]]
    assert set(body["leftOut"][0]) == {"name", "path", "reason"}
    assert error_of(await install(client, zip_of(files), strict="maybe"))[2] == "INVALID_INPUT"


async def test_validate_reports_all_errors_and_installs_nothing(client: httpx.AsyncClient, data_dir: Path) -> None:
    before = walk(data_dir)
    good = (await client.post("/api/skills/validate", content=skill_zip(), headers=ZIP)).json()
    assert len(good.pop("packages")) == 1
    uploaded = f"uploads/{good.pop('upload')}"
    assert good == {
        "valid": True,
        "name": "git-commit",
        "names": ["git-commit"],
        "errors": [],
        "warnings": [],
        "leftOut": [],
    }
    bad = (await client.post("/api/skills/validate", content=b"x", headers=ZIP)).json()
    assert bad["valid"] is False
    assert bad["errors"]
    after = {path: data for path, data in walk(data_dir).items() if path != "uploads" and not path.startswith(uploaded)}
    assert after == before


@pytest.mark.parametrize(
    ("headers", "content", "expected"),
    [
        ({"content-type": "text/plain"}, b"x", (415, "RequestError", "UNSUPPORTED_MEDIA_TYPE")),
        ({}, b"x", (415, "RequestError", "UNSUPPORTED_MEDIA_TYPE")),
        ({"content-type": "multipart/form-data"}, b"x", (422, "RequestError", "INVALID_INPUT")),
        ({"content-type": "multipart/form-data; boundary=b"}, b"garbage", (422, "RequestError", "INVALID_INPUT")),
        ({"content-type": "multipart/form-data; boundary=b"}, b"", (422, "RequestError", "INVALID_INPUT")),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nPK',
            (422, "RequestError", "INVALID_INPUT"),
        ),
        (
            {"content-type": f"multipart/form-data; boundary={'b' * 257}"},
            b"",
            (422, "RequestError", "INVALID_INPUT"),
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
            (422, "RequestError", "INVALID_INPUT"),
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + b"y" * 2000 + b"\r\n--b--\r\n",
            (422, "RequestError", "INVALID_INPUT"),
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n' * 2 + b"--b--\r\n",
            (422, "RequestError", "INVALID_INPUT"),
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b"".join(b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % n for n in range(20))
            + b"--b--\r\n",
            (422, "RequestError", "INVALID_INPUT"),
        ),
    ],
)
async def test_a_malformed_upload_is_refused(
    client: httpx.AsyncClient, data_dir: Path, headers: dict[str, str], content: bytes, expected: tuple[int, str, str]
) -> None:
    before = walk(data_dir)
    assert error_of(await client.post("/api/skills/install", content=content, headers=headers)) == expected
    assert walk(data_dir) == before


@pytest.mark.parametrize("form", [True, False])
async def test_an_upload_above_the_limit_is_cut_off(
    client: httpx.AsyncClient, data_dir: Path, monkeypatch: pytest.MonkeyPatch, form: bool
) -> None:
    monkeypatch.setattr(uploads, "MAX_ARCHIVE_BYTES", 3 * MEGABYTE)
    monkeypatch.setattr(uploads, "DRAIN_BYTES", 6 * MEGABYTE)
    before = walk(data_dir)
    for size in (4, 12):
        data = b"PK\3\4" + b"x" * size * MEGABYTE
        if form:
            response = await install(client, data)
        else:
            response = await client.post("/api/skills", content=data, headers=ZIP)
        assert error_of(response) == (413, "SkillError", "ARCHIVE_TOO_LARGE")
    assert walk(data_dir) == before


@pytest.mark.requirement("D7")
async def test_the_list_pages_and_filters(client: httpx.AsyncClient) -> None:
    for number in range(3):
        await install(client, skill_zip(f"tool-{number}", tags=["t", f"n{number}"]))
    body = (await client.get("/api/skills")).json()
    assert (body["total"], body["page"], body["limit"]) == (3, 1, 50)
    assert set(body["skills"][0]) == SUMMARY_FIELDS
    assert body["skills"][0]["description"] == DESCRIPTION
    page = (await client.get("/api/skills", params={"page": 2, "limit": 2})).json()
    assert [skill["name"] for skill in page["skills"]] == ["tool-2"]
    filtered = (await client.get("/api/skills", params={"tags": "n0, n2,", "name": "TOOL"})).json()
    assert [skill["name"] for skill in filtered["skills"]] == ["tool-0", "tool-2"]


@pytest.mark.parametrize("query", ["page=0", "limit=0", "limit=501", "page=x", "limit=-1", "page=99999999999999999999"])
async def test_an_invalid_page_or_limit_is_refused(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/api/skills?{query}")
    assert error_of(response) == (422, "RequestError", "INVALID_INPUT")
    assert response.json()["details"]["errors"][0]["path"] in ("page", "limit")


async def test_a_skill_is_shown_edited_reloaded_and_removed(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip(files={"scripts/execute.sh": "echo"}))
    detail = (await client.get("/api/skills/git-commit")).json()
    for key in [
        "mode",
        "entry",
        "content",
        "summary",
        "filename",
        "sourcePath",
        "files",
        "contentHash",
        "warnings",
        "parameters",
        "permissions",
        "grants",
    ]:
        assert key in detail
    edited = await client.put("/api/skills/git-commit/description", json={"description": "Says something new."})
    assert edited.json() == {"success": True, "name": "git-commit", "message": "Description updated"}
    reloaded = (await client.post("/api/skills/git-commit/reload")).json()
    assert reloaded["description"] == "Says something new."
    assert (await client.post("/api/skills/git-commit/disable")).json()["enabled"] is False
    assert error_of(await client.post("/api/skills/git-commit/execute", json={})) == (
        409,
        "SkillError",
        "TOOL_DISABLED",
    )
    assert (await client.post("/api/skills/git-commit/enable")).json()["enabled"] is True
    removed = await client.delete("/api/skills/git-commit")
    receipt = removed.json()
    assert receipt.pop("restorableUntil") > "2026"
    assert receipt == {
        "success": True,
        "name": "git-commit",
        "message": "Skill uninstalled successfully",
        "hidden": False,
    }
    for call in (
        client.get("/api/skills/git-commit"),
        client.delete("/api/skills/git-commit"),
        client.post("/api/skills/git-commit/reload"),
        client.get("/api/skills/git-commit/stats"),
        client.get("/api/skills/git-commit/export"),
        client.get("/api/skills/git-commit/files/SKILL.md"),
        client.put("/api/skills/git-commit/description", json={"description": "x"}),
    ):
        assert error_of(await call) == (404, "SkillError", "SKILL_NOT_FOUND")
    assert error_of(await client.post("/api/skills/git-commit/execute")) == (404, "SkillError", "ENOENT")


@pytest.mark.requirement("D6")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"description": "x", "name": "y"}', (400, "SkillError", "FIELD_NOT_EDITABLE")),
        ('{"tags": []}', (400, "SkillError", "FIELD_NOT_EDITABLE")),
        ("{}", (422, "RequestError", "INVALID_INPUT")),
        ('{"description": ""}', (422, "RequestError", "INVALID_INPUT")),
        ('{"description": 5}', (422, "RequestError", "INVALID_INPUT")),
        ('{"description": "\\ud800"}', (422, "RequestError", "INVALID_INPUT")),
        ('"text"', (422, "RequestError", "INVALID_INPUT")),
        ("[]", (422, "RequestError", "INVALID_INPUT")),
        ("{", (422, "RequestError", "INVALID_INPUT")),
        ("[" * 100_000, (422, "RequestError", "INVALID_INPUT")),
    ],
)
async def test_only_the_description_can_be_edited(
    client: httpx.AsyncClient, body: str, expected: tuple[int, str, str]
) -> None:
    await install(client, skill_zip())
    headers = {"content-type": "application/json"}
    assert error_of(await client.put("/api/skills/git-commit/description", content=body, headers=headers)) == expected


async def test_files_and_exports_are_sent_as_attachments(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip(files={"资料/a b.html": "<script>alert(1)</script>"}))
    file = await client.get("/api/skills/git-commit/files/资料/a b.html")
    assert file.text == "<script>alert(1)</script>"
    export = await client.get("/api/skills/git-commit/export")
    assert "git-commit/SKILL.md" in zipfile.ZipFile(io.BytesIO(export.content)).namelist()
    for response in (file, export):
        assert response.headers["content-disposition"].startswith("attachment;")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in response.headers["content-security-policy"]
    for path in ("..%2f..%2fapex.sqlite3", "%2e%2e/git-commit/SKILL.md", "none.md", "%2fetc%2fpasswd", "a%00b", ""):
        assert error_of(await client.get(f"/api/skills/git-commit/files/{path}"))[0] == 404


@pytest.mark.requirement("D8")
async def test_statistics_and_growth_are_returned(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip(tags=["git"]))
    await client.post("/api/skills/git-commit/execute", json={"input": {"x": 1}})
    statistics = (await client.get("/api/skills/stats")).json()
    assert (statistics["total"], statistics["byTag"], statistics["calls"]) == (1, {"git": 1}, 1)
    one = (await client.get("/api/skills/git-commit/stats")).json()
    assert {**one, "averageDuration": 0} == {
        "toolName": "git-commit",
        "callCount": 1,
        "successCount": 1,
        "averageDuration": 0,
        "successRate": 1.0,
    }
    for by in ("day", "week"):
        (point,) = (await client.get(f"/api/skills/growth?by={by}")).json()
        assert point["count"] == 1
    assert error_of(await client.get("/api/skills/growth?by=year")) == (422, "RequestError", "INVALID_INPUT")


@pytest.mark.requirement("D12")
async def test_a_reindex_skips_and_reports_a_broken_skill(client: httpx.AsyncClient, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "empty", markdown="")
    write_skill(data_dir / "skills", "fine")
    assert (await client.post("/api/skills/reindex")).json() == {"indexed": 1, "skipped": 1, "removed": 0}
    (problem,) = (await client.get("/api/skills/problems")).json()
    assert (problem["name"], problem["kind"], problem["sourcePath"]) == ("empty", "broken", "empty/SKILL.md")
    response = await client.post("/api/skills/empty/reload")
    assert error_of(response) == (400, "SkillError", "SKILL_PARSE_ERROR")
    assert str(data_dir) not in response.text


@pytest.mark.requirement("D9")
async def test_a_plugin_is_installed_listed_and_removed(client: httpx.AsyncClient) -> None:
    from tests.skills.test_plugins import plugin_zip

    body = (await install(client, plugin_zip("alpha", "beta"))).json()
    assert (body["name"], body["names"]) == ("my-plugin", ["alpha", "beta"])
    (plugin,) = (await client.get("/api/plugins")).json()
    assert (plugin["name"], plugin["skills"]) == ("my-plugin", ["alpha", "beta"])
    assert (await client.delete("/api/plugins/my-plugin")).json()["success"] is True
    assert error_of(await client.delete("/api/plugins/my-plugin")) == (404, "RequestError", "PLUGIN_NOT_FOUND")


async def test_a_direct_skill_returns_its_instructions(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip(body="Say {{input.word}}.\n"))
    response = await client.post("/api/skills/git-commit/execute", json={"input": {"word": "嗨"}})
    body = response.json()
    assert (response.status_code, body["mode"], body["content"]) == (200, "direct", "Say 嗨.\n")
    assert body["metadata"]["skillName"] == "git-commit"
    for bad in ('{"input": {"a": "\\ud800"}}', '{"input": []}', '{"unknown": 1}', '{"timeout": 0}', '{"mode": "odd"}'):
        refused = await client.post(
            "/api/skills/git-commit/execute", content=bad, headers={"content-type": "application/json"}
        )
        assert error_of(refused) == (422, "RequestError", "INVALID_INPUT")


@pytest.mark.requirement("D14")
async def test_the_configuration_is_read_and_changed_over_http(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/config")).json()["defaultMode"] == "auto"
    changed = (await client.patch("/api/config", json={"enableDirectMode": False})).json()
    assert changed["enableDirectMode"] is False
    await install(client, skill_zip())
    refused = await client.post("/api/skills/git-commit/execute")
    assert error_of(refused) == (409, "SkillError", "DIRECT_MODE_DISABLED")
    refused = await client.patch("/api/config", json={"sandboxTimeout": -1, "defaultMode": "direct"})
    assert error_of(refused) == (422, "RequestError", "INVALID_INPUT")
    assert (await client.get("/api/config")).json()["defaultMode"] == "auto"


async def test_errors_of_the_framework_have_the_same_fields(client: httpx.AsyncClient) -> None:
    assert error_of(await client.get("/nowhere")) == (404, "RequestError", "NOT_FOUND")
    assert error_of(await client.put("/api/skills")) == (405, "RequestError", "METHOD_NOT_ALLOWED")


async def test_an_internal_error_is_a_500_without_details(
    client: httpx.AsyncClient, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(**_: Any) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(bridge.skills, "list_skills", broken)
    response = await client.get("/api/skills")
    assert error_of(response) == (500, "ServerError", "INTERNAL_ERROR")
    assert "secret" not in response.text


async def test_a_full_disk_is_a_507_and_reads_still_work(
    client: httpx.AsyncClient, bridge: Bridge, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files_without_index() -> dict[str, str]:  # the index is written in the background
        return {path: content for path, content in walk(data_dir).items() if not path.startswith("skills.")}

    await install(client, skill_zip())
    before = files_without_index()

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert error_of(await install(client, skill_zip("other"))) == (507, "ServerError", "STORAGE_FULL")
    edit = await client.put("/api/skills/git-commit/description", json={"description": "There is no room for this."})
    assert error_of(edit) == (507, "ServerError", "STORAGE_FULL")
    assert files_without_index() == before
    assert (await client.get("/api/skills")).json()["total"] == 1
    monkeypatch.undo()
    assert (await install(client, skill_zip("other"))).status_code == 201


async def test_a_body_above_the_limit_is_refused(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", MEGABYTE)
    response = await client.put("/api/skills/x/description", json={"description": "x" * 2 * MEGABYTE})
    assert error_of(response) == (413, "RequestError", "PAYLOAD_TOO_LARGE")


async def test_health_readiness_and_metrics_are_served(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip())
    assert (await client.get("/healthz")).json()["status"] == "ok"
    assert (await client.get("/readyz")).json()["status"] == "ready"
    metrics = (await client.get("/metrics")).text
    assert "apex_skills 1.0" in metrics


@pytest.mark.requirement("H2")
async def test_the_openapi_document_is_complete(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), (method, path)
            assert operation["responses"].get("4XX"), (method, path)
    install_body = document["paths"]["/api/skills/install"]["post"]["requestBody"]["content"]
    assert set(install_body) == {"multipart/form-data", "application/zip", "application/json"}
    assert json.dumps(document)


async def test_the_documentation_loads_nothing_from_other_hosts(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert "http://" not in page
    assert "https://" not in page
    for asset in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/docs/static/{asset}" in page
        assert (await client.get(f"/docs/static/{asset}")).status_code == 200


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {"host": "evil.example"}),
        ("GET", {"host": "evil.example:8420"}),
        ("GET", {"host": "127.0.0.1.evil.example"}),
        ("GET", {"host": ""}),
        ("GET", {"host": "["}),
        ("POST", {"origin": "http://["}),
        ("POST", {"origin": "https://evil.example"}),
        ("POST", {"origin": "null"}),
        ("GET", {"origin": "http://localhost:1"}),
        ("DELETE", {"sec-fetch-site": "cross-site"}),
        ("POST", {"sec-fetch-site": "same-site"}),
    ],
)
async def test_cross_site_requests_are_refused(client: httpx.AsyncClient, method: str, headers: dict[str, str]) -> None:
    response = await client.request(method, "/api/skills", headers=headers)
    assert error_of(response) == (403, "RequestError", "FORBIDDEN")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8420"},
        {"host": "[::1]:8420"},
        {"host": "LOCALHOST"},
        {"host": "localhost:8420", "origin": "http://localhost:8420", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_local_programs_and_pages_are_served(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await client.post("/api/skills/reindex", headers=headers)).status_code == 200
