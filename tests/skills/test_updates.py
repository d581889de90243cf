"""Updates: the source is fetched again, the changes are reported, and only then installed."""

from pathlib import Path

import pytest

from apexbridge.errors import ApexBridgeError
from apexbridge.skills.config import FetchSettings
from apexbridge.skills.manager import SkillManager
from tests.conftest import Workshop
from tests.making import skill_markdown, skill_zip, walk
from tests.skills.source_server import SourceRepository, shop_of, source_server
from tests.skills.source_server import git as run_git
from tests.skills.test_remote_sources import refusal

pytestmark = pytest.mark.anyio


@pytest.fixture
def repository(tmp_path: Path) -> SourceRepository:
    return SourceRepository(tmp_path / "upstream")


async def test_a_changed_source_is_reported_and_then_installed(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    old = repository.commit(
        {
            "skills/pdf/SKILL.md": skill_markdown("pdf", description="Reads documents, the first way."),
            "skills/pdf/same.md": "x",
            "skills/pdf/gone.md": "x",
        }
    )
    await skills.install_skill(f"{repository.url}#skills/pdf")
    new = repository.commit(
        {
            "skills/pdf/SKILL.md": skill_markdown(
                "pdf", description="Reads documents, the second way.", permissions=["net:example.org:443"]
            ),
            "skills/pdf/gone.md": None,
            "skills/pdf/new.md": "x",
        }
    )
    before = walk(data_dir / "skills")
    report = await skills.update_skill("pdf")
    assert (report.old_revision, report.new_revision) == (old, new)
    assert (report.changed, report.applied) == (True, False)
    (change,) = report.skills
    assert (change.name, change.change, change.edited) == ("pdf", "changed", False)
    assert (change.files_added, change.files_changed, change.files_removed) == (["new.md"], ["SKILL.md"], ["gone.md"])
    assert change.old_description == "Reads documents, the first way."
    assert change.new_description == "Reads documents, the second way."
    assert change.permissions_added == ["net:example.org:443"]
    assert walk(data_dir / "skills") == before
    applied = await skills.update_skill("pdf", apply=True, revision=new)
    assert applied.applied
    detail = await skills.get_skill("pdf")
    assert detail.description == "Reads documents, the second way."
    assert detail.origin is not None
    assert detail.origin.commit == new
    assert not (await skills.update_skill("pdf", apply=True)).changed


async def test_unchanged_content_is_not_installed_again(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf")
    await skills.install_skill(f"{repository.url}#skills/pdf")
    repository.commit({"README.md": "only this changed"})
    before = walk(data_dir / "skills")
    report = await skills.update_skill("pdf", apply=True)
    assert (report.changed, report.applied) == (False, False)
    assert [change.change for change in report.skills] == ["unchanged"]
    assert walk(data_dir / "skills") == before


async def test_an_edit_is_not_lost_without_a_change_of_the_source(
    skills: SkillManager, repository: SourceRepository
) -> None:
    repository.commit_skill("pdf")
    await skills.install_skill(f"{repository.url}#skills/pdf")
    await skills.update_skill_description("pdf", "A description that was edited here.")
    report = await skills.update_skill("pdf", apply=True)
    assert (report.changed, report.skills[0].edited) == (False, True)
    assert (await skills.get_skill("pdf")).description == "A description that was edited here."
    repository.commit({"skills/pdf/new.md": "x"})
    (change,) = (await skills.update_skill("pdf", apply=True)).skills
    assert (change.change, change.edited) == ("changed", True)
    assert [file.path for file in (await skills.get_skill("pdf")).files] == ["SKILL.md", "new.md"]
    (item,) = await skills.removed_skills()
    assert (item.name, item.description) == ("pdf", "A description that was edited here.")
    await skills.uninstall_skill("pdf")
    await skills.restore_skill("pdf", id=item.id)
    assert (await skills.get_skill("pdf")).description == "A description that was edited here."


async def test_grants_fall_with_changed_content(skills: SkillManager, repository: SourceRepository) -> None:
    permission = "net:example.org:443"
    repository.commit_skill("pdf", permissions=[permission])
    await skills.install_skill(f"{repository.url}#skills/pdf")
    await skills.grant("pdf", permission)
    await skills.update_skill("pdf", apply=True)
    assert [view.state for view in await skills.grants_of("pdf")] == ["granted"]
    repository.commit({"skills/pdf/new.md": "x"})
    await skills.update_skill("pdf", apply=True)
    assert [view.state for view in await skills.grants_of("pdf")] == ["void"]


async def test_only_the_revision_that_was_shown_is_installed(
    skills: SkillManager, repository: SourceRepository
) -> None:
    repository.commit_skill("pdf")
    await skills.install_skill(f"{repository.url}#skills/pdf")
    shown = repository.commit({"skills/pdf/new.md": "x"})
    repository.commit({"skills/pdf/evil.md": "x"})
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_skill("pdf", apply=True, revision=shown)
    assert caught.value.code == "SOURCE_CHANGED"
    assert [file.path for file in (await skills.get_skill("pdf")).files] == ["SKILL.md"]


async def test_a_plugin_is_updated_as_a_whole(skills: SkillManager, repository: SourceRepository) -> None:
    repository.commit_skill("alpha")
    repository.commit_skill("beta")
    await skills.install_skill(repository.url)
    repository.commit({"skills/beta/SKILL.md": None, "skills/alpha/new.md": "x"})
    repository.commit_skill("gamma")
    report = await skills.update_skill("alpha")
    assert (report.kind, report.name) == ("plugin", "upstream")
    assert {change.name: change.change for change in report.skills} == {
        "alpha": "changed",
        "beta": "removed",
        "gamma": "added",
    }
    await skills.update_plugin("upstream", apply=True)
    assert [skill.name for skill in await skills.list_skills()] == ["alpha", "gamma"]
    assert [item.name for item in await skills.removed_skills()] == ["beta"], "what goes can be restored"
    assert [(item.name, item.kind) for item in await skills.origins()] == [("upstream", "plugin")]


async def test_one_plugin_of_a_marketplace_is_updated_and_the_others_stay(
    skills: SkillManager, repository: SourceRepository
) -> None:
    old = repository.commit(shop_of(("tea", "brew"), ("coffee", "brew"), ("cake", "bake")))
    await skills.install_skill(repository.url)
    new = repository.commit({"coffee/skills/brew/new.md": "x", "cake/skills/bake/new.md": "x"})
    repository.commit({"coffee/skills/bad/SKILL.md": "---\nname: bad\n---\n"})
    report = await skills.update_skill("coffee:brew")
    assert (report.kind, report.name, report.old_revision) == ("plugin", "coffee", old)
    assert [(one.name, one.change, one.files_added) for one in report.skills] == [
        ("coffee:brew", "changed", ["new.md"])
    ]
    assert (await skills.update_skill("coffee:brew", apply=True)).applied
    assert "new.md" in [file.path for file in (await skills.get_skill("coffee:brew")).files]
    commits = {plugin.name: plugin.origin and plugin.origin.commit for plugin in await skills.list_plugins()}
    assert (commits["tea"], commits["cake"]) == (old, old)
    assert commits["coffee"] not in (old, new)
    assert not (await skills.update_plugin("tea")).changed
    assert [skill.name for skill in await skills.list_skills()] == ["bake", "brew", "coffee:brew"]


async def test_all_plugins_of_a_repository_are_updated_with_one_fetch(
    workshop: Workshop, repository: SourceRepository
) -> None:
    files = shop_of(("tea", "brew"), ("coffee", "brew"), ("cake", "bake"))
    repository.commit(files)
    with source_server() as server:
        url = server.serve_repository("/shop.git", repository.folder / ".git")
        async with workshop.open(fetch=FetchSettings(private_addresses=True)) as skills:
            await skills.install_skill(url)
            for_one = sum(b"command=fetch" in body for body in server.bodies)
            repository.commit({path: None for path in files if path.startswith("tea/")})
            new = repository.commit(
                {"coffee/skills/brew/new.md": "x", "coffee/skills/more/SKILL.md": skill_markdown("more")}
            )
            server.bodies.clear()
            reports = {report.name: report for report in await skills.update_source(url, apply=True, revision=new)}
            assert sum(b"command=fetch" in body for body in server.bodies) == for_one
            assert {one.name: one.change for one in reports["coffee"].skills} == {
                "coffee:brew": "changed",
                "more": "added",
            }
            assert (reports["coffee"].applied, reports["coffee"].new_revision) == (True, new)
            assert (reports["cake"].changed, reports["cake"].error) == (False, None)
            error = reports["tea"].error
            assert error is not None
            assert error["code"] == "SOURCE_CHANGED"
            assert [skill.name for skill in await skills.list_skills()] == ["bake", "brew", "coffee:brew", "more"]


async def test_plugins_that_their_source_lacks_and_unknown_sources_are_reported(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    files = shop_of(("tea", "brew"), ("coffee", "pour"))
    repository.commit(files)
    await skills.install_skill(repository.url)
    new = repository.commit({path: None for path in files if path.startswith("tea/")})
    before = walk(data_dir / "skills")
    for updating, code in (
        (skills.update_plugin("tea", apply=True), "SOURCE_CHANGED"),
        (skills.update_source(repository.url, apply=True, revision="0" * 40), "SOURCE_CHANGED"),
        (skills.update_source(repository.url, apply=True, local=False), "FORBIDDEN"),
        (skills.update_source("owner/other"), "SOURCE_UNKNOWN"),
    ):
        with pytest.raises(ApexBridgeError) as caught:
            await updating
        assert caught.value.code == code
    assert walk(data_dir / "skills") == before
    assert [report.new_revision == new for report in await skills.update_source(repository.url)] == [True, False]


async def test_a_qualified_skill_without_its_plugin_is_updated_under_its_name(
    skills: SkillManager, repository: SourceRepository
) -> None:
    repository.commit(shop_of(("tea", "brew"), ("coffee", "brew")))
    await skills.install_skill(repository.url)
    await skills.uninstall_skill("coffee:brew")
    await skills.restore_skill("coffee:brew")
    assert [(item.name, item.kind) for item in await skills.origins()] == [("coffee:brew", "skill"), ("tea", "plugin")]
    repository.commit({"coffee/skills/brew/new.md": "x"})
    before = await skills.get_skill("brew")
    report = await skills.update_skill("coffee:brew", apply=True)
    assert (report.name, report.kind, report.applied) == ("coffee:brew", "skill", True)
    assert "new.md" in [file.path for file in (await skills.get_skill("coffee:brew")).files]
    assert (await skills.get_skill("brew")) == before
    assert not (await skills.update_skill("coffee:brew")).changed


async def test_a_skill_that_left_its_plugin_is_updated_alone(
    skills: SkillManager, repository: SourceRepository
) -> None:
    repository.commit_skill("alpha", "box/skills/alpha")
    repository.commit_skill("beta", "box/skills/beta")
    await skills.install_skill(f"{repository.url}#box")
    origin = (await skills.get_skill("beta")).origin
    assert origin is not None
    assert (origin.path, origin.source) == ("box/skills/beta", f"{repository.url}#box/skills/beta")
    await skills.uninstall_plugin("box")
    await skills.install_skill(f"{repository.url}#box/skills/alpha")
    await skills.uninstall_skill("alpha")
    await skills.install_skill(f"{repository.url}#box")
    repository.commit({"box/skills/beta/SKILL.md": None})
    await skills.update_plugin("box", apply=True)
    await skills.restore_skill("beta")
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_skill("beta")
    assert caught.value.code == "SOURCE_NOT_FOUND"
    repository.commit_skill("beta", "box/skills/beta", description="It is there again, and it is new.")
    assert (await skills.update_skill("beta", apply=True)).applied


async def test_a_skill_without_a_source_cannot_be_updated(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip("pdf"))
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_skill("pdf")
    assert caught.value.code == "SOURCE_UNKNOWN"
    assert "apex skills install SOURCE" in caught.value.message
    assert await skills.origins() == []
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_plugin("none")
    assert caught.value.code == "PLUGIN_NOT_FOUND"


async def test_a_source_that_contains_another_skill_now_is_refused(
    skills: SkillManager, repository: SourceRepository
) -> None:
    repository.commit_skill("pdf", "skill")
    await skills.install_skill(f"{repository.url}#skill")
    repository.commit_skill("other", "skill")
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_skill("pdf", apply=True)
    assert caught.value.code == "SOURCE_CHANGED"
    assert [skill.name for skill in await skills.list_skills()] == ["pdf"]


async def test_a_tag_stays_where_it_is_and_a_branch_moves(skills: SkillManager, repository: SourceRepository) -> None:
    repository.commit_skill("pdf")
    await skills.install_skill(f"{repository.url}@main#skills/pdf")
    new = repository.commit({"skills/pdf/new.md": "x"})
    assert (await skills.update_skill("pdf")).new_revision == new


@pytest.mark.slow
async def test_nothing_is_fetched_while_the_commit_is_the_same(
    workshop: Workshop, repository: SourceRepository
) -> None:
    repository.commit_skill("pdf")
    run_git(repository.folder, "tag", "--annotate", "--message", "one", "v1")
    with source_server() as server:
        url = server.serve_repository("/skills.git", repository.folder / ".git")
        async with workshop.open(fetch=FetchSettings(private_addresses=True)) as skills:
            for ref in ("", "@v1", "@main", f"@{run_git(repository.folder, 'rev-parse', 'HEAD')}"):
                await skills.install_skill(f"{url}{ref}#skills/pdf", overwrite=True)
                server.bodies.clear()
                report = await skills.update_skill("pdf")
                assert (report.changed, [change.change for change in report.skills]) == (False, ["unchanged"])
                assert not any(b"command=fetch" in body for body in server.bodies), ref
            repository.commit({"skills/pdf/new.md": "x"})
            await skills.install_skill(f"{url}#skills/pdf", overwrite=True)
            repository.commit({"skills/pdf/new.md": "y"})
            assert (await skills.update_skill("pdf", apply=True)).applied
            assert any(b"command=fetch" in body for body in server.bodies)


async def test_an_archive_is_updated_from_its_address(workshop: Workshop) -> None:
    with source_server() as server:
        url = server.serve("/pdf.zip", skill_zip("pdf"))
        async with workshop.open(fetch=FetchSettings(private_addresses=True)) as skills:
            await skills.install_skill(url)
            assert not (await skills.update_skill("pdf")).changed
            server.serve("/pdf.zip", skill_zip("pdf", {"new.md": "x"}))
            report = await skills.update_skill("pdf", apply=True)
            assert report.applied
            assert report.old_revision != report.new_revision


async def test_a_failed_update_changes_nothing(
    skills: SkillManager, repository: SourceRepository, data_dir: Path
) -> None:
    repository.commit_skill("pdf")
    await skills.install_skill(f"{repository.url}#skills/pdf")
    before = walk(data_dir / "skills")
    repository.commit({"skills/pdf/SKILL.md": ""})
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_skill("pdf", apply=True)
    assert caught.value.code == "INVALID_SKILL_STRUCTURE"
    repository.folder.rename(repository.folder.with_name("moved"))
    with pytest.raises(ApexBridgeError) as caught:
        await skills.update_skill("pdf", apply=True)
    assert caught.value.code == "SOURCE_NOT_FOUND"
    assert walk(data_dir / "skills") == before
    assert (await refusal(skills, f"{repository.url}#skills/pdf", overwrite=True)).code == "SOURCE_NOT_FOUND"
