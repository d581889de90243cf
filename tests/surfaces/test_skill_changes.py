"""Many skills at once, differences of versions, and ranges of files over HTTP."""

from pathlib import Path

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.storage.audit import AUDIT_FILE, exported
from tests.making import skill_zip

pytestmark = pytest.mark.anyio


async def test_several_skills_are_changed_and_each_is_audited(
    client: httpx.AsyncClient, bridge: Bridge, data_dir: Path
) -> None:
    for name in ("one", "two", "three"):
        await bridge.skills.install_skill(skill_zip(name))

    async def change(action: str, *names: str) -> list[tuple[str, bool, str | None]]:
        response = await client.post("/api/skills/bulk", json={"action": action, "names": names})
        results = response.raise_for_status().json()["results"]
        return [(one["name"], one["success"], one["error"] and one["error"]["code"]) for one in results]

    assert await change("disable", "one", "none", "two", "one") == [
        ("one", True, None),
        ("none", False, "SKILL_NOT_FOUND"),
        ("two", True, None),
    ]
    assert (await bridge.skills.list_skills(enabled=False)).total == 2
    assert await change("enable", "one") == [("one", True, None)]
    assert await change("uninstall", "one", "two") == [("one", True, None), ("two", True, None)]
    assert [skill.name for skill in await bridge.skills.list_skills()] == ["three"]
    acts = [(row["what"], row["target"], row["outcome"]) for row in exported(data_dir / AUDIT_FILE)]
    assert acts == [
        ("skills.disable", "one", 200),
        ("skills.disable", "none", 404),
        ("skills.disable", "two", 200),
        ("skills.bulk", "", 200),
        ("skills.enable", "one", 200),
        ("skills.bulk", "", 200),
        ("skills.uninstall", "one", 200),
        ("skills.uninstall", "two", 200),
        ("skills.bulk", "", 200),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"action": "enable", "names": []},
        {"action": "enable", "names": ["a"] * 501},
        {"action": "delete", "names": ["a"]},
        {"action": "enable", "names": ["../a"]},
        {"action": "enable", "names": ["a\n"]},
        {"action": "enable"},
    ],
)
async def test_a_bad_request_for_several_skills_is_refused(client: httpx.AsyncClient, body: dict[str, object]) -> None:
    response = await client.post("/api/skills/bulk", json=body)
    assert (response.status_code, response.json()["code"]) == (422, "INVALID_INPUT")


async def test_a_difference_of_versions_is_shown(client: httpx.AsyncClient, bridge: Bridge) -> None:
    for text in ("one\n", "two\n"):
        await bridge.skills.install_skill(skill_zip(files={"a.txt": text}), overwrite=True)
    path = "/api/skills/git-commit/versions/2/diff"
    assert (await client.get(path)).json() == {
        "name": "git-commit",
        "version": 2,
        "against": 1,
        "files": [
            {
                "path": "a.txt",
                "change": "changed",
                "binary": False,
                "diff": "@@ -1,2 +1,2 @@\n-one\n+two\n \n",
                "truncated": False,
            }
        ],
        "truncated": False,
    }
    for query, code in (("against=9", "VERSION_NOT_FOUND"), ("against=0", "INVALID_INPUT")):
        assert (await client.get(f"{path}?{query}")).json()["code"] == code
    assert (await client.get(path.replace("2", "7"))).json()["code"] == "VERSION_NOT_FOUND"


@pytest.mark.parametrize(
    ("header", "status", "content", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=4-99999", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=x", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("lines=0-1", 200, b"0123456789", None),
        ("bytes=5-2", 200, b"0123456789", None),
        (f"bytes={'9' * 5000}-", 200, b"0123456789", None),
    ],
)
async def test_a_range_of_a_file_is_sent(
    client: httpx.AsyncClient,
    bridge: Bridge,
    header: str,
    status: int,
    content: bytes | None,
    content_range: str | None,
) -> None:
    await bridge.skills.install_skill(skill_zip(files={"a.txt": "0123456789", "empty": ""}))
    response = await client.get("/api/skills/git-commit/files/a.txt", headers={"range": header})
    assert (response.status_code, response.headers.get("content-range")) == (status, content_range)
    if content is None:
        assert response.json()["code"] == "RANGE_NOT_SATISFIABLE"
    else:
        assert response.content == content
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-disposition"].startswith("attachment")
        assert response.headers["accept-ranges"] == "bytes"
    empty = await client.get("/api/skills/git-commit/files/empty", headers={"range": header})
    assert (empty.status_code, empty.content) == (200, b"")


async def test_a_range_of_a_file_of_a_workspace_is_sent(client: httpx.AsyncClient, bridge: Bridge) -> None:
    sent = await client.post("/api/uploads", files={"file": ("a.txt", b"0123456789")}, data={"workspace": "w" * 20})
    workspace = sent.json()["workspace"] if sent.status_code == 201 else None
    assert workspace is not None, sent.text
    path = f"/api/workspaces/{workspace}/files/a.txt"
    response = await client.get(path, headers={"range": "bytes=2-4"})
    assert (response.status_code, response.content) == (206, b"234")
