"""Names that are taken: such a skill of a plugin is served as `plugin:skill`, everywhere and until it is removed."""

import io
import json
import re
import zipfile
from pathlib import Path

import anyio
import httpx
import pytest

from apexbridge import Bridge
from apexbridge.errors import SkillAlreadyExistsError, SkillNotFoundError
from apexbridge.skills import NAME_PATTERN
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store.names import folder_of_name, name_of_folder, own_name, served_name
from apexbridge.tools.naming import wire_name
from tests.conftest import Workshop
from tests.making import skill_markdown, skill_zip, walk, zip_of

pytestmark = pytest.mark.anyio
ECHO = "import json, os, sys\nprint(os.environ['SKILL_NAME'], json.dumps(json.load(sys.stdin), sort_keys=True))\n"
OPENAI_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


def plugin_of(plugin: str, *names: str, **fields: str) -> bytes:
    return zip_of({f"{plugin}/skills/{name}/SKILL.md": skill_markdown(name, **fields) for name in names})


def names_of(page: object) -> list[str]:
    return [skill.name for skill in page]  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------ the names
async def test_a_taken_name_is_qualified_by_the_plugin(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip("pdf", description="The standalone one."))
    await skills.install_skill(plugin_of("office", "pdf", "xlsx"))
    receipt = await skills.install_skill(plugin_of("papers", "pdf", "xlsx"))
    assert receipt.names == ["papers:pdf", "papers:xlsx"]
    names = ["office:pdf", "papers:pdf", "papers:xlsx", "pdf", "xlsx"]
    assert names_of(await skills.list_skills()) == names
    assert set(workshop.index.vectors) == set(workshop.tool_names) == set(names)
    folders = {path.name for path in (data_dir / "skills").iterdir()}
    assert folders == {"office+pdf", "papers+pdf", "papers+xlsx", "pdf", "xlsx"}
    assert [(one.name, one.skills) for one in await skills.list_plugins()] == [
        ("office", ["office:pdf", "xlsx"]),
        ("papers", ["papers:pdf", "papers:xlsx"]),
    ]
    assert await skills.problems() == []


