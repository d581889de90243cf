"""Whole repositories: marketplaces, plugins, groups of skills, and what is left out of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from apexbridge.errors import InvalidSkillStructureError, SkillAlreadyExistsError, SkillError
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import InstallReceipt
from apexbridge.skills.package import packing
from apexbridge.skills.package.archive import MAX_SKILL_ENTRIES
from apexbridge.skills.package.manifests import MAX_PLUGINS
from tests.making import entry, raw_zip, skill_markdown, skill_zip, walk, write_skill, zip_of

pytestmark = pytest.mark.anyio
Files = Mapping[str, str]
FORMS = pytest.mark.parametrize("form", ["folder", "archive"])


def marketplace(*plugins: object, **fields: Any) -> str:
    return json.dumps({"name": "bazaar", "owner": {"name": "Ada"}, "plugins": plugins, **fields})


def plugin(name: str, source: object = "./", **fields: Any) -> dict[str, Any]:
    return {"name": name, "source": source, **fields}


def source_of(form: str, tmp_path: Path, files: Files, top: str = "repo-main") -> Path:
    """The files as a folder, or as the archive that GitHub offers of them."""
    if form == "archive":
        path = tmp_path / f"{top}.zip"
        path.write_bytes(zip_of({f"{top}/{name}": content for name, content in files.items()}))
        return path
    for name, content in files.items():
        (tmp_path / top / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / top / name).write_text(content, "utf-8")
    return tmp_path / top


def skill_files(*folders: str) -> dict[str, str]:
    return {f"{folder}/SKILL.md": skill_markdown(folder.rsplit("/", 1)[-1]) for folder in folders}


async def by_plugin(skills: SkillManager) -> dict[str, list[str]]:
    return {plugin.name: plugin.skills for plugin in await skills.list_plugins()}


def reasons(receipt: InstallReceipt) -> dict[str, str]:
    return {one.name: one.reason for one in receipt.left_out}


# -------------------------------------------------------------------------------------------------- marketplaces
@FORMS
async def test_each_plugin_of_a_marketplace_has_its_listed_skills(
    skills: SkillManager, tmp_path: Path, form: str
) -> None:
    files = skill_files("skills/xlsx", "skills/pdf", "skills/art", "template") | {
        ".claude-plugin/marketplace.json": marketplace(
            plugin("documents", strict=False, skills=["./skills/xlsx", "./skills/pdf"], description="Files."),
            plugin("examples", strict=False, skills=["./skills/art"], version="1.2"),
        )
    }
    receipt = await skills.install_skill(source_of(form, tmp_path, files))
    assert (receipt.name, receipt.message) == ("bazaar", "2 plugins installed successfully")
    assert receipt.names == ["xlsx", "pdf", "art"]
    assert receipt.plugins == ["documents", "examples"]
    assert await by_plugin(skills) == {"documents": ["pdf", "xlsx"], "examples": ["art"]}
    assert [(one.description, one.version) for one in await skills.list_plugins()] == [("Files.", None), (None, "1.2")]
    assert [(one.name, one.path) for one in receipt.left_out] == [("template", "repo-main/template")]
    assert "does not list it" in receipt.left_out[0].reason
    assert str(receipt.left_out[0]) in receipt.warnings


@FORMS
async def test_plugins_in_folders_of_their_own_are_read_with_their_manifests(
    skills: SkillManager, tmp_path: Path, form: str
) -> None:
    files = skill_files(
        "plugins/a/skills/one", "plugins/a/skills/two", "plugins/b/extra/three", "plugins/b/skills/four"
    )
    files |= {
        "plugins/a/.claude-plugin/plugin.json": json.dumps({"name": "ignored", "version": "3", "description": "A."}),
        "plugins/b/.claude-plugin/plugin.json": json.dumps({"name": "b", "skills": "./extra/"}),
        ".claude-plugin/marketplace.json": marketplace(
            plugin("a", "./plugins/a"), plugin("b", "b"), metadata={"pluginRoot": "./plugins"}
        ),
    }
    receipt = await skills.install_skill(source_of(form, tmp_path, files))
    assert not receipt.left_out
    assert await by_plugin(skills) == {"a": ["one", "two"], "b": ["four", "three"]}
    assert (await skills.list_plugins())[0].version == "3"


@FORMS
async def test_a_plugin_may_be_the_folder_of_one_skill(skills: SkillManager, tmp_path: Path, form: str) -> None:
    files = skill_files("skills/one", "skills/two") | {
        ".claude-plugin/marketplace.json": marketplace(
            plugin("everything", skills=["./skills/one", "./skills/two"]),
            plugin("one", "./skills/one", skills=["./"]),
            plugin("two", "./skills/two"),
        )
    }
    receipt = await skills.install_skill(source_of(form, tmp_path, files))
    assert await by_plugin(skills) == {"one": ["one"], "two": ["two"]}
    assert reasons(receipt) == {"everything": "other plugins of this package hold all its skills"}


async def test_a_skill_that_two_plugins_list_is_installed_once(skills: SkillManager, tmp_path: Path) -> None:
    files = skill_files("skills/one", "skills/two") | {
        ".claude-plugin/marketplace.json": marketplace(
            plugin("a", skills=["./skills/one", "skills/one/"]), plugin("b", skills=["./skills/one", "./skills/two"])
        )
    }
    receipt = await skills.install_skill(source_of("archive", tmp_path, files))
    assert await by_plugin(skills) == {"a": ["one"], "b": ["two"]}
    assert reasons(receipt) == {"one": "b lists it, but it is installed with the plugin a"}


@FORMS
async def test_remote_missing_and_nameless_plugins_are_left_out_by_name(
    skills: SkillManager, tmp_path: Path, form: str
) -> None:
    files = skill_files("skills/here", "empty/README") | {
        "plugins/hooks/hooks.json": "{}",
        ".claude-plugin/marketplace.json": marketplace(
            plugin("local", skills=["./skills/here", "./skills/gone"]),
            plugin("far", {"source": "github", "repo": "ada/far"}),
            plugin("further", "https://example.com/further.git"),
            plugin("missing", "./plugins/missing"),
            plugin("hooks", "./plugins/hooks"),
            plugin("local", "./plugins/other"),
            {"source": "./x"},
            "odd",
            {"name": "sourceless"},
        ),
    }
    files.pop("empty/README/SKILL.md")
    receipt = await skills.install_skill(source_of(form, tmp_path, files))
    assert receipt.names == ["here"]
    found = reasons(receipt)
    assert set(found) == {"gone", "far", "further", "missing", "hooks", "local", "plugin 7", "plugin 8", "sourceless"}
    assert found["far"] == "its source is remote (github ada/far); install it from there"
    assert "https://example.com/further.git" in found["further"]
    assert "no skill there" in found["gone"]
    assert "twice" in found["local"]


OUTSIDE = ["../x", "/etc", "./a/../../b", "~/skills", "..\\x", "C:/x", "skills\0x"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["source", "skills", "pluginRoot", "manifest"])
async def test_a_manifest_that_leads_outside_the_package_is_refused(
    skills: SkillManager, data_dir: Path, path: str, field: str
) -> None:
    before = walk(data_dir)
    files = {"repo/skills/one/SKILL.md": skill_markdown("one")}
    if field == "manifest":
        files["repo/.claude-plugin/plugin.json"] = json.dumps({"name": "p", "skills": [path]})
    elif field == "pluginRoot":
        text = marketplace(plugin("p", "one"), metadata={"pluginRoot": path})
        files["repo/.claude-plugin/marketplace.json"] = text
    else:
        entry = plugin("p", path) if field == "source" else plugin("p", skills=[path])
        files["repo/.claude-plugin/marketplace.json"] = marketplace(entry)
    with pytest.raises(InvalidSkillStructureError, match="leads outside the package"):
        await skills.install_skill(zip_of(files))
    assert walk(data_dir) == before


@pytest.mark.parametrize("target", ["/etc", "../elsewhere", "skills"])
async def test_a_marketplace_whose_source_is_a_link_is_refused(
    skills: SkillManager, data_dir: Path, tmp_path: Path, target: str
) -> None:
    write_skill(tmp_path / "elsewhere/skills", "outside")
    before = walk(data_dir)
    for plugins in ([plugin("p", "./out")], [plugin("p", "./out/skills")], [plugin("p", skills=["./out/skills"])]):
        text = marketplace(*plugins)
        folder = source_of("folder", tmp_path, skill_files("skills/one") | {".claude-plugin/marketplace.json": text})
        if not (folder / "out").is_symlink():
            (folder / "out").symlink_to(target)
        archive = raw_zip(
            [
                entry("repo/skills/one/SKILL.md", skill_markdown("one").encode()),
                entry("repo/.claude-plugin/marketplace.json", text.encode()),
                entry("repo/out", target.encode(), mode=0o120777),
            ]
        )
        for source in (folder, archive):
            with pytest.raises(InvalidSkillStructureError, match="is a link; name the folder itself"):
                await skills.install_skill(source)
    assert walk(data_dir) == before


async def test_an_uploaded_skill_with_a_long_description_is_installed(skills: SkillManager) -> None:
    archive = skill_zip("long", description="word " * 300)
    assert "1024" in (await skills.install_skill(archive)).warnings[0]
    with pytest.raises(InvalidSkillStructureError, match="at most 1024 are allowed"):
        await skills.install_skill(archive, overwrite=True, profile="seed")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "marketplace.json is not valid JSON"),
        ("[" * 100_000, "marketplace.json is not valid JSON"),
        ("[]", "no list of plugins"),
        ('{"plugins": {}}', "no list of plugins"),
        (json.dumps(list(range(1_000_000))), "marketplace.json is larger than 1024 KB"),
        (marketplace(*[plugin(f"p-{number}") for number in range(MAX_PLUGINS + 1)]), "lists 1,001 plugins"),
        (marketplace(plugin("p", skills=["./skills/one"] * 2001)), "more than 2,000 skills"),
        (marketplace(), "does not list it"),
        (marketplace(plugin("p", "./" + "a/" * 100_000)), "longer than 1,024 characters"),
        (
            marketplace(plugin("far", {"source": "url", "url": "https://example.com/x.git"})),
            "far: its source is remote",
        ),
    ],
)
async def test_an_unusable_marketplace_is_refused_whole(
    skills: SkillManager, data_dir: Path, text: str, reason: str
) -> None:
    before = walk(data_dir)
    files = {"repo/skills/one/SKILL.md": skill_markdown("one"), "repo/.claude-plugin/marketplace.json": text}
    with pytest.raises(InvalidSkillStructureError, match=reason):
        await skills.install_skill(zip_of(files))
    assert walk(data_dir) == before


async def test_only_the_first_of_many_missing_skills_are_named(skills: SkillManager) -> None:
    paths = [f"./gone/{number}" for number in range(1_999)]
    files = {
        "repo/skills/one/SKILL.md": skill_markdown("one"),
        "repo/.claude-plugin/marketplace.json": marketplace(plugin("p", skills=["./skills/one", *paths])),
    }
    receipt = await skills.install_skill(zip_of(files))
    assert len(receipt.left_out) == 501
    assert receipt.left_out[-1].name == "1,499 more"


async def test_a_package_with_too_many_skills_or_plugins_is_refused(skills: SkillManager) -> None:
    many = [entry(f"repo/skills/s{number}/SKILL.md", b"x") for number in range(2_001)]
    with pytest.raises(InvalidSkillStructureError, match="2,001 skills; at most 2,000"):
        await skills.install_skill(raw_zip(many))
    many = [entry(f"repo/{number}/.claude-plugin/plugin.json", b"{}") for number in range(MAX_PLUGINS + 1)]
    with pytest.raises(InvalidSkillStructureError, match="more than 1,000 plugins"):
        await skills.install_skill(raw_zip([*many, entry("repo/1/skills/a/SKILL.md", b"x")]))


async def test_a_manifest_inside_a_skill_is_content_of_that_skill(skills: SkillManager) -> None:
    receipt = await skills.install_skill(skill_zip("maker", {"assets/x/.claude-plugin/marketplace.json": "{"}))
    assert (receipt.names, receipt.plugins) == (["maker"], [])


# --------------------------------------------------------------------------------------------------- repositories
@FORMS
async def test_skills_in_group_folders_are_one_plugin(skills: SkillManager, tmp_path: Path, form: str) -> None:
    files = skill_files("skills/.curated/fix", "skills/.system/make", "skills/plain", "docs/sample")
    receipt = await skills.install_skill(source_of(form, tmp_path, files, top="tools-main"))
    assert receipt.name == "tools"
    assert sorted(receipt.names) == ["fix", "make", "plain"]
    assert list(reasons(receipt)) == ["sample"]


@FORMS
async def test_the_top_folder_may_be_called_skills(skills: SkillManager, tmp_path: Path, form: str) -> None:
    sha = "0123456789abcdef0123456789abcdef01234567"
    receipt = await skills.install_skill(source_of(form, tmp_path, skill_files("skills/.a/one"), top=f"skills-{sha}"))
    assert (receipt.name, receipt.names) == ("skills", ["one"])


@FORMS
async def test_several_manifests_or_skills_folders_are_several_plugins(
    skills: SkillManager, tmp_path: Path, form: str
) -> None:
    files = skill_files("a/skills/one", "b/skills/two", ".claude/skills/three")
    receipt = await skills.install_skill(source_of(form, tmp_path, files, top="many"))
    assert await by_plugin(skills) == {"a": ["one"], "b": ["two"], "many": ["three"]}
    files = skill_files("c/four", "d/five", "six")
    files |= {f"{name}/.claude-plugin/plugin.json": json.dumps({"name": name}) for name in ("c", "d")}
    receipt = await skills.install_skill(source_of(form, tmp_path, files, top="more"))
    assert receipt.plugins == ["c", "d"]
    assert list(reasons(receipt)) == ["six"]


@FORMS
async def test_broken_skills_and_templates_are_left_out_with_the_reason(
    skills: SkillManager, tmp_path: Path, form: str
) -> None:
    files = skill_files("skills/good", "skills/template", "skills/install") | {"skills/bad/SKILL.md": ""}
    source = source_of(form, tmp_path, files, top="pack")
    receipt = await skills.install_skill(source)
    assert receipt.names == ["good"]
    assert set(reasons(receipt)) == {"bad", "install", "template"}
    assert "Missing required fields: description" in reasons(receipt)["bad"]
    assert "reserved" in reasons(receipt)["install"]
    assert "template" in reasons(receipt)["template"]
    await skills.uninstall_plugin("pack")
    with pytest.raises(InvalidSkillStructureError) as caught:
        await skills.install_skill(source, strict=True)
    assert len(caught.value.details["errors"]) == 3
    assert await by_plugin(skills) == {}


async def test_a_template_on_its_own_can_be_installed(skills: SkillManager, tmp_path: Path) -> None:
    assert (await skills.install_skill(write_skill(tmp_path, "template"))).names == ["template"]


@FORMS
async def test_a_package_without_a_valid_skill_is_refused_with_all_reasons(
    skills: SkillManager, data_dir: Path, tmp_path: Path, form: str
) -> None:
    before = walk(data_dir)
    source = source_of(form, tmp_path, {"skills/a/SKILL.md": "", "skills/b/SKILL.md": ""}, top="pack")
    with pytest.raises(InvalidSkillStructureError) as caught:
        await skills.install_skill(source)
    assert [error.split(":")[0] for error in caught.value.details["errors"]] == ["a", "b"]
    assert walk(data_dir) == before


@FORMS
@pytest.mark.parametrize("folder", [".git", "node_modules", "__pycache__", ".venv"])
async def test_skipped_folders_are_neither_scanned_nor_copied(
    skills: SkillManager, data_dir: Path, tmp_path: Path, form: str, folder: str
) -> None:
    files = skill_files("skills/one", f"{folder}/skills/two", f"skills/{folder}/three")
    files[f"skills/one/{folder}/x.py"] = "x"
    receipt = await skills.install_skill(source_of(form, tmp_path, files))
    assert receipt.names == ["one"]
    assert not receipt.left_out
    assert not (data_dir / "skills/one" / folder).exists()


# ------------------------------------------------------------------------------------------- folders and archives
@pytest.mark.parametrize(
    "markdown",
    [
        skill_markdown("one", description="word " * 300),
        skill_markdown("other"),
        skill_markdown("one", mode="odd", timeout="soon"),
        "# Only text\n\nWithout frontmatter.\n",
        "---\nname: one\ndescription: a: colon\n---\n",
        "---\nname: one\n---\n",
        skill_markdown("stats"),
        skill_markdown("one", body=" ".join(map(str, range(200_000)))),
    ],
)
async def test_a_skill_gets_the_same_result_as_a_folder_and_as_an_archive(
    skills: SkillManager, tmp_path: Path, markdown: str
) -> None:
    """Alone, and as a skill of a plugin."""
    for files, top in (({"SKILL.md": markdown}, "one"), ({"skills/one/SKILL.md": markdown}, "pack")):
        results = []
        for form in ("folder", "archive"):
            source = source_of(form, tmp_path, files, top=top)
            try:
                receipt = await skills.install_skill(source, overwrite=True)
            except SkillError as error:
                results.append((error.code, error.message))
            else:
                results.append((receipt.name, json.dumps([receipt.names, receipt.warnings])))
        assert results[0] == results[1]


async def test_links_outside_the_skills_do_not_matter(skills: SkillManager, tmp_path: Path) -> None:
    files = source_of("folder", tmp_path, skill_files("skills/one", "skills/two"))
    (files / "AGENTS.md").symlink_to("/etc/passwd")
    (files / "skills/two/out").symlink_to("/etc/passwd")
    folder = await skills.install_skill(files)
    entries = [
        entry(f"repo-main/{name}", text.encode()) for name, text in skill_files("skills/one", "skills/two").items()
    ]
    entries += [entry(f"repo-main/{name}", b"/etc/passwd", mode=0o120777) for name in ("AGENTS.md", "skills/two/out")]
    archive = await skills.install_skill(raw_zip(entries), overwrite=True)
    for receipt in (folder, archive):
        assert receipt.names == ["one"]
        assert "link" in reasons(receipt)["two"]


@FORMS
async def test_odd_names_and_large_files_concern_only_their_skill(
    skills: SkillManager, tmp_path: Path, form: str
) -> None:
    files = skill_files("skills/one", "skills/two") | {
        "docs/what?.md": "x",
        "docs/aux.txt": "x",
        "/".join(["deep"] * 20): "x",
        "skills/two/a:b.md": "x",
    }
    receipt = await skills.install_skill(source_of(form, tmp_path, files))
    assert receipt.names == ["one"]
    assert "a:b.md" in reasons(receipt)["two"]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a\\x", "C:x", "a//x", "a/./x", "a/\u202e/x"])
async def test_a_path_that_leads_out_refuses_the_whole_repository(
    skills: SkillManager, data_dir: Path, name: str
) -> None:
    before = walk(data_dir)
    with pytest.raises(SkillError) as caught:
        await skills.install_skill(zip_of({"repo/skills/one/SKILL.md": skill_markdown("one"), name: "x"}))
    assert caught.value.code == "UNSAFE_PATH"
    assert walk(data_dir) == before


async def test_a_large_file_outside_the_skills_does_not_matter(skills: SkillManager) -> None:
    large = entry("repo/docs/film.mp4", bytes(range(256)) * 4096 * 26, method=0)
    skill = entry("repo/skills/one/SKILL.md", skill_markdown("one").encode())
    assert (await skills.install_skill(raw_zip([skill, large]))).names == ["one"]


async def test_two_skills_may_link_to_one_folder_of_their_repository(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    folder = source_of("folder", tmp_path, skill_files("skills/one", "skills/two") | {"shared/a.txt": "shared"})
    for name in ("one", "two"):
        (folder / "skills" / name / "shared").symlink_to("../../shared")
    assert not (await skills.install_skill(folder)).left_out
    assert (data_dir / "skills/two/shared/a.txt").read_text() == "shared"


async def test_a_repository_with_too_many_files_is_refused(
    skills: SkillManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MAX_SCANNED", 20)
    folder = source_of("folder", tmp_path, {f"docs/{number}.md": "" for number in range(30)} | skill_files("skills/a"))
    with pytest.raises(SkillError, match="install the folder in it that contains the skills") as caught:
        await skills.install_skill(folder)
    assert caught.value.code == "ARCHIVE_TOO_LARGE"


async def test_files_outside_the_skills_of_a_folder_are_not_packed(skills: SkillManager, tmp_path: Path) -> None:
    folder = source_of("folder", tmp_path, skill_files("skills/a"))
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    assert (await skills.install_skill(folder)).names == ["a"]


async def test_a_skill_with_too_many_files_is_left_out(skills: SkillManager) -> None:
    entries = [entry(f"p/{name}", text.encode()) for name, text in skill_files("skills/a", "skills/b").items()]
    entries += [entry(f"p/skills/b/{number}", method=0) for number in range(MAX_SKILL_ENTRIES)]
    receipt = await skills.install_skill(raw_zip(entries))
    assert receipt.names == ["a"]
    assert "more than 2,000 files" in reasons(receipt)["b"]


# ------------------------------------------------------------------------------------------------------- SKILL.md
async def test_a_skill_file_installs_its_folder_if_that_has_its_name(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    folder = write_skill(tmp_path, "tidy", {"notes.md": "x"})
    assert (await skills.install_skill(folder / "SKILL.md")).names == ["tidy"]
    assert (data_dir / "skills/tidy/notes.md").exists()


@pytest.mark.parametrize(("name", "served"), [("tidy", "tidy"), ("Tidy Up", "tidy-up")])
async def test_a_skill_file_in_another_folder_is_installed_alone(
    skills: SkillManager, data_dir: Path, tmp_path: Path, name: str, served: str
) -> None:
    folder = write_skill(tmp_path, "downloads", {"private.txt": "x"}, markdown=skill_markdown(name))
    (folder / "SKILL.md").rename(folder / "skill.md")
    assert (await skills.install_skill(folder / "skill.md")).names == [served]
    assert {path.name for path in (data_dir / "skills" / served).iterdir()} == {".vectorized", "skill.md"}


async def test_a_skill_file_without_a_name_is_installed_alone(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    folder = write_skill(tmp_path, "downloads", {"private.txt": "x"}, markdown="# Tidy\n\nPuts files in order.\n")
    assert (await skills.install_skill(folder / "SKILL.md")).names == ["downloads"]
    assert not (data_dir / "skills/downloads/private.txt").exists()


async def test_a_missing_skill_file_is_not_found(skills: SkillManager, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"Cannot open SKILL\.md") as caught:
        await skills.install_skill(tmp_path / "SKILL.md")
    assert getattr(caught.value, "code", None) == "FILE_NOT_FOUND"


# ---------------------------------------------------------------------------------------------------- second time
async def test_a_marketplace_is_replaced_only_on_request_and_as_a_whole(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    files = skill_files("a/skills/one", "a/skills/two", "b/skills/three") | {
        ".claude-plugin/marketplace.json": marketplace(plugin("a", "./a"), plugin("b", "./b"))
    }
    await skills.install_skill(source_of("archive", tmp_path, files))
    before = walk(data_dir)
    with pytest.raises(SkillAlreadyExistsError, match="Plugin a already exists"):
        await skills.install_skill(source_of("archive", tmp_path, files))
    assert walk(data_dir) == before
    del files["a/skills/two/SKILL.md"]
    files |= skill_files("b/skills/four")
    receipt = await skills.install_skill(source_of("archive", tmp_path, files), overwrite=True)
    assert receipt.replaced
    assert await by_plugin(skills) == {"a": ["one"], "b": ["four", "three"]}
    assert [skill.name for skill in await skills.list_skills()] == ["four", "one", "three"]


async def test_a_marketplace_that_cannot_be_written_leaves_no_trace(
    skills: SkillManager, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = skill_files("a/skills/one", "b/skills/two") | {
        ".claude-plugin/marketplace.json": marketplace(plugin("a", "./a"), plugin("b", "./b"))
    }
    before = walk(data_dir)
    rename = Path.rename

    def fail_later(self: Path, target: Path) -> Path:
        if target == data_dir / "skills/two":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_later)
    with pytest.raises(OSError, match="Input/output error"):
        await skills.install_skill(source_of("archive", tmp_path, files))
    monkeypatch.undo()
    assert walk(data_dir) == before
