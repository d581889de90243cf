"""The command line: text for people and JSON for programs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from apexbridge import __version__
from apexbridge.storage.directory import owned
from tests.making import skill_markdown, skill_zip, write_skill, zip_of
from tests.skills.test_plugins import plugin_zip
from tests.surfaces.conftest import APEX, Apex, environment

HEAVY = {"fastapi", "pydantic", "uvicorn", "httpx", "rich", "watchfiles", "yaml", "anyio", "sqlite3", "starlette"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "git-commit.zip"
    path.write_bytes(skill_zip(tags=["git"], version="1.0.0", files={"scripts/execute.js": "1"}))
    return path


def test_a_skill_is_installed_managed_and_removed_on_the_command_line(
    apex: Apex, archive: Path, data_dir: Path
) -> None:
    completed = apex("skills", "install", archive)
    assert (completed.code, completed.out) == (0, "")
    assert "Skill installed successfully: git-commit" in completed.err
    listed = apex("skills", "list")
    assert listed.out.startswith("git-commit\tsandbox\t1.0.0\tinstalled\t")
    assert "自动生成提交信息" in listed.out
    shown = apex("skills", "show", "git-commit")
    assert "scripts/execute.js" in shown.out
    assert "# How" in shown.out
    assert "Description updated" in apex("skills", "set-description", "git-commit", "A new one: with colon.").err
    assert 'description: "A new one: with colon."' in (data_dir / "skills/git-commit/SKILL.md").read_text()
    assert "read again" in apex("skills", "reload", "git-commit").err
    assert "disabled" in apex("skills", "disable", "git-commit").err
    assert "(disabled)" in apex("skills", "ls").out
    assert "enabled" in apex("skills", "enable", "git-commit").err
    assert "never called" in apex("skills", "stats").out
    assert "average" in apex("skills", "stats", "git-commit").out
    assert apex("skills", "growth", "--by", "week").out.endswith("\t1\n")
    assert "1 unchanged" in apex("skills", "reindex").err
    assert "No problems." in apex("skills", "problems").err
    assert "uninstalled" in apex("skills", "rm", "git-commit").err
    assert "apex skills install" in apex("skills", "list").err


def test_every_command_has_json_output(apex: Apex, archive: Path, tmp_path: Path) -> None:
    assert apex("skills", "install", archive, "--json").json["name"] == "git-commit"
    assert apex("skills", "list", "--json").json["total"] == 1
    assert apex("skills", "list", "--json", "--tag", "git", "--name", "COMMIT").json["total"] == 1
    assert apex("skills", "list", "--json", "--tag", "other").json["total"] == 0
    assert apex("skills", "show", "git-commit", "--json").json["entry"] == "scripts/execute.js"
    assert apex("skills", "set-description", "git-commit", "Another one.", "--json").json["success"] is True
    for word in ("reload", "disable", "enable"):
        assert apex("skills", word, "git-commit", "--json").json["name"] == "git-commit"
    assert apex("skills", "stats", "--json").json["total"] == 1
    assert apex("skills", "stats", "git-commit", "--json").json["callCount"] == 0
    assert apex("skills", "growth", "--json").json[0]["count"] == 1
    assert apex("skills", "problems", "--json").json == []
    assert apex("skills", "reindex", "--json").json["skipped"] == 1
    out = tmp_path / "out.zip"
    assert apex("skills", "export", "git-commit", "--out", out, "--json").json["size"] == out.stat().st_size
    assert apex("skills", "validate", archive, "--json").json["valid"] is True
    assert apex("skills", "doctor", tmp_path, "--json").code == 1
    assert apex("plugins", "list", "--json").json == []
    assert apex("config", "show", "--json").json["port"] == {
        "value": 8420,
        "from": "default",
        "environment": "APEX_PORT",
    }
    assert apex("skills", "uninstall", "git-commit", "--json").json["message"] == "Skill uninstalled successfully"


def test_an_error_exits_with_1_and_suggests_a_fix(apex: Apex, archive: Path, tmp_path: Path) -> None:
    apex("skills", "install", archive)
    again = apex("skills", "install", archive)
    assert (again.code, again.out) == (1, "")
    assert "--overwrite" in again.err
    assert "Traceback" not in again.err
    refused = apex("skills", "install", archive, "--json")
    assert (refused.code, refused.json["code"]) == (1, "SKILL_ALREADY_EXISTS")
    assert apex("skills", "install", archive, "--overwrite", "--json").json["replaced"] is True
    assert "apex skills list" in apex("skills", "show", "nothing").err
    assert apex("skills", "install", tmp_path / "none.zip").code == 1
    assert "apex plugins list" in apex("plugins", "uninstall", "nothing").err
    assert apex("skills", "export", "nothing").code == 1
    assert not Path("nothing.zip").exists()
    assert apex("skills", "export", "git-commit", "--out", "/no/such/folder/x.zip").code == 2
    assert apex("skills", "export", "git-commit", "--url", "http://127.0.0.1:9", "--json").json["code"] == "NOT_READY"


@pytest.mark.parametrize(
    "arguments",
    [["skills", "list", "--limit", "0"], ["skills", "show"], ["nothing"], ["skills", "growth", "--by", "year"]],
)
def test_wrong_usage_exits_with_2(apex: Apex, arguments: list[str]) -> None:
    assert apex(*arguments).code == 2


def test_a_page_names_the_option_for_the_next_page(apex: Apex, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        apex("skills", "install", write_skill(tmp_path, name))
    assert "--page 2" in apex("skills", "list", "--limit", "2").err
    assert "Nothing fits" in apex("skills", "list", "--name", "zzz").err


def test_an_export_can_be_installed_again(apex: Apex, archive: Path) -> None:
    apex("skills", "install", archive)
    before = apex("skills", "show", "git-commit", "--json").json["contentHash"]
    assert "git-commit.zip written" in apex("skills", "export", "git-commit").err
    assert "git-commit/SKILL.md" in zipfile.ZipFile("git-commit.zip").namelist()
    apex("skills", "uninstall", "git-commit")
    apex("skills", "install", "git-commit.zip")
    assert apex("skills", "show", "git-commit", "--json").json["contentHash"] == before


@pytest.mark.requirement("D9")
def test_a_plugin_is_installed_listed_and_removed_on_the_command_line(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "p.zip").write_bytes(plugin_zip("alpha", "beta"))
    assert "my-plugin (alpha, beta)" in apex("skills", "install", tmp_path / "p.zip").err
    assert "alpha, beta" in apex("plugins", "list").out
    assert "Plugin uninstalled" in apex("plugins", "uninstall", "my-plugin").err


@pytest.mark.requirement("D13")
def test_an_import_installs_a_folder_of_skills_and_reports(apex: Apex, tmp_path: Path) -> None:
    source = tmp_path / "claude/skills"
    write_skill(source, "good", {"scripts/helper.py": "print()"})
    write_skill(source / "category", "nested")
    write_skill(source, "Odd Name", markdown="# Odd\n\nA skill without frontmatter.\n")
    write_skill(source, "empty", markdown="")
    (source / "linked").symlink_to(write_skill(tmp_path / "elsewhere", "linked"))
    (write_skill(source, "dangling") / "nowhere.md").symlink_to("nothing")
    cycle = write_skill(source, "cycle")
    (cycle / "a").mkdir()
    (cycle / "b").mkdir()
    (cycle / "a/to-b").symlink_to("../b")
    (cycle / "b/to-a").symlink_to("../a")
    old = write_skill(source, "from-the-future") / "SKILL.md"
    os.utime(old, (5_000_000_000, 5_000_000_000))
    (write_skill(source, "bytes") / os.fsdecode(b"\xff.md")).write_text("x")
    (source / "packed.skill").write_bytes(skill_zip("packed"))
    completed = apex("skills", "import", source, "--json")
    assert completed.code == 1
    assert completed.json["counts"] == {"installed": 6, "refused": 4}
    outcomes = {entry["path"]: (entry["outcome"], entry["name"]) for entry in completed.json["skills"]}
    assert outcomes == {
        "Odd Name": ("installed", "odd-name"),
        "bytes": ("refused", None),
        "cycle": ("refused", None),
        "dangling": ("refused", None),
        "from-the-future": ("installed", "from-the-future"),
        "category/nested": ("installed", "nested"),
        "empty": ("refused", None),
        "good": ("installed", "good"),
        "linked": ("installed", "linked"),
        "packed.skill": ("installed", "packed"),
    }
    again = apex("skills", "import", source)
    assert "exists" in again.out
    assert "6 exists" in again.err
    assert "replaced" in apex("skills", "import", source, "--overwrite").err
    (tmp_path / "void").mkdir()
    assert "Nothing to import" in apex("skills", "import", tmp_path / "void").err
    assert apex("skills", "import", tmp_path / "none").code == 1
    assert "apex skills install" in apex("skills", "import", source / "good").err


def test_validate_needs_no_server_and_no_data_directory(apex: Apex, tmp_path: Path, data_dir: Path) -> None:
    good = write_skill(tmp_path, "good")
    assert "good is valid" in apex("skills", "validate", good).err
    (tmp_path / "bad.zip").write_bytes(zip_of({"bad/SKILL.md": "---\nname: bad\n---\n"}))
    bad = apex("skills", "validate", tmp_path / "bad.zip")
    assert bad.code == 1
    assert "error: Missing required fields: description" in bad.err
    assert apex("skills", "validate", good, "--profile", "strict").code == 0
    assert not data_dir.exists()


def test_the_doctor_reports_line_numbers_and_repairs(apex: Apex, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "ill", markdown="\ufeff---\nname: ILL\ndescription: Use when: asked\n---\n# Body\n")
    completed = apex("skills", "doctor", folder)
    assert completed.code == 1
    assert "SKILL.md:3: error: an unquoted colon" in completed.out
    assert "--write" in completed.err
    repaired = apex("skills", "doctor", folder, "--write")
    assert repaired.code == 0
    assert "was repaired" in repaired.err
    assert (folder / "SKILL.md").read_text() == '---\nname: "ill"\ndescription: "Use when: asked"\n---\n# Body\n'
    assert "no problems found" in apex("skills", "doctor", folder / "SKILL.md").err
    assert apex("skills", "doctor", tmp_path / "none").code == 1


def test_control_characters_of_an_untrusted_skill_do_not_reach_the_terminal(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(
        skill_zip(description="Red \u001b[31m alert \u0007 for the terminal.", body="\u001b[2J")
    )
    apex("skills", "install", tmp_path / "x.zip")
    for completed in (apex("skills", "list"), apex("skills", "show", "git-commit")):
        assert "\u001b" not in completed.out
        assert "\u0007" not in completed.out


def test_config_shows_the_source_of_each_value(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_PORT", "9000")
    Path("apex.toml").write_text('default_mode = "direct"\n')
    shown = apex("config", "show", "--json", "--url", "http://127.0.0.1:1").json
    assert (shown["port"]["value"], shown["port"]["from"]) == (9000, "environment")
    assert (shown["default_mode"]["value"], shown["default_mode"]["from"]) == ("direct", "apex.toml")
    assert shown["url"]["from"] == "flag"
    assert "APEX_PORT" in apex("config", "show").out


def test_an_invalid_setting_is_reported_with_its_variable(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_PORT", "many")
    completed = apex("skills", "list")
    assert completed.code == 1
    assert "APEX_PORT" in completed.err


def test_a_url_without_a_server_is_explained(apex: Apex) -> None:
    completed = apex("skills", "list", "--url", "http://127.0.0.1:9")
    assert completed.code == 1
    assert "apex serve" in completed.err
    for address in ("nonsense", "http://127.0.0.1:99999", "http://exämple..com", "http://[::1"):
        completed = apex("skills", "list", "--url", address, "--json")
        assert (completed.code, completed.json["code"]) == (1, "NOT_READY")


def test_the_data_dir_option_overrides_the_url_of_the_environment(
    apex: Apex, archive: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apex("skills", "install", archive)
    monkeypatch.setenv("APEX_URL", "http://127.0.0.1:9")
    assert apex("skills", "list", "--json").code == 1
    assert apex("skills", "list", "--json", "--data-dir", data_dir).json["total"] == 1


def test_a_data_directory_that_is_a_file_is_explained(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    completed = apex("skills", "list", "--data-dir", tmp_path / "file", "--json")
    assert (completed.code, completed.json["code"]) == (1, "INVALID_SETTING")


@pytest.mark.parametrize("name", ["stats", "growth", "problems", "", ".", "..", "a/b", "Upper"])
def test_a_reserved_or_invalid_name_is_not_found(apex: Apex, data_dir: Path, name: str) -> None:
    write_skill(data_dir / "skills", "a")
    completed = apex("skills", "show", name)
    assert completed.code == 1
    assert "Skills not found" in completed.err


def test_the_suggested_command_matches_the_error(apex: Apex, tmp_path: Path) -> None:
    write_skill(tmp_path / "many", "one")
    write_skill(tmp_path / "many", "two")
    assert "apex skills import" in apex("skills", "install", tmp_path / "many").err
    (tmp_path / "bad.zip").write_bytes(zip_of({"bad/SKILL.md": "# Bad\n"}))
    assert "--profile lenient" in apex("skills", "install", tmp_path / "bad.zip", "--profile", "seed").err
    (tmp_path / "flat.zip").write_bytes(zip_of({"SKILL.md": skill_markdown("flat")}))
    flat = apex("skills", "install", tmp_path / "flat.zip")
    assert flat.err.startswith("Invalid ZIP structure: missing root directory")
    assert "--profile lenient" in flat.err
    assert apex("skills", "install", tmp_path / "flat.zip", "--profile", "lenient").code == 0
    assert "lenient" not in apex("skills", "install", write_skill(tmp_path, "stats")).err


def test_a_repository_is_installed_by_one_command(apex: Apex, tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        write_skill(tmp_path / "repo/skills/.group", name, body="[gone](gone.md)\n")
    write_skill(tmp_path / "repo/skills", "bad", markdown="")
    apex("skills", "install", write_skill(tmp_path, "two"))
    installed = apex("skills", "install", tmp_path / "repo")
    assert installed.code == 0
    lines = installed.err.splitlines()
    assert lines[0].startswith("warning: bad (repo/skills/bad) was left out: Missing required fields: description")
    assert lines[1].startswith("warning: 4 warnings about the skills")
    assert "Plugin installed successfully: repo (four, one, three, repo:two)" in lines[2]
    assert lines[3] == "4 skills installed, 1 left out"
    assert "desk" not in apex("skills", "show", "repo:two").out
    exported = apex("skills", "export", "repo:two", "--out", tmp_path / "x.zip")
    assert exported.code == 0
    refused = apex("skills", "install", tmp_path / "repo", "--overwrite", "--strict")
    assert refused.code == 1
    assert "bad: Missing required fields: description" in refused.err
    report = apex("skills", "install", tmp_path / "repo", "--overwrite", "--json").json
    assert report["names"] == ["four", "one", "three", "repo:two"]
    assert [one["name"] for one in report["leftOut"]] == ["bad"]
    assert apex("skills", "uninstall", "repo:two").code == 0
    assert apex("skills", "show", "two").code == 0


def test_a_skill_file_is_installed(apex: Apex, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "tidy", {"notes.md": "x"})
    assert apex("skills", "validate", folder / "SKILL.md").code == 0
    assert apex("skills", "install", folder / "SKILL.md").code == 0
    assert "notes.md" in apex("skills", "show", "tidy").out


def test_a_piped_table_is_not_truncated(apex: Apex, tmp_path: Path) -> None:
    apex("skills", "install", write_skill(tmp_path, "long", description="word " * 100 + "end"))
    assert "word end" in apex("skills", "list").out


def test_a_locked_data_directory_is_reported_after_a_wait(
    apex: Apex, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.client.WAIT_SECONDS", 0.2)
    with owned(data_dir):
        completed = apex("skills", "list")
    assert completed.code == 1
    assert "waiting" in completed.err
    assert "in use" in completed.err


@pytest.mark.parametrize("arguments", [["--help"], ["skills", "--help"], ["--version"]])
def test_help_imports_no_heavy_packages(arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *APEX[1:], *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in run.stderr.splitlines() if "|" in line}
    # Typer imports pydantic when a subcommand is chosen.
    assert imported & HEAVY <= ({"pydantic"} if arguments[0] == "skills" else set())
    assert run.stdout
    if arguments == ["--version"]:
        assert run.stdout.strip() == f"apexbridge {__version__}"


def test_a_pipe_that_closes_early_causes_no_traceback(data_dir: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_skill(data_dir / "skills", name)
    command = [*APEX, "skills", "list", "--json", "--data-dir", str(data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(60)
    assert "Traceback" not in errors


def test_shell_completion_is_offered(apex: Apex) -> None:
    assert "--install-completion" in apex("--help").out