async def test_a_qualified_name_stays_when_the_plain_one_becomes_free(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(plugin_of("a", "pdf"))
        await skills.install_skill(plugin_of("b", "pdf"))
        await skills.uninstall_plugin("a")
        assert names_of(await skills.list_skills()) == ["b:pdf"]
        await skills.install_skill(skill_zip("pdf"))
    for path in data_dir.glob("apex.sqlite3*"):
        path.unlink()
    async with workshop.open() as skills:
        assert names_of(await skills.list_skills()) == ["b:pdf", "pdf"]
        assert (await skills.get_skill("b:pdf")).plugin == "b"
        await skills.uninstall_skill("b:pdf")
        assert await skills.list_plugins() == []
        assert names_of(await skills.list_skills()) == ["pdf"]


async def test_an_overwrite_replaces_the_plugins_own_skills_and_keeps_their_names(skills: SkillManager) -> None:
    await skills.install_skill(plugin_of("a", "pdf", "old"))
    await skills.install_skill(plugin_of("b", "pdf", "late"))
    await skills.uninstall_plugin("a")
    await skills.install_skill(skill_zip("fresh", description="The standalone one."))
    receipt = await skills.install_skill(
        plugin_of("b", "pdf", "fresh", description="The second version."), overwrite=True
    )
    assert receipt.names == ["b:fresh", "b:pdf"]
    found = {skill.name: skill.description for skill in await skills.list_skills()}
    assert found == {
        "b:fresh": "The second version.",
        "b:pdf": "The second version.",
        "fresh": "The standalone one.",
    }


async def test_a_standalone_skill_of_a_taken_name_is_still_refused(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(plugin_of("a", "pdf"))
    before = walk(data_dir)
    with pytest.raises(SkillAlreadyExistsError):
        await skills.install_skill(skill_zip("pdf"))
    assert walk(data_dir) == before


async def test_packages_with_the_same_top_folder_have_plugins_of_their_own(skills: SkillManager) -> None:
    first, second = plugin_of("skills-main", "one", "two"), plugin_of("skills-main", "three", "four")
    assert (await skills.install_skill(first)).plugins == ["skills"]
    receipt = await skills.install_skill(second)
    assert (receipt.name, receipt.plugins, receipt.names) == ("skills-2", ["skills-2"], ["four", "three"])
    for archive in (first, second):
        with pytest.raises(SkillAlreadyExistsError):
            await skills.install_skill(archive)
    assert (await skills.install_skill(second, overwrite=True)).plugins == ["skills-2"]
    assert (await skills.install_skill(plugin_of("skills-main", "five"), overwrite=True)).plugins == ["skills-3"]
    assert [(one.name, one.skills) for one in await skills.list_plugins()] == [
        ("skills", ["one", "two"]),
        ("skills-2", ["four", "three"]),
        ("skills-3", ["five"]),
    ]


async def test_plugins_of_one_marketplace_do_not_share_a_name(skills: SkillManager) -> None:
    files = {f"repo/{plugin}/skills/run/SKILL.md": skill_markdown("run") for plugin in ("a", "b", "c")}
    plugins = [{"name": name, "source": f"./{name}"} for name in ("a", "b", "c")]
    files["repo/.claude-plugin/marketplace.json"] = json.dumps({"name": "m", "plugins": plugins})
    assert (await skills.install_skill(zip_of(files))).names == ["run", "b:run", "c:run"]
    assert (await skills.install_skill(zip_of(files), overwrite=True)).names == ["run", "b:run", "c:run"]


async def test_concurrent_plugins_with_the_same_skill_all_keep_theirs(skills: SkillManager) -> None:
    plugins = [f"p-{number}" for number in range(8)]
    async with anyio.create_task_group() as tasks:
        for plugin in plugins:
            tasks.start_soon(skills.install_skill, plugin_of(plugin, "same", "other"))
    found = [skill.name for skill in await skills.list_skills()]
    assert len(found) == 16
    assert {own_name(name) for name in found} == {"same", "other"}
    assert {skill for plugin in await skills.list_plugins() for skill in plugin.skills} == set(found)


async def test_240_skills_of_several_plugins_are_installed_side_by_side(skills: SkillManager) -> None:
    for number in range(8):
        receipt = await skills.install_skill(plugin_of(f"repo-{number}", *[f"skill-{index}" for index in range(30)]))
        assert not receipt.left_out
    assert len(await skills.list_skills()) == 240
    assert await skills.problems() == []


async def test_a_qualified_folder_that_was_edited_keeps_its_plugin(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(plugin_of("a", "pdf"))
    await skills.install_skill(plugin_of("b", "pdf"))
    (data_dir / "skills/b+pdf/SKILL.md").write_text(skill_markdown("pdf", description="This text was edited by hand."))
    detail = await skills.reload_skill("b:pdf")
    assert (detail.name, detail.description, detail.plugin) == ("b:pdf", "This text was edited by hand.", "b")
    assert detail.warnings == []
    (data_dir / "skills/b+pdf/SKILL.md").write_text("")
    await skills.reconcile()
    assert [(problem.name, problem.kind) for problem in await skills.problems()] == [("b:pdf", "broken")]
    await skills.uninstall_skill("b:pdf")
    assert not (data_dir / "skills/b+pdf").exists()


async def test_a_qualified_name_never_leads_out_of_the_skills_folder(skills: SkillManager) -> None:
    for name in ("a:../b", "../a:b", "a:b:c", ":b", "a:", "a+b"):
        with pytest.raises(SkillNotFoundError):
            await skills.reload_skill(name)


@pytest.mark.parametrize("folder", ["my+notes+x", "+x", "x+", "My+x", "a" * 65 + "+x", "plain"])
def test_other_folders_with_a_plus_are_not_qualified(folder: str) -> None:
    assert name_of_folder(folder) == folder
    assert served_name(folder, "x") == "x"


def test_names_and_folders_are_unique_both_ways() -> None:
    assert folder_of_name("a:b-c") == "a+b-c"
    assert name_of_folder("a+b-c") == "a:b-c"
    assert own_name("a:b-c") == "b-c"
    assert not NAME_PATTERN.match("a+b")


@pytest.mark.parametrize("name", ["office:pdf", "a" * 64 + ":" + "b" * 64])
def test_the_wire_name_fits_the_pattern_of_model_servers(name: str) -> None:
    assert OPENAI_NAME.match(wire_name(f"skill:{name}"))


# ---------------------------------------------------------------------------------------------------- everywhere
@pytest.fixture
async def two_notes(bridge: Bridge) -> Bridge:
    await bridge.skills.install_skill(skill_zip("notes", description="Keeps short notes of meetings."))
    files = {
        "desk/skills/notes/SKILL.md": skill_markdown(
            "notes", description="Archives handwritten pages of a diary.", permissions=["env:LANG"]
        ),
        "desk/skills/notes/scripts/execute.py": ECHO,
        "desk/skills/notes/reference.md": "The reference.\n",
    }
    await bridge.skills.install_skill(zip_of(files))
    return bridge


async def test_a_qualified_skill_works_over_http(two_notes: Bridge, client: httpx.AsyncClient) -> None:
    name = "desk:notes"
    listed = (await client.get("/api/skills")).json()["skills"]
    assert [(skill["name"], skill["plugin"]) for skill in listed] == [(name, "desk"), ("notes", None)]
    for path in (name, "desk%3Anotes"):
        detail = (await client.get(f"/api/skills/{path}")).json()
        assert (detail["name"], detail["sourcePath"]) == (name, "desk+notes/SKILL.md")
    hits = (await client.post("/api/skills/search", json={"query": "archive my diary pages"})).json()["results"]
    assert hits[0]["name"] == name
    ran = (await client.post(f"/api/skills/{name}/execute", json={"input": {"a": 1}})).json()
    assert ran["stdout"] == 'desk:notes {"a": 1}\n'
    stats = (await client.get(f"/api/skills/{name}/stats")).json()
    assert (stats["toolName"], stats["callCount"]) == (name, 1)
    assert (await client.get("/api/skills/notes/stats")).json()["callCount"] == 0
    granted = await client.post(f"/api/skills/{name}/grants", json={"permission": "env:LANG"})
    assert granted.status_code == 200, granted.text
    assert (await client.get(f"/api/skills/{name}")).json()["grants"] == ["env:LANG"]
    assert (await client.get(f"/api/skills/{name}/files/reference.md")).text == "The reference.\n"
    runs = (await client.get("/api/executions", params={"skill": name})).json()
    assert runs["total"] == 1
    edited = await client.put(f"/api/skills/{name}/description", json={"description": "Archives diaries."})
    assert edited.json()["name"] == name
    assert (await client.post(f"/api/skills/{name}/disable")).json()["enabled"] is False
    assert (await client.post(f"/api/skills/{name}/enable")).json()["enabled"] is True
    assert (await client.post(f"/api/skills/{name}/reload")).json()["description"] == "Archives diaries."
    assert (await client.post("/api/skills/forget", json={"name": name})).status_code == 200
    assert (await client.delete(f"/api/skills/{name}")).json()["name"] == name
    assert (await client.get(f"/api/skills/{name}")).status_code == 404
    assert (await client.get("/api/skills/notes")).status_code == 200
    assert (await client.get("/api/plugins")).json() == []


async def test_a_qualified_skill_is_a_tool(two_notes: Bridge, client: httpx.AsyncClient) -> None:
    tool = (await client.get("/api/tools/skill:desk:notes")).json()
    assert tool["id"] == "skill:desk:notes"
    ran = (await client.post("/api/tools/skill:desk:notes/execute", json={"input": {"a": 2}})).json()
    assert 'desk:notes {"a": 2}' in json.dumps(ran).replace('\\"', '"')
    read = await two_notes.tools.execute("read-skill", {"name": "desk:notes", "path": "reference.md"})
    assert "The reference." in read.output
    run = await two_notes.tools.execute("run-skill", {"name": "desk:notes", "input": {"b": 3}})
    assert run.output == 'desk:notes {"b": 3}'


async def test_an_exported_qualified_skill_can_be_installed_again(two_notes: Bridge, client: httpx.AsyncClient) -> None:
    exported = await client.get("/api/skills/desk:notes/export")
    assert "desk%2Bnotes.zip" in exported.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(exported.content)) as archive:
        assert "notes/SKILL.md" in archive.namelist()
    await two_notes.skills.uninstall_skill("notes")
    assert (await two_notes.skills.install_skill(exported.content)).names == ["notes"]
